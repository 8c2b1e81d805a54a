"""Latency per step: where the time goes, beside what a plain step costs."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QColor, QPen

from app.run.run_view import Array, Column, StepMetrics
from app.run.tokens import Place
from app.theme import LIGHT, Theme
from app.widgets.plots import (
    BAR_WIDTH,
    BasePlot,
    Mark,
    SeriesSample,
    Table,
    band_color,
    line_pen,
    show_axes,
)
from core.text import percent_text

MARKS_Z = 50
"""In front of bars and lines: a mark is thin, and the bars of a long run are thinner still."""


class StepMarks:
    """Two thin upright lines: solid for what is selected, dotted for what is pointed at."""

    def __init__(self, item: pg.PlotItem) -> None:
        self.selected = pg.InfiniteLine(angle=90)
        self.hovered = pg.InfiniteLine(angle=90)
        for line in (self.selected, self.hovered):
            line.setZValue(MARKS_Z)
            line.hide()
            # A mark has no say in what the view shows.
            item.addItem(line, ignoreBounds=True)
        self.set_theme(LIGHT)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.selected.setPen(_pen(theme.accent, 2.0, Qt.PenStyle.SolidLine))
        self.hovered.setPen(_pen(theme.muted, 1.5, Qt.PenStyle.DotLine))

    def select(self, step: int) -> None:
        """Mark what is selected; -1: nothing."""
        _put(self.selected, step)

    def hover(self, step: int) -> None:
        """Mark what is pointed at; -1: nothing."""
        _put(self.hovered, step)


def _put(line: pg.InfiniteLine, step: int) -> None:
    if step >= 0:
        line.setPos(step)
    line.setVisible(step >= 0)


def _pen(color: str, width: float, style: Qt.PenStyle) -> QPen:
    pen = QPen(QColor(color), width, style)
    pen.setCosmetic(True)
    return pen


FOLLOWED_STEPS = 48
"""How many of the latest steps are shown while a run goes."""
SCROLLED_STEPS = 12
"""How far the view moves on when it is full: in strides, since a still axis is easier to read, and cheaper."""
MIN_STEPS = 24
"""How many steps there is room for after a short run, so that its bars are not as wide as walls."""
MAX_BARS = 320
"""More steps than this are drawn as means over bins: no wider screen shows them apart, and the cost stays flat."""


class StepPlot(BasePlot):
    """Base of the two plots. A subclass adds its items and fills them in `_draw`.

    The view follows the latest steps until a person pans or zooms; a double click has it follow again. After the run
    it shows all steps.

    Signals:
        step_clicked: a step that was clicked.
    """

    step_clicked = Signal(int)

    def __init__(self, metrics: StepMetrics, *, object_name: str, title: str, y_label: str) -> None:
        super().__init__(object_name=object_name, title=title, x_label="step", y_label=y_label)
        self._metrics = metrics
        self._follows = True
        self._shows_all = False
        self._drawn: tuple[int, int, int, float] | None = None
        self._bar_width = BAR_WIDTH
        """In steps. A subclass draws its bars in it."""
        self._followed: tuple[float, float] | None = None
        item = self.getPlotItem()
        item.setMouseEnabled(x=True, y=False)
        box = item.getViewBox()
        box.setLimits(xMin=-1, minXRange=4)
        box.sigXRangeChanged.connect(self._on_range_changed)
        self._marks = StepMarks(item)

    # --- For subclasses ---

    def _draw(self, first: int, last: int, width: int) -> None:
        """Fill the items with steps first to last - 1, `width` steps a bar."""
        raise NotImplementedError

    # --- For the window ---

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._marks.set_theme(theme)
        super().set_theme(theme)

    @Slot(object)
    def mark_place(self, place: Place | None) -> None:
        """Mark the step of what is selected."""
        self._marks.select(-1 if place is None else place.step)

    @Slot(int)
    def mark_step(self, step: int) -> None:
        """Mark the step that the pointer is on, here or elsewhere; -1: none."""
        self._marks.hover(step)

    def begin(self) -> None:
        """A run starts: follow it."""
        self._follows, self._shows_all = True, False
        self.redraw()

    def end(self) -> None:
        """A run is over: show all of it, unless a person is looking at some part."""
        self._shows_all = True
        self.redraw()

    def refresh(self) -> None:
        """Show the steps that have come since the last time."""
        count = len(self._metrics)
        self._show_emptiness(count == 0)
        if self._follows:
            self._follow(count)
        self._draw_visible()

    def reset_view(self) -> None:
        """Undo what was zoomed and panned by hand."""
        self._follows = True
        self.redraw()

    def _follow(self, count: int) -> None:
        first, shown = 0, max(count, MIN_STEPS)
        if not self._shows_all:
            strides = max(0, math.ceil((count - FOLLOWED_STEPS) / SCROLLED_STEPS))
            first, shown = strides * SCROLLED_STEPS, FOLLOWED_STEPS
        wanted = (first - 0.6, first + shown - 0.4)
        if wanted != self._followed:
            self._followed = wanted
            self.getViewBox().setXRange(*wanted, padding=0)

    def redraw(self) -> None:
        """Draw again although no step has come."""
        self._drawn = None
        self.refresh()

    def _show_emptiness(self, is_empty: bool) -> None:
        if self._hint.isVisible() != is_empty or self._drawn is None:
            self._hint.setVisible(is_empty)
            show_axes(self.getPlotItem(), self._theme, is_empty=is_empty)

    def _draw_visible(self) -> None:
        left, right = self.getViewBox().viewRange()[0]
        count = len(self._metrics)
        first, last = max(0, math.floor(left)), min(count, math.ceil(right) + 1)
        width = max(1, math.ceil((last - first) / MAX_BARS))
        # Bins start at multiples of their width, so that bars don't change their contents while the view moves.
        first -= first % width
        step_px = self.getViewBox().width() / (right - left)
        # A gap of less than a pixel is as wide as one here and there, and takes the narrow bar beside it with it.
        has_gaps = width == 1 and (1 - BAR_WIDTH) * step_px >= 1
        self._bar_width = BAR_WIDTH if has_gaps else float(width)
        if (first, last, width, self._bar_width) != self._drawn:
            self._drawn = (first, last, width, self._bar_width)
            self._draw(first, max(first, last), width)

    @Slot()
    def _on_moved_by_hand(self) -> None:
        self._follows, self._followed = False, None
        self._draw_visible()

    @Slot()
    def _on_range_changed(self) -> None:
        if not self._follows:
            self._draw_visible()

    @Slot()
    def _on_resized(self) -> None:
        super()._on_resized()
        if self._drawn is not None:
            self._draw_visible()

    def _place_at(self, x: float) -> int:
        nearest = round(x)
        return nearest if 0 <= nearest < len(self._metrics) else -1

    @Slot(object)
    def _on_mouse_clicked(self, event: pg.GraphicsScene.mouseEvents.MouseClickEvent) -> None:
        super()._on_mouse_clicked(event)
        is_plain = not event.double() and event.button() is Qt.MouseButton.LeftButton
        if is_plain and (step := self._place_under(event.scenePos())) >= 0:
            self.step_clicked.emit(step)


def bar_centres(first: int, count: int, width: int) -> Array:
    """Where the bars of `count` bins stand on the x axis."""
    return (first + np.arange(count) * float(width) + (width - 1) / 2).astype(np.float64)


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


class AcceptancePlot(StepPlot):
    """Bars: accepted share of the block. Lines: the running rate, and the predicted one."""

    def __init__(self, metrics: StepMetrics) -> None:
        super().__init__(metrics, object_name="acceptancePlot", title="Acceptance per step", y_label="accepted, % of K")
        item = self.getPlotItem()
        self.show_percent(0, 0.25, 0.5, 0.75, 1)
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
