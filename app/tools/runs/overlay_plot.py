"""Plots several runs in one chart, each with its own colour, line style and marker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pyqtgraph as pg
from pyqtgraph.graphicsItems.ScatterPlotItem import drawSymbol
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPen

from app.theme import Theme, current_theme, scaled, ui_font
from app.tools.runs.comparison import Array, Curve, values_at
from app.widgets.legend import Mark, SeriesSample, band_color
from app.widgets.painted import LEFT, draw_text
from app.widgets.pictures import Table
from app.widgets.plots import Plot

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.8), (6, 2, 1.5, 2), (10, 3), (6, 2, 1.5, 2, 1.5, 2))
"""Each run's line style, in line widths; the first is solid."""
MARKERS = ("o", "s", "t", "d", "+", "x")
"""Each run's marker, by pyqtgraph's letters."""
NUM_MARKERS = 7
SAMPLE_WIDTH = 46
BAND_HELP = "The mean of a group's runs, and the range from the lowest of them to the highest"
PLACES_PER_UNIT = 1000
"""A plot's places are whole numbers: thousandths of a token or a second."""


def run_color(theme: Theme, index: int) -> str:
    """The colour of a run's line."""
    return str(getattr(theme, f"run_{index + 1}"))


def run_pen(theme: Theme, index: int) -> QPen:
    """The pen of a run's line."""
    pen = QPen(QColor(run_color(theme, index)), 2)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    if DASHES[index]:
        pen.setDashPattern(list(DASHES[index]))
    return pen


def draw_sample(painter: QPainter, place: QRectF, index: int) -> None:
    """Draw a piece of a run's line with its marker."""
    theme = current_theme()
    color = QColor(run_color(theme, index))
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(place.center())
    painter.setPen(run_pen(theme, index))
    painter.drawLine(QPointF(-place.width() / 2, 0), QPointF(place.width() / 2, 0))
    drawSymbol(painter, MARKERS[index], 8, pg.mkPen(color), QBrush(color))
    painter.restore()


class RunSample(SeriesSample):
    """A run's line with its name, for a legend. A long name is elided."""

    def __init__(self, name: str, index: int, room: int) -> None:
        super().__init__(name, Mark.LINE, f"run_{index + 1}", f"Line {index + 1} of the plots")
        self._index, self._room = index, room

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        metrics = QFontMetrics(ui_font(12))
        width = min(scaled(self._room), metrics.horizontalAdvance(self._text))
        return QSize(SAMPLE_WIDTH + 8 + width + 2, metrics.height() + 4)

    def draw(self, painter: QPainter, size: QSize) -> None:
        """Draw line and name at a painter's origin, on screen or into a file."""
        draw_sample(painter, QRectF(1, 0, SAMPLE_WIDTH, size.height()), self._index)
        place = QRectF(SAMPLE_WIDTH + 8, 0, size.width() - SAMPLE_WIDTH - 8, size.height())
        draw_text(painter, place, self._text, current_theme().text, LEFT, elided=Qt.TextElideMode.ElideRight)


