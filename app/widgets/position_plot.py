"""Acceptance by draft position: the share that is kept, and the share given that all before it were kept."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtGui import QColor, QPen

from app.theme import Theme
from app.view_models.positions import PositionCounts
from app.widgets.acceptance_plot import PercentAxis
from app.widgets.base_plot import BAR_WIDTH, line_pen, prepare_axis
from app.widgets.figure_plot import FigurePlot
from app.widgets.legend import Mark, SeriesSample
from app.widgets.plot_table import Table
from core.analysis import wilson
from core.figures import percent_text

TOP = 1.04
MIN_POSITIONS = 4
LABELLED_POSITIONS = 16

UNCONDITIONAL_HELP = (
    "Bars: accepted / drafted tokens at each position of the block. It falls, as a rejection ends a block."
)
CONDITIONAL_HELP = (
    "Line: accepted / tested tokens, given that all before were accepted; where it falls, the draft loses its way. The "
    "whiskers are Wilson's 95 % interval over the blocks that came this far."
)


class PositionPlot(FigurePlot):
    """Positions count from 1, as K does."""

    def __init__(self) -> None:
        super().__init__(
            object_name="positionPlot",
            title="Acceptance by draft position",
            x_label="position in the draft",
            y_label="accepted, %",
        )
        self.counts = PositionCounts()
        item = self.getPlotItem()
        axis = PercentAxis("left")
        prepare_axis(axis)
        axis.setTicks([[(share, f"{share * 100:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]])
        item.setAxisItems({"left": axis})
        self.bars = pg.BarGraphItem(x=[], height=[], width=BAR_WIDTH)
        self.whiskers = pg.ErrorBarItem(beam=0.18)
        self.line = pg.PlotDataItem(antialias=True, connect="finite", symbol="o", symbolSize=6)
        for part in (self.bars, self.whiskers, self.line):
            item.addItem(part)
        item.setMouseEnabled(x=True, y=False)
        self.getViewBox().setLimits(xMin=0, minXRange=2)
        self.set_hint("How far into a block the draft is right")

    def show_counts(self, counts: PositionCounts) -> None:
        """Show these from their start."""
        self.counts = counts
        self._fits = True

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        return [
            SeriesSample("of all drafted", Mark.BAR, "draft_bar", UNCONDITIONAL_HELP),
            SeriesSample("where all before were kept", Mark.LINE, "text", CONDITIONAL_HELP),
        ]

    def readout(self, place: int) -> str:
        """A position, counted from 0, in words."""
        given = self.counts.conditional(place)
        words = "never tested" if given is None else f"{percent_text(given)} of tested"
        return f"position {place + 1}: {percent_text(self.counts.unconditional(place))}, {words}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """A position in figures."""
        counts = self.counts
        kept, drafted, tested = counts.accepted[place], counts.drafted[place], counts.tested[place]
        rows = [
            (f"Position {place + 1}", ""),
            ("of all drafted", f"{percent_text(counts.unconditional(place), 1)} ({kept:,} of {drafted:,})"),
        ]
        if tested:
            low, high = wilson(kept / tested, tested)
            rows.append(("where all before were kept", f"{percent_text(kept / tested, 1)} ({kept:,} of {tested:,})"))
            rows.append(("95 % interval", f"{percent_text(low)} to {percent_text(high)}"))
        return rows

    def table(self) -> Table:
        """A row a position."""
        counts, places = self.counts, range(len(self.counts))
        return {
            "draft_position": [place + 1 for place in places],
            "drafted_tokens": counts.drafted,
            "tested_tokens": counts.tested,
            "accepted_tokens": counts.accepted,
            "acceptance_of_drafted": [counts.unconditional(place) for place in places],
            "acceptance_of_tested": [counts.conditional(place) for place in places],
        }

    def _extent(self) -> tuple[float, float]:
        return float(len(self.counts)), TOP

    def _fit(self, extent: tuple[float, float]) -> None:
        wanted = (max(extent[0], MIN_POSITIONS), TOP)
        if wanted != self._shown:
            self._shown = wanted
            self.getViewBox().setRange(xRange=(0.4, wanted[0] + 0.6), yRange=(0, TOP), padding=0)
            every = math.ceil(wanted[0] / LABELLED_POSITIONS)
            ticks = [(place, str(place)) for place in range(1, int(wanted[0]) + 1) if (place - 1) % every == 0]
            self.getPlotItem().getAxis("bottom").setTicks([ticks])

    def _place_at(self, x: float) -> int:
        place = round(x) - 1
        return place if 0 <= place < len(self.counts) else -1

    def _draw(self) -> None:
        counts = self.counts
        x = np.arange(1, len(counts) + 1, dtype=np.float64)
        self.bars.setOpts(x=x, height=np.array([counts.unconditional(place) for place in range(len(counts))]))
        given = [counts.conditional(place) for place in range(len(counts))]
        tested = [(place, rate) for place, rate in enumerate(given) if rate is not None]
        self.line.setData(x, np.array([math.nan if rate is None else rate for rate in given]))
        bounds = [wilson(rate, counts.tested[place]) for place, rate in tested]
        rates = np.array([rate for _, rate in tested])
        self.whiskers.setData(
            x=np.array([place + 1.0 for place, _ in tested]),
            y=rates,
            top=np.array([high for _, high in bounds]) - rates,
            bottom=rates - np.array([low for low, _ in bounds]),
        )

    def _restyle(self, theme: Theme) -> None:
        self.bars.setOpts(brush=theme.draft_bar, pen=None)
        self.line.setPen(line_pen(theme.text))
        self.line.setSymbolBrush(theme.text)
        self.line.setSymbolPen(None)
        whisker = QPen(QColor(theme.muted), 1)
        whisker.setCosmetic(True)
        self.whiskers.setData(pen=whisker)
