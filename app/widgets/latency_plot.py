"""Latency per step: where the time goes, beside what a plain step costs."""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg

from app.theme import Theme
from app.view_models.metrics import Column, StepMetrics
from app.widgets.base_plot import BAR_WIDTH, line_pen
from app.widgets.legend import Mark, SeriesSample
from app.widgets.plot_table import Table
from app.widgets.step_plot import StepPlot, bar_centres

PARTS = (Column.DRAFT_MS, Column.VERIFY_MS, Column.SAMPLE_MS)
HEADROOM = 1.12


class LatencyPlot(StepPlot):
    """Bars: draft, verify and sample, stacked. Line: the baseline's mean step, once it is measured."""

    def __init__(self, metrics: StepMetrics) -> None:
        super().__init__(metrics, object_name="latencyPlot", title="Latency per step", y_label="ms per step")
        self.parts = [pg.BarGraphItem(x=[], height=[], width=BAR_WIDTH) for _ in PARTS]
        for part in self.parts:
            self.getPlotItem().addItem(part)
        self.baseline_line = pg.InfiniteLine(angle=0, movable=False)
        self.baseline_line.hide()
        self.getPlotItem().addItem(self.baseline_line, ignoreBounds=True)
        self._baseline_ms: float | None = None
        self._top = 0.0
        self.set_hint("One bar a step: draft, verify and sample time")
        self.getViewBox().setYRange(0, 1, padding=0)

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        return [
            SeriesSample("draft", Mark.BAR, "draft_bar", "Time to propose the block."),
            SeriesSample("verify", Mark.BAR, "target_bar", "Time of the target's one forward over the block."),
            SeriesSample("sample", Mark.BAR, "sample_bar", "Filters, verdict and the next token."),
            SeriesSample("baseline", Mark.DASHES, "text", "Mean time of a plain step, which gives one token."),
        ]

    def set_baseline(self, step_ms: float | None) -> None:
        """Show the mean time of the baseline's steps; None hides it."""
        if step_ms == self._baseline_ms:
            return
        self._baseline_ms = step_ms
        self.baseline_line.setVisible(step_ms is not None)
        if step_ms is not None:
            self.baseline_line.setValue(step_ms)
        self.redraw()

    def readout(self, step: int) -> str:
        """One step in words."""
        draft, verify, sample = (self._metrics.column(part)[step] for part in PARTS)
        total = self._metrics.column(Column.TOTAL_MS)[step]
        return f"step {step}: {draft:.2f} + {verify:.2f} + {sample:.2f} = {total:.2f} ms"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures."""
        values = {part: self._metrics.column(part)[step] for part in (*PARTS, Column.TOTAL_MS)}
        rows = [(f"Step {step}", "")]
        rows += [(part.name.removesuffix("_MS").lower(), f"{value:.2f} ms") for part, value in values.items()]
        if self._baseline_ms is not None:
            rows.append(("plain step, mean", f"{self._baseline_ms:.2f} ms"))
        return rows

    def table(self) -> Table:
        """A row a step; the baseline's mean stands beside each."""
        columns = {part.name.lower(): part for part in (*PARTS, Column.TOTAL_MS)}
        table = dict(self._metrics.table(columns))
        if self._baseline_ms is not None:
            table["baseline_mean_step_ms"] = [self._baseline_ms] * len(self._metrics)
        return table

    def _draw(self, first: int, last: int, width: int) -> None:
        heights = [self._metrics.binned(part, first, last, width) for part in PARTS]
        x = bar_centres(first, heights[0].size, width)
        floor = np.zeros_like(heights[0])
        for part, height in zip(self.parts, heights, strict=True):
            part.setOpts(x=x, y0=floor, height=height, width=self._bar_width)
            floor = floor + height
        self._fit(float(floor.max(initial=0.0)))

    def _fit(self, highest: float) -> None:
        wanted = max(highest, self._baseline_ms or 0.0) * HEADROOM
        # The scale grows at once, but shrinks only when much of it is empty: a scale that breathes can't be read.
        if wanted > self._top or wanted < 0.6 * self._top:
            self._top = wanted
            self.getViewBox().setYRange(0, wanted or 1.0, padding=0)

    def _restyle(self, theme: Theme) -> None:
        for part, color in zip(self.parts, (theme.draft_bar, theme.target_bar, theme.sample_bar), strict=True):
            part.setOpts(brush=color, pen=None)
        self.baseline_line.setPen(line_pen(theme.text, dashed=True))
