"""One quiet line for who has never been here: what to press first."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QToolButton, QVBoxLayout

from app.widgets.fields import describe, text_label

TEXT = (
    "New here? Press Run: this small pair of models comes with Outrider. "
    "Blue is what the draft got right, orange where the target drew again."
)


class FirstHint(QFrame):
    """Signals:
    help_clicked: the person wants to know more.
    dismissed: the line has done its work.
    """

    help_clicked = Signal()
    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("firstHint")
        self.setAccessibleName(TEXT)
        label = text_label(TEXT, "hint")
        label.setObjectName("firstHintText")
        label.setWordWrap(True)
        label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.help_button = _button("How it works", "firstHintHelp", "How it works", "Explained with one real step (F1)")
        self.close_button = _button("Dismiss", "firstHintDismiss", "Dismiss the hint", "It does not come again")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 4, 6, 4)
        layout.setSpacing(8)
        layout.addWidget(label, 1)
        # One over the other: beside each other they would leave the text no room in a narrow column.
        buttons = QVBoxLayout()
        buttons.setSpacing(0)
        buttons.addWidget(self.help_button, 0, Qt.AlignmentFlag.AlignRight)
        buttons.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignRight)
        layout.addLayout(buttons)
        self.help_button.clicked.connect(self.help_clicked)
        self.close_button.clicked.connect(self.dismissed)
        self.hide()


def _button(text: str, name: str, title: str, help_text: str) -> QToolButton:
    button = QToolButton()
    button.setText(text)
    button.setObjectName(name)
    button.setProperty("role", "quiet")
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    describe(button, title, help_text)
    return button
