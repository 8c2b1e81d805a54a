"""Compares runs side by side: their settings and results in a table, their curves in shared plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QRect, QRectF, QSize, Qt, Slot
from PySide6.QtGui import QBrush, QColor, QFont, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QTableWidgetItem,
    QWidget,
)

from app.theme import current_theme, scaled, text_scale, ui_font
from app.tools.runs.comparison import MAX_RUNS, MOST_SIGNS, ComparedRow, Comparison
from app.tools.runs.overlay_plot import SAMPLE_WIDTH, OverlayPlot, RunSample, draw_sample
from app.widgets.fields import boxed, column, named, plain_tip, quiet_button, row, table_card
from app.widgets.painted import LEFT, draw_text
from app.widgets.plot_card import PlotCard
from app.widgets.plots import QUARTERS, TOP
from app.widgets.rows import Index, Role
from app.widgets.tables import GridTable, prepare_rows
from app.window_layout import splitter
from core.export.run_data import where_differing
from core.text import percent_text

ROW_HEIGHT = 28
TITLE_WIDTH, RUN_WIDTH, WIDE_RUN_WIDTH, GROUP_WIDTH = 246, 100, 150, 206
HEADER_HEIGHT, NAME_LINE = 30, 16
DIFFERING, SAME, AGREEING = "What differs", "No setting or machine differs", "What the runs share"
RESULTS, WITH_BEST = "Results", "Results (bold: best)"
MEANS, MEANS_WITH_BEST = "Results: mean (lowest to highest)", "Results: mean (lowest to highest), best in bold"
SAME_GROUP = "Only seed or prompt may differ"
BAND = (
    " The line of grouped runs is their mean, with a band from the lowest to the highest; a run that has ended keeps "
    "its value."
)
ACCEPTANCE_HELP = f"Accepted / drafted tokens of the run so far, over the tokens generated.{BAND}"
TIME_HELP = f"Tokens over the time spent in steps, without the prefill. A steeper line is faster.{BAND}"
GROUP = "Group by settings"
GROUP_HELP = "Show runs that differ only in seed or prompt as one: their mean, lowest and highest"
LEAST_PLOTS = 250
LONG_TEXT = 60
SAVED_ROOM = 240
"""Pixels for all runs' names together in a saved plot."""


class RunHeader(QHeaderView):
    """A header that draws each column's line above its name, part by part."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setHighlightSections(False)
        self.setSectionsClickable(False)

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        lines = max((len(self._name(index)) for index in range(1, self.count())), default=1)
        return QSize(super().sizeHint().width(), scaled(HEADER_HEIGHT + NAME_LINE * lines))

    def paintSection(self, painter: QPainter, rect: QRect, index: int) -> None:
        """Draw the style's background, then line and name."""
        painter.save()
        super().paintSection(painter, rect, index)
        painter.restore()
        if index == 0:
            return
        inside = QRectF(rect.adjusted(10, 6, -4, -4))
        draw_sample(painter, QRectF(inside.left(), inside.top(), SAMPLE_WIDTH, scaled(HEADER_HEIGHT - 10)), index - 1)
        for line, part in enumerate(self._name(index)):
            top = inside.top() + scaled(HEADER_HEIGHT - 10 + NAME_LINE * line)
            place = QRectF(inside.left(), top, inside.width(), scaled(NAME_LINE))
            draw_text(painter, place, part, current_theme().text, LEFT, elided=Qt.TextElideMode.ElideMiddle)

    def _name(self, index: int) -> list[str]:
        name = str(self.model().headerData(index, Qt.Orientation.Horizontal, Role.AccessibleTextRole) or "")
        return name.split(" · ")[: MOST_SIGNS + 1]


class BackgroundDelegate(QStyledItemDelegate):
    """Paints a cell's own background, which the style sheet would hide."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw the background, then the cell."""
        background = index.data(Role.BackgroundRole)
        if isinstance(background, QBrush):
            painter.fillRect(option.rect, background)
        super().paint(painter, option, index)


