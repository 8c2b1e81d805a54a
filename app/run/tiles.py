"""What the engine is doing, in one line at the window's foot."""

from __future__ import annotations

from enum import Enum, auto

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.run.run_view import Figures, RunView
from app.run.step_plots import AcceptancePlot, LatencyPlot
from app.theme import Theme, hold, hold_font
from app.widgets.fields import text_label
from app.widgets.labels import STEPS, ElidedLabel, show_share
from app.widgets.plot_card import PlotCard
from app.window_layout import splitter
from core.text import percent_text

UNKNOWN = "–"


class Tile(QFrame):
    """A title, a figure, a note. Its size doesn't depend on what it shows."""

    def __init__(self, title: str, object_name: str, how: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setToolTip(how)
        self.setAccessibleDescription(how)
        self._title = title
        self.value = QLabel(UNKNOWN)
        self.value.setObjectName(object_name)
        hold_font(self.value, 22, weight=QFont.Weight.DemiBold)
        self.note = ElidedLabel("", "tileNote", takes_all=True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 8, 8)
        layout.setSpacing(1)
        layout.addWidget(text_label(title, "tileTitle"))
        layout.addWidget(self.value)
        layout.addWidget(self.note)
        for label in self.findChildren(QLabel):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.NoTextInteraction)

    def show_figure(self, value: str, note: str, short: str = "") -> None:
        """Show a figure and its note, or a shorter one where that fits; costs nothing if they are shown already."""
        if self.value.text() != value:
            self.value.setText(value)
            self.setAccessibleName(f"{self._title}: {value}")
        if self.note.text() != note:
            self.note.setText(note)
            self.note.set_short(short)
            self.note.setToolTip(f"{note}\n\n{self.toolTip()}")


class MetricTiles(QWidget):
    """Tokens per second, measured speedup, acceptance, block efficiency."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = Tile(
            "Tokens per second",
            "speedValue",
            "New tokens / the sum of the steps' times. The prefill of the prompt is not part of it.",
        )
        self.speedup = Tile(
            "Measured speedup",
            "speedupValue",
            "Tokens per second of this run / those of the target alone, run here right afterwards with the same "
            "sampling. Wall clock, never an estimate; below 1 means that drafting doesn't pay here.",
        )
        self.acceptance = Tile(
            "Acceptance",
            "acceptanceValue",
            "Accepted / drafted tokens. Tokens behind a rejected one count as drafted, so this is lower than the "
            "chance of a tested token. Predicted: from sum(min(p, q)), the overlap of the two distributions, at each "
            "drafted position, weighted by the chance that the tokens before it are kept. On average a reproducible "
            "run keeps a little less than this, which is what rejection would have kept of its drafts.",
        )
        self.efficiency = Tile(
            "Block efficiency",
            "efficiencyValue",
            "New tokens / forwards of the target, resampled and bonus tokens included. Plain decoding has 1.",
        )
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for index, tile in enumerate((self.speed, self.speedup, self.acceptance, self.efficiency)):
            layout.addWidget(tile, index // 2, index % 2)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_figures(Figures(), baseline_ticked=True)

    def show_figures(self, figures: Figures, *, baseline_ticked: bool) -> None:
        """Show a run's figures as far as they are known."""
        speed, note, short = UNKNOWN, "decoding only", ""
        if figures.tokens_per_second is not None:
            speed, taken = f"{figures.tokens_per_second:,.1f}", f"in {figures.seconds:.2f} s"
            note, short = f"{figures.tokens:,} tokens {taken}", f"{figures.tokens:,} {taken}"
        self.speed.show_figure(speed, note, short)
        self.speedup.show_figure(*_speedup(figures, baseline_ticked))
        self.acceptance.show_figure(
            UNKNOWN if figures.acceptance is None else percent_text(figures.acceptance),
            *_predicted(figures),
        )
        efficiency = figures.block_efficiency
        shown = UNKNOWN if efficiency is None else f"{efficiency:.2f}"
        self.efficiency.show_figure(shown, "tokens per target forward", "tokens per forward")


def _predicted(figures: Figures) -> tuple[str, str]:
    if figures.predicted_acceptance is None:
        return "accepted of drafted", "of drafted"
    share = percent_text(figures.predicted_acceptance)
    if figures.is_reproducible:
        return f"rejection would be {share}", f"by rejection {share}"
    return f"predicted {share}", ""


def _speedup(figures: Figures, baseline_ticked: bool) -> tuple[str, str, str]:
    speedup, plain = figures.speedup, figures.baseline_tokens_per_second
    measured = ("", "") if plain is None else (f"baseline {plain:,.1f} tokens/s", f"baseline {plain:,.1f}/s")
    if speedup is not None and plain is not None:
        return f"{speedup:.2f}×", *measured
    if figures.is_over and figures.baseline_wanted:
        return UNKNOWN, "the baseline did not run", "no baseline ran"
    if not (figures.baseline_wanted or (baseline_ticked and not figures.tokens)):
        return UNKNOWN, "tick Measure the baseline", "tick the baseline"
    if plain is not None:
        return UNKNOWN, *measured
    return UNKNOWN, "baseline runs after the run", "baseline comes last"


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


STRIP_HEIGHT = 29


class StatusStrip(QFrame):
    """Stage, downloads, where it runs, count, progress bar.

    Signals:
        download_clicked: a person wants to see the downloads.
    """

    download_clicked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("statusStrip")
        # What comes and goes in it must not move the panels above.
        hold(self, height=STRIP_HEIGHT)
        self.stage = text_label("", "hint")
        self.stage.setObjectName("stageLabel")
        self.stage.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.download = QToolButton()
        self.download.setObjectName("downloadLine")
        self.download.setToolTip("Show the downloads")
        self.download.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.download.hide()
        self.download.clicked.connect(self.download_clicked)
        self.place = text_label("", "hint")
        self.place.setObjectName("placeLabel")
        self.count = text_label("", "hint")
        self.count.setObjectName("countLabel")
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        hold(self.count, least_width=132)
        self.bar = QProgressBar()
        self.bar.setObjectName("progressBar")
        self.bar.setAccessibleName("Progress")
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(200)
        self.bar.setRange(0, STEPS)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(16, 0, 16, 0)
        layout.setSpacing(16)
        layout.addWidget(self.stage, 1)
        layout.addWidget(self.download)
        layout.addWidget(self.place)
        layout.addWidget(self.count)
        layout.addWidget(self.bar)

    def show_stage(self, text: str) -> None:
        """Say what is going on."""
        if self.stage.text() != text:
            self.stage.setText(text)
            self.stage.setToolTip(text)

    def show_download(self, text: str) -> None:
        """Say in a few words what is being downloaded; empty if nothing is."""
        if self.download.text() != text:
            self.download.setText(text)
            self.download.setVisible(bool(text))

    def show_place(self, text: str) -> None:
        """Say where the models run."""
        if self.place.text() != text:
            self.place.setText(text)

    def show_count(self, text: str) -> None:
        """Say how many tokens there are."""
        if self.count.text() != text:
            self.count.setText(text)

    @property
    def is_busy(self) -> bool:
        """Whether the bar moves with no end in sight."""
        return self.bar.maximum() == 0

    def show_progress(self, share: float | None) -> None:
        """Fill the bar to a share from 0 to 1; None: busy, with no end in sight yet."""
        show_share(self.bar, share)
