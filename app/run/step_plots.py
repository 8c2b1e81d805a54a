"""Plots over the steps: acceptance of each block, and where each step's time goes."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QColor, QPen

from app.run.run_view import RunView
from app.run.tokens import Place
from app.theme import Theme
from app.widgets.legend import Mark, SeriesSample
from app.widgets.pictures import Table
from app.widgets.plots import BAR_WIDTH, Plot, line_pen
from core.analysis.run_counts import Array, Column
from core.settings import Coupling
from core.text import percent_text

MARKS_Z = 50
"""In front of bars and lines."""
FOLLOWED_STEPS = 48
"""How many of the latest steps are shown during a run."""
SCROLLED_STEPS = 12
"""How far the view moves when it is full: in strides, since a still axis is easier to read."""
MIN_STEPS = 24
"""Room for this many steps after a short run."""
MAX_BARS = 320
"""More steps than this are drawn as means over bins, which limits the cost."""


class StepPlot(Plot):
    """Base of the plots over steps; a subclass fills its items in `_draw_bars`.

    The view follows the latest steps until the user pans or zooms, and shows all steps after the run.

    Signals:
        step_clicked: a step that was clicked.
    """

    step_clicked = Signal(int)

    def __init__(self, run: RunView, *, object_name: str, title: str, y_label: str) -> None:
        super().__init__(object_name=object_name, title=title, x_label="step", y_label=y_label)
        self._run = run
        self._is_over = False
        self._drawn: tuple[int, int, int, float] | None = None
        self._bar_width = BAR_WIDTH
        """In steps."""
        item = self.getPlotItem()
        item.setMouseEnabled(x=True, y=False)
        self.getViewBox().setLimits(xMin=-1, minXRange=4)
        self._selected, self._hovered = self._add_mark("accent", 2.0), self._add_mark("muted", 1.5, Qt.PenStyle.DotLine)

    def _add_mark(self, token: str, width: float, style: Qt.PenStyle = Qt.PenStyle.SolidLine) -> pg.InfiniteLine:
        line = pg.InfiniteLine(angle=90)
        line.setZValue(MARKS_Z)
        line.hide()

        def paint(theme: Theme) -> None:
            pen = QPen(QColor(getattr(theme, token)), width, style)
            pen.setCosmetic(True)
            line.setPen(pen)

        return self.add_item(line, paint)

    def _draw_bars(self, first: int, last: int, width: int) -> None:
        """Fill the items with steps first to last - 1, `width` steps per bar."""
        raise NotImplementedError

    # --- For the window ---

    @Slot(object)
    def mark_place(self, place: Place | None) -> None:
        """Mark the step of the selected place."""
        _put(self._selected, -1 if place is None else place.step)

    @Slot(int)
    def mark_step(self, step: int) -> None:
        """Mark the step under the pointer, in this or another panel; -1: none."""
        _put(self._hovered, step)

    def settle(self, *, is_over: bool) -> None:
        """Follow a run from its start, or show all of it when it is over, unless the user moved the view."""
        self._is_over = is_over
        self._fits = self._fits or not is_over
        self._drawn = None
        self.refresh()

    # --- As a plot ---

    def _extent(self) -> tuple[float, float]:
        return float(len(self._run.counts)), 1.0

    def _fit(self, extent: tuple[float, float]) -> None:
        count, first = int(extent[0]), 0
        shown = max(count, MIN_STEPS)
        if not self._is_over:
            first = max(0, math.ceil((count - FOLLOWED_STEPS) / SCROLLED_STEPS)) * SCROLLED_STEPS
            shown = FOLLOWED_STEPS
        wanted = (first - 0.6, first + shown - 0.4)
        if wanted != self._shown:
            self._shown = wanted
            self.getViewBox().setXRange(*wanted, padding=0)

    def _place_at(self, x: float) -> int:
        nearest = round(x)
        return nearest if 0 <= nearest < len(self._run.counts) else -1

    def _draw(self) -> None:
        left, right = self.getViewBox().viewRange()[0]
        first, last = max(0, math.floor(left)), min(len(self._run.counts), math.ceil(right) + 1)
        width = max(1, math.ceil((last - first) / MAX_BARS))
        # Bins start at multiples of their width, so that bars keep their contents while the view moves.
        first -= first % width
        step_px = self.getViewBox().width() / (right - left)
        # Gaps below one pixel would look uneven.
        has_gaps = width == 1 and (1 - BAR_WIDTH) * step_px >= 1
        self._bar_width = BAR_WIDTH if has_gaps else float(width)
        if (first, last, width, self._bar_width) != self._drawn:
            self._drawn = (first, last, width, self._bar_width)
            self._draw_bars(first, max(first, last), width)

    @Slot()
    def _on_resized(self) -> None:
        super()._on_resized()
        if self._drawn is not None:
            self._draw()

    @Slot(object)
    def _on_mouse_clicked(self, event: pg.GraphicsScene.mouseEvents.MouseClickEvent) -> None:
        super()._on_mouse_clicked(event)
        is_plain = not event.double() and event.button() is Qt.MouseButton.LeftButton
        if is_plain and (step := self._place_under(event.scenePos())) >= 0:
            self.step_clicked.emit(step)


def _put(line: pg.InfiniteLine, step: int) -> None:
    if step >= 0:
        line.setPos(step)
    line.setVisible(step >= 0)


def bar_centres(first: int, count: int, width: int) -> Array:
    """Positions of the bars of `count` bins on the x axis."""
    return (first + np.arange(count) * float(width) + (width - 1) / 2).astype(np.float64)


PREDICTED_HELP = (
    "Dashed: the accepted tokens of a step expected from the two distributions. Each drafted position counts with its "
    "sum(min(p, q)), weighted by the probability that earlier tokens are accepted; averaged over the run. It "
    "approaches the solid line as the run continues."
)
BAND_HELP = (
    "Line: accepted tokens of a step that drafts, on average so far. Its band is Wilson's 95 % confidence interval for "
    "accepted / drafted, with the effective number of independent tokens. Tokens of a block are not independent, since "
    "a rejection discards the rest; blocks are assumed to be."
)
REJECTION_HELP = (
    "Dashed: the accepted tokens of a step expected with rejection sampling, from the two distributions at "
    "the places drafted in this run. On average the solid line stays a little below it: that is the cost of a "
    "reproducible text."
)


ACCEPTED_HELP = (
    "Bar: accepted tokens of each step; behind it, how many in a row were drafted. Of trees also, below the line and "
    "at their own scale, the nodes that the target scored, with the accepted ones filled."
)
PLAIN_HELP = "Hollow: a plain step. Nothing was drafted, and the target added one token."
BELOW = 0.4
"""Height of the nodes below the line, in that of the tokens above it."""
TOKEN_TICKS = (1, 2, 4, 8, 16)
"""Steps between the ticks of the tokens."""


class AcceptancePlot(StepPlot):
    """Bars, in tokens: accepted and drafted depth of each block. Lines: accepted on average, and predicted.

    The nodes of trees hang below, with the accepted ones filled.
    """

    def __init__(self, run: RunView) -> None:
        super().__init__(run, object_name="acceptancePlot", title="Acceptance per step", y_label="tokens")
        self.getViewBox().setYRange(0, 1, padding=0)
        self.drafted_bars = self.add_bars("track")
        self.accepted_bars = self.add_bars("draft_bar", "accepted", ACCEPTED_HELP)
        self.plain_bars = self.add_bars("field_border", "plain", PLAIN_HELP, is_hollow=True)
        self.node_bars, self.useful_bars = self.add_bars("track"), self.add_bars("draft_bar")
        self.band_edges = self.add_band("text")
        self.predicted_line = self.add_line("correction", "predicted", PREDICTED_HELP, dashed=True)
        self.rate_line = self.add_line("text", "mean", BAND_HELP, mark=Mark.BAND)
        accepted, self.plain_sample, self.predicted_sample, mean = self._samples
        self._samples[:] = accepted, mean, self.predicted_sample, self.plain_sample
        self.set_hint("One bar per step: accepted tokens of those drafted")
        self._has_trees = False
        self._scale: tuple[float, float] = (0.0, 0.0)

    def readout(self, step: int) -> str:
        """One step in words."""
        drafted, accepted, depth = (
            self._run.counts.columns[column][step] for column in (Column.NUM_DRAFTED, Column.NUM_ACCEPTED, Column.DEPTH)
        )
        if not drafted:
            return f"step {step}: nothing drafted"
        if drafted != depth:
            return f"step {step}: {accepted} of {depth}, {drafted} nodes"
        running = percent_text(self._run.counts.columns[Column.RUNNING_RATE][step])
        return f"step {step}: {accepted} of {drafted}, running {running}"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures."""
        drafted, accepted, depth, mean, rate, predicted, low, high = (
            self._run.counts.columns[column][step]
            for column in (
                Column.NUM_DRAFTED,
                Column.NUM_ACCEPTED,
                Column.DEPTH,
                Column.MEAN_DRAFTED,
                Column.RUNNING_RATE,
                Column.PREDICTED_RATE,
                Column.RATE_LOW,
                Column.RATE_HIGH,
            )
        )
        rows = [(f"Step {step}", ""), ("accepted", f"{accepted:.0f} of {depth:.0f} tokens")]
        if drafted != depth:
            rows.append(("nodes scored", f"{drafted:.0f}, {percent_text(accepted / drafted)} useful"))
        if np.isfinite(rate):
            rows += [("mean so far", f"{rate * mean:.2f} tokens"), ("running rate", percent_text(rate, 1))]
        if np.isfinite(low):
            rows.append(("95 % band", f"{percent_text(low, 1)} to {percent_text(high, 1)}"))
        if np.isfinite(predicted):
            rows.append(("predicted" if self._is_rejection else "by rejection", percent_text(predicted, 1)))
        return rows

    def table(self) -> Table:
        """One row per step."""
        table = self._run.counts.table(*list(Column)[:7], Column.DEPTH)
        if not self._is_rejection:
            table["rate_by_rejection"] = table.pop(Column.PREDICTED_RATE)
        return table

    @property
    def _is_rejection(self) -> bool:
        return self._run.coupling is Coupling.REJECTION

    def settle(self, *, is_over: bool) -> None:
        """Label the dashed line for the run's coupling."""
        if self._is_rejection:
            self.predicted_sample.set_meaning("predicted", PREDICTED_HELP)
        else:
            self.predicted_sample.set_meaning("by rejection", REJECTION_HELP)
        super().settle(is_over=is_over)

    def refresh(self) -> None:
        """Show what is new; plain steps are in the legend if there are any."""
        sums = self._run.counts.sums
        self.plain_sample.setVisible(sums.num_steps > sums.num_blocks)
        super().refresh()

    def _draw_bars(self, first: int, last: int, width: int) -> None:
        counts = self._run.counts
        depths, accepted, nodes, mean = (
            counts.binned(column, first, last, width)
            for column in (Column.DEPTH, Column.NUM_ACCEPTED, Column.NUM_DRAFTED, Column.MEAN_DRAFTED)
        )
        x = bar_centres(first, depths.size, width)
        self.drafted_bars.setOpts(x=x, height=depths, width=self._bar_width)
        self.accepted_bars.setOpts(x=x, height=accepted, width=self._bar_width)
        is_plain = depths == 0
        self.plain_bars.setOpts(x=x[is_plain], height=np.ones(is_plain.sum()), width=self._bar_width)
        self._fit_tokens(float(depths.max(initial=1.0)), float(nodes.max(initial=0.0)))
        below = self._scale[0] * BELOW / max(self._scale[1], 1.0) * counts.has_trees
        self.node_bars.setOpts(x=x, height=-below * nodes, width=self._bar_width)
        self.useful_bars.setOpts(x=x, height=-below * accepted, width=self._bar_width)
        self.rate_line.setData(x, mean * counts.binned(Column.RUNNING_RATE, first, last, width))
        self.predicted_line.setData(x, mean * counts.binned(Column.PREDICTED_RATE, first, last, width))
        for edge, column in zip(self.band_edges, (Column.RATE_LOW, Column.RATE_HIGH), strict=True):
            bound = np.minimum(mean * counts.binned(column, first, last, width), self._scale[0])
            # Only the run's first steps lack a band.
            is_there = np.isfinite(bound)
            edge.setData(x[is_there], bound[is_there])

    def _fit_tokens(self, depth: float, nodes: float) -> None:
        """Scale tokens above and nodes below the line; both grow at once, and shrink when much room is empty."""
        has_trees, scale = self._run.counts.has_trees, (grown(self._scale[0], depth), grown(self._scale[1], nodes))
        if (scale, has_trees) == (self._scale, self._has_trees):
            return
        self._scale, self._has_trees = scale, has_trees
        depth, nodes = scale
        every = next((step for step in TOKEN_TICKS if step * 5 > depth), TOKEN_TICKS[-1])
        ticks = [(float(tokens), str(tokens)) for tokens in range(0, int(depth) + 1, every)]
        ticks += [(-BELOW * depth, f"{nodes:.0f}")] if has_trees else []
        axis = self.getPlotItem().getAxis("left")
        axis.setTicks([ticks])
        self._labels["left"] = "nodes · tokens" if has_trees else "tokens"
        self._style_axis(axis, self._labels["left"])
        self._fit_title()
        low, high = (-1.2 * BELOW, 1.08) if has_trees else (0.0, 1.04)
        self.getViewBox().setYRange(low * depth, high * depth, padding=0)