class CompareTable(GridTable):
    """Shows a `Comparison`: a column per run, a row per setting or figure."""

    def __init__(self) -> None:
        super().__init__("compareTable", "Compared runs", BackgroundDelegate())
        self.head = RunHeader()
        self.setHorizontalHeader(self.head)
        # The titles once more, over the cells that are scrolled below them.
        self.titles = titles = named(QTableView(self), "compareTitles", "Titles of the rows")
        titles.setModel(self.model())
        titles.setSelectionModel(self.selectionModel())
        titles.setItemDelegate(self.itemDelegate())
        prepare_rows(titles)
        titles.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        titles.setAutoScroll(False)
        titles.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        titles.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.horizontalScrollBar().valueChanged.connect(self._hold_titles)
        self.verticalScrollBar().valueChanged.connect(titles.verticalScrollBar().setValue)
        titles.verticalScrollBar().valueChanged.connect(self.verticalScrollBar().setValue)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the titles beside the cells."""
        super().resizeEvent(event)
        self._hold_titles()

    def scrollTo(
        self, index: Index, hint: QAbstractItemView.ScrollHint = QAbstractItemView.ScrollHint.EnsureVisible
    ) -> None:
        """Show a cell beside the titles, which are always visible."""
        bar = self.horizontalScrollBar()
        before = bar.value()
        super().scrollTo(index, hint)
        if index.column() == 0:
            bar.setValue(before)
        else:
            bar.setValue(bar.value() - max(0, self.columnWidth(0) - self.columnViewportPosition(index.column())))

    @Slot()
    def _hold_titles(self) -> None:
        titles, head, cells, width = self.titles, self.head.geometry(), self.viewport().geometry(), self.columnWidth(0)
        titles.setVisible(self.horizontalScrollBar().value() > 0)
        titles.setGeometry(cells.left(), head.top(), width, head.height() + cells.height())
        titles.setColumnWidth(0, width)
        titles.horizontalHeader().setFixedHeight(head.height())
        titles.verticalHeader().setDefaultSectionSize(self.verticalHeader().defaultSectionSize())
        titles.verticalScrollBar().setValue(self.verticalScrollBar().value())

    def wanted_width(self) -> int:
        """Room for all runs without scrolling."""
        return scaled(TITLE_WIDTH) + 24 + (self.columnCount() - 1) * self.head.minimumSectionSize()

    def show_comparison(self, comparison: Comparison, *, with_agreeing: bool) -> None:
        """Show these runs, at the current scroll position, in the theme's colours and at the size of the text."""
        scroll = self.verticalScrollBar().value()
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.clear()
        self.clearSpans()
        self.setRowCount(0)
        names = comparison.names
        self.setColumnCount(1 + len(names))
        self.setHorizontalHeaderItem(0, QTableWidgetItem(""))
        for place, name in enumerate(names, start=1):
            self.set_head(place, "", name, name)
        same = SAME_GROUP if comparison.is_grouped else SAME
        plain, with_best = (MEANS, MEANS_WITH_BEST) if comparison.is_grouped else (RESULTS, WITH_BEST)
        results = with_best if any(each.best for each in comparison.results) else plain
        sections = {DIFFERING if comparison.differing else same: comparison.differing, results: comparison.results}
        for title, rows in (sections | ({AGREEING: comparison.agreeing} if with_agreeing else {})).items():
            self._add_section(title)
            for each in rows:
                self._add_row(each, is_highlighted=title == DIFFERING)
        # No figure is cut, and few runs have room to spare.
        widest = max((self.sizeHintForColumn(place) for place in range(1, self.columnCount())), default=0)
        usual = WIDE_RUN_WIDTH if len(names) <= 3 and text_scale() == 1 else RUN_WIDTH
        most = scaled(GROUP_WIDTH if comparison.is_grouped else WIDE_RUN_WIDTH)
        self.head.setMinimumSectionSize(max(usual, min(widest, most) + 8))
        self.head.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.head.setSectionResizeMode(0, QHeaderView.ResizeMode.Fixed)
        self.head.resizeSection(0, scaled(TITLE_WIDTH))
        self.verticalScrollBar().setValue(scroll)
        self._hold_titles()

    def _add_section(self, title: str) -> None:
        item = QTableWidgetItem(title)
        item.setFlags(Qt.ItemFlag.ItemIsEnabled)
        item.setFont(ui_font(13, weight=QFont.Weight.DemiBold))
        item.setForeground(QColor(current_theme().text))
        place = self.rowCount()
        self.insertRow(place)
        self.setItem(place, 0, item)
        self.setSpan(place, 0, 1, self.columnCount())

    def _add_row(self, shown: ComparedRow, *, is_highlighted: bool = False) -> None:
        theme, index = current_theme(), self.rowCount()
        self.insertRow(index)
        # A cell has no room for what long texts, such as prompts, have in common; the tooltips are whole.
        is_long = is_highlighted and max(map(len, shown.texts)) > LONG_TEXT
        cells = where_differing(shown.texts, 12) if is_long else shown.texts
        for place, (text, cell) in enumerate(zip((shown.title, *shown.texts), (shown.title, *cells), strict=True)):
            is_best = place - 1 in shown.best
            item = QTableWidgetItem(" ".join(cell.split()) if place else cell)
            item.setToolTip(plain_tip(text if place else shown.help))
            item.setForeground(QColor(theme.accent if is_best else theme.text if place else theme.muted))
            if is_best:
                item.setFont(ui_font(13, weight=QFont.Weight.DemiBold))
                item.setData(Role.AccessibleTextRole, f"{text}, best")
            if is_highlighted:
                item.setBackground(QColor(theme.correction_tint))
            self.setItem(index, place, item)


