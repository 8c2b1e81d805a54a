"""The right-hand column: figures and plots."""

from __future__ import annotations

from enum import Enum, auto

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.theme import Theme
from app.view_models.run_view import RunView
from app.widgets.acceptance_plot import AcceptancePlot
from app.widgets.latency_plot import LatencyPlot
from app.widgets.metric_tiles import MetricTiles
from app.widgets.plot_card import PlotCard
from app.window_layout import splitter


class _Part(Enum):
    """What a frame may leave to the next one."""

    FIGURES = auto()
    ACCEPTANCE = auto()
    LATENCY = auto()


class MeasurementsPanel(QWidget):
    """Shows a `RunView`'s metrics.

    Signals:
        unfinished: a frame has shown only some of a run's first steps; the next one should come soon.
    """

    unfinished = Signal()

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self._run = run
        self._baseline_ticked = True
        self._frame = 0
        self._empty = list(_Part)
        self._stale: set[_Part] = set()
        self.tiles = MetricTiles()
        self.acceptance = AcceptancePlot(run.metrics)
        self.latency = LatencyPlot(run.metrics)
        self.cards = (PlotCard("Acceptance", self.acceptance), PlotCard("Latency", self.latency))
        self.splitter = splitter(Qt.Orientation.Vertical, "plotSplitter", *((card, 0) for card in self.cards))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.tiles)
        layout.addWidget(self.splitter, 1)

    def begin(self) -> None:
        """A run starts."""
        self._frame = 0
        self._empty = list(_Part)
        self._stale.clear()
        self.latency.set_baseline(None)
        for plot in (self.acceptance, self.latency):
            plot.begin()
        self._show_figures()

    def end(self) -> None:
        """A run is over: show all of it."""
        self._stale.clear()
        self.latency.set_baseline(self._run.baseline_step_ms)
        for plot in (self.acceptance, self.latency):
            plot.end()
        self._show_figures()

    def showEvent(self, event: QShowEvent) -> None:
        """Draw what came while nobody looked."""
        super().showEvent(event)
        for part in self._stale:
            self._show_part(part)
        self._stale.clear()

    def refresh(self, *, has_news: bool) -> None:
        """Show what has come, a part in each frame, and nothing while another page is in front.

        The plots take turns, and the figures, which nobody reads 30 times a second, come every third frame: painting
        takes processor time from the engine. What is not drawn now is drawn in a later frame, news or not. Only the
        first steps are shown by all in frames that follow each other at once, or a plot would stand empty beside a full
        one for seconds; in a single frame they would keep the window from its events for 40 ms.
        """
        if has_news:
            self._stale = set(_Part)
        if self.isHidden():
            return
        self._frame += 1
        due = {_Part.ACCEPTANCE if self._frame % 2 else _Part.LATENCY}
        if self._frame % 3 == 1:
            due.add(_Part.FIGURES)
        if self._empty and self._run.steps:
            due = {self._empty.pop(0)}
        for part in due & self._stale:
            self._show_part(part)
        self._stale -= due
        if self._empty and self._run.steps:
            self.unfinished.emit()

    def _show_part(self, part: _Part) -> None:
        if part is _Part.ACCEPTANCE:
            self.acceptance.refresh()
        elif part is _Part.LATENCY:
            self.latency.set_baseline(self._run.baseline_step_ms)
            self.latency.refresh()
        else:
            self._show_figures()

    def set_baseline_ticked(self, ticked: bool) -> None:
        """Whether the next run will measure its baseline; the empty tile says so."""
        self._baseline_ticked = ticked
        self._show_figures()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for card in self.cards:
            card.set_theme(theme)

    def _show_figures(self) -> None:
        self.tiles.show_figures(self._run.figures, baseline_ticked=self._baseline_ticked)
