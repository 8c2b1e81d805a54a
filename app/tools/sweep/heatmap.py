"""The heatmap of a sweep: cells, scale, and export as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFontMetricsF, QKeyEvent, QLinearGradient, QPainter, QPen
from PySide6.QtWidgets import QHeaderView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QTableWidgetItem

from app.theme import DARK, LIGHT, current_theme, hold, scaled, ui_font
from app.tools.sweep.sweep_view import FAILED, PLAIN, POLICIES, Scale, ShownCell, SweepRow, SweepView
from app.widgets.fields import plain_tip
from app.widgets.painted import LEFT, PaintedWidget, draw_box, draw_text
from app.widgets.pictures import image_of, png_bytes, svg_of
from app.widgets.rows import Index, Role
from app.widgets.tables import GridTable
from core.drafters.registry import DraftTreeOptions
from core.experiments.sweep_plan import Cell
from core.experiments.sweep_results import SPEEDUP, SweepFigure
from core.settings import declared
from core.text import count_text

GAP, RADIUS = 3.0, 5.0
STRENGTH = {LIGHT.name: 0.7, DARK.name: 0.5}
"""Maximum share of the hue in a cell's background, so that its text stays readable."""
TOP = Qt.AlignmentFlag.AlignTop


def shade(level: float) -> QColor:
    """The background for a level from -1 to 1."""
    theme = current_theme()
    base, hue = QColor(theme.hover), QColor(theme.draft_bar if level >= 0 else theme.sample_bar)
    share = STRENGTH[theme.name] * abs(level)
    parts = zip(base.getRgb()[:3], hue.getRgb()[:3], strict=True)  # type: ignore[index]
    return QColor(*(round(a + (b - a) * share) for a, b in parts))


def paint_cell(painter: QPainter, rect: QRectF, shown: ShownCell) -> None:
    """Draw a cell in its rectangle."""
    theme, tile, is_failed = current_theme(), rect.adjusted(GAP, GAP, -GAP, -GAP), shown.text == FAILED
    ground, edge = shade(shown.level or 0.0), QPen(Qt.PenStyle.NoPen)
    if is_failed:
        ground, edge = QColor(theme.danger_surface), QPen(QColor(theme.danger), 1, Qt.PenStyle.DashLine)
    elif not shown.text or shown.is_left_out:
        ground, edge = QColor(theme.surface), QPen(QColor(theme.field_border), 1, Qt.PenStyle.DotLine)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    draw_box(painter, tile, RADIUS, fill=ground, line=QPen(QColor(theme.text), 2) if shown.is_best else edge)
    ink = theme.danger if is_failed else theme.muted if shown.is_left_out else theme.text
    main = tile.adjusted(0, 0, 0, -scaled(12)) if shown.note else tile
    draw_text(painter, main, shown.text, ink, pixels=13, is_strong=shown.is_best)
    draw_text(painter, tile.adjusted(0, scaled(18), 0, -2), shown.note, ink, pixels=10)
    if shown.has_failed and not is_failed:
        corner = Qt.AlignmentFlag.AlignRight | TOP
        draw_text(painter, tile.adjusted(0, 1, -6, 0), "!", theme.danger, corner, is_strong=True)
    painter.restore()


# --- The legend ---

BAR_WIDTH, BAR_HEIGHT = 140, 10
BAR_MARGIN = 44
"""Room for half of each text at the scale's ends."""
LEGEND_WIDTH, LEGEND_HEIGHT = BAR_WIDTH + 2 * BAR_MARGIN, 34


def paint_legend(painter: QPainter, place: QPointF, scale: Scale) -> None:
    """Draw the scale with its values."""
    theme = current_theme()
    bar = QRectF(place.x() + scaled(BAR_MARGIN), place.y(), scaled(BAR_WIDTH), BAR_HEIGHT)
    first = -1.0 if scale.is_diverging else 0.0
    gradient = QLinearGradient(bar.topLeft(), bar.topRight())
    for step in range(9):
        gradient.setColorAt(step / 8, shade(first + step / 8 * (1 - first)))
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    draw_box(painter, bar, 3, fill=gradient, line=QColor(theme.border))
    for level, text in scale.ticks():
        x = bar.left() + bar.width() * (level - first) / (1 - first)
        where = QRectF(x - scaled(60), bar.bottom() + 3, scaled(120), QFontMetricsF(ui_font(11)).height())
        draw_text(painter, where, text, theme.muted, Qt.AlignmentFlag.AlignHCenter | TOP, pixels=11)
    painter.restore()


