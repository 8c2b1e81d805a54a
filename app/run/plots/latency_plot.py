"""Plot of each step's time per token, and where it went."""

from __future__ import annotations

import math

import numpy as np

from app.run.plots.step_plot import StepPlot, bar_centres, grown
from app.run.run_view import RunView
from app.widgets.pictures import Table
from app.widgets.plots import DASHED
from core.analysis.run_counts import Column
from core.text import count_text

PARTS = (Column.DRAFT_MS, Column.VERIFY_MS, Column.SAMPLE_MS)
PART_SERIES = (
    ("draft_bar", "draft", "Time to propose the block."),
    ("target_bar", "verify", "Time of the target's forward over the block."),
    ("sample_bar", "sample", "Filters, verification and the next token."),
)
WHOLE_HELP = "Between the arrivals of two steps from the server, which doesn't report the parts."
MEAN_HELP = (
    "Time of all steps so far / the tokens that they added. Below the baseline, drafting pays. Bars more than four "
    "times as high as the lines are cut off, and have an arrow."
)
MOST_ABOVE = 4.0
"""The tallest a plot gets, relative to its lines: otherwise one slow step would flatten the others."""
HEADROOM = 1.12


class LatencyPlot(StepPlot):
    """Bars: each step's draft, verify and sample time, stacked, divided by the tokens that the step added. A server
    shows only the time of the whole step.

    Lines: the run's time per token so far, and the baseline's, once it is measured.
    """

    def __init__(self, run: RunView) -> None:
        super().__init__(run, object_name="latencyPlot", title="Latency per token", y_label="ms per token")
        self.parts = [self.add_bars(*part) for part in PART_SERIES]
        self.whole = self.add_bars("accent", "whole step", WHOLE_HELP)
        self.add_previous(Column.RUNNING_MS_PER_TOKEN)
        self.mean_line = self.add_line("text", "mean", MEAN_HELP)
        baseline_help = "Mean time of a plain step, which adds one token."
        self.baseline_line = self.add_line("text", "baseline", baseline_help, dashes=DASHED, angle=0)
        self._baseline_sample = self.samples[-1]
        self.samples.append(self.samples.pop(self.samples.index(self._previous_sample)))
        self.cut = self.add_points("text", 7, symbol="t1")
        self._baseline_ms: float | None = None
        self._top = 0.0
        self.set_hint("One bar per step: its draft, verify and sample time, per token")
        self.getViewBox().setYRange(0, 1, padding=0)

    def refresh(self) -> None:
        """Show what is new, and the baseline's mean once it is known."""
        if self._run.baseline_step_ms != self._baseline_ms:
            self._baseline_ms, self._drawn = self._run.baseline_step_ms, None
            self.baseline_line.setVisible(self._baseline_ms is not None)
            self.baseline_line.setValue(self._baseline_ms or 0.0)
        is_coming = self._run.request is None or (self._run.wants_baseline and self._run.summary is None)
        self._baseline_sample.setVisible(is_coming or self._baseline_ms is not None)
        super().refresh()

    def readout(self, step: int) -> str:
        """One step in words."""
        columns = self._run.counts.columns
        total, tokens = columns[Column.TOTAL_MS][step], columns[Column.TOKENS][step]
        if math.isnan(total):  # The first step of a server came with the prefill.
            return f"step {step + 1}: {count_text(tokens, 'token')}"
        return f"step {step + 1}: {total:.2f} ms / {count_text(tokens, 'token')} = {total / max(1, tokens):.2f}"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures; its own times are not divided."""
        columns = self._run.counts.columns
        values = {part: columns[part][step] for part in (*PARTS, Column.TOTAL_MS)}
        tokens = columns[Column.TOKENS][step]
        rows = [(f"Step {step + 1}, {count_text(tokens, 'token')}", "")]
        known = {part: value for part, value in values.items() if not math.isnan(value)}
        rows += [(part.name.removesuffix("_MS").lower(), f"{value:.2f} ms") for part, value in known.items()]
        if Column.TOTAL_MS in known:
            rows.append(("per token", f"{values[Column.TOTAL_MS] / max(1, tokens):.2f} ms"))
        if math.isfinite(so_far := columns[Column.RUNNING_MS_PER_TOKEN][step]):
            rows.append(("per token so far", f"{so_far:.2f} ms"))
        if self._baseline_ms is not None:
            rows.append(("baseline, per token", f"{self._baseline_ms:.2f} ms"))
        return rows

    def table(self) -> Table:
        """One row per step: its own times, its tokens, and the time per token so far and of the baseline."""
        table = self._run.counts.table(*PARTS, Column.TOTAL_MS, Column.TOKENS, Column.RUNNING_MS_PER_TOKEN)
        if self._baseline_ms is not None:
            table["baseline_mean_step_ms"] = [self._baseline_ms] * len(self._run.counts)
        return table

    def _draw_bars(self, first: int, last: int, width: int) -> None:
        counts, is_server = self._run.counts, self._run.is_on_server
        for place, sample in enumerate(self.samples[: len(PARTS) + 1]):
            sample.setVisible(is_server == (place == len(PARTS)))
        # Over a bin: the time of its steps / their tokens.
        tokens = np.maximum(counts.binned(Column.TIMED_TOKENS, first, last, width), 1.0 / width)
        heights = [counts.binned(part, first, last, width) / tokens for part in PARTS]
        x = bar_centres(first, tokens.size, width)
        floor = np.zeros_like(tokens)
        whole = counts.binned(Column.TOTAL_MS, first, last, width) / tokens if is_server else np.zeros_like(tokens)
        for part, height in zip((*self.parts, self.whole), map(np.nan_to_num, (*heights, whole)), strict=True):
            part.setOpts(x=x, y0=floor, height=height, width=self._bar_width)
            floor = floor + height
        self.mean_line.setData(x, counts.binned(Column.RUNNING_MS_PER_TOKEN, first, last, width))
        means = counts.columns[Column.RUNNING_MS_PER_TOKEN][first:last]
        lines = max(means[-1] if means else 0.0, self._baseline_ms or 0.0, self._draw_previous(first, last, width))
        highest = float(floor.max(initial=0.0))
        self._fit_times(max(lines, min(highest, MOST_ABOVE * lines)) if math.isfinite(lines) else highest)
        # An arrow on each bar that goes on above the plot.
        is_cut = floor > self._top
        self.cut.setData(x[is_cut], np.full(int(is_cut.sum()), 0.95 * self._top))

    def _fit_times(self, highest: float) -> None:
        top = grown(self._top, max(highest, self._baseline_ms or 0.0) * HEADROOM)
        if top != self._top:
            self._top = top
            self.getViewBox().setYRange(0, top or 1.0, padding=0)
