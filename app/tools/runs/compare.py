"""Runs side by side: their settings and results in a table, their curves over one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPointF, QRect, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QSizePolicy,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme import LIGHT, Theme, scaled, ui_font
from app.tools.runs.comparison import Array, Comparison
from app.widgets.fields import describe, table_card
from app.widgets.plot_card import PlotCard
from app.widgets.plots import Mark, Plot, SeriesSample, Table
from app.widgets.tables import Index, Role, prepare_rows
from app.window_layout import splitter
from core.text import percent_text

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.8), (6, 2, 1.5, 2), (10, 3), (6, 2, 1.5, 2, 1.5, 2))
"""Each run's line style, in line widths; the first is solid."""
MARKERS = ("o", "s", "t", "d", "+", "x")
"""Each run's marker, by pyqtgraph's letters."""
SAMPLE_WIDTH = 30
MAX_NAME_WIDTH = 190


def run_color(theme: Theme, index: int) -> str:
    """The colour of a run's line."""
    return str(getattr(theme, f"run_{index + 1}"))


def run_pen(theme: Theme, index: int) -> QPen:
    """The pen of a run's line."""
    pen = QPen(QColor(run_color(theme, index)), 2)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    if DASHES[index]:
        pen.setDashPattern(list(DASHES[index]))
    return pen


def draw_sample(painter: QPainter, place: QRectF, theme: Theme, index: int) -> None:
    """Draw a piece of a run's line with its marker."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    middle = place.center()
    painter.setPen(run_pen(theme, index))
    painter.drawLine(QPointF(place.left(), middle.y()), QPointF(place.right(), middle.y()))
    color = QColor(run_color(theme, index))
    painter.setPen(QPen(color, 2))
    painter.setBrush(color)
    x, y, r = middle.x(), middle.y(), 3.5
    if MARKERS[index] == "o":
        painter.drawEllipse(middle, r, r)
    elif MARKERS[index] == "s":
        painter.drawRect(QRectF(x - r, y - r, 2 * r, 2 * r))
    elif MARKERS[index] == "t":
        painter.drawPolygon([QPointF(x - r, y - r), QPointF(x + r, y - r), QPointF(x, y + r)])
    elif MARKERS[index] == "d":
        painter.drawPolygon([QPointF(x - r, y), QPointF(x, y - r), QPointF(x + r, y), QPointF(x, y + r)])
    elif MARKERS[index] == "+":
        painter.drawLine(QPointF(x, y - r - 1), QPointF(x, y + r + 1))
    else:
        painter.drawLine(QPointF(x - r, y - r), QPointF(x + r, y + r))
        painter.drawLine(QPointF(x - r, y + r), QPointF(x + r, y - r))


class RunSample(SeriesSample):
    """A run's line with its name, for a legend; a long name is cut, and told whole in the tooltip."""

    def __init__(self, name: str, index: int, room: int = MAX_NAME_WIDTH) -> None:
        super().__init__(name, Mark.LINE, f"run_{index + 1}", f"Line {index + 1} of the plots")
        self._index, self._room, self._theme = index, room, LIGHT
        self.setToolTip(name)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        super().set_theme(theme)

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        metrics = QFontMetrics(ui_font(12))
        width = min(scaled(self._room), metrics.horizontalAdvance(self._text))
        return QSize(SAMPLE_WIDTH + 8 + width + 2, metrics.height() + 4)

    def minimumSizeHint(self) -> QSize:
        """Room for the line, and some of the name."""
        return QSize(SAMPLE_WIDTH + 40, self.sizeHint().height())

    def draw(self, painter: QPainter, size: QSize) -> None:
        """Draw line and name at a painter's origin, on screen or into a file."""
        draw_sample(painter, QRectF(1, 0, SAMPLE_WIDTH, size.height()), self._theme, self._index)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.text))
        place = QRect(SAMPLE_WIDTH + 8, 0, size.width() - SAMPLE_WIDTH - 8, size.height())
        shown = painter.fontMetrics().elidedText(self._text, Qt.TextElideMode.ElideRight, place.width())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, shown)


