"""Plots of a run as a whole: tokens over time, and acceptance by position in the block."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg

from app.run.run_view import RunView
from app.widgets.pictures import Table
from app.widgets.plots import Plot
from core.analysis.expectation import wilson
from core.analysis.run_counts import Array, Timeline
from core.runlog.tally import PositionCounts
from core.text import count_text, percent_text

TOP = 1.04
MIN_POSITIONS = 4
LABELLED_POSITIONS = 16

UNCONDITIONAL_HELP = (
    "Bars: accepted / drafted tokens at each position of the block. They fall because a rejection ends a block."
)
CONDITIONAL_HELP = (
    "Line: accepted / tested tokens, given that all before were accepted; where it falls, the draft drifts. "
    "The whiskers are Wilson's 95 % interval over the tested tokens."
)


class PositionPlot(Plot):
    """Acceptance by position in the block; positions count from 1, as K does."""

    def __init__(self, run: RunView) -> None:
        super().__init__(
            object_name="positionPlot",
            title="Acceptance by draft position",
            x_label="position in the draft",
            y_label="accepted, %",
        )
        self._run = run
        self.show_percent(0, 0.25, 0.5, 0.75, 1)
        self.bars = self.add_bars("draft_bar", "of all drafted", UNCONDITIONAL_HELP)
        self.whiskers = self.add_whiskers("muted", beam=0.18)
        self.line = self.add_line("text", "if all before were accepted", CONDITIONAL_HELP)
        self.points = pg.ScatterPlotItem(symbol="o", size=6, pen=None)
        self.add_item(self.points, lambda theme: self.points.setBrush(theme.text))
        self.getPlotItem().setMouseEnabled(x=True, y=False)
        self.getViewBox().setLimits(xMin=0, minXRange=2)
        self.set_hint("How far into a block the draft is accepted")

    @property
    def counts(self) -> PositionCounts:
        """The counts that are drawn."""
        return self._run.counts.sums.positions

    def readout(self, place: int) -> str:
        """A position (from 0) in words."""
        given = self.counts.of_tested(place)
        words = "never tested" if given is None else f"{percent_text(given)} of tested"
        return f"position {place + 1}: {percent_text(self.counts.of_drafted(place))}, {words}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """A position in figures."""
        counts = self.counts
        kept, drafted, tested = counts.accepted[place], counts.drafted[place], counts.tested[place]
        rows = [
            (f"Position {place + 1}", ""),
            ("of all drafted", f"{percent_text(counts.of_drafted(place), 1)} ({kept:,} of {drafted:,})"),
        ]
        if tested:
            low, high = wilson(kept / tested, tested)
            rows.append(("if all before were accepted", f"{percent_text(kept / tested, 1)} ({kept:,} of {tested:,})"))
            rows.append(("95 % interval", f"{percent_text(low)} to {percent_text(high)}"))
        return rows

    def table(self) -> Table:
        """One row per position."""
        counts, places = self.counts, range(len(self.counts))
        return {
            "draft_position": [place + 1 for place in places],
            "drafted_tokens": counts.drafted,
            "tested_tokens": counts.tested,
            "accepted_tokens": counts.accepted,
            "acceptance_of_drafted": [counts.of_drafted(place) for place in places],
            "acceptance_of_tested": [counts.of_tested(place) for place in places],
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
        self.bars.setOpts(x=x, height=np.array([counts.of_drafted(place) for place in range(len(counts))]))
        given = [counts.of_tested(place) for place in range(len(counts))]
        tested = [(place, rate) for place, rate in enumerate(given) if rate is not None]
        self.line.setData(x, np.array([math.nan if rate is None else rate for rate in given]))
        self.points.setData([place + 1.0 for place, _ in tested], [rate for _, rate in tested])
        bounds = [wilson(rate, counts.tested[place]) for place, rate in tested]
        rates = np.array([rate for _, rate in tested])
        self.whiskers.setData(
            x=np.array([place + 1.0 for place, _ in tested]),
            y=rates,
            top=np.array([high for _, high in bounds]) - rates,
            bottom=rates - np.array([low for low, _ in bounds]),
        )


MAX_POINTS = 500
"""With more steps than this in view, some are skipped: the line only rises, so no peak is lost."""

CLOCK_HELP = "The clock starts after the prefill and sums the steps' own times."


class TimelinePlot(Plot):
    """Two staircases, one per run, that rise with each step's tokens."""

    def __init__(self, run: RunView) -> None:
        super().__init__(
            object_name="timelinePlot", title="Tokens over time", x_label="seconds of decoding", y_label="tokens"
        )
        self._run = run
        self.plain_line = self.add_line("text", "baseline", f"Tokens of plain decoding. {CLOCK_HELP}", dashed=True)
        self.ours_line = self.add_line("draft_bar", "speculative", f"Tokens of the run. {CLOCK_HELP}")
        self._samples.reverse()
        self.getViewBox().setLimits(xMin=0, yMin=0, minXRange=0.01, minYRange=4)
        self.set_hint("Both runs' tokens on one clock")

    @property
    def ours(self) -> Timeline:
        """The run's tokens over time."""
        return self._run.counts.timeline

    @property
    def plain(self) -> Timeline:
        """The baseline's tokens over time."""
        return self._run.baseline.timeline

    def readout(self, place: int) -> str:
        """A time in milliseconds, in words."""
        counts = [f"{self.ours.tokens_at(place):,}"]
        if self.plain.counts:
            counts.append(f"{self.plain.tokens_at(place):,}")
        return f"{place / 1000:.2f} s: {' against '.join(counts)} tokens"

    def details(self, place: int) -> list[tuple[str, str]]:
        """A time in figures."""
        rows = [(f"{place / 1000:.2f} s", ""), ("speculative", count_text(self.ours.tokens_at(place), "token"))]
        if self.plain.counts:
            rows.append(("baseline", count_text(self.plain.tokens_at(place), "token")))
        return rows

    def table(self) -> Table:
        """One row per step, the run's before the baseline's."""
        runs = {"speculative": self.ours, "baseline": self.plain}
        return {
            "run": [name for name, line in runs.items() for _ in line.counts],
            "step": [step for line in runs.values() for step in range(len(line.counts))],
            "time_s": [end / 1000 for line in runs.values() for end in line.ends_ms],
            "tokens": [count for line in runs.values() for count in line.counts],
        }

    def _extent(self) -> tuple[float, float]:
        ours, plain = self.ours, self.plain
        return max(ours.end_ms, plain.end_ms) / 1000, float(max(ours.num_tokens, plain.num_tokens))

    def _place_at(self, x: float) -> int:
        return round(1000 * x) if 0 <= x <= self._extent()[0] else -1

    def _draw(self) -> None:
        left, right = self.getViewBox().viewRange()[0]
        for line, curve in ((self.ours, self.ours_line), (self.plain, self.plain_line)):
            curve.setData(*stairs(line, 1000 * left, 1000 * right))


def stairs(line: Timeline, first_ms: float, last_ms: float) -> tuple[Array, Array]:
    """The corners of a timeline between two times, in seconds and tokens, with one more step at either end."""
    ends = np.asarray(line.ends_ms, dtype=np.float64)
    if not ends.size:
        return ends, ends
    first = max(0, int(np.searchsorted(ends, first_ms)) - 1)
    last = min(ends.size, int(np.searchsorted(ends, last_ms)) + 1)
    stride = max(1, math.ceil((last - first) / MAX_POINTS))
    # The last step of each stride, so that the run's end is always included.
    chosen = np.arange(last - 1, first - 1, -stride)[::-1]
    x, y = ends[chosen] / 1000, np.asarray(line.counts, dtype=np.float64)[chosen]
    before = (ends[first - 1] / 1000, float(line.counts[first - 1])) if first else (0.0, 0.0)
    heights = np.repeat(np.concatenate([[before[1]], y]), 2)[:-1]
    return np.concatenate([[before[0]], np.repeat(x, 2)]), heights
