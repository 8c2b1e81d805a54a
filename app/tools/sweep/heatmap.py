"""A heatmap as a file: title, scale, rows and columns in one picture."""

from __future__ import annotations

from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRectF,
    QSize,
    Qt,
    Signal,
    Slot,
)
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QKeyEvent, QLinearGradient, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from app.theme import DARK, LIGHT, Theme, scaled, ui_font
from app.tools.sweep.sweep_view import (
    FAILED,
    FIGURE_HELP,
    FIGURE_TITLES,
    LEGENDS,
    Scale,
    ShownCell,
    SweepFigure,
    SweepRow,
    SweepView,
)
from app.widgets.plots import image_of, png_bytes, svg_of
from core.experiments.sweep_plan import Cell

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


Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
ROW_HEIGHT, LEAST_WIDTH, HEAD_WIDTH = 46, 52, 168
LONGEST_NAME = 24
SHOWN_ROLE = Role.UserRole


class HeatmapModel(QAbstractTableModel):
    """Rows are a temperature and a drafter each, columns plain decoding and each K."""

    def __init__(self, view: SweepView, parent: QWidget) -> None:
        super().__init__(parent)
        self._view = view
        self._rows: tuple[SweepRow, ...] = ()
        self._columns: tuple[str, ...] = ()
        self.figure = SweepFigure.SPEEDUP
        self.scale: Scale = view.scale(self.figure)

    def refresh(self) -> bool:
        """Show what has come; whether it is another grid than before."""
        self.scale = self._view.scale(self.figure)
        if (self._view.rows, self._view.columns) != (self._rows, self._columns):
            self.beginResetModel()
            self._rows, self._columns = self._view.rows, self._view.columns
            self.endResetModel()
            return True
        if self._rows:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._rows) - 1, len(self._columns) - 1))
        return False

    def cell(self, index: Index) -> Cell:
        """The cell at a place."""
        return self._view.cell(index.row(), index.column())

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows."""
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of columns."""
        return 0 if parent.isValid() or not self._rows else len(self._columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Role.DisplayRole) -> object:
        """K above, temperature and drafter on the left."""
        if orientation is Qt.Orientation.Horizontal:
            if role == Role.DisplayRole:
                return column_title(self._columns[section])
            return column_help(self._columns[section]) if role == Role.ToolTipRole else None
        row = self._rows[section]
        if role == Role.DisplayRole:
            # By hand, since Qt would measure both lines as one.
            return f"T = {row.temperature:g}\n{_shortened(self._view.row_title(row))}"
        if role in {Role.ToolTipRole, Role.AccessibleTextRole}:
            return f"Temperature {row.temperature:g}, {self._view.drafter_title(row.drafter)} ({row.drafter.method})"
        return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter if role == Role.TextAlignmentRole else None

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        if role not in {Role.DisplayRole, Role.ToolTipRole, Role.AccessibleTextRole, SHOWN_ROLE}:
            return None
        shown = self._view.shown(self.cell(index), self.scale)
        if role == SHOWN_ROLE:
            return shown
        if role == Role.ToolTipRole:
            return shown.tip
        return shown.text if role == Role.DisplayRole else shown.spoken


class HeatmapDelegate(QStyledItemDelegate):
    """Draws a cell in the theme's colours, and around the current one a ring."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.theme = LIGHT

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw it."""
        shown = index.data(SHOWN_ROLE)
        if not isinstance(shown, ShownCell):
            return
        rect = QRectF(option.rect)
        paint_cell(painter, rect, shown, self.theme)
        if option.state & QStyle.StateFlag.State_Selected:
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(self.theme.accent), 2))
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), 7, 7)
            painter.restore()


