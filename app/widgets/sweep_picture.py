"""A heatmap as a file: title, scale, rows and columns in one picture."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter

from app.theme import Theme, scaled, ui_font
from app.view_models.sweep import SweepView
from app.view_models.sweep_scale import FIGURE_TITLES, LEGENDS, Scale
from app.widgets.pictures import png_of, svg_of
from app.widgets.sweep_heatmap import column_title
from app.widgets.sweep_paint import LEGEND_HEIGHT, legend_width, paint_cell, paint_legend

MARGIN, HEADER, COLUMN_HEAD = 16, 96, 26
CELL_WIDTH, CELL_HEIGHT = 76, 46


class SweepPicture:
    """Draws a sweep's figure on whatever can be drawn on."""

    def __init__(self, view: SweepView, scale: Scale, theme: Theme) -> None:
        self._view, self._scale, self._theme = view, scale, theme
        metrics = QFontMetricsF(ui_font(12))
        names = [metrics.horizontalAdvance(view.row_title(row)) for row in view.rows]
        self._head = max([80.0, *names]) + 16

    @property
    def size(self) -> QSize:
        """How large it is, in pixels on screen."""
        width = 2 * MARGIN + self._head + len(self._view.columns) * scaled(CELL_WIDTH)
        least = 2 * MARGIN + legend_width() + 60
        height = 2 * MARGIN + scaled(HEADER + COLUMN_HEAD) + len(self._view.rows) * scaled(CELL_HEIGHT)
        return QSize(round(max(width, least)), round(height))

    def png(self) -> bytes:
        """The picture at twice its size on screen."""
        return png_of(self.size, self.paint)

    def svg(self) -> bytes:
        """The picture as lines and text."""
        return svg_of(self.size, self.paint, self._title())

    def paint(self, painter: QPainter) -> None:
        """Draw it."""
        theme = self._theme
        painter.fillRect(QRectF(QPointF(0, 0), self.size.toSizeF()), QColor(theme.surface))
        self._paint_head(painter)
        top, left = MARGIN + scaled(HEADER), MARGIN + self._head
        width, height = scaled(CELL_WIDTH), scaled(CELL_HEIGHT)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(theme.muted))
        for column, title in enumerate(self._view.columns):
            place = QRectF(left + column * width, top, width, scaled(COLUMN_HEAD))
            painter.drawText(place, Qt.AlignmentFlag.AlignCenter, column_title(title))
        top += scaled(COLUMN_HEAD)
        for index, row in enumerate(self._view.rows):
            y = top + index * height
            painter.setFont(ui_font(12))
            painter.setPen(QColor(theme.muted))
            name = f"T = {row.temperature:g}\n{self._view.row_title(row)}"
            painter.drawText(QRectF(MARGIN, y, self._head - 8, height), Qt.AlignmentFlag.AlignVCenter, name)
            for column in range(len(self._view.columns)):
                shown = self._view.shown(self._view.cell(index, column), self._scale)
                paint_cell(painter, QRectF(left + column * width, y, width, height), shown, theme)

    def _title(self) -> str:
        return f"{FIGURE_TITLES[self._scale.figure]} of {self._view.target_title()}"

    def _paint_head(self, painter: QPainter) -> None:
        plan, theme = self._view.plan, self._theme
        painter.setFont(ui_font(13, weight=QFont.Weight.DemiBold))
        painter.setPen(QColor(theme.text))
        wide = self.size.width() - 2 * MARGIN
        painter.drawText(QRectF(MARGIN, MARGIN, wide, scaled(20)), Qt.AlignmentFlag.AlignVCenter, self._title())
        painter.setFont(ui_font(11))
        painter.setPen(QColor(theme.muted))
        if plan is not None:
            told = f"{LEGENDS[self._scale.figure]}; medians over {len(plan.prompts)} prompts, {plan.repeats} repeats"
            place = QRectF(MARGIN, MARGIN + scaled(22), wide, scaled(16))
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, told)
        paint_legend(painter, QPointF(MARGIN, MARGIN + scaled(48)), self._scale, theme)
        assert LEGEND_HEIGHT + 48 <= HEADER, "the scale has room above the columns"
