"""Acceptance per step: how much of each block was kept, and how the run's mean compares with what was predicted."""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg
from PySide6.QtGui import QColor

from app.theme import Theme
from app.view_models.metrics import Column, StepMetrics
from app.widgets.base_plot import BAR_WIDTH, line_pen
from app.widgets.legend import Mark, SeriesSample, band_color
from app.widgets.plot_table import Table
from app.widgets.step_plot import StepPlot, bar_centres
from core.figures import percent_text

PREDICTED_HELP = (
    "Dashed: the acceptance rate that the two distributions let expect. Each drafted position counts with its "
    "sum(min(p, q)), weighted by the chance that the tokens before it are kept; accumulated over the run. It meets the "
    "solid line as the run goes on."
)
BAND_HELP = (
    "Line: accepted / drafted tokens of the run so far. Its band is a 95 % confidence interval: Wilson's, over the "
    "number of independent tokens that would tell as much as this run's blocks do. Tokens of a block are not "
    "independent, since a rejection discards the rest; the blocks are taken to be."
)
REJECTION_HELP = (
    "Dashed: the acceptance rate that rejection would have, expected from the two distributions at the places drafted "
    "in this run. On average the solid line stays a little below it: that is what a reproducible text costs."
)


class PercentAxis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph has no types
    """Shows shares as percentages."""

    def tickStrings(self, values: list[float], _scale: float, _spacing: float) -> list[str]:
        """The ticks' labels."""
        return [f"{value * 100:.0f}" for value in values]


class AcceptancePlot(StepPlot):
    """Bars: accepted share of the block. Lines: the running rate, and the predicted one."""

    def __init__(self, metrics: StepMetrics) -> None:
        super().__init__(metrics, object_name="acceptancePlot", title="Acceptance per step", y_label="accepted, % of K")
        item = self.getPlotItem()
        axis = PercentAxis("left")
        axis.setTicks([[(share, f"{share * 100:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]])
        self.replace_left_axis(axis)
        item.getViewBox().setYRange(0, 1.04, padding=0)
        self.drafted_bars = pg.BarGraphItem(x=[], height=[], width=BAR_WIDTH)
        self.accepted_bars = pg.BarGraphItem(x=[], height=[], width=BAR_WIDTH)
        self.rate_line = pg.PlotDataItem(antialias=True, connect="finite")
        self.predicted_line = pg.PlotDataItem(antialias=True, connect="finite")
        self.band_edges = (pg.PlotCurveItem(antialias=True), pg.PlotCurveItem(antialias=True))
        self.band = pg.FillBetweenItem(*self.band_edges)
        self.predicted_sample = SeriesSample("predicted", Mark.DASHES, "correction", PREDICTED_HELP)
        bars = (self.drafted_bars, self.accepted_bars)
        for part in (*bars, self.band, *self.band_edges, self.predicted_line, self.rate_line):
            item.addItem(part)
        self.set_hint("One bar a step: the share that was kept")

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        return [
            SeriesSample("accepted", Mark.BAR, "draft_bar", "Bar: accepted tokens / K of each step."),
            SeriesSample("running rate", Mark.BAND, "text", BAND_HELP),
            self.predicted_sample,
        ]

    def readout(self, step: int) -> str:
        """One step in words."""
        metrics = self._metrics
        drafted = int(metrics.column(Column.NUM_DRAFTED)[step])
        if not drafted:
            return f"step {step}: nothing drafted"
        accepted = int(metrics.column(Column.NUM_ACCEPTED)[step])
        running = percent_text(metrics.column(Column.RUNNING_RATE)[step])
        return f"step {step}: {accepted} of {drafted}, running {running}"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures."""
        drafted, accepted, rate, predicted, low, high = (
            self._metrics.column(column)[step]
            for column in (
                Column.NUM_DRAFTED,
                Column.NUM_ACCEPTED,
                Column.RUNNING_RATE,
                Column.PREDICTED_RATE,
                Column.RATE_LOW,
                Column.RATE_HIGH,
            )
        )
        rows = [(f"Step {step}", ""), ("accepted", f"{accepted:.0f} of {drafted:.0f} tokens")]
        if np.isfinite(rate):
            rows.append(("running rate", percent_text(rate, 1)))
        if np.isfinite(low):
            rows.append(("95 % band", f"{percent_text(low, 1)} to {percent_text(high, 1)}"))
        if np.isfinite(predicted):
            rows.append(("predicted" if self._metrics.is_rejection else "by rejection", percent_text(predicted, 1)))
        return rows

    def table(self) -> Table:
        """A row a step."""
        columns = {
            "drafted_tokens": Column.NUM_DRAFTED,
            "accepted_tokens": Column.NUM_ACCEPTED,
            "accepted_share": Column.ACCEPTED_SHARE,
            "running_rate": Column.RUNNING_RATE,
            "running_rate_low_95": Column.RATE_LOW,
            "running_rate_high_95": Column.RATE_HIGH,
            "predicted_rate" if self._metrics.is_rejection else "rate_by_rejection": Column.PREDICTED_RATE,
        }
        return self._metrics.table(columns)

    def begin(self) -> None:
        """Follow a run from its start."""
        if self._metrics.is_rejection:
            self.predicted_sample.set_meaning("predicted", PREDICTED_HELP)
        else:
            self.predicted_sample.set_meaning("by rejection", REJECTION_HELP)
        super().begin()

    def _draw(self, first: int, last: int, width: int) -> None:
        shares = self._metrics.binned(Column.ACCEPTED_SHARE, first, last, width)
        x = bar_centres(first, shares.size, width)
        was_drafted = np.isfinite(shares)
        self.drafted_bars.setOpts(x=x, height=was_drafted.astype(float), width=self._bar_width)
        self.accepted_bars.setOpts(x=x, height=np.nan_to_num(shares), width=self._bar_width)
        self.rate_line.setData(x, self._metrics.binned(Column.RUNNING_RATE, first, last, width))
        self.predicted_line.setData(x, self._metrics.binned(Column.PREDICTED_RATE, first, last, width))
        for edge, column in zip(self.band_edges, (Column.RATE_LOW, Column.RATE_HIGH), strict=True):
            bound = self._metrics.binned(column, first, last, width)
            # Only the run's first steps have no band.
            is_there = np.isfinite(bound)
            edge.setData(x[is_there], bound[is_there])

    def _restyle(self, theme: Theme) -> None:
        self.drafted_bars.setOpts(brush=theme.track, pen=None)
        self.accepted_bars.setOpts(brush=theme.draft_bar, pen=None)
        self.band.setBrush(band_color(QColor(theme.text)))
        for edge in self.band_edges:
            edge.setPen(QColor(theme.muted))
        self.rate_line.setPen(line_pen(theme.text))
        self.predicted_line.setPen(line_pen(theme.correction, dashed=True))
