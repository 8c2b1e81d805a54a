"""The page of plots that look at a run as a whole. It draws only while it is seen."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.theme import Theme
from app.view_models.positions import PositionCounts
from app.view_models.race import Timeline
from app.view_models.run_view import RunView
from app.widgets.plot_card import PlotCard
from app.widgets.position_plot import PositionPlot
from app.widgets.timeline_plot import TimelinePlot
from app.window_layout import splitter

FRAMES = 4
"""Each plot is drawn in every fourth frame at most, which is enough for curves that grow slowly."""


class PlotsPage(QWidget):
    """Shows a `RunView`'s tokens over time, and its acceptance by draft position."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("plotsPage")
        self._run = run
        self._frame = 0
        self._is_over = True
        self._steps = run.steps
        self.timeline = TimelinePlot()
        self.positions = PositionPlot()
        self._stale: set[TimelinePlot | PositionPlot] = set()
        self._count_anew()
        self.cards = (
            PlotCard("Tokens over time", self.timeline),
            PlotCard("Acceptance by position", self.positions),
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(splitter(Qt.Orientation.Vertical, "pageSplitter", *((card, 0) for card in self.cards)))

    def begin(self) -> None:
        """A run starts."""
        self._forget_old()
        self._show_all(is_over=False)

    def end(self) -> None:
        """A run is over."""
        self._show_all(is_over=True)

    def refresh(self, *, has_news: bool) -> None:
        """Show what has come, one plot at a time; while the page is not seen, only remember that something has."""
        self._frame += 1
        if has_news:
            self._stale = {self.timeline, self.positions}
        due = {0: self.timeline, FRAMES // 2: self.positions}.get(self._frame % FRAMES)
        if due in self._stale and self.isVisible():
            self._take_in()
            due.refresh()
            self._stale.discard(due)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for card in self.cards:
            card.set_theme(theme)

    def showEvent(self, event: QShowEvent) -> None:
        """Draw what came while nobody looked."""
        super().showEvent(event)
        self._show_all(is_over=self._is_over)

    def _take_in(self) -> None:
        """Count the steps that have come, although they may not be drawn yet."""
        self._forget_old()
        ours, plain = self._timelines
        ours.extend(self._run.steps[len(ours.counts) :])
        plain.extend(self._run.baseline_steps[len(plain.counts) :])
        self._counts.extend(self._run.steps[self._counts.num_steps :])

    def _forget_old(self) -> None:
        """Let go of the steps of a run that is no longer at hand."""
        if self._steps is not self._run.steps:
            self._steps = self._run.steps
            self._count_anew()

    def _count_anew(self) -> None:
        self._timelines, self._counts = (Timeline(), Timeline()), PositionCounts()
        self.timeline.show_timelines(*self._timelines)
        self.positions.show_counts(self._counts)

    def _show_all(self, *, is_over: bool) -> None:
        self._is_over = is_over
        self._stale.clear()
        if self.isVisible():
            self._take_in()
            for plot in (self.timeline, self.positions):
                plot.settle(is_over=is_over)
