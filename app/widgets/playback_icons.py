"""The signs on the playback bar's buttons, drawn in a theme's colours."""

from __future__ import annotations

from enum import Enum, auto

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPen, QPixmap, QPolygonF

from app.theme import Theme

SIDE = 16
_DENSITY = 3.0


class Sign(Enum):
    """What a button does."""

    PAUSE = auto()
    RESUME = auto()
    NEXT = auto()
    BRANCH = auto()


def playback_icon(sign: Sign, theme: Theme) -> QIcon:
    """A sign as it looks when it can be pressed, and when it can't."""
    icon = QIcon()
    icon.addPixmap(_drawn(sign, theme.text), QIcon.Mode.Normal)
    icon.addPixmap(_drawn(sign, theme.field_border), QIcon.Mode.Disabled)
    return icon


def _drawn(sign: Sign, color: str) -> QPixmap:
    pixmap = QPixmap(round(SIDE * _DENSITY), round(SIDE * _DENSITY))
    pixmap.setDevicePixelRatio(_DENSITY)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(color))
    if sign is Sign.PAUSE:
        painter.drawRoundedRect(QRectF(4, 3, 3, 10), 1, 1)
        painter.drawRoundedRect(QRectF(9, 3, 3, 10), 1, 1)
    elif sign is Sign.BRANCH:
        _draw_branch(painter, color)
    else:
        left = 4.5 if sign is Sign.RESUME else 3.0
        painter.drawPolygon(QPolygonF([QPointF(left, 3), QPointF(left + 8, 8), QPointF(left, 13)]))
        if sign is Sign.NEXT:
            painter.drawRoundedRect(QRectF(11.5, 3, 2, 10), 1, 1)
    painter.end()
    return pixmap


def _draw_branch(painter: QPainter, color: str) -> None:
    for centre in (QPointF(4.5, 3.5), QPointF(4.5, 12.5), QPointF(11.5, 5.0)):
        painter.drawEllipse(centre, 1.9, 1.9)
    path = QPainterPath(QPointF(4.5, 3.5))
    path.lineTo(4.5, 12.5)
    path.cubicTo(4.5, 8.5, 11.5, 10.5, 11.5, 5.0)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(QColor(color), 1.4))
    painter.drawPath(path)
