"""Base of widgets that paint themselves in a theme's colours."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QEvent, QPointF
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget


class PaintedWidget(QWidget):
    """A subclass paints in `_paint`, and returns the tooltip for a point from `tip_at`."""

    def __init__(self, object_name: str, title: str = "") -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def tip_at(self, point: QPointF) -> str:
        """The tooltip for a point, as plain text; empty for the widget's own tooltip."""
        raise NotImplementedError

    def _paint(self, painter: QPainter) -> None:
        raise NotImplementedError

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Paint the whole widget."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint(painter)
        painter.end()

    def event(self, event: QEvent) -> bool:
        """Show the tooltip for the point under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            text = self.tip_at(QPointF(event.pos()))
            QToolTip.showText(event.globalPos(), f"<span>{escape(text)}</span>" if text else self.toolTip(), self)
            return True
        return super().event(event)