class HeatmapLegend(PaintedWidget):
    """The scale, with its ends and its unit."""

    def __init__(self) -> None:
        super().__init__("sweepLegend")
        self._scale: Scale | None = None
        hold(self, width=LEGEND_WIDTH, height=LEGEND_HEIGHT)

    def show_scale(self, scale: Scale) -> None:
        """Show a scale."""
        if scale != self._scale:
            self._scale = scale
            legend = scale.figure.legend
            self.setAccessibleName(f"{legend}: {' to '.join(text for _, text in scale.ticks())}")
            self.setToolTip(legend)
            self.update()

    def _paint(self, painter: QPainter) -> None:
        if self._scale is not None:
            # The last text ends where the table does.
            half = QFontMetricsF(ui_font(11)).horizontalAdvance(self._scale.ticks()[-1][1]) / 2
            paint_legend(painter, QPointF(scaled(BAR_MARGIN) - half, 3), self._scale)


# --- The grid ---

ROW_HEIGHT, MIN_WIDTH, HEAD_WIDTH = 46, 52, 168
LEAST_ROWS, LONGEST_NAME = 2, 24
RULE_TITLES = declared(DraftTreeOptions)["rule"].metadata["titles"]
SHOWN_ROLE = Role.UserRole
COLUMN_HELP = {
    PLAIN: "Plain decoding, without drafts; the speedups are relative to it.",
    **{policy: help_text for policy, (_, help_text) in POLICIES.items()},
    "1": "1 token drafted before each forward of the target",
}


def column_title(title: str) -> str:
    """The heading of a column."""
    return f"K = {title}" if title.isdecimal() else title


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


class Heatmap(GridTable):
    """A row for each temperature and drafter, with columns for plain decoding and each K.

    Signals:
        cell_chosen: another cell became current, or the current one was clicked.
        cell_opened: the user wants to see its runs.
    """

    cell_chosen = Signal()
    cell_opened = Signal()

    def __init__(self, view: SweepView) -> None:
        super().__init__("sweepHeatmap", "", HeatmapDelegate())
        self._view = view
        self._grid: tuple[tuple[SweepRow, ...], tuple[str, ...]] = ((), ())
        self.setSelectionBehavior(Heatmap.SelectionBehavior.SelectItems)
        self.setCornerButtonEnabled(False)
        self.verticalHeader().show()
        for header in (self.horizontalHeader(), self.verticalHeader()):
            header.setSectionsClickable(False)
            header.setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.verticalHeader().setTextElideMode(Qt.TextElideMode.ElideNone)
        self.restyle()
        self.show_figure(SPEEDUP)
        self.selectionModel().currentChanged.connect(self._on_chosen)
        self.clicked.connect(self._on_chosen)

    def restyle(self) -> None:
        """Fit the rows and columns to the size of the text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.verticalHeader().setFixedWidth(scaled(HEAD_WIDTH))
        self.horizontalHeader().setMinimumSectionSize(scaled(MIN_WIDTH))
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        """Its heads and two rows."""
        rows = min(self.rowCount(), LEAST_ROWS) * self.verticalHeader().defaultSectionSize()
        others = self.horizontalHeader().sizeHint().height() + self.horizontalScrollBar().sizeHint().height()
        return QSize(super().minimumSizeHint().width(), rows + others)

    def show_figure(self, figure: SweepFigure) -> None:
        """Show another figure for the same cells."""
        self._figure = figure
        self.setAccessibleName(f"{figure.short} by K, temperature and draft")
        self.setAccessibleDescription(f"{figure.meaning} Arrow keys move, Enter opens a cell's runs.")
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
                    item.setToolTip(plain_tip(shown.tip))
                    item.setData(Role.AccessibleTextRole, shown.spoken)
                    item.setData(SHOWN_ROLE, shown)

    def _make_grid(self, rows: Sequence[SweepRow], columns: Sequence[str]) -> None:
        self.setCurrentCell(-1, -1)
        self.clearSpans()
        self.clear()
        self.setRowCount(len(rows))
        self.setColumnCount(len(columns) if rows else 0)
        for place in range(self.columnCount()):
            title = columns[place]
            help_text = COLUMN_HELP.get(title, f"{title} tokens drafted before each forward of the target")
            self.set_head(place, column_title(title), help_text)
        for index, row in enumerate(rows):
            self.setVerticalHeaderItem(index, self._row_head(row))
            for place in range(self.columnCount()):
                self.setItem(index, place, QTableWidgetItem())
        # All drafters at a temperature share one cell for plain decoding.
        temperatures, first = [temperature for temperature, _ in rows], 0
        for count in map(temperatures.count, dict.fromkeys(temperatures)):
            if count > 1:
                self.setSpan(first, 0, count, 1)
            first += count
        self.updateGeometry()

    def _row_head(self, row: SweepRow) -> QTableWidgetItem:
        # Elided here, since Qt would measure both lines as one; model names may differ at either end.
        half = (LONGEST_NAME - 1) // 2
        lines = (
            line if len(line) <= LONGEST_NAME else f"{line[:half]}…{line[-half:]}"
            for line in _row_texts(self._view, row)
        )
        head = QTableWidgetItem("\n".join(lines))
        about = f"Temperature {row[0]:g}, {self._view.row_title(row[1])} ({row[1].method})"
        head.setToolTip(plain_tip(about))
        head.setData(Role.AccessibleTextRole, about)
        head.setTextAlignment(LEFT)
        return head

    def current_cell(self) -> Cell | None:
        """The current cell; None before there is one."""
        index = self.currentIndex()
        return self._view.cell(index.row(), index.column()) if index.isValid() else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter and Space open the current cell."""
        opens = event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space}
        if opens and self.currentIndex().isValid():
            self.cell_opened.emit()
        else:
            super().keyPressEvent(event)

    @Slot()
    def _on_chosen(self) -> None:
        if self.currentIndex().isValid():
            self.cell_chosen.emit()


