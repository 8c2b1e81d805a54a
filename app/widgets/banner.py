"""One sentence about what went wrong, where it is seen but stops nobody."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QToolButton


class Banner(QFrame):
    """Shows the latest sentence until it is dismissed or a run starts."""

    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.label = QLabel()
        self.label.setObjectName("bannerText")
        self.label.setWordWrap(True)
        self.label.setTextFormat(Qt.TextFormat.PlainText)
        self.label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.close_button = QToolButton()
        self.close_button.setObjectName("dismissButton")
        self.close_button.setText("Dismiss")
        self.close_button.setAccessibleName("Dismiss the message")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 6, 6, 6)
        layout.setSpacing(12)
        layout.addWidget(self.label, 1)
        layout.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        self.close_button.clicked.connect(self.dismiss)
        self.hide()

    def sentence(self) -> str:
        """What is shown; empty if nothing is."""
        return self.label.text() if not self.isHidden() else ""

    @Slot(str)
    def show_sentence(self, sentence: str) -> None:
        """Show a sentence in place of the one before."""
        self.label.setText(sentence)
        self.setAccessibleName(sentence)
        self.show()

    @Slot()
    def dismiss(self) -> None:
        """Take the sentence away."""
        self.hide()
        self.label.clear()
        self.dismissed.emit()
