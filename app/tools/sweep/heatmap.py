"""The heatmap of a sweep: cells, scale, and export as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QKeyEvent, QLinearGradient, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.theme import DARK, LIGHT, current_theme, hold, scaled, ui_font
from app.tools.sweep.sweep_view import FAILED, FIGURES, Scale, ShownCell, SweepFigure, SweepRow, SweepView
from app.widgets.plots import image_of, png_bytes, svg_of
from app.widgets.rows import Index, Role
from core.experiments.sweep_plan import Cell

GAP, RADIUS = 3.0, 5.0
STRENGTH = {LIGHT.name: 0.7, DARK.name: 0.5}
"""Maximum share of the hue in a cell's background, so that its text stays readable."""
CENTRE, MIDDLE = Qt.AlignmentFlag.AlignCenter, Qt.AlignmentFlag.AlignVCenter


def shade(level: float) -> QColor:
    """The background for a level from -1 to 1."""
    theme = current_theme()
    base, hue = QColor(theme.hover), QColor(theme.draft_bar if level >= 0 else theme.sample_bar)
    share = STRENGTH[theme.name] * abs(level)
    parts = zip(base.getRgb()[:3], hue.getRgb()[:3], strict=True)  # type: ignore[index]
    return QColor(*(round(a + (b - a) * share) for a, b in parts))


def paint_cell(painter: QPainter, rect: QRectF, shown: ShownCell) -> None:
    """Draw a cell at its place."""
    theme = current_theme()
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    tile, is_failed = rect.adjusted(GAP, GAP, -GAP, -GAP), shown.text == FAILED
    ground, edge = shade(shown.level or 0.0), QPen(Qt.PenStyle.NoPen)
    if is_failed:
        ground, edge = QColor(theme.danger_surface), QPen(QColor(theme.danger), 1, Qt.PenStyle.DashLine)
    elif not shown.text:
        ground, edge = QColor(theme.surface), QPen(QColor(theme.border), 1, Qt.PenStyle.DotLine)
    painter.setBrush(ground)
    painter.setPen(QPen(QColor(theme.text), 2) if shown.is_best else edge)
    painter.drawRoundedRect(tile, RADIUS, RADIUS)
    painter.setPen(QColor(theme.danger if is_failed else theme.text))
    painter.setFont(ui_font(13, weight=QFont.Weight.DemiBold if shown.is_best else QFont.Weight.Normal))
    painter.drawText(tile.adjusted(0, 0, 0, -scaled(12)) if shown.note else tile, CENTRE, shown.text)
    if shown.note:
        painter.setFont(ui_font(10))
        painter.drawText(tile.adjusted(0, scaled(18), 0, -2), CENTRE, shown.note)
    if shown.has_failed and not is_failed:
        painter.setPen(QColor(theme.danger))
        painter.setFont(ui_font(12, weight=QFont.Weight.Bold))
        painter.drawText(tile.adjusted(0, 1, -6, 0), Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignTop, "!")
    painter.restore()


# --- The legend ---

BAR_WIDTH, BAR_HEIGHT = 220, 10
BAR_MARGIN = 52
"""Room for half of each text at the scale's ends."""
LEGEND_HEIGHT = 34


def legend_size() -> QSize:
    """Room for the legend."""
    return QSize(scaled(BAR_WIDTH + 2 * BAR_MARGIN), scaled(LEGEND_HEIGHT))


def paint_legend(painter: QPainter, place: QPointF, scale: Scale) -> None:
    """Draw the scale with its values."""
    theme = current_theme()
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    bar = QRectF(place.x() + scaled(BAR_MARGIN), place.y(), scaled(BAR_WIDTH), BAR_HEIGHT)
    first = -1.0 if scale.is_diverging else 0.0
    gradient = QLinearGradient(bar.topLeft(), bar.topRight())
    for step in range(9):
        gradient.setColorAt(step / 8, shade(first + step / 8 * (1 - first)))
    painter.setBrush(gradient)
    painter.setPen(QPen(QColor(theme.border), 1))
    painter.drawRoundedRect(bar, 3, 3)
    painter.setFont(ui_font(11))
    painter.setPen(QColor(theme.muted))
    for level, text in scale.ticks():
        x = bar.left() + bar.width() * (level - first) / (1 - first)
        where = QRectF(x - 60, bar.bottom() + 3, 120, QFontMetricsF(ui_font(11)).height())
        painter.drawText(where, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, text)
    painter.restore()


