"""The page of plots that look at a run as a whole. It draws only while it is seen."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.run.race import Timeline, tokens_text
from app.run.run_view import Array, PositionCounts, RunView
from app.theme import Theme
from app.widgets.plot_card import PlotCard
from app.widgets.plots import BAR_WIDTH, FigurePlot, Mark, SeriesSample, Table, line_pen
from app.window_layout import splitter
from core.analysis.expectation import wilson
from core.text import percent_text

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
        self.show_percent(0, 0.25, 0.5, 0.75, 1)
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


MAX_POINTS = 500
"""More steps than this in view are drawn by every second or third: the line only climbs, and hides no peak."""

CLOCK_HELP = "The clock starts when the prompt has been read, and counts the steps' own times."


class TimelinePlot(FigurePlot):
    """Two stairs, one a run: a step up whenever tokens came."""

    def __init__(self) -> None:
        super().__init__(
            object_name="timelinePlot", title="Tokens over time", x_label="seconds of decoding", y_label="tokens"
        )
        self.ours, self.plain = Timeline(), Timeline()
        self.ours_line = pg.PlotCurveItem(antialias=True)
        self.plain_line = pg.PlotCurveItem(antialias=True)
        for line in (self.plain_line, self.ours_line):
            self.getPlotItem().addItem(line)
        self.getViewBox().setLimits(xMin=0, yMin=0, minXRange=0.01, minYRange=4)
        self.set_hint("Both runs' tokens on one clock")

    def show_timelines(self, ours: Timeline, plain: Timeline) -> None:
        """Show these from their start."""
        self.ours, self.plain = ours, plain
        self._fits = True

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        return [
            SeriesSample("speculative", Mark.LINE, "draft_bar", f"Tokens of the run. {CLOCK_HELP}"),
            SeriesSample("baseline", Mark.DASHES, "text", f"Tokens of plain decoding. {CLOCK_HELP}"),
        ]

    def readout(self, place: int) -> str:
        """A moment, given in milliseconds, in words."""
        counts = [f"{self.ours.tokens_at(place):,}"]
        if self.plain.counts:
            counts.append(f"{self.plain.tokens_at(place):,}")
        return f"{place / 1000:.2f} s: {' against '.join(counts)} tokens"

    def details(self, place: int) -> list[tuple[str, str]]:
        """A moment in figures."""
        rows = [(f"{place / 1000:.2f} s", ""), ("speculative", tokens_text(self.ours.tokens_at(place)))]
        if self.plain.counts:
            rows.append(("baseline", tokens_text(self.plain.tokens_at(place))))
        return rows

    def table(self) -> Table:
        """A row a step, the run's before the baseline's."""
        runs = {"speculative": self.ours, "baseline": self.plain}
        return {
            "run": [name for name, line in runs.items() for _ in line.counts],
            "step": [step for line in runs.values() for step in range(len(line.counts))],
            "time_s": [end / 1000 for line in runs.values() for end in line.ends_ms],
            "tokens": [count for line in runs.values() for count in line.counts],
        }

    def _extent(self) -> tuple[float, float]:
        lines = (self.ours, self.plain)
        return max(line.end_ms for line in lines) / 1000, float(max(line.num_tokens for line in lines))

    def _place_at(self, x: float) -> int:
        return round(1000 * x) if 0 <= x <= self._extent()[0] else -1

    def _draw(self) -> None:
        left, right = self.getViewBox().viewRange()[0]
        for line, curve in ((self.ours, self.ours_line), (self.plain, self.plain_line)):
            curve.setData(*stairs(line, 1000 * left, 1000 * right))

    def _restyle(self, theme: Theme) -> None:
        self.ours_line.setPen(line_pen(theme.draft_bar))
        self.plain_line.setPen(line_pen(theme.text, dashed=True))


def stairs(line: Timeline, first_ms: float, last_ms: float) -> tuple[Array, Array]:
    """The corners of a timeline between two moments, in seconds and tokens; a step beyond either end included."""
    ends = np.asarray(line.ends_ms, dtype=np.float64)
    if not ends.size:
        return ends, ends
    first = max(0, int(np.searchsorted(ends, first_ms)) - 1)
    last = min(ends.size, int(np.searchsorted(ends, last_ms)) + 1)
    stride = max(1, math.ceil((last - first) / MAX_POINTS))
    # The last step of each stride, so that the run's own end is always there.
    chosen = np.arange(last - 1, first - 1, -stride)[::-1]
    x, y = ends[chosen] / 1000, np.asarray(line.counts, dtype=np.float64)[chosen]
    before = (ends[first - 1] / 1000, float(line.counts[first - 1])) if first else (0.0, 0.0)
    heights = np.repeat(np.concatenate([[before[1]], y]), 2)[:-1]
    return np.concatenate([[before[0]], np.repeat(x, 2)]), heights


FRAMES = 4
"""Each plot is drawn in every fourth frame at most, which is enough for curves that grow slowly."""


class PlotsPage(QWidget):
    """Shows a `RunView`'s tokens over time, and its acceptance by draft position."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("plotsPage")
        self._run = run
        self._frame = 0
        self._is_over = True
        self._steps = run.steps
        self.timeline = TimelinePlot()
        self.positions = PositionPlot()
        self._stale: set[TimelinePlot | PositionPlot] = set()
        self._count_anew()
        self.cards = (
            PlotCard("Tokens over time", self.timeline),
            PlotCard("Acceptance by position", self.positions),
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(splitter(Qt.Orientation.Vertical, "pageSplitter", *((card, 0) for card in self.cards)))

    def begin(self) -> None:
        """A run starts."""
        self._forget_old()
        self._show_all(is_over=False)

    def end(self) -> None:
        """A run is over."""
        self._show_all(is_over=True)

    def refresh(self, *, has_news: bool) -> None:
        """Show what has come, one plot at a time; while the page is not seen, only remember that something has."""
        self._frame += 1
        if has_news:
            self._stale = {self.timeline, self.positions}
        due = {0: self.timeline, FRAMES // 2: self.positions}.get(self._frame % FRAMES)
        if due in self._stale and self.isVisible():
            self._take_in()
            due.refresh()
            self._stale.discard(due)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for card in self.cards:
            card.set_theme(theme)

    def showEvent(self, event: QShowEvent) -> None:
        """Draw what came while nobody looked."""
        super().showEvent(event)
        self._show_all(is_over=self._is_over)

    def _take_in(self) -> None:
        """Count the steps that have come, although they may not be drawn yet."""
        self._forget_old()
        ours, plain = self._timelines
        ours.extend(self._run.steps[len(ours.counts) :])
        plain.extend(self._run.baseline_steps[len(plain.counts) :])
        self._counts.extend(self._run.steps[self._counts.num_steps :])

    def _forget_old(self) -> None:
        """Let go of the steps of a run that is no longer at hand."""
        if self._steps is not self._run.steps:
            self._steps = self._run.steps
            self._count_anew()

    def _count_anew(self) -> None:
        self._timelines, self._counts = (Timeline(), Timeline()), PositionCounts()
        self.timeline.show_timelines(*self._timelines)
        self.positions.show_counts(self._counts)

    def _show_all(self, *, is_over: bool) -> None:
        self._is_over = is_over
        self._stale.clear()
        if self.isVisible():
            self._take_in()
            for plot in (self.timeline, self.positions):
                plot.settle(is_over=is_over)