class OverlayPlot(Plot):
    """Curves in one chart. A double click shows all of them again.

    Args:
        columns: the names of x and y in a table of the figures.
        x_text, y_text: format a value.
        y_max: the end of the left axis; the highest value if None.
    """

    def __init__(
        self,
        *,
        object_name: str,
        title: str,
        labels: tuple[str, str],
        columns: tuple[str, str],
        x_text: Callable[[float], str],
        y_text: Callable[[float], str],
        y_max: float | None = None,
    ) -> None:
        super().__init__(object_name=object_name, title=title, x_label=labels[0], y_label=labels[1])
        self._columns, self._x_text, self._y_text, self._y_max = columns, x_text, y_text, y_max
        self._names: tuple[str, ...] = ()
        self.curves: Sequence[Curve] = ()
        self.lines: list[pg.PlotDataItem] = []
        self.markers: list[pg.ScatterPlotItem] = []
        self.bands: dict[int, pg.FillBetweenItem] = {}
        """The band around each mean, by the index of its curve."""
        self._band_sample = SeriesSample("mean, lowest to highest", Mark.BAND, "muted", BAND_HELP)
        self._band_sample.hide()
        self.samples.append(self._band_sample)
        self.getViewBox().setLimits(xMin=0, yMin=0)
        self.set_hint("These runs have no steps")
        self._paints.append(self._paint_curves)

    def show_curves(self, names: Sequence[str], curves: Sequence[Curve]) -> None:
        """Show these curves, in the order of the columns; means with a band."""
        item = self.getPlotItem()
        for part in (*self.bands.values(), *self.lines, *self.markers):
            item.removeItem(part)
        self._names, self.curves = tuple(names), curves
        self.bands = {index: _band(curve) for index, curve in enumerate(curves) if curve.low is not None}
        self.lines = [pg.PlotDataItem(curve.x, curve.y, antialias=True, connect="finite") for curve in curves]
        self.markers = [
            pg.ScatterPlotItem(*_marks(curve.x, curve.y, index, len(curves)), symbol=MARKERS[index], size=9)
            for index, curve in enumerate(curves)
        ]
        for part in (*self.bands.values(), *self.lines, *self.markers):
            item.addItem(part)
        self._band_sample.setVisible(bool(self.bands))
        self._fits = True
        self._paint_curves(current_theme())
        self.settle(is_over=True)

    def readout(self, place: int) -> str:
        """The values at a place, in the order of the runs."""
        return f"{self._x_text(place / PLACES_PER_UNIT)}: {' · '.join(self._values(place, ended='–'))}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """The value of each run at a place."""
        return [(self._x_text(place / PLACES_PER_UNIT), ""), *zip(self._names, self._values(place), strict=True)]

    def table(self) -> Table:
        """The points of all curves, column by column, and the edges of their bands if there are any."""
        x_name, y_name = self._columns
        points = {x_name: [curve.x for curve in self.curves], y_name: [curve.y for curve in self.curves]}
        if self.bands:
            edges = [
                (curve.y if curve.low is None else curve.low, curve.y if curve.high is None else curve.high)
                for curve in self.curves
            ]
            points |= {"low": [low for low, _ in edges], "high": [high for _, high in edges]}
        names = [name for name, curve in zip(self._names, self.curves, strict=True) for _ in curve.x]
        return {"run": names} | {name: [float(y) for part in parts for y in part] for name, parts in points.items()}

    def _values(self, place: int, *, ended: str = "ended") -> list[str]:
        found, x = [], place / PLACES_PER_UNIT
        for curve in self.curves:
            value = values_at(x, curve.x, curve.y)
            if x > _end(curve):
                found.append(ended)
            elif math.isnan(value):
                found.append("–")
            else:
                edges = [] if curve.low is None or curve.high is None else [curve.low, curve.high]
                ends = [self._y_text(values_at(x, curve.x, edge)) for edge in edges]
                found.append(f"{self._y_text(value)} ({' to '.join(ends)})" if ends else self._y_text(value))
        return found

    def _draw(self) -> None:
        pass  # The curves are complete and never change.

    def _extent(self) -> tuple[float, float]:
        ends = [_end(curve) for curve in self.curves if curve.x.size > 1]
        edges = [curve.y if curve.high is None else curve.high for curve in self.curves]
        tops = [float(np.nanmax(edge)) for edge in edges if np.isfinite(edge).any()]
        return max(ends, default=0.0), self._y_max or max(tops, default=0.0)

    def _place_at(self, x: float) -> int:
        return round(x * PLACES_PER_UNIT) if 0 <= x <= self._extent()[0] else -1

    def _paint_curves(self, theme: Theme) -> None:
        for index, (line, markers) in enumerate(zip(self.lines, self.markers, strict=True)):
            line.setPen(run_pen(theme, index))
            markers.setPen(pg.mkPen(run_color(theme, index), width=1.5))
            markers.setBrush(run_color(theme, index))
        for index, band in self.bands.items():
            band.setBrush(band_color(QColor(run_color(theme, index))))


def _band(curve: Curve) -> pg.FillBetweenItem:
    edges = (
        pg.PlotCurveItem(curve.x[known := np.isfinite(edge)], edge[known])
        for edge in (curve.low, curve.high)
        if edge is not None
    )
    return pg.FillBetweenItem(*edges)


def _end(curve: Curve) -> float:
    """The last x at which y is known."""
    return float(max(curve.x[np.isfinite(curve.y)], default=0.0))


def _marks(x: Array, y: Array, index: int, count: int) -> tuple[Array, Array]:
    """A few places along a curve, different for each run, so that the markers of equal curves don't overlap."""
    known = np.flatnonzero(np.isfinite(y))
    if not known.size:
        return x[:0], y[:0]
    shares = (np.arange(NUM_MARKERS) + (index + 0.5) / count) / NUM_MARKERS
    wanted = x[known[0]] + shares * (x[known[-1]] - x[known[0]])
    places = known[np.unique(np.clip(np.searchsorted(x[known], wanted), 0, known.size - 1))]
    return x[places], y[places]