def grown(shown: float, wanted: float) -> float:
    """The top of a scale: grows at once, and shrinks only when much of it is empty."""
    return wanted if wanted > shown or wanted < 0.6 * shown else shown


PARTS = (Column.DRAFT_MS, Column.VERIFY_MS, Column.SAMPLE_MS)
PART_SERIES = (
    ("draft_bar", "draft", "Time to propose the block."),
    ("target_bar", "verify", "Time of the target's forward over the block."),
    ("sample_bar", "sample", "Filters, verification and the next token."),
)
HEADROOM = 1.12


class LatencyPlot(StepPlot):
    """Bars: draft, verify and sample, stacked. Line: the baseline's mean step, once it is measured."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run, object_name="latencyPlot", title="Latency per step", y_label="ms per step")
        self.parts = [self.add_bars(*part) for part in PART_SERIES]
        self.baseline_line = pg.InfiniteLine(angle=0, movable=False)
        self.baseline_line.hide()
        self.add_item(
            self.baseline_line,
            lambda theme: self.baseline_line.setPen(line_pen(theme.text, dashed=True)),
            SeriesSample("baseline", Mark.DASHES, "text", "Mean time of a plain step, which produces one token."),
        )
        self._baseline_ms: float | None = None
        self._top = 0.0
        self.set_hint("One bar per step: draft, verify and sample time")
        self.getViewBox().setYRange(0, 1, padding=0)

    def refresh(self) -> None:
        """Show what is new, and the baseline's mean once it is known."""
        if self._run.baseline_step_ms != self._baseline_ms:
            self._baseline_ms, self._drawn = self._run.baseline_step_ms, None
            self.baseline_line.setVisible(self._baseline_ms is not None)
            self.baseline_line.setValue(self._baseline_ms or 0.0)
        super().refresh()

    def readout(self, step: int) -> str:
        """One step in words."""
        draft, verify, sample = (self._run.counts.columns[part][step] for part in PARTS)
        total = self._run.counts.columns[Column.TOTAL_MS][step]
        return f"step {step}: {draft:.2f} + {verify:.2f} + {sample:.2f} = {total:.2f} ms"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures."""
        values = {part: self._run.counts.columns[part][step] for part in (*PARTS, Column.TOTAL_MS)}
        rows = [(f"Step {step}", "")]
        rows += [(part.name.removesuffix("_MS").lower(), f"{value:.2f} ms") for part, value in values.items()]
        if self._baseline_ms is not None:
            rows.append(("plain step, mean", f"{self._baseline_ms:.2f} ms"))
        return rows

    def table(self) -> Table:
        """One row per step, each with the baseline's mean."""
        table = self._run.counts.table(*PARTS, Column.TOTAL_MS)
        if self._baseline_ms is not None:
            table["baseline_mean_step_ms"] = [self._baseline_ms] * len(self._run.counts)
        return table

    def _draw_bars(self, first: int, last: int, width: int) -> None:
        heights = [self._run.counts.binned(part, first, last, width) for part in PARTS]
        x = bar_centres(first, heights[0].size, width)
        floor = np.zeros_like(heights[0])
        for part, height in zip(self.parts, heights, strict=True):
            part.setOpts(x=x, y0=floor, height=height, width=self._bar_width)
            floor = floor + height
        self._fit_times(float(floor.max(initial=0.0)))

    def _fit_times(self, highest: float) -> None:
        top = grown(self._top, max(highest, self._baseline_ms or 0.0) * HEADROOM)
        if top != self._top:
            self._top = top
            self.getViewBox().setYRange(0, top or 1.0, padding=0)