NUM_MARKERS = 7
PLACES_PER_UNIT = 1000
"""A place is a thousandth of a token or of a second: whole numbers are what a plot's place is told in."""


class OverlayPlot(Plot):
    """Curves over one another. A double click brings all of them back into view.

    Args:
        columns: the names of x and y in a table of the figures.
        tell_x, tell_y: a value in words.
        y_max: where the left axis ends; at the highest value if None.
    """

    def __init__(
        self,
        *,
        object_name: str,
        title: str,
        labels: tuple[str, str],
        columns: tuple[str, str],
        tell_x: Callable[[float], str],
        tell_y: Callable[[float], str],
        y_max: float | None = None,
    ) -> None:
        super().__init__(object_name=object_name, title=title, x_label=labels[0], y_label=labels[1])
        self._columns = columns
        self._tell_x, self._tell_y = tell_x, tell_y
        self._y_max = y_max
        self._names: tuple[str, ...] = ()
        self.curves: list[tuple[Array, Array]] = []
        self.lines: list[pg.PlotDataItem] = []
        self.markers: list[pg.ScatterPlotItem] = []
        self.getViewBox().setLimits(xMin=0, yMin=0)
        self.set_hint("These runs have no steps")
        self._paints.append(self._paint_curves)

    def show_curves(self, names: Sequence[str], curves: Sequence[tuple[Array, Array]]) -> None:
        """Show these curves, as x and y, in the order of the runs."""
        item = self.getPlotItem()
        for part in (*self.lines, *self.markers):
            item.removeItem(part)
        self._names, self.curves = tuple(names), list(curves)
        self.lines = [pg.PlotDataItem(x, y, antialias=True, connect="finite") for x, y in curves]
        self.markers = [
            pg.ScatterPlotItem(*_marks(x, y, index, len(curves)), symbol=MARKERS[index], size=9)
            for index, (x, y) in enumerate(curves)
        ]
        for part in (*self.lines, *self.markers):
            item.addItem(part)
        self._fits = True
        self._paint_curves(self._theme)
        self.settle(is_over=True)

    def readout(self, place: int) -> str:
        """The place under the pointer; what the runs had reached there is in the tooltip."""
        values = (math.nan if value is None else value for value in self._values(place))
        told = " · ".join("–" if math.isnan(value) else self._tell_y(value) for value in values)
        return f"{self._tell_x(place / PLACES_PER_UNIT)}: {told}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """What each run had reached at a place."""
        told = ["ended" if value is None else "–" if math.isnan(value) else self._tell_y(value)
                for value in self._values(place)]  # fmt: skip
        return [(self._tell_x(place / PLACES_PER_UNIT), ""), *zip(self._names, told, strict=True)]

    def table(self) -> Table:
        """The points of all curves, run by run."""
        x_name, y_name = self._columns
        return {
            "run": [name for name, (x, _) in zip(self._names, self.curves, strict=True) for _ in x],
            x_name: [float(value) for x, _ in self.curves for value in x],
            y_name: [float(value) for _, y in self.curves for value in y],
        }

    def _values(self, place: int) -> list[float | None]:
        return [_value_at(place / PLACES_PER_UNIT, *curve) for curve in self.curves]

    def _draw(self) -> None:
        pass  # The curves are whole and stand still.

    def _extent(self) -> tuple[float, float]:
        ends = [float(x[-1]) for x, _ in self.curves if x.size > 1]
        tops = [float(np.nanmax(y)) for _, y in self.curves if np.isfinite(y).any()]
        return max(ends, default=0.0), self._y_max or max(tops, default=0.0)

    def _place_at(self, x: float) -> int:
        return round(x * PLACES_PER_UNIT) if 0 <= x <= self._extent()[0] else -1

    def _paint_curves(self, theme: Theme) -> None:
        for index, (line, markers) in enumerate(zip(self.lines, self.markers, strict=True)):
            line.setPen(run_pen(theme, index))
            markers.setPen(pg.mkPen(run_color(theme, index), width=1.5))
            markers.setBrush(run_color(theme, index))


def _marks(x: Array, y: Array, index: int, count: int) -> tuple[Array, Array]:
    """A few places along a curve; each run's own, so that markers of equal curves stand beside each other."""
    there = np.flatnonzero(np.isfinite(y))
    if not there.size:
        return x[:0], y[:0]
    shares = (np.arange(NUM_MARKERS) + (index + 0.5) / count) / NUM_MARKERS
    wanted = x[there[0]] + shares * (x[there[-1]] - x[there[0]])
    places = there[np.unique(np.clip(np.searchsorted(x[there], wanted), 0, there.size - 1))]
    return x[places], y[places]


