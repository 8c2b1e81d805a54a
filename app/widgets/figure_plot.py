"""What the plots that are not by step share: axes that start at nothing, a view that fits until it is moved."""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, Signal, Slot

from app.theme import Theme
from app.widgets.base_plot import BasePlot, show_axes
from app.widgets.legend import SeriesSample
from app.widgets.plot_table import Table

SPARE = 1.25
"""How far the view grows beyond what it must, so that the axes stand still for a while."""
MARGIN = 1.03
"""What is left free beyond the last figure when no more will come."""


class FigurePlot(BasePlot):
    """Base of such plots. A subclass fills its items in `_draw` and says in `_extent` how far they reach.

    Signals:
        pointed: the place under the pointer, in the subclass's own count, or -1.
    """

    pointed = Signal(int)

    def __init__(self, *, object_name: str, title: str, x_label: str, y_label: str) -> None:
        super().__init__(object_name=object_name, title=title, x_label=x_label, y_label=y_label)
        self._fits = True
        self._shown = (0.0, 0.0)
        self._axes: tuple[Theme, bool] | None = None
        """The look that the axes have, since every change of it draws them anew."""
        self._spare = SPARE
        self.getViewBox().sigRangeChanged.connect(self._on_range_changed)

    # --- For subclasses ---

    def _draw(self) -> None:
        """Fill the items with what is in view."""
        raise NotImplementedError

    def _extent(self) -> tuple[float, float]:
        """How far the figures reach along x and y; 0 along x where there are none."""
        raise NotImplementedError

    def _fit(self, extent: tuple[float, float]) -> None:
        """Bring all of it into view."""
        grown = tuple(
            self._spare * wanted if wanted > shown or wanted < 0.5 * shown else shown
            for wanted, shown in zip(extent, self._shown, strict=True)
        )
        if grown != self._shown:
            self._shown = (grown[0], grown[1])
            self.getViewBox().setRange(xRange=(0, grown[0] or 1), yRange=(0, grown[1] or 1), padding=0)

    def _place_at(self, x: float) -> int:
        """The place at an x value; -1 where there is nothing."""
        raise NotImplementedError

    # --- For the card ---

    def legend(self) -> list[SeriesSample]:
        """The series, for a legend beside the plot."""
        raise NotImplementedError

    def readout(self, place: int) -> str:
        """The place under the pointer, on one short line."""
        raise NotImplementedError

    def details(self, place: int) -> list[tuple[str, str]]:
        """The place under the pointer, as names and figures with their units; the first is its title."""
        raise NotImplementedError

    def table(self) -> Table:
        """All that is plotted, not only what is in view."""
        raise NotImplementedError

    # --- For the page ---

    def redraw(self) -> None:
        """Draw again although nothing has come."""
        self.refresh()

    def refresh(self) -> None:
        """Show what has come since the last time."""
        extent = self._extent()
        is_empty = extent[0] <= 0
        self._hint.setVisible(is_empty)
        if self._axes != (self._theme, is_empty):
            self._axes = (self._theme, is_empty)
            show_axes(self.getPlotItem(), self._theme, is_empty=is_empty)
        if self._fits:
            self._fit(extent)
        self._draw()

    def reset_view(self) -> None:
        """Undo what was zoomed and panned by hand."""
        self._fits, self._shown = True, (0.0, 0.0)
        self.refresh()

    def settle(self, *, is_over: bool) -> None:
        """Say whether more figures are to come, and fit the view to that, unless it was moved by hand."""
        self._spare = MARGIN if is_over else SPARE
        if self._fits:
            self.reset_view()
        else:
            self.refresh()

    @Slot()
    def _on_moved_by_hand(self) -> None:
        self._fits = False
        self._draw()

    @Slot()
    def _on_range_changed(self) -> None:
        if not self._fits:
            self._draw()

    @Slot(object)
    def _on_mouse_moved(self, point: QPointF) -> None:
        box = self.getViewBox()
        x = box.mapSceneToView(point).x() if box.sceneBoundingRect().contains(point) else math.nan
        self.pointed.emit(-1 if math.isnan(x) else self._place_at(x))

    def leaveEvent(self, event: object) -> None:
        """Nothing is pointed at any more."""
        super().leaveEvent(event)
        self.pointed.emit(-1)
