"""The plot of acceptance by position in the block."""

from __future__ import annotations

import math

import numpy as np

from app.run.run_view import RunView
from app.widgets.pictures import Table, table_of
from app.widgets.plots import QUARTERS, TOP, Plot, set_whiskers, ticks
from core.analysis.expectation import wilson
from core.runlog.tally import PositionCounts
from core.text import percent_text

TOKENS = ("drafted_tokens", "tested_tokens", "accepted_tokens")
"""Columns of a table."""
UNKNOWN_HINT = "The server doesn’t report every draft"
MIN_POSITIONS = 4
LABELLED_POSITIONS = 16

UNCONDITIONAL_HELP = (
    "Bars: accepted / drafted tokens at each position of the block. They fall because a rejection ends a block."
)
CONDITIONAL_HELP = (
    "Line: accepted / tested tokens, given that all earlier tokens were accepted; where it falls, the draft drifts. "
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
        self.getPlotItem().getAxis("left").setTicks([QUARTERS])
        self.bars = self.add_bars("draft_bar", "of all drafted", UNCONDITIONAL_HELP)
        self.whiskers = self.add_whiskers("text", beam=0.18)
        self.line = self.add_line("text", "if all earlier ones were accepted", CONDITIONAL_HELP)
        self.points = self.add_points("text", 6)
        self.getPlotItem().setMouseEnabled(x=True, y=False)
        self.getViewBox().setLimits(xMin=-MIN_POSITIONS / 2, minXRange=2)

    @property
    def counts(self) -> PositionCounts:
        """The counts that are drawn."""
        return self._run.counts.sums.positions_of(self._run.summary)

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
            share = f"{percent_text(kept / tested, 1)} ({kept:,} of {tested:,})"
            rows.append(("if all earlier ones were accepted", share))
            rows.append(("95 % interval", f"{percent_text(low)} to {percent_text(high)}"))
        return rows

    def table(self) -> Table:
        """One row per position."""
        found = self.counts
        tokens = zip(found.drafted, found.tested, found.accepted, strict=True)
        rows = [(at + 1, *counts, found.of_drafted(at), found.of_tested(at)) for at, counts in enumerate(tokens)]
        return table_of(("draft_position", *TOKENS, "acceptance_of_drafted", "acceptance_of_tested"), rows)

    def _extent(self) -> tuple[float, float]:
        return float(len(self.counts)), TOP

    def _fit(self, extent: tuple[float, float]) -> None:
        count = int(extent[0])
        # A few positions are centred: at the left, bars would seem to be missing.
        middle, half = (count + 1) / 2, max(count, MIN_POSITIONS) / 2 + 0.1
        marked = ticks(range(1, count + 1, math.ceil(max(count, 1) / LABELLED_POSITIONS)))
        self._frame((middle - half, middle + half), (0, TOP), {"bottom": marked})

    def _place_at(self, x: float) -> int:
        place = round(x) - 1
        return place if 0 <= place < len(self.counts) else -1

    def _draw(self) -> None:
        counts, places = self.counts, range(len(self.counts))
        is_known = self._run.counts.sums.knows_drafts
        self.set_hint("How far into a block the draft is accepted" if is_known else UNKNOWN_HINT)
        x = np.arange(1, len(counts) + 1, dtype=np.float64)
        self.bars.setOpts(x=x, height=np.array([counts.of_drafted(place) for place in places]))
        given = np.array([counts.of_tested(place) for place in places], dtype=np.float64)
        self.line.setData(x, given)
        tested = np.isfinite(given)
        self.points.setData(x[tested], given[tested])
        bounds = np.array([wilson(given[place], counts.tested[place]) for place in np.flatnonzero(tested)])
        set_whiskers(self.whiskers, x[tested], given[tested], *bounds.reshape(-1, 2).T)
