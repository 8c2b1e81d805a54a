"""Several runs' curves in one plot, each with its own colour, line style and marker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pyqtgraph as pg

from app.theme import Theme
from app.view_models.comparison import Array
from app.widgets.acceptance_plot import PercentAxis
from app.widgets.base_plot import prepare_axis
from app.widgets.figure_plot import FigurePlot
from app.widgets.legend import SeriesSample
from app.widgets.plot_table import Table
from app.widgets.run_lines import MARKERS, run_color, run_pen

NUM_MARKERS = 7
PLACES_PER_UNIT = 1000
"""A place is a thousandth of a token or of a second: whole numbers are what a plot's place is told in."""


class OverlayPlot(FigurePlot):
    """Curves over one another. A double click brings all of them back into view.

    Args:
        columns: the names of x and y in a table of the figures.
        tell_x, tell_y: a value in words.
        y_max: where the left axis ends; at the highest value if None.
    """

    def __init__(
        self,
        *,
        object_name: str,
        title: str,
        labels: tuple[str, str],
        columns: tuple[str, str],
        tell_x: Callable[[float], str],
        tell_y: Callable[[float], str],
        y_max: float | None = None,
    ) -> None:
        super().__init__(object_name=object_name, title=title, x_label=labels[0], y_label=labels[1])
        self._columns = columns
        self._tell_x, self._tell_y = tell_x, tell_y
        self._y_max = y_max
        self._names: tuple[str, ...] = ()
        self.curves: list[tuple[Array, Array]] = []
        self.lines: list[pg.PlotDataItem] = []
        self.markers: list[pg.ScatterPlotItem] = []
        self.getViewBox().setLimits(xMin=0, yMin=0)
        self.set_hint("These runs have no steps")

    def show_percent(self) -> None:
        """Label the left axis with shares as percentages."""
        axis = PercentAxis("left")
        prepare_axis(axis)
        self.getPlotItem().setAxisItems({"left": axis})

    def show_curves(self, names: Sequence[str], curves: Sequence[tuple[Array, Array]]) -> None:
        """Show these curves, as x and y, in the order of the runs."""
        item = self.getPlotItem()
        for part in (*self.lines, *self.markers):
            item.removeItem(part)
        self._names, self.curves = tuple(names), list(curves)
        self.lines = [pg.PlotDataItem(x, y, antialias=True, connect="finite") for x, y in curves]
        self.markers = [
            pg.ScatterPlotItem(*_marks(x, y, index, len(curves)), symbol=MARKERS[index], size=9)
            for index, (x, y) in enumerate(curves)
        ]
        for part in (*self.lines, *self.markers):
            item.addItem(part)
        self._fits = True
        self._restyle(self._theme)
        self.settle(is_over=True)

    def legend(self) -> list[SeriesSample]:
        """Empty: one legend of the runs stands above all plots."""
        return []

    def readout(self, place: int) -> str:
        """The place under the pointer; what the runs had reached there is in the tooltip."""
        values = (math.nan if value is None else value for value in self._values(place))
        told = " · ".join("–" if math.isnan(value) else self._tell_y(value) for value in values)
        return f"{self._tell_x(place / PLACES_PER_UNIT)}: {told}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """What each run had reached at a place."""
        told = ["ended" if value is None else "–" if math.isnan(value) else self._tell_y(value)
                for value in self._values(place)]  # fmt: skip
        return [(self._tell_x(place / PLACES_PER_UNIT), ""), *zip(self._names, told, strict=True)]

    def table(self) -> Table:
        """The points of all curves, run by run."""
        x_name, y_name = self._columns
        return {
            "run": [name for name, (x, _) in zip(self._names, self.curves, strict=True) for _ in x],
            x_name: [float(value) for x, _ in self.curves for value in x],
            y_name: [float(value) for _, y in self.curves for value in y],
        }

    def _values(self, place: int) -> list[float | None]:
        return [_value_at(place / PLACES_PER_UNIT, *curve) for curve in self.curves]

    def _draw(self) -> None:
        pass  # The curves are whole and stand still.

    def _extent(self) -> tuple[float, float]:
        ends = [float(x[-1]) for x, _ in self.curves if x.size > 1]
        tops = [float(np.nanmax(y)) for _, y in self.curves if np.isfinite(y).any()]
        return max(ends, default=0.0), self._y_max or max(tops, default=0.0)

    def _place_at(self, x: float) -> int:
        return round(x * PLACES_PER_UNIT) if 0 <= x <= self._extent()[0] else -1

    def _restyle(self, theme: Theme) -> None:
        for index, (line, markers) in enumerate(zip(self.lines, self.markers, strict=True)):
            line.setPen(run_pen(theme, index))
            markers.setPen(pg.mkPen(run_color(theme, index), width=1.5))
            markers.setBrush(run_color(theme, index))


def _marks(x: Array, y: Array, index: int, count: int) -> tuple[Array, Array]:
    """A few places along a curve; each run's own, so that markers of equal curves stand beside each other."""
    there = np.flatnonzero(np.isfinite(y))
    if not there.size:
        return x[:0], y[:0]
    shares = (np.arange(NUM_MARKERS) + (index + 0.5) / count) / NUM_MARKERS
    wanted = x[there[0]] + shares * (x[there[-1]] - x[there[0]])
    places = there[np.unique(np.clip(np.searchsorted(x[there], wanted), 0, there.size - 1))]
    return x[places], y[places]


def _value_at(x: float, xs: Array, ys: Array) -> float | None:
    """A curve's value; NaN before it begins, None where it has ended."""
    is_there = np.isfinite(ys)
    if x > xs[-1]:
        return None
    return float(np.interp(x, xs[is_there], ys[is_there], left=math.nan)) if is_there.any() else math.nan
