"""How a heatmap's cells and its scale are drawn: on screen by a delegate, and in a file by `sweep_picture`.

Blue is faster than plain decoding and orange slower, the further the stronger; the figure stands in every cell, so
that colour is never the only sign.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QLinearGradient, QPainter, QPen

from app.theme import DARK, LIGHT, Theme, scaled, ui_font
from app.view_models.sweep import FAILED, ShownCell
from app.view_models.sweep_scale import Scale

GAP = 3.0
RADIUS = 5.0
STRENGTH = {LIGHT.name: 0.7, DARK.name: 0.5}
"""Most of a hue in a cell's ground, so that its text stays readable."""
BAR_WIDTH, BAR_HEIGHT = 220, 10
BAR_MARGIN = 52
"""Room for the halves of the texts at the scale's ends."""
LEGEND_HEIGHT = 34


def shade(theme: Theme, level: float) -> QColor:
    """The ground of a level from -1 to 1."""
    return mix(theme.hover, theme.draft_bar if level >= 0 else theme.sample_bar, STRENGTH[theme.name] * abs(level))


def mix(first: str, second: str, share: float) -> QColor:
    """A colour between two."""
    one, other = QColor(first), QColor(second)
    parts = zip((one.red(), one.green(), one.blue()), (other.red(), other.green(), other.blue()), strict=True)
    return QColor(*(round(a + (b - a) * share) for a, b in parts))


def ground(theme: Theme, shown: ShownCell) -> QColor:
    """What a cell's text stands on."""
    if shown.text == FAILED:
        return QColor(theme.danger_surface)
    if not shown.text:
        return QColor(theme.surface)
    return shade(theme, shown.level or 0.0)


def ink(theme: Theme, shown: ShownCell) -> QColor:
    """The colour of a cell's text."""
    return QColor(theme.danger if shown.text == FAILED else theme.text)


def paint_cell(painter: QPainter, rect: QRectF, shown: ShownCell, theme: Theme) -> None:
    """Draw a cell into its place."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    tile = rect.adjusted(GAP, GAP, -GAP, -GAP)
    painter.setBrush(QBrush(ground(theme, shown)))
    painter.setPen(_edge(shown, theme))
    painter.drawRoundedRect(tile, RADIUS, RADIUS)
    figure = tile.adjusted(0, 0, 0, -scaled(12)) if shown.note else tile
    painter.setPen(ink(theme, shown))
    painter.setFont(ui_font(13, weight=QFont.Weight.DemiBold if shown.is_best else QFont.Weight.Normal))
    painter.drawText(figure, Qt.AlignmentFlag.AlignCenter, shown.text)
    if shown.note:
        painter.setFont(ui_font(10))
        painter.drawText(tile.adjusted(0, scaled(18), 0, -2), Qt.AlignmentFlag.AlignCenter, shown.note)
    if shown.has_failed and shown.text != FAILED:
        painter.setPen(QColor(theme.danger))
        painter.setFont(ui_font(12, weight=QFont.Weight.Bold))
        painter.drawText(tile.adjusted(0, 1, -6, 0), Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop, "!")
    painter.restore()


def _edge(shown: ShownCell, theme: Theme) -> QPen:
    if shown.is_best:
        return QPen(QColor(theme.text), 2)
    if shown.text == FAILED:
        return QPen(QColor(theme.danger), 1, Qt.PenStyle.DashLine)
    if not shown.text:
        return QPen(QColor(theme.border), 1, Qt.PenStyle.DotLine)
    return QPen(Qt.PenStyle.NoPen)


def legend_width() -> int:
    """Room that the legend takes."""
    return scaled(BAR_WIDTH + 2 * BAR_MARGIN)


def paint_legend(painter: QPainter, place: QPointF, scale: Scale, theme: Theme) -> None:
    """Draw the scale with its ends, and what it is of."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    width = scaled(BAR_WIDTH)
    bar = QRectF(place.x() + scaled(BAR_MARGIN), place.y(), width, BAR_HEIGHT)
    first = -1.0 if scale.is_diverging else 0.0
    gradient = QLinearGradient(bar.topLeft(), bar.topRight())
    for step in range(9):
        share = step / 8
        gradient.setColorAt(share, shade(theme, first + share * (1 - first)))
    painter.setBrush(QBrush(gradient))
    painter.setPen(QPen(QColor(theme.border), 1))
    painter.drawRoundedRect(bar, 3, 3)
    painter.setFont(ui_font(11))
    painter.setPen(QColor(theme.muted))
    height = QFontMetricsF(ui_font(11)).height()
    for level, text in scale.ticks():
        x = bar.left() + width * (level - first) / (1 - first)
        where = QRectF(x - 60, bar.bottom() + 3, 120, height)
        painter.drawText(where, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, text)
    painter.restore()
