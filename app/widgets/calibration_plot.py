"""Predicted against observed acceptance: by position in the draft, or by what was predicted."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pyqtgraph as pg

from app.theme import Theme
from app.widgets.acceptance_plot import PercentAxis
from app.widgets.base_plot import line_pen, prepare_axis, thin_pen
from app.widgets.figure_plot import FigurePlot
from app.widgets.legend import Mark, SeriesSample
from app.widgets.plot_table import Table
from core.figures import percent_text
from core.theory.calibration import Calibration, Reliability

TOP = 1.04


class Grouping(StrEnum):
    """How tested tokens are gathered."""

    POSITION = "position"
    TENTHS = "tenths"


GROUPING_TITLES = {Grouping.POSITION: "By position", Grouping.TENTHS: "By prediction"}
GROUPING_AXES = {Grouping.POSITION: "position in the draft", Grouping.TENTHS: "predicted acceptance, %"}
CALIBRATION_MEANINGS = {
    Grouping.POSITION: (
        "Points: accepted / tested tokens at each position, with Wilson's 95 % interval.",
        "Dashed: mean of Σ min(p, q) = 1 − TV over the same tested tokens.",
    ),
    Grouping.TENTHS: (
        "Points: accepted / tested tokens, gathered by predicted acceptance in tenths, with Wilson's 95 % interval.",
        "Dashed: where a prediction comes true exactly.",
    ),
}


class CalibrationPlot(FigurePlot):
    """Observed acceptance as points with whiskers, beside what was predicted."""

    def __init__(self) -> None:
        super().__init__(
            object_name="calibrationPlot",
            title="Predicted and observed acceptance",
            x_label=GROUPING_AXES[Grouping.POSITION],
            y_label="accepted, %",
        )
        self.grouping = Grouping.POSITION
        self.calibration: Calibration | None = None
        item = self.getPlotItem()
        axis = PercentAxis("left")
        prepare_axis(axis)
        axis.setTicks([[(share, f"{share * 100:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]])
        item.setAxisItems({"left": axis})
        self.predicted = pg.PlotDataItem(antialias=True)
        self.whiskers = pg.ErrorBarItem(beam=0.18)
        self.points = pg.ScatterPlotItem(symbol="o", size=8)
        for part in (self.predicted, self.whiskers, self.points):
            item.addItem(part)
        item.setMouseEnabled(x=True, y=False)
        self._samples = [
            SeriesSample("observed", Mark.DOT, "draft_bar", CALIBRATION_MEANINGS[self.grouping][0]),
            SeriesSample("predicted", Mark.DASHES, "text", CALIBRATION_MEANINGS[self.grouping][1]),
        ]
        self.set_hint("Whether predictions come true")

    def show_calibration(self, calibration: Calibration | None) -> None:
        """Show a run's."""
        self.calibration = calibration
        self.settle(is_over=True)

    def show_grouping(self, grouping: Grouping) -> None:
        """Gather the tokens otherwise."""
        self.grouping = grouping
        self._labels["bottom"] = GROUPING_AXES[grouping]
        for sample, name, help_text in zip(
            self._samples, ("observed", "predicted"), CALIBRATION_MEANINGS[grouping], strict=True
        ):
            sample.set_meaning(name, help_text)
        self.set_theme(self._theme)
        self.reset_view()

    @property
    def groups(self) -> tuple[Reliability, ...]:
        """What is shown."""
        if self.calibration is None:
            return ()
        return self.calibration.positions if self.grouping is Grouping.POSITION else self.calibration.bins

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        return self._samples

    def readout(self, place: int) -> str:
        """A group in words."""
        group = self.groups[place]
        return f"{percent_text(group.observed)} of {group.num_tested:,}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """A group in figures."""
        group = self.groups[place]
        title = f"Position {group.title}" if self.grouping is Grouping.POSITION else f"Predicted {group.title}"
        return [
            (title, ""),
            ("tested", f"{group.num_tested:,} tokens"),
            ("predicted", percent_text(group.predicted, 1)),
            ("observed", percent_text(group.observed, 1)),
            ("95 % interval", f"{percent_text(group.low)} to {percent_text(group.high)}"),
        ]

    def table(self) -> Table:
        """A row a position, then a row a tenth."""
        found = self.calibration
        pairs = [] if found is None else [(name, group) for name, groups in (("position", found.positions),
                 ("predicted", found.bins)) for group in groups]  # fmt: skip
        return {
            "by": [name for name, _ in pairs],
            "group": [group.title for _, group in pairs],
            "tested_tokens": [group.num_tested for _, group in pairs],
            "predicted_acceptance": [group.predicted for _, group in pairs],
            "observed_acceptance": [group.observed for _, group in pairs],
            "observed_low_95": [group.low for _, group in pairs],
            "observed_high_95": [group.high for _, group in pairs],
        }

    def _xs(self) -> np.ndarray:
        by_position = self.grouping is Grouping.POSITION
        return np.array([float(group.title) if by_position else group.predicted for group in self.groups])

    def _extent(self) -> tuple[float, float]:
        return (float(self._xs().max()) or 1.0, TOP) if self.groups else (0.0, TOP)

    def _fit(self, extent: tuple[float, float]) -> None:
        wanted = (max(4.0, extent[0]) if self.grouping is Grouping.POSITION else 1.0, TOP)
        if wanted == self._shown:
            return
        self._shown = wanted
        axis = self.getPlotItem().getAxis("bottom")
        if self.grouping is Grouping.POSITION:
            self.getViewBox().setRange(xRange=(0.4, wanted[0] + 0.6), yRange=(0, TOP), padding=0)
            axis.setTicks([[(place, str(place)) for place in range(1, int(wanted[0]) + 1)]])
        else:
            self.getViewBox().setRange(xRange=(-0.03, 1.03), yRange=(0, TOP), padding=0)
            axis.setTicks([[(share, f"{share * 100:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]])

    def _place_at(self, x: float) -> int:
        xs = self._xs()
        if not len(xs):
            return -1
        place = int(np.abs(xs - x).argmin())
        return place if abs(xs[place] - x) <= (0.5 if self.grouping is Grouping.POSITION else 0.05) else -1

    def _draw(self) -> None:
        xs, groups = self._xs(), self.groups
        observed = np.array([group.observed for group in groups])
        if self.grouping is Grouping.POSITION or not groups:
            self.predicted.setData(xs, np.array([group.predicted for group in groups]))
        else:
            self.predicted.setData(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
        self.points.setData(xs, observed)
        self.whiskers.setData(
            x=xs,
            y=observed,
            top=np.array([group.high for group in groups]) - observed,
            bottom=observed - np.array([group.low for group in groups]),
            beam=0.18 if self.grouping is Grouping.POSITION else 0.02,
        )

    def _restyle(self, theme: Theme) -> None:
        self.predicted.setPen(line_pen(theme.text, dashed=True))
        self.points.setBrush(theme.draft_bar)
        self.points.setPen(pg.mkPen(theme.surface, width=1))
        self.whiskers.setData(pen=thin_pen(theme.draft_bar))
