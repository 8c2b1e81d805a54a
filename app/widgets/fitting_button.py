"""A button that says the same in fewer words where it has little room."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QToolButton


class FittingButton(QToolButton):
    """Shows its whole text, or the short one, but never a part of either as long as the short one has room."""

    def __init__(self, text: str, short: str) -> None:
        super().__init__()
        self._whole, self._short = text, short
        self.setText(text)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """Room for the whole text, whichever is shown."""
        return self._room_for(self._whole)

    def minimumSizeHint(self) -> QSize:
        """Room for the short one."""
        return self._room_for(self._short)

    def _room_for(self, text: str) -> QSize:
        hint, metrics = super().sizeHint(), self.fontMetrics()
        more = metrics.horizontalAdvance(text) - metrics.horizontalAdvance(self.text())
        return QSize(hint.width() + more, hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the text that fits."""
        super().resizeEvent(event)
        self.setText(self._whole if self.width() >= self.sizeHint().width() else self._short)
