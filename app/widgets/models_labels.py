"""A line of text that says with an ellipsis that there is more of it."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QStyle, QStyleOption

MIN_WIDTH = 24


class ElidedLabel(QLabel):
    """A label in one line, cut short where there is no room; the tooltip has all of it."""

    def __init__(self, text: str, role: str, *, takes_all: bool = False) -> None:
        super().__init__(text)
        self._short = ""
        self.setProperty("role", role)
        self.setTextFormat(Qt.TextFormat.PlainText)
        wide = QSizePolicy.Policy.Ignored if takes_all else QSizePolicy.Policy.Preferred
        self.setSizePolicy(wide, QSizePolicy.Policy.Fixed)
        self.setToolTip(text)

    def setText(self, text: str) -> None:
        """Show another text."""
        super().setText(text)
        self.setToolTip(text)

    def set_short(self, text: str) -> None:
        """What to show where the whole text has no room; empty: the beginning of it."""
        self._short = text
        self.update()

    def minimumSizeHint(self) -> QSize:
        """Next to nothing is enough."""
        return QSize(MIN_WIDTH, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw as much of the text as there is room for."""
        option = QStyleOption()
        option.initFrom(self)
        with QPainter(self) as painter:
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_Widget, option, painter, self)
            shown = self.fontMetrics().elidedText(self.shown_text(), Qt.TextElideMode.ElideRight, self.width())
            painter.setPen(self.palette().color(self.foregroundRole()))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)

    def shown_text(self) -> str:
        """The whole text, or the short one where that alone has room."""
        fits = self.fontMetrics().horizontalAdvance(self.text()) <= self.width()
        return self.text() if fits or not self._short else self._short
