"""The race: the run and its baseline, measured one after the other, replayed side by side on one clock."""

from __future__ import annotations

from collections.abc import Generator

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.theme import Theme, scaled
from app.turns import Turns
from app.view_models.race import STEPS_PER_PIECE, Race, making_race, waiting_text
from app.view_models.run_view import RunView
from app.widgets.fields import card, text_label
from app.widgets.race_clock import FRAME_MS, RaceClock
from app.widgets.race_controls import RaceControls
from app.widgets.race_lane import RaceLane
from app.window_layout import splitter

BESIDE_WIDTH = 680
"""From this width on the texts stand side by side; below it lines would be too short to read."""

OURS_HELP = "The run, step by step as it was measured; a step's tokens appear together when it ends."
PLAIN_HELP = "Plain decoding of the same prompt with the same sampler, measured behind the run: one token a forward."


class RacePage(QWidget):
    """Shows a `RunView`'s race once both runs are over. It works only while it is seen."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("racePage")
        self._run = run
        self._race: Race | None = None
        self._is_stale = True
        self._is_running = False
        self.clock = RaceClock(self)
        self.controls = RaceControls(self.clock)
        self.ours = RaceLane("speculative", "Speculative", OURS_HELP, in_kinds=True)
        self.plain = RaceLane("baseline", "Baseline", PLAIN_HELP, in_kinds=False)
        self.speedup = text_label("", "title")
        self.speedup.setObjectName("raceSpeedup")
        self.speedup.setToolTip("Tokens per second of the run over those of the baseline")
        self.lead = text_label("", "strong")
        self.lead.setObjectName("raceLead")
        self.lead.setWordWrap(True)
        self.lead.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.source = _sentence("raceSource")
        self.texts = _sentence("raceTexts")
        self.empty = text_label("", "hint")
        self.empty.setObjectName("raceEmpty")
        self.empty.setWordWrap(True)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setContentsMargins(48, 0, 48, 0)
        self._making = Turns(self)
        self._catch_up = QTimer(self)
        self._catch_up.setSingleShot(True)
        self._catch_up.setInterval(FRAME_MS)
        self._catch_up.timeout.connect(self._on_catch_up)
        self._lay_out()
        self.clock.moved.connect(self._on_moved)
        self._show_race()

    def _lay_out(self) -> None:
        self.lanes = splitter(Qt.Orientation.Vertical, "raceSplitter", (self.ours, 0), (self.plain, 0))
        head = QHBoxLayout()
        head.setSpacing(10)
        head.addWidget(self.speedup)
        head.addWidget(self.lead, 1)
        head.addWidget(self.controls.time)
        race = QWidget()
        race.setObjectName("raceBody")
        column = QVBoxLayout(race)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addLayout(head)
        for label in (self.source, self.texts):
            column.addWidget(label)
        column.addWidget(self.controls)
        column.addWidget(self.lanes, 1)
        # In a low window the page scrolls; its least height must not keep the prompt from being drawn larger.
        scrolled = QScrollArea()
        scrolled.setObjectName("raceScroll")
        scrolled.setWidgetResizable(True)
        scrolled.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scrolled.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scrolled.setWidget(race)
        self.stack = QStackedWidget()
        self.stack.addWidget(self.empty)
        self.stack.addWidget(scrolled)
        frame, layout = card()
        layout.setContentsMargins(12, 10, 12, 10)
        layout.addWidget(self.stack)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(frame)

    def begin(self) -> None:
        """A run starts: what is shown is not its race."""
        self._is_running = True
        self._note_change()

    def refresh(self, *, has_news: bool) -> None:
        """A run's race is shown when it is over, so that no frame has anything to do."""

    def end(self) -> None:
        """A run is over."""
        self._is_running = False
        self._note_change()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for lane in (self.ours, self.plain):
            lane.set_theme(theme)
        self._on_moved(self.clock.now_ms)

    def showEvent(self, event: QShowEvent) -> None:
        """Make the race that came while nobody looked."""
        super().showEvent(event)
        self._turn_lanes()
        if self._is_stale:
            self._show_race()
        else:
            self._on_moved(self.clock.now_ms)

    def hideEvent(self, event: QHideEvent) -> None:
        """A race that nobody sees stands still."""
        super().hideEvent(event)
        self.clock.pause()
        self._catch_up.stop()
        self._is_stale = self._is_stale or self._making.is_going
        self._making.stop()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the texts side by side where there is room."""
        super().resizeEvent(event)
        self._turn_lanes()

    def _turn_lanes(self) -> None:
        is_wide = self.width() >= scaled(BESIDE_WIDTH)
        self.lanes.setOrientation(Qt.Orientation.Horizontal if is_wide else Qt.Orientation.Vertical)

    def _note_change(self) -> None:
        self._is_stale = True
        self.clock.pause()
        if self.isVisible():
            self._show_race()

    def _show_race(self) -> None:
        """Show the race as soon as it is made: at once, unless the run is long."""
        self._is_stale = False
        self._race = None
        self._making.start(self._race_pieces())
        if len(self._run.steps) + len(self._run.baseline_steps) <= STEPS_PER_PIECE:
            self._making.finish()
        else:
            # What is there may be another run's.
            self.empty.setText("")
            self.stack.setCurrentIndex(0)

    def _race_pieces(self) -> Generator[None]:
        race = None if self._is_running else (yield from making_race(self._run))
        if race is None:
            self.empty.setText(waiting_text(self._run, is_running=self._is_running))
            self.stack.setCurrentIndex(0)
            self.clock.set_end(0.0)
            return
        most = max(race.ours.timeline.num_tokens, race.plain.timeline.num_tokens)
        for lane, runner in ((self.ours, race.ours), (self.plain, race.plain)):
            lane.set_runner(runner, most)
            yield
        self.speedup.setText(f"{race.speedup:.2f}×" if race.speedup is not None else "–")
        self.source.setText(race.source)
        self.texts.setText(race.texts)
        self._race = race
        self.stack.setCurrentIndex(1)
        self.clock.set_end(race.duration_ms)

    @Slot(float)
    def _on_moved(self, clock_ms: float) -> None:
        if self._race is None:
            return
        self.lead.setText(self._race.lead_text(clock_ms))
        # Both lanes are shown, although the first one may already have more to come.
        is_whole = [lane.show_moment(clock_ms) for lane in (self.ours, self.plain)]
        if not all(is_whole) and self.isVisible():
            self._catch_up.start()

    @Slot()
    def _on_catch_up(self) -> None:
        self._on_moved(self.clock.now_ms)


def _sentence(name: str) -> QLabel:
    label = text_label("", "hint")
    label.setObjectName(name)
    label.setWordWrap(True)
    return label
