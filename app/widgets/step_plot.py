"""What both plots share: steps along x, a window that follows the run, and drawing whose cost doesn't grow with it."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPointF, Qt, Signal, Slot

from app.theme import Theme
from app.view_models.metrics import Array, StepMetrics
from app.view_models.selection import Place
from app.widgets.base_plot import BAR_WIDTH, BasePlot, prepare_axis, show_axes
from app.widgets.step_marks import StepMarks

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
        step_hovered: the step under the pointer, or -1.
        step_clicked: a step that was clicked.
    """

    step_hovered = Signal(int)
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

    def replace_left_axis(self, axis: pg.AxisItem) -> None:
        """Put another scale in place of the plain one."""
        prepare_axis(axis)
        self.getPlotItem().setAxisItems({"left": axis})

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

    @Slot(object)
    def _on_mouse_moved(self, point: QPointF) -> None:
        self.step_hovered.emit(self._step_at(point))

    def _step_at(self, point: QPointF) -> int:
        box = self.getViewBox()
        if not box.sceneBoundingRect().contains(point):
            return -1
        nearest = round(box.mapSceneToView(point).x())
        return nearest if 0 <= nearest < len(self._metrics) else -1

    @Slot(object)
    def _on_mouse_clicked(self, event: pg.GraphicsScene.mouseEvents.MouseClickEvent) -> None:
        super()._on_mouse_clicked(event)
        is_plain = not event.double() and event.button() is Qt.MouseButton.LeftButton
        if is_plain and (step := self._step_at(event.scenePos())) >= 0:
            self.step_clicked.emit(step)

    def leaveEvent(self, event: object) -> None:
        """Nothing is hovered any more."""
        super().leaveEvent(event)
        self.step_hovered.emit(-1)


def bar_centres(first: int, count: int, width: int) -> Array:
    """Where the bars of `count` bins stand on the x axis."""
    return (first + np.arange(count) * float(width) + (width - 1) / 2).astype(np.float64)
