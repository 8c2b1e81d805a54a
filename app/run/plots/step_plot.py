"""What plots over the steps share."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal, Slot

from app.run.run_view import RunView
from app.run.text.tokens import Place
from app.widgets.plots import BAR_WIDTH, THIN, Plot
from core.analysis.run_counts import Array, Column

MARKS_Z = 50
"""In front of bars and lines."""
FOLLOWED_STEPS = 48
"""How many of the latest steps are shown during a run."""
SCROLLED_STEPS = 12
"""How far the view moves when it is full: in strides, since a still axis is easier to read."""
MIN_STEPS = 24
"""Room for this many steps after a short run."""
PREVIOUS_HELP = "The same mean of the previous run. View > Previous run in the plots hides it."
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
        self._shows_previous = self._is_over = True
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
        self.previous_line = self.add_line("faint", "previous run", PREVIOUS_HELP, width=1.25)
        self._previous_sample = self.samples[-1]

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
        """Follow a run, or show all of it when it is over, unless the user moved the view."""
        self._drawn, self._is_over = None, is_over
        super().settle(is_over=is_over)

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
    """The top of a scale: grows immediately, and shrinks only when much of it is empty."""
    return wanted if wanted > shown or wanted < 0.6 * shown else shown