class HeatmapLegend(QWidget):
    """The scale, with its ends and its unit."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepLegend")
        self._scale: Scale | None = None
        hold(self, width=BAR_WIDTH + 2 * BAR_MARGIN, height=LEGEND_HEIGHT)

    def show_scale(self, scale: Scale) -> None:
        """Show a scale."""
        if scale != self._scale:
            self._scale = scale
            legend = FIGURES[scale.figure].legend
            self.setAccessibleName(f"{legend}: {' to '.join(text for _, text in scale.ticks())}")
            self.setToolTip(legend)
            self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw it."""
        if self._scale is not None:
            painter = QPainter(self)
            paint_legend(painter, QPointF(0, 3), self._scale)
            painter.end()


# --- The grid ---

ROW_HEIGHT, MIN_WIDTH, HEAD_WIDTH = 46, 52, 168
LONGEST_NAME = 24
SHOWN_ROLE = Role.UserRole
COLUMN_HELP = {
    "plain": "Plain decoding, without drafts, which the speedups are relative to.",
    "auto": "K chosen before each step from the steps' cost and the acceptance so far",
    "adaptive": "As auto, and within a step: drafting continues as long as the draft is sure of its tokens",
}


def column_title(title: str) -> str:
    """The heading of a column."""
    return f"K = {title}" if title.isdecimal() else title


def _column_help(title: str) -> str:
    plural = "" if title == "1" else "s"
    return COLUMN_HELP.get(title, f"{title} token{plural} drafted before each forward of the target")


class HeatmapDelegate(QStyledItemDelegate):
    """Draws a cell, with a ring if it is the current one."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw it."""
        rect = QRectF(option.rect)
        paint_cell(painter, rect, index.data(SHOWN_ROLE))
        if option.state & QStyle.StateFlag.State_Selected:
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(current_theme().accent), 2))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), 7, 7)
            painter.restore()


class Heatmap(QTableWidget):
    """A row for each temperature and drafter, with columns for plain decoding and each K.

    Signals:
        cell_chosen: the new current `Cell`.
        cell_opened: a `Cell` whose runs the user wants to see.
    """

    cell_chosen = Signal(object)
    cell_opened = Signal(object)

    def __init__(self, view: SweepView) -> None:
        super().__init__()
        self.setObjectName("sweepHeatmap")
        self._view = view
        self._grid: tuple[tuple[SweepRow, ...], tuple[str, ...]] = ((), ())
        self.setItemDelegate(HeatmapDelegate(self))
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.setCornerButtonEnabled(False)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        for header in (self.horizontalHeader(), self.verticalHeader()):
            header.setHighlightSections(False)
            header.setSectionsClickable(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setTextElideMode(Qt.TextElideMode.ElideNone)
        self.restyle()
        self.show_figure(SweepFigure.SPEEDUP)
        self.selectionModel().currentChanged.connect(self._on_chosen)
        self.clicked.connect(self._on_chosen)

    def restyle(self) -> None:
        """Fit the rows and columns to the size of the text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.verticalHeader().setFixedWidth(scaled(HEAD_WIDTH))
        self.horizontalHeader().setMinimumSectionSize(scaled(MIN_WIDTH))

    def show_figure(self, figure: SweepFigure) -> None:
        """Show another figure for the same cells."""
        self._figure = figure
        self.setAccessibleName(f"{FIGURES[figure].title} by K, temperature and draft")
        self.setAccessibleDescription(f"{FIGURES[figure].help} Arrow keys move, Enter opens a cell's runs.")
        self.refresh()

    def refresh(self) -> None:
        """Show what has changed."""
        self.scale = self._view.scale(self._figure)
        if (self._view.rows, self._view.columns) != self._grid:
            self._grid = (self._view.rows, self._view.columns)
            self._make_grid(*self._grid)
        for index in range(self.rowCount()):
            for place in range(self.columnCount()):
                shown = self._view.shown(self._view.cell(index, place), self.scale)
                item = self.item(index, place)
                if item is not None and item.data(SHOWN_ROLE) != shown:
                    item.setText(shown.text)
                    item.setToolTip(shown.tip)
                    item.setData(Role.AccessibleTextRole, shown.spoken)
                    item.setData(SHOWN_ROLE, shown)

    def _make_grid(self, rows: Sequence[SweepRow], columns: Sequence[str]) -> None:
        self.setCurrentCell(-1, -1)
        self.clearSpans()
        self.clear()
        self.setRowCount(len(rows))
        self.setColumnCount(len(columns) if rows else 0)
        for place in range(self.columnCount()):
            head = QTableWidgetItem(column_title(columns[place]))
            head.setToolTip(_column_help(columns[place]))
            self.setHorizontalHeaderItem(place, head)
        for index, row in enumerate(rows):
            self.setVerticalHeaderItem(index, self._row_head(row))
            for place in range(self.columnCount()):
                self.setItem(index, place, QTableWidgetItem())
        # All drafters at a temperature share one cell for plain decoding.
        temperatures, first = [row.temperature for row in rows], 0
        for count in map(temperatures.count, dict.fromkeys(temperatures)):
            if count > 1:
                self.setSpan(first, 0, count, 1)
            first += count

    def _row_head(self, row: SweepRow) -> QTableWidgetItem:
        # Elided here, since Qt would measure both lines as one; model names may differ at either end.
        last, half = _last_part(self._view, row), (LONGEST_NAME - 1) // 2
        shown = last if len(last) <= LONGEST_NAME else f"{last[:half]}…{last[-half:]}"
        head = QTableWidgetItem(f"T = {row.temperature:g}\n{shown}")
        about = f"Temperature {row.temperature:g}, {self._view.row_title(row)} ({row.drafter.method})"
        head.setToolTip(about)
        head.setData(Role.AccessibleTextRole, about)
        head.setTextAlignment(Qt.AlignmentFlag.AlignLeft | MIDDLE)
        return head

    def current_cell(self) -> Cell | None:
        """The current cell; None before there is one."""
        index = self.currentIndex()
        return self._view.cell(index.row(), index.column()) if index.isValid() else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter and Space open the current cell."""
        cell = self.current_cell()
        if cell is not None and event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space}:
            self.cell_opened.emit(cell)
            return
        super().keyPressEvent(event)

    @Slot(QModelIndex)
    def _on_chosen(self, _index: QModelIndex) -> None:
        if (cell := self.current_cell()) is not None:
            self.cell_chosen.emit(cell)


