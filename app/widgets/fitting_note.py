"""A sentence beside buttons that is never cut: in a narrow place it has fewer words, and always the height it takes."""

from __future__ import annotations

from PySide6.QtCore import QEvent
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel

from app.theme import scaled

MOST_LINES = 3
LEAST_HEIGHT = 32


class FittingNote(QLabel):
    """Wraps its sentence. One that would take more than three lines gives way to its short form, if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.setWordWrap(True)
        self._whole, self._short = "", ""

    def show_note(self, whole: str, short: str = "") -> None:
        """Say this, or the short form where the whole one would tower above its neighbours."""
        self._whole, self._short = whole, short or whole
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the words, and ask for their height."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """The text has another size."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def _fit(self) -> None:
        self.setMinimumHeight(0)  # or no text would take less than the one before it
        self.setText(self._whole)
        if self.heightForWidth(self.width()) > MOST_LINES * self.fontMetrics().lineSpacing() + 2:
            self.setText(self._short)
        # A layout gives a wrapped text its height only where it has some to spare.
        self.setMinimumHeight(max(scaled(LEAST_HEIGHT), self.heightForWidth(self.width())))
