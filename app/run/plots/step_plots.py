"""What plots over the steps share; and where each step's time goes."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal, Slot

from app.run.run_view import RunView
from app.run.text.tokens import Place
from app.widgets.pictures import Table
from app.widgets.plots import BAR_WIDTH, DASHED, THIN, Plot
from core.analysis.run_counts import Array, Column
from core.text import count_text

MARKS_Z = 50
"""In front of bars and lines."""
FOLLOWED_STEPS = 48
"""How many of the latest steps are shown during a run."""
SCROLLED_STEPS = 12
"""How far the view moves when it is full: in strides, since a still axis is easier to read."""
MIN_STEPS = 24
"""Room for this many steps after a short run."""
PREVIOUS_HELP = "The same mean of the run shown before. View, Previous run in the plots, hides it."
MAX_BARS = 320
"""More steps than this are drawn as means over bins, which limits the cost."""


class StepPlot(Plot):
    """Base of the plots over steps; a subclass fills its items in `_draw_bars`.

    Steps count from 1 along x, and from 0 in code and logs.

    The view follows the latest steps until the user pans or zooms, and shows all steps after the run.

    Signals:
        step_clicked: a step that was clicked.
    """

    step_clicked = Signal(int)

    def __init__(self, run: RunView, *, object_name: str, title: str, y_label: str) -> None:
        super().__init__(object_name=object_name, title=title, x_label="step", y_label=y_label)
        self._run = run
        self._shows_previous = True
        self._drawn: tuple[int, int, int, float] | None = None
        self._bar_width = BAR_WIDTH
        """In steps."""
        item = self.getPlotItem()
        item.setMouseEnabled(x=True, y=False)
        self.getViewBox().setLimits(xMin=0, minXRange=4)
        self._selected = self.add_line("accent", angle=90)
        self._hovered = self.add_line("muted", dashes=(1, 2), width=THIN, angle=90)
        for mark in (self._selected, self._hovered):
            mark.setZValue(MARKS_Z)

    def add_previous(self, *columns: Column) -> None:
        """Add the previous run's line: the product of these columns."""
        self._previous_columns = columns
        self.previous_line = self.add_line("faint", "previous", PREVIOUS_HELP, width=1.25)
        self._previous_sample = self._samples[-1]

    @Slot(bool)
    def show_previous(self, shown: bool) -> None:
        """Show or hide the previous run."""
        self._shows_previous, self._drawn = shown, None
        self.refresh()

    def refresh(self) -> None:
        """Show what is new; the previous run is in the legend if there is one."""
        has_line = self._run.previous is not None and len(self._run.counts) > 0
        self._previous_sample.setVisible(self._shows_previous and has_line)
        super().refresh()

    def _draw_previous(self, first: int, last: int, width: int) -> float:
        """Draw the previous run from a step on, and return its highest value."""
        previous = self._run.previous if self._shows_previous and len(self._run.counts) else None
        if previous is None:
            self.previous_line.setData([], [])
            return 0.0
        # As far as the view goes, though the current run may not have come that far.
        last = max(last, math.ceil(self.getViewBox().viewRange()[0][1]))
        values = [previous.binned(column, first, last, width) for column in self._previous_columns]
        line = np.prod(values, axis=0)
        self.previous_line.setData(bar_centres(first, line.size, width), line)
        return float(line[np.isfinite(line)].max(initial=0.0))

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
        wanted = (first + 0.4, first + shown + 0.6)
        if wanted != self._shown:
            self._shown = wanted
            self.getViewBox().setXRange(*wanted, padding=0)

    def _place_at(self, x: float) -> int:
        nearest = round(x) - 1
        return nearest if 0 <= nearest < len(self._run.counts) else -1

    def _draw(self) -> None:
        left, right = self.getViewBox().viewRange()[0]
        first, last = max(0, math.floor(left) - 1), min(len(self._run.counts), math.ceil(right))
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
        line.setPos(step + 1)
    line.setVisible(step >= 0)


def bar_centres(first: int, count: int, width: int) -> Array:
    """Positions of the bars of `count` bins on the x axis, of which the first begins with the step `first`."""
    return (first + 1 + np.arange(count) * float(width) + (width - 1) / 2).astype(np.float64)


def grown(shown: float, wanted: float) -> float:
    """The top of a scale: grows at once, and shrinks only when much of it is empty."""
    return wanted if wanted > shown or wanted < 0.6 * shown else shown


PARTS = (Column.DRAFT_MS, Column.VERIFY_MS, Column.SAMPLE_MS)
PART_SERIES = (
    ("draft_bar", "draft", "Time to propose the block."),
    ("target_bar", "verify", "Time of the target's forward over the block."),
    ("sample_bar", "sample", "Filters, verification and the next token."),
)
WHOLE_HELP = "Between the arrivals of two steps from the server, which doesn't report the parts."
MEAN_HELP = (
    "Time of all steps so far / the tokens that they added. Below the baseline, drafting pays. Bars more than four "
    "times as high as the lines are cut off."
)
MOST_ABOVE = 4.0
"""How much higher than the lines a plot is at most: one slow step would press all others flat."""
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
        self._baseline_sample = self._samples[-1]
        self._samples.append(self._samples.pop(self._samples.index(self._previous_sample)))
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
        is_coming = self._run.request is None or self._run.wants_baseline
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
        rows.append(("per token so far", f"{columns[Column.RUNNING_MS_PER_TOKEN][step]:.2f} ms"))
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
        counts, request = self._run.counts, self._run.request
        is_server = request is not None and bool(request.engine)
        for place, sample in enumerate(self._samples[: len(PARTS) + 1]):
            sample.setVisible(is_server == (place == len(PARTS)))
        # Over a bin: the time of its steps / their tokens.
        tokens = np.maximum(counts.binned(Column.TOKENS, first, last, width), 1.0 / width)
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

    def _fit_times(self, highest: float) -> None:
        top = grown(self._top, max(highest, self._baseline_ms or 0.0) * HEADROOM)
        if top != self._top:
            self._top = top
            self.getViewBox().setYRange(0, top or 1.0, padding=0)