def _value_at(x: float, xs: Array, ys: Array) -> float | None:
    """A curve's value; NaN before it begins, None where it has ended."""
    is_there = np.isfinite(ys)
    if x > xs[-1]:
        return None
    return float(np.interp(x, xs[is_there], ys[is_there], left=math.nan)) if is_there.any() else math.nan


ROW_HEIGHT = 28
TITLE_WIDTH, RUN_WIDTH, WIDE_RUN_WIDTH = 190, 104, 150
HEADER_HEIGHT = 46
DIFFERING, RESULTS, AGREEING = "Settings that differ", "Results", "Settings that agree"

NAME_ROLE = Role.UserRole + 1


@dataclass(frozen=True, slots=True)
class _Line:
    """A row on screen; a section's title has no texts."""

    title: str
    texts: tuple[str, ...] = ()
    help: str = ""
    best: frozenset[int] = frozenset()
    is_section: bool = False
    is_highlighted: bool = False


class CompareModel(QAbstractTableModel):
    """A `Comparison` in rows."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = LIGHT
        self._names: tuple[str, ...] = ()
        self.lines: list[_Line] = []

    def show(self, comparison: Comparison, *, with_agreeing: bool) -> None:
        """Show these runs."""
        self.beginResetModel()
        self._names = comparison.names
        differing = [_Line(row.title, row.texts, row.help, is_highlighted=True) for row in comparison.differing]
        self.lines = [
            _Line(DIFFERING if differing else "No setting differs", is_section=True),
            *differing,
            _Line(RESULTS, is_section=True),
            *(_Line(row.title, row.texts, row.help, row.best) for row in comparison.results),
        ]
        if with_agreeing:
            self.lines += [
                _Line(AGREEING, is_section=True),
                *(_Line(row.title, row.texts, row.help) for row in comparison.agreeing),
            ]
        self.endResetModel()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows, titles included."""
        return 0 if parent.isValid() else len(self.lines)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """A title, and one column a run."""
        return 0 if parent.isValid() else 1 + len(self._names)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Role.DisplayRole) -> object:
        """The runs' names, each with its line."""
        if orientation is not Qt.Orientation.Horizontal or section == 0:
            return "" if role == Role.DisplayRole else None
        if role in {Role.ToolTipRole, Role.AccessibleTextRole, NAME_ROLE}:
            return self._names[section - 1]
        return "" if role == Role.DisplayRole else None

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        line, column = self.lines[index.row()], index.column()
        text = line.title if column == 0 else line.texts[column - 1] if line.texts else ""
        is_best = column - 1 in line.best
        if role == Role.DisplayRole:
            return " ".join(text.split()) if column else text
        if role == Role.ToolTipRole:
            return line.help if column == 0 else text
        if role == Role.AccessibleTextRole:
            return f"{text}, best" if is_best else text
        if role == Role.FontRole and (line.is_section or is_best):
            return ui_font(13, weight=QFont.Weight.DemiBold)
        if role == Role.BackgroundRole and line.is_highlighted:
            return QBrush(QColor(self._theme.correction_tint))
        if role == Role.ForegroundRole:
            return self._ink(line, column, is_best)
        return None

    def _ink(self, line: _Line, column: int, is_best: bool) -> QBrush:
        theme = self._theme
        if is_best:
            return QBrush(QColor(theme.accent))
        return QBrush(QColor(theme.muted if column == 0 and not line.is_section else theme.text))

    def flags(self, index: Index) -> Qt.ItemFlag:
        """A section's title is not to be selected."""
        return Qt.ItemFlag.ItemIsEnabled if self.lines[index.row()].is_section else super().flags(index)