def _row_texts(view: SweepView, row: SweepRow) -> tuple[str, str]:
    """Temperature and draft; for a tree, its shape instead of the draft, since shapes tell the rows apart."""
    at, shape = f"T = {row[0]:g}", row[1].shape
    if shape["depth"] is None:
        return at, view.row_title(row[1]).rpartition("/")[2]
    rules = {drafter.shape["rule"] for _, drafter in view.rows}
    rule = f", {RULE_TITLES[shape['rule']].lower()}" if len(rules - {None}) > 1 else ""
    is_only = len({drafter.draft for _, drafter in view.rows} - {None}) == 1
    draft = "tree" if is_only else view.row_title(row[1]).partition(", draft-tree")[0].rpartition("/")[2]
    return f"{at}, {draft}{rule}", f"{shape['depth']} deep, {shape['branching']} wide"


# --- The picture ---

MARGIN, HEADER, COLUMN_HEAD = 16, 96, 26
CELL_WIDTH, CELL_HEIGHT = 76, 46


def picture_of(view: SweepView, scale: Scale, *, is_svg: bool) -> bytes:
    """A sweep's figure as an SVG or PNG file: title, scale, rows and columns."""
    names = [line for row in view.rows for line in _row_texts(view, row)]
    head = 16 + max([80.0, *map(QFontMetricsF(ui_font(12)).horizontalAdvance, names)])
    width = max(head + len(view.columns) * scaled(CELL_WIDTH), scaled(LEGEND_WIDTH) + 60)
    height = scaled(HEADER + COLUMN_HEAD) + len(view.rows) * scaled(CELL_HEIGHT)
    size = QSize(round(2 * MARGIN + width), round(2 * MARGIN + height))
    lossy = " (lossy)" if view.plan is not None and view.plan.is_lossy else ""
    title = f"{scale.figure.short} of {view.target_title()}{lossy}"

    def paint(painter: QPainter) -> None:
        painter.fillRect(QRectF(QPointF(0, 0), size.toSizeF()), QColor(current_theme().surface))
        _paint_head(painter, title, view, scale, width)
        _paint_grid(painter, view, scale, head)

    return svg_of(size, paint, title) if is_svg else png_bytes(image_of(size, paint))


def _paint_head(painter: QPainter, title: str, view: SweepView, scale: Scale, width: float) -> None:
    theme = current_theme()
    draw_text(painter, QRectF(MARGIN, MARGIN, width, scaled(20)), title, theme.text, LEFT, pixels=13, is_strong=True)
    if view.plan is not None:
        prompts, repeats = count_text(len(view.plan.prompts), "prompt"), count_text(view.plan.repeats, "repeat")
        medians = f"medians over {prompts}, {repeats}"
        place = QRectF(MARGIN, MARGIN + scaled(20), width, scaled(18))
        draw_text(painter, place, f"{scale.figure.legend}; {medians}", theme.muted, LEFT, pixels=11)
    paint_legend(painter, QPointF(MARGIN, MARGIN + scaled(48)), scale)


def _paint_grid(painter: QPainter, view: SweepView, scale: Scale, head: float) -> None:
    left, top, muted = MARGIN + head, MARGIN + scaled(HEADER), current_theme().muted
    width, height = scaled(CELL_WIDTH), scaled(CELL_HEIGHT)
    for place, title in enumerate(view.columns):
        draw_text(painter, QRectF(left + place * width, top, width, scaled(COLUMN_HEAD)), column_title(title), muted)
    for index, row in enumerate(view.rows):
        y = top + scaled(COLUMN_HEAD) + index * height
        draw_text(painter, QRectF(MARGIN, y, head - 8, height), "\n".join(_row_texts(view, row)), muted, LEFT)
        for place in range(len(view.columns)):
            shown = view.shown(view.cell(index, place), scale)
            paint_cell(painter, QRectF(left + place * width, y, width, height), shown)
