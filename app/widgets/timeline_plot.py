"""Tokens over time: the run and its baseline from the moment at which the prompt has been read."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg

from app.theme import Theme
from app.view_models.metrics import Array
from app.view_models.race import Timeline, tokens_text
from app.widgets.base_plot import line_pen
from app.widgets.figure_plot import FigurePlot
from app.widgets.legend import Mark, SeriesSample
from app.widgets.plot_table import Table

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