# --- The picture ---

MARGIN, HEADER, COLUMN_HEAD = 16, 96, 26
CELL_WIDTH, CELL_HEIGHT = 76, 46


def picture_of(view: SweepView, scale: Scale, *, is_svg: bool) -> bytes:
    """A sweep's figure as an SVG or PNG file: title, scale, rows and columns."""
    metrics = QFontMetricsF(ui_font(12))
    head = 16 + max([80.0, *(metrics.horizontalAdvance(_last_part(view, row)) for row in view.rows)])
    width = max(head + len(view.columns) * scaled(CELL_WIDTH), legend_size().width() + 60)
    height = scaled(HEADER + COLUMN_HEAD) + len(view.rows) * scaled(CELL_HEIGHT)
    size = QSize(round(2 * MARGIN + width), round(2 * MARGIN + height))
    title = f"{FIGURES[scale.figure].title} of {view.target_title()}"

    def paint(painter: QPainter) -> None:
        painter.fillRect(QRectF(QPointF(0, 0), size.toSizeF()), QColor(current_theme().surface))
        _paint_head(painter, title, view, scale)
        _paint_grid(painter, view, scale, head)

    return svg_of(size, paint, title) if is_svg else png_bytes(image_of(size, paint))


def _last_part(view: SweepView, row: SweepRow) -> str:
    return view.row_title(row).rpartition("/")[2]


def _paint_head(painter: QPainter, title: str, view: SweepView, scale: Scale) -> None:
    theme = current_theme()
    painter.setFont(ui_font(13, weight=QFont.Weight.DemiBold))
    painter.setPen(QColor(theme.text))
    painter.drawText(QPointF(MARGIN, MARGIN + scaled(15)), title)
    painter.setFont(ui_font(11))
    painter.setPen(QColor(theme.muted))
    if view.plan is not None:
        medians = f"medians over {len(view.plan.prompts)} prompts, {view.plan.repeats} repeats"
        painter.drawText(QPointF(MARGIN, MARGIN + scaled(34)), f"{FIGURES[scale.figure].legend}; {medians}")
    paint_legend(painter, QPointF(MARGIN, MARGIN + scaled(48)), scale)


def _paint_grid(painter: QPainter, view: SweepView, scale: Scale, head: float) -> None:
    left, top = MARGIN + head, MARGIN + scaled(HEADER)
    width, height = scaled(CELL_WIDTH), scaled(CELL_HEIGHT)
    painter.setFont(ui_font(12))
    painter.setPen(QColor(current_theme().muted))
    for place, title in enumerate(view.columns):
        painter.drawText(QRectF(left + place * width, top, width, scaled(COLUMN_HEAD)), CENTRE, column_title(title))
    for index, row in enumerate(view.rows):
        y = top + scaled(COLUMN_HEAD) + index * height
        painter.drawText(
            QRectF(MARGIN, y, head - 8, height), MIDDLE, f"T = {row.temperature:g}\n{_last_part(view, row)}"
        )
        for place in range(len(view.columns)):
            shown = view.shown(view.cell(index, place), scale)
            paint_cell(painter, QRectF(left + place * width, y, width, height), shown)