class Heatmap(QTableView):
    """Signals:
    cell_chosen: the `Cell` that is now the current one.
    cell_opened: a `Cell` whose runs are wanted.
    """

    cell_chosen = Signal(object)
    cell_opened = Signal(object)

    def __init__(self, view: SweepView) -> None:
        super().__init__()
        self.setObjectName("sweepHeatmap")
        self._view = view
        self._model = HeatmapModel(view, self)
        self._delegate = HeatmapDelegate(self)
        self.setModel(self._model)
        self.setItemDelegate(self._delegate)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectItems)
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
        self.rescale()
        self.show_figure(SweepFigure.SPEEDUP)
        self.selectionModel().currentChanged.connect(self._on_current_changed)
        self.clicked.connect(self._on_clicked)

    @property
    def scale(self) -> Scale:
        """The scale in force."""
        return self._model.scale

    def rescale(self) -> None:
        """Make rows and columns as large as their text needs."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.verticalHeader().setFixedWidth(scaled(HEAD_WIDTH))
        self.horizontalHeader().setMinimumSectionSize(scaled(LEAST_WIDTH))

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._delegate.theme = theme
        self.viewport().update()

    def show_figure(self, figure: SweepFigure) -> None:
        """Show another figure of the same cells."""
        self._model.figure = figure
        self.setAccessibleName(f"{FIGURE_TITLES[figure]} by K, temperature and draft")
        self.setAccessibleDescription(f"{FIGURE_HELP[figure]} Arrow keys move, Enter opens a cell's runs.")
        self.refresh()

    def refresh(self) -> None:
        """Show what has come."""
        if self._model.refresh():
            self._join_baselines()

    def _join_baselines(self) -> None:
        """Plain decoding is one cell for all drafters of a temperature."""
        self.clearSpans()
        rows = self._view.rows
        counts = {
            at: sum(row.temperature == at for row in rows) for at in dict.fromkeys(row.temperature for row in rows)
        }
        first = 0
        for count in counts.values():
            if count > 1:
                self.setSpan(first, 0, count, 1)
            first += count

    def current_cell(self) -> Cell | None:
        """The cell that the arrows have come to; None before they were used."""
        index = self.currentIndex()
        return self._model.cell(index) if index.isValid() else None

    def choose(self, row: int, column: int) -> None:
        """Make a place the current one."""
        self.setCurrentIndex(self._model.index(row, column))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter and Space open the current cell."""
        cell = self.current_cell()
        if cell is not None and event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space}:
            self.cell_opened.emit(cell)
            return
        super().keyPressEvent(event)

    @Slot(QModelIndex, QModelIndex)
    def _on_current_changed(self, index: QModelIndex, _before: QModelIndex) -> None:
        if index.isValid():
            self.cell_chosen.emit(self._model.cell(index))

    @Slot(QModelIndex)
    def _on_clicked(self, index: QModelIndex) -> None:
        self.cell_chosen.emit(self._model.cell(index))


class HeatmapLegend(QWidget):
    """The scale, with its ends and its unit."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepLegend")
        self._scale: Scale | None = None
        self._theme = LIGHT

    def show_scale(self, scale: Scale) -> None:
        """Show a scale."""
        if scale != self._scale:
            self._scale = scale
            ends = " to ".join(text for _, text in scale.ticks())
            self.setAccessibleName(f"{LEGENDS[scale.figure]}: {ends}")
            self.setToolTip(LEGENDS[scale.figure])
            self.update()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.update()

    def sizeHint(self) -> QSize:
        """Room for the scale and its figures."""
        return QSize(legend_width(), scaled(LEGEND_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        """The same: it can't be drawn smaller."""
        return self.sizeHint()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw it."""
        if self._scale is None:
            return
        painter = QPainter(self)
        paint_legend(painter, QPointF(0, 3), self._scale, self._theme)
        painter.end()


def column_title(column: str) -> str:
    """What stands above a column."""
    return f"K = {column}" if column.isdecimal() else column


def column_help(column: str) -> str:
    """What that means."""
    if column.isdecimal():
        return f"{column} token{'' if column == '1' else 's'} drafted before each forward of the target"
    helps = {
        "plain": "Plain decoding: nothing is drafted. What the speedups are held against.",
        "auto": "K chosen before each step, from what steps cost here and how much was accepted lately",
        "adaptive": "As auto, and within a step: drafting goes on as long as the draft is sure of its tokens",
    }
    return helps.get(column, "")


def _shortened(name: str) -> str:
    """Without its middle, where it is long: names of models differ at both ends."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


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
        return png_bytes(image_of(self.size, self.paint))

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
