"""The question that a long sweep asks after its first run, in the window and not over it."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton

from app.sentences import in_words
from app.widgets.fields import describe, text_label


class SweepQuestion(QFrame):
    """Signals:
    answered: whether the sweep is to go on.
    """

    answered = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("firstHint")
        self.text = text_label("", "plain")
        self.text.setObjectName("sweepQuestion")
        self.text.setWordWrap(True)
        self.yes_button = QPushButton("Measure all")
        self.yes_button.setObjectName("sweepYesButton")
        describe(self.yes_button, "Measure all of it")
        self.no_button = QPushButton("Stop here")
        self.no_button.setObjectName("sweepNoButton")
        describe(self.no_button, "Stop after the first run", "It is kept; Go on measures the rest at any time.")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 8, 8, 8)
        layout.setSpacing(8)
        layout.addWidget(self.text, 1)
        for button in (self.yes_button, self.no_button):
            button.setAutoDefault(False)
            layout.addWidget(button)
        self.yes_button.clicked.connect(self._on_yes)
        self.no_button.clicked.connect(self._on_no)
        self.hide()

    def ask(self, num_left: int, seconds_left: float) -> None:
        """Ask whether so many runs, which take so long, are to be done."""
        self.text.setText(f"{num_left:,} runs are left, which will take about {in_words(seconds_left)}.")
        self.setAccessibleName(self.text.text())
        self.show()
        self.no_button.setFocus()

    @Slot()
    def _on_yes(self) -> None:
        self.hide()
        self.answered.emit(True)

    @Slot()
    def _on_no(self) -> None:
        self.hide()
        self.answered.emit(False)
