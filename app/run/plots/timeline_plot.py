"""The plot of tokens over time, of a run beside its baseline."""

from __future__ import annotations

import numpy as np

from app.run.run_view import RunView
from app.theme import hold
from app.widgets.pictures import Table, table_of
from app.widgets.plots import DASHED, LEAST_TITLED, Plot
from core.analysis.run_counts import Timeline
from core.text import count_text

CLOCK_HELP = "The clock starts after the prefill and sums the steps' own times."


class TimelinePlot(Plot):
    """Two staircases, one per run, that rise with each step's tokens."""

    def __init__(self, run: RunView) -> None:
        super().__init__(
            object_name="timelinePlot", title="Tokens over time", x_label="seconds of decoding", y_label="tokens"
        )
        hold(self, least_height=LEAST_TITLED)
        self._run = run
        self.plain_line = self.add_line("text", "baseline", f"Tokens of plain decoding. {CLOCK_HELP}", dashes=DASHED)
        self.ours_line = self.add_line("draft_bar", "speculative", f"Tokens of the run. {CLOCK_HELP}")
        for line in (self.plain_line, self.ours_line):
            line.setClipToView(True)
            line.setDownsampling(auto=True, method="subsample")
        self.samples.reverse()
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
        rows = [
            (name, step, end / 1000, count)
            for name, line in {"speculative": self.ours, "baseline": self.plain}.items()
            for step, (end, count) in enumerate(zip(line.ends_ms, line.counts, strict=True), start=1)
        ]
        return table_of(("run", "step", "time_s", "tokens"), rows)

    def _extent(self) -> tuple[float, float]:
        ours, plain = self.ours, self.plain
        return max(ours.end_ms, plain.end_ms) / 1000, float(max(ours.num_tokens, plain.num_tokens))

    def _place_at(self, x: float) -> int:
        return round(1000 * x) if 0 <= x <= self._extent()[0] else -1

    def _draw(self) -> None:
        self.samples[1].setVisible(bool(self.plain.counts))
        for line, curve in ((self.ours, self.ours_line), (self.plain, self.plain_line)):
            # Each step adds a rise at its end to the flat line before it.
            ends = np.repeat(np.asarray(line.ends_ms, dtype=np.float64) / 1000, 2)
            counts = np.repeat(np.asarray([0, *line.counts], dtype=np.float64), 2)[:-1]
            curve.setData(np.concatenate([[0.0], ends]), counts)
