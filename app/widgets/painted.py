"""Base of widgets that paint themselves in a theme's colours."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QHelpEvent, QMouseEvent, QPainter, QPaintEvent
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


class PaintedBoxes(PaintedWidget):
    """Paints boxes that can be clicked. A subclass says where they are (`boxes`), and what each stands for (`slot_of`).

    Signals:
        chosen: the slot of the box that was clicked.
    """

    chosen = Signal(int)

    def __init__(self, object_name: str, title: str = "") -> None:
        super().__init__(object_name, title)
        self.setMouseTracking(True)
        self._hovered: int | None = None
        self._has_focus = False

    def boxes(self) -> list[QRectF]:
        """The places of the boxes."""
        raise NotImplementedError

    def slot_of(self, index: int) -> int:
        """The slot of a box."""
        raise NotImplementedError

    def box_at(self, point: QPointF) -> int | None:
        """The index of the box at a point."""
        return next((index for index, box in enumerate(self.boxes()) if box.contains(point)), None)

    def set_focus_shown(self, shown: bool) -> None:
        """Fill the current box while the arrow keys move from it."""
        self._has_focus = shown
        self.update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Show that a box can be clicked."""
        self._hover(self.box_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        """Nothing is under the pointer any more."""
        super().leaveEvent(event)
        self._hover(None)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose a box."""
        index = self.box_at(event.position())
        if event.button() is Qt.MouseButton.LeftButton and index is not None:
            self.chosen.emit(self.slot_of(index))
        event.ignore()  # The panel takes the focus.

    def _hover(self, index: int | None) -> None:
        if index != self._hovered:
            self._hovered = index
            self.setCursor(Qt.CursorShape.ArrowCursor if index is None else Qt.CursorShape.PointingHandCursor)
            self.update()
