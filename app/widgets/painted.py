"""Base of widgets that paint themselves in a theme's colours."""

from __future__ import annotations

from html import escape
from typing import Any

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.theme import mono_font, ui_font

CENTRE = Qt.AlignmentFlag.AlignCenter
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def draw_text(
    painter: QPainter,
    place: QRectF,
    text: str,
    color: str,
    flags: int = CENTRE,
    *,
    pixels: int = 12,
    is_strong: bool = False,
    is_mono: bool = False,
    elided: Qt.TextElideMode | None = None,
) -> None:
    """Draw text in the interface's font or the transcript's, shortened to the place's width if `elided` says where."""
    weight = QFont.Weight.DemiBold if is_strong else QFont.Weight.Normal
    painter.setFont(mono_font(pixels) if is_mono else ui_font(pixels, weight=weight))
    painter.setPen(QColor(color))
    shown = text if elided is None else painter.fontMetrics().elidedText(text, elided, int(place.width()))
    painter.drawText(place, flags, shown)


def draw_box(painter: QPainter, place: QRectF, radius: float = 0.0, *, fill: Any = None, line: Any = None) -> None:
    """Draw a rectangle with rounded corners, filled with a colour or brush, and outlined with a colour or pen."""
    painter.setPen(Qt.PenStyle.NoPen if line is None else line)
    painter.setBrush(Qt.BrushStyle.NoBrush if fill is None else fill)
    painter.drawRoundedRect(place, radius, radius)


class PaintedWidget(QWidget):
    """A subclass paints in `_paint`, and may return a tooltip for a point from `tip_at`."""

    def __init__(self, object_name: str, title: str = "") -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def tip_at(self, point: QPointF) -> str:
        """The tooltip for a point, as plain text; empty for the widget's own tooltip."""
        return ""

    def _paint(self, painter: QPainter) -> None:
        raise NotImplementedError

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Paint the whole widget."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._paint(painter)

    def event(self, event: QEvent) -> bool:
        """Show the tooltip for the point under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            text = self.tip_at(QPointF(event.pos()))
            QToolTip.showText(event.globalPos(), f"<span>{escape(text)}</span>" if text else self.toolTip(), self)
            return True
        return super().event(event)