class RunHeader(QHeaderView):
    """A head that shows each run's line above its name."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._theme = LIGHT
        self.setHighlightSections(False)
        self.setSectionsClickable(False)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.viewport().update()

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        return QSize(super().sizeHint().width(), scaled(HEADER_HEIGHT))

    def paintSection(self, painter: QPainter, rect: QRect, index: int) -> None:
        """Draw the ground as the style does, and line and name upon it."""
        painter.save()
        super().paintSection(painter, rect, index)
        painter.restore()
        if index == 0:
            return
        painter.save()
        inside = rect.adjusted(8, 4, -4, -4)
        draw_sample(painter, QRectF(inside.left(), inside.top(), SAMPLE_WIDTH, 14), self._theme, index - 1)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.text))
        name = str(self.model().headerData(index, Qt.Orientation.Horizontal, NAME_ROLE))
        shown = painter.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, inside.width())
        painter.drawText(inside, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom, shown)
        painter.restore()


class _Ground(QStyledItemDelegate):
    """Paints a row's own ground, which the style sheet would pass over."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw the ground, and the cell upon it."""
        ground = index.data(Role.BackgroundRole)
        if isinstance(ground, QBrush):
            painter.fillRect(option.rect, ground)
        super().paint(painter, option, index)


class CompareTable(QTableView):
    """Shows a `Comparison`."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("compareTable")
        self.setAccessibleName("Compared runs")
        self.rows = CompareModel(self)
        self.head = RunHeader()
        self.setHorizontalHeader(self.head)
        self.setModel(self.rows)
        self.setItemDelegate(_Ground(self))
        prepare_rows(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.rescale()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)

    def rescale(self) -> None:
        """Make rows as high, and columns as wide, as their text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.horizontalHeader().setMinimumSectionSize(scaled(RUN_WIDTH))
        if self.rows.columnCount() > 1:
            self.horizontalHeader().resizeSection(0, scaled(TITLE_WIDTH))

    def wanted_width(self) -> int:
        """Room for all runs without scrolling; more for each where there are few."""
        runs = self.rows.columnCount() - 1
        return scaled(TITLE_WIDTH + 24) + runs * scaled(WIDE_RUN_WIDTH if runs <= 3 else RUN_WIDTH)

    def show_comparison(self, comparison: Comparison, *, with_agreeing: bool) -> None:
        """Show these runs; what is scrolled to stays."""
        scroll = self.verticalScrollBar().value()
        self.clearSpans()
        self.rows.show(comparison, with_agreeing=with_agreeing)
        header = self.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Fixed)
        header.resizeSection(0, scaled(TITLE_WIDTH))
        for column in range(1, self.rows.columnCount()):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.Stretch)
        for row, line in enumerate(self.rows.lines):
            if line.is_section:
                self.setSpan(row, 0, 1, self.rows.columnCount())
        self.verticalScrollBar().setValue(scroll)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.rows.set_theme(theme)
        self.head.set_theme(theme)
        self.viewport().update()


ACCEPTANCE_HELP = "Accepted / drafted tokens of the run so far, over the tokens that it had generated."
TIME_HELP = "Tokens over the time spent in steps; the prefill is not part of it. The steeper, the faster."
LEGEND_ROOM = 600
"""Pixels for all runs' names together above the plots."""
SAVED_ROOM = 240
"""Pixels for all runs' names together in a saved plot."""