class ComparePage(QWidget):
    """The comparison of runs as a table and two plots.

    Args:
        go_back: shows the list again.
        group: compares the same runs again, grouped by their settings or not.
        export: writes a report on the runs with these ids.
    """

    def __init__(
        self, go_back: Callable[[], None], group: Callable[[bool], None], export: Callable[[Sequence[str]], None]
    ) -> None:
        super().__init__()
        self._ask_group, self._ask_export = group, export
        self._comparison: Comparison | None = None
        self.back = quiet_button("← All runs", "compareBack", "All runs", "Back to the list of runs (Esc)", go_back)
        self.grouping = quiet_button(GROUP, "compareGroup", GROUP, GROUP_HELP)
        self.grouping.setCheckable(True)
        self.grouping.clicked.connect(self._on_group)
        title = "Show what the runs share"
        self.agreeing = quiet_button(title, "compareAgreeing", title, "List settings and machines that are the same")
        self.agreeing.setCheckable(True)
        help_text = "Write an HTML report of the runs side by side, with their texts"
        self.export = quiet_button("Export…", "compareExport", "Export…", help_text, self._on_export, role="")
        self.table = CompareTable()
        self.acceptance = OverlayPlot(
            object_name="compareAcceptance",
            title="Acceptance so far over tokens",
            labels=("tokens generated", "accepted, %"),
            columns=("tokens", "running_acceptance"),
            x_text=lambda tokens: f"{tokens:,.0f} tokens",
            y_text=percent_text,
            y_max=TOP,
        )
        self.acceptance.getPlotItem().setMouseEnabled(x=True, y=False)
        self.acceptance.getPlotItem().getAxis("left").setTicks([QUARTERS])
        self.time = OverlayPlot(
            object_name="compareTime",
            title="Tokens over time",
            labels=("seconds of decoding", "tokens generated"),
            columns=("time_s", "tokens"),
            x_text=lambda seconds: f"{seconds:,.2f} s",
            y_text=lambda tokens: f"{tokens:,.0f}",
        )
        self.cards = (PlotCard("Acceptance so far", self.acceptance), PlotCard("Tokens over time", self.time))
        for card, help_text in zip(self.cards, (ACCEPTANCE_HELP, TIME_HELP), strict=True):
            card.setToolTip(plain_tip(help_text))
            card.plot.setAccessibleDescription(help_text)
        self.plots = plots = splitter(Qt.Orientation.Vertical, "comparePlots", *((card, 1) for card in self.cards))
        self.splitter = splitter(Qt.Orientation.Horizontal, "compareSplitter", (table_card(self.table), 1), (plots, 1))
        head = row(self.back, None, self.grouping, self.agreeing, self.export, spacing=12)
        boxed(column(head, (self.splitter, 1)), self)
        self.agreeing.toggled.connect(self._show_table)

    def show_comparison(self, comparison: Comparison) -> None:
        """Show these runs."""
        self._comparison, names = comparison, comparison.names
        self.agreeing.setText(f"Show what the runs share ({len(comparison.agreeing)})")
        self.grouping.setChecked(comparison.is_grouped)
        has_room = len(comparison.runs) <= MAX_RUNS
        self.grouping.setEnabled(comparison.can_group and has_room)
        self.export.setEnabled(has_room)
        self.acceptance.show_curves(names, comparison.acceptance)
        self.time.show_curves(names, comparison.time)
        for card in self.cards:
            # Only for a saved plot, which lacks the table's header.
            runs = (RunSample(name, index, SAVED_ROOM // len(names)) for index, name in enumerate(names))
            card.samples = [*runs, *card.plot.samples]
        self._show_table()
        self._arrange(anew=True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit table and plots to the width."""
        super().resizeEvent(event)
        self._arrange()

    def restyle(self) -> None:
        """Draw the table in the theme's colours, and fit it and the plots to the size of the text."""
        self._show_table()
        self._arrange(anew=True)

    def _arrange(self, *, anew: bool = False) -> None:
        """Put the plots beside the table, or below it where that would cut the table; share the room anew if asked."""
        wanted = self.table.wanted_width()
        least_plots = max(scaled(LEAST_PLOTS), *(card.minimumSizeHint().width() for card in self.cards))
        is_beside = self.width() >= wanted + least_plots
        across, along = Qt.Orientation.Horizontal, Qt.Orientation.Vertical
        has_turned = (self.splitter.orientation() is across) is not is_beside
        self.splitter.setOrientation(across if is_beside else along)
        self.plots.setOrientation(along if is_beside else across)
        is_cut = is_beside and self.splitter.sizes()[0] < wanted
        if anew or has_turned or is_cut:
            beside = [wanted, max(least_plots, self.splitter.width() - wanted)]
            self.splitter.setSizes(beside if is_beside else [300, 200])

    @Slot()
    def _show_table(self) -> None:
        if self._comparison is not None:
            self.table.show_comparison(self._comparison, with_agreeing=self.agreeing.isChecked())

    @Slot(bool)
    def _on_group(self, is_wanted: bool) -> None:
        self.grouping.setChecked(not is_wanted)  # Until the runs are shown so.
        self._ask_group(is_wanted)

    @Slot()
    def _on_export(self) -> None:
        if self._comparison is not None:
            self._ask_export([run.id for run in self._comparison.runs])
