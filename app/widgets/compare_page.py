"""Runs side by side: their settings and results in a table, their curves over one another."""

from __future__ import annotations

from collections.abc import Generator

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.theme import LIGHT, Theme
from app.turns import Turns
from app.view_models.comparison import Comparison
from app.widgets.compare_table import CompareTable
from app.widgets.fields import describe, table_card
from app.widgets.overlay_plot import OverlayPlot
from app.widgets.plot_card import PlotCard
from app.widgets.run_lines import RunSample
from app.window_layout import splitter
from core.figures import percent_text

ACCEPTANCE_HELP = "Accepted / drafted tokens of the run so far, over the tokens that it had generated."
TIME_HELP = "Tokens over the time spent in steps; the prefill is not part of it. The steeper, the faster."
LEGEND_ROOM = 600
"""Pixels for all runs' names together above the plots."""
SAVED_ROOM = 240
"""Pixels for all runs' names together in a saved plot."""


class ComparePage(QWidget):
    """Its plots, which take longest, are made behind whatever is on screen by then, or when they are needed.

    Signals:
        back_requested: the list is wanted again.
        export_requested: the ids of the runs, of which a report is wanted.
        plots_made: `cards` is no longer empty, and there are the plots `acceptance` and `time`.
    """

    back_requested = Signal()
    export_requested = Signal(object)
    plots_made = Signal()

    acceptance: OverlayPlot
    time: OverlayPlot

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
        self.cards: tuple[PlotCard, ...] = ()
        self._making = Turns(self)
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
        table = table_card(self.table)
        self.splitter = splitter(Qt.Orientation.Horizontal, "compareSplitter", (table, 1), (self._plots, 1))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addWidget(self.splitter, 1)

    def make_plots_soon(self) -> None:
        """Make the plots, one in each of the next turns."""
        if not self.cards and not self._making.is_going:
            self._making.start(self._plot_pieces())

    def _plot_pieces(self) -> Generator[None]:
        yield from self._making.rest()
        self.acceptance = _acceptance_plot()
        acceptance = self._framed("Running acceptance", ACCEPTANCE_HELP, self.acceptance)
        yield
        self.time = _time_plot()
        self.cards = (acceptance, self._framed("Tokens over time", TIME_HELP, self.time))
        for shown in self.cards:
            shown.set_theme(self._theme)
        self.plots_made.emit()

    def _framed(self, title: str, help_text: str, plot: OverlayPlot) -> PlotCard:
        result = PlotCard(title, plot)
        result.setToolTip(help_text)
        plot.setAccessibleDescription(help_text)
        self._plots.addWidget(result)
        return result

    def show_comparison(self, comparison: Comparison) -> None:
        """Show these runs."""
        self.make_plots_soon()
        self._making.finish()
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