class ComparePage(QWidget):
    """Signals:
    back_requested: the list is wanted again.
    export_requested: the ids of the runs to write a report of.
    """

    back_requested = Signal()
    export_requested = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._theme = LIGHT
        self._comparison: Comparison | None = None
        self._samples: list[RunSample] = []
        self.back = _quiet("All runs", "compareBack", "Back to the list of runs (Esc)")
        self.agreeing = _quiet("Show settings that agree", "compareAgreeing", "List the settings that do not differ")
        self.agreeing.setCheckable(True)
        self.export = _quiet(
            "Export…", "compareExport", "Write a report to read, HTML: the runs side by side and their texts"
        )
        self.export.setProperty("role", None)  # outlined, as it is below the list
        self.table = CompareTable()
        self.acceptance, self.time = _acceptance_plot(), _time_plot()
        self.cards = (
            _card("Running acceptance", ACCEPTANCE_HELP, self.acceptance),
            _card("Tokens over time", TIME_HELP, self.time),
        )
        self._lay_out()
        self.back.clicked.connect(self.back_requested)
        self.agreeing.toggled.connect(self._on_agreeing_toggled)
        self.export.clicked.connect(self._on_export)

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(12)
        head.addWidget(self.back)
        self._legend = QHBoxLayout()
        self._legend.setSpacing(14)
        head.addLayout(self._legend, 1)
        head.addWidget(self.agreeing)
        head.addWidget(self.export)
        self._plots = splitter(Qt.Orientation.Vertical, "comparePlots")
        for shown in self.cards:
            self._plots.addWidget(shown)
        table = table_card(self.table)
        self.splitter = splitter(Qt.Orientation.Horizontal, "compareSplitter", (table, 1), (self._plots, 1))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addWidget(self.splitter, 1)

    def show_comparison(self, comparison: Comparison) -> None:
        """Show these runs."""
        self._comparison = comparison
        for sample in self._samples:
            self._legend.removeWidget(sample)
            sample.deleteLater()
        while self._legend.count():
            self._legend.takeAt(0)
        names = comparison.names
        room = LEGEND_ROOM // len(names)
        self._samples = [RunSample(name, index, room) for index, name in enumerate(names)]
        for sample in self._samples:
            sample.set_theme(self._theme)
            self._legend.addWidget(sample)
        self._legend.addStretch(1)
        self.agreeing.setText(f"Show settings that agree ({len(comparison.agreeing)})")
        self.acceptance.show_curves(names, [(curve.tokens, curve.acceptance) for curve in comparison.curves])
        self.time.show_curves(names, [(curve.seconds, curve.tokens) for curve in comparison.curves])
        for shown in self.cards:
            # For a plot that is saved: the legend above the plots does not go into its file.
            shown.samples = [RunSample(name, index, SAVED_ROOM // len(names)) for index, name in enumerate(names)]
            shown.set_theme(self._theme)
        self._show_table()
        wanted = self.table.wanted_width()
        self.splitter.setSizes([wanted, max(360, self.splitter.width() - wanted)])

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.table.set_theme(theme)
        for shown in self.cards:
            shown.set_theme(theme)
        for sample in self._samples:
            sample.set_theme(theme)

    def _show_table(self) -> None:
        if self._comparison is not None:
            self.table.show_comparison(self._comparison, with_agreeing=self.agreeing.isChecked())

    @Slot()
    def _on_export(self) -> None:
        if self._comparison is not None:
            self.export_requested.emit(tuple(run.id for run in self._comparison.runs))

    @Slot(bool)
    def _on_agreeing_toggled(self, _is_shown: bool) -> None:
        self._show_table()


def _card(title: str, help_text: str, plot: OverlayPlot) -> PlotCard:
    card = PlotCard(title, plot)
    card.setToolTip(help_text)
    plot.setAccessibleDescription(help_text)
    return card


def _acceptance_plot() -> OverlayPlot:
    plot = OverlayPlot(
        object_name="compareAcceptance",
        title="Running acceptance over tokens",
        labels=("tokens generated", "accepted, %"),
        columns=("tokens", "running_acceptance"),
        tell_x=lambda tokens: f"{tokens:,.0f} tokens",
        tell_y=percent_text,
        y_max=1.0,
    )
    plot.show_percent()
    return plot


def _time_plot() -> OverlayPlot:
    return OverlayPlot(
        object_name="compareTime",
        title="Tokens over time",
        labels=("seconds of decoding", "tokens generated"),
        columns=("time_s", "tokens"),
        tell_x=lambda seconds: f"{seconds:,.2f} s",
        tell_y=lambda tokens: f"{tokens:,.0f}",
    )


def _quiet(text: str, name: str, help_text: str) -> QToolButton:
    button = QToolButton()
    button.setObjectName(name)
    button.setText(text)
    button.setProperty("role", "quiet")
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    describe(button, text, help_text)
    return button
