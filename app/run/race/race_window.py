"""The Race window: a run and its baseline, measured one after the other, replayed side by side on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QElapsedTimer, QSignalBlocker, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QProgressBar, QPushButton, QSizePolicy, QSlider, QStackedWidget, QWidget

from app.run.plots.timeline_plot import TimelinePlot
from app.run.race.race import (
    Race,
    comparison_text,
    lead_text,
    length_text,
    race_of,
    seconds_text,
    source_text,
    speedup_of,
    subject_text,
    waiting_text,
)
from app.run.run_page import RunPage, column_label
from app.run.run_view import RunView
from app.run.text.token_colors import LegendWord
from app.run.text.token_text import TokenText
from app.run.text.tokens import KINDS, TokenStream
from app.theme import hold, scaled
from app.widgets.fields import (
    NO_LIMIT,
    boxed,
    card,
    column,
    guard_wheel,
    held,
    hint_label,
    named,
    plain_tip,
    row,
    scrolled,
    text_label,
    wrapped_label,
)
from app.widgets.labels import ElidedLabel
from app.widgets.legend import Legend
from app.widgets.plot_card import PlotCard
from app.window_layout import bring_forward, open_at, splitter
from core.analysis.run_counts import Timeline
from core.settings import Coupling
from core.text import count_text
from core.types import FinishReason, Step

FRAME_MS = 33
SLOWED, SLOWED_MS = "in 12 s", 12_000.0
"""The pace at which any race takes this long."""
MEASURED, SHORT_MS = "1×", 3_000.0
"""The measured pace, at which races shorter than this end too soon."""
PACES = {SLOWED: 0.0, "¼×": 0.25, MEASURED: 1.0, "4×": 4.0}
STOPS = 100
"""Steps of the arrow keys from start to end."""
CLOCK_HELP = "The measured time of all steps. The prefill, which takes the same time in both runs, is left out."


class RaceClock(QWidget):
    """The clock of the race and its controls; the page places `time`, the label with the reading.

    Signals:
        moved: the clock shows another time, in milliseconds.
    """

    moved = Signal(float)

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = self.end_ms = 0.0
        self._has_chosen_pace = False
        self._stopwatch = QElapsedTimer()
        self._timer = QTimer(self, timerType=Qt.TimerType.PreciseTimer, interval=FRAME_MS)
        self._timer.timeout.connect(self._on_frame)
        self.play_button = named(
            QPushButton("Play"), "racePlay", "Play or pause the race", "Replay both runs on one clock"
        )
        restart_help = "Go back to the start and play"
        self.restart_button = named(QPushButton("Restart"), "raceRestart", "Restart the race", restart_help)
        self.pace = named(QComboBox(), "racePace", "Pace of the race", "1× is the measured pace")
        self.pace.addItems(list(PACES))
        self.pace.setCurrentText(MEASURED)
        slider = QSlider(Qt.Orientation.Horizontal)
        self.slider = named(slider, "raceSlider", "Clock of the race, in milliseconds", CLOCK_HELP)
        self.time = hint_label("raceTime")
        self.time.setToolTip(plain_tip(CLOCK_HELP))
        pace = text_label("Pace", "hint", buddy=self.pace)
        boxed(row(self.play_button, self.restart_button, pace, self.pace, (self.slider, 1)), self)
        guard_wheel(self.pace, self.slider)
        self.pace.activated.connect(self._on_pace_chosen)
        self.play_button.clicked.connect(self._on_play)
        self.restart_button.clicked.connect(self._on_restart)
        self.slider.valueChanged.connect(self._on_slid)

    @property
    def is_playing(self) -> bool:
        """Whether the clock is running."""
        return self._timer.isActive()

    def set_end(self, end_ms: float) -> None:
        """Stop, and set the end of another race."""
        self.pause()
        self.end_ms = end_ms
        if not self._has_chosen_pace:
            self.pace.setCurrentText(SLOWED if end_ms < SHORT_MS else MEASURED)
        with QSignalBlocker(self.slider):
            self.slider.setRange(0, round(end_ms))
        self.slider.setSingleStep(max(1, round(end_ms / STOPS)))
        self.slider.setPageStep(max(1, round(end_ms / 10)))
        self.seek(end_ms)

    def play(self) -> None:
        """Continue; from the start if the end was reached."""
        if self.is_playing or self.end_ms <= 0:
            return
        if self.now_ms >= self.end_ms:
            self.seek(0.0)
        self._stopwatch.start()
        self._timer.start()
        self.play_button.setText("Pause")

    def play_slowed(self) -> None:
        """Play from the start, slowly enough to be followed."""
        self.pace.setCurrentText(SLOWED)
        self._on_restart()

    def pause(self) -> None:
        """Stop."""
        self._timer.stop()
        self.play_button.setText("Play")

    def seek(self, clock_ms: float) -> None:
        """Show a time between start and end."""
        self.now_ms = min(max(0.0, clock_ms), self.end_ms)
        with QSignalBlocker(self.slider):
            self.slider.setValue(round(self.now_ms))
        self.time.setText(f"Clock: {seconds_text(self.now_ms)}")
        self.moved.emit(self.now_ms)

    def advance(self, elapsed_ms: float) -> None:
        """Advance by the elapsed milliseconds, at the current pace; stop at the end."""
        self.seek(self.now_ms + elapsed_ms * (PACES[self.pace.currentText()] or self.end_ms / SLOWED_MS))
        if self.now_ms >= self.end_ms:
            self.pause()

    @Slot()
    def _on_frame(self) -> None:
        self.advance(self._stopwatch.restart())

    @Slot()
    def _on_pace_chosen(self) -> None:
        self._has_chosen_pace = True

    @Slot()
    def _on_play(self) -> None:
        (self.pause if self.is_playing else self.play)()

    @Slot()
    def _on_restart(self) -> None:
        self.seek(0.0)
        self.play()

    @Slot(int)
    def _on_slid(self, milliseconds: int) -> None:
        # The slider has whole milliseconds; its last one is the end.
        self.seek(self.end_ms if milliseconds == self.slider.maximum() else float(milliseconds))


BAR_HELP = "Tokens so far, as a share of the number at which both are compared."


class RaceLane(QWidget):
    """One of the two runs at the clock's time."""

    def __init__(self, name: str, title: str, help_text: str, *, has_legend: bool) -> None:
        super().__init__()
        self.setObjectName(f"{name}Lane")
        self._timeline = Timeline()
        self.text = named(TokenText(font_size=13), f"{name}RaceText", f"{title} text")
        self.text.setProperty("role", "raceText")
        hold(self.text, least_height=110)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        # It changes every frame, and must not move its neighbours.
        self.count = ElidedLabel("", "hint", takes_all=True, name=f"{name}RaceCount")
        self.bar = named(QProgressBar(textVisible=False), f"{name}RaceBar", f"{title} progress", BAR_HELP)
        heading = text_label(title, "section")
        heading.setToolTip(plain_tip(help_text))
        hold(heading, least_height=LANE_HEADING)  # As high as the legend by the other heading.
        self._words = [LegendWord(fate) for fate in KINDS] if has_legend else []
        head = row(heading, (Legend(self._words, gap=LEGEND_GAP), 1))
        boxed(column(head, self.count, self.bar, (self.text, 1), spacing=4), self)

    def set_run(self, steps: Sequence[Step], timeline: Timeline, coupling: Coupling) -> None:
        """Show a run's first steps, those of the timeline; the bar is full at their last token."""
        for word in self._words:
            word.explain(coupling)
        self._timeline = timeline
        self.bar.setRange(0, max(1, timeline.num_tokens))
        self.text.set_stream(TokenStream(steps=list(steps[: len(timeline.counts)])))

    def show_time(self, clock_ms: float) -> None:
        """Show the run's progress at this time."""
        timeline = self._timeline
        tokens, elapsed = timeline.tokens_at(clock_ms), min(clock_ms, timeline.end_ms)
        self.bar.setValue(tokens)
        took = f" in {seconds_text(timeline.end_ms)}" if clock_ms >= timeline.end_ms else ""
        rate = f" · {1000 * tokens / elapsed:.1f} tokens/s" if tokens and elapsed > 0 else ""
        self.count.setText(f"{count_text(tokens, 'token')}{took}{rate}")
        self.text.set_limit(timeline.steps_at(clock_ms), follows=self.text.follows_end)


WAITING_HEIGHT, LANE_HEADING, LEGEND_GAP = 140, 22, 6
PREVIOUS = "The previous run: the new one has not started"
BESIDE_WIDTH = 680
"""From this width on the texts are side by side."""

OURS_HELP = "The run, step by step as measured; a step's tokens appear together when it ends."
PLAIN_HELP = "Plain decoding of the same prompt with the same sampler, measured after the run: one token per forward."


class RaceWindow(RunPage):
    """A window of its own that shows a `RunView`'s race once both runs are over. It draws only while it is open."""

    def __init__(self, run: RunView, main: QWidget | None = None) -> None:
        super().__init__()
        self.setParent(main, Qt.WindowType.Dialog)
        self.setObjectName("raceWindow")
        self.setWindowTitle("Race")
        self._run = run
        self._race: Race | None = None
        self._is_previous = False
        self.clock = RaceClock()
        self.ours = RaceLane("speculative", "Speculative", OURS_HELP, has_legend=True)
        self.plain = RaceLane("baseline", "Baseline", PLAIN_HELP, has_legend=False)
        self.subject = wrapped_label("raceSubject", "hint")
        self.speedup = text_label("", "title", name="raceSpeedup")
        self.speedup.setToolTip("Time of the baseline / time of the run, for the same number of tokens")
        self.lead = column_label("raceLead", "strong")
        self.length, self.source, self.texts = (
            wrapped_label(name, "hint") for name in ("raceLength", "raceSource", "raceTexts")
        )
        self.empty = wrapped_label("raceEmpty", "hint")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setContentsMargins(48, 0, 48, 0)
        self.timeline = PlotCard("Tokens over time", TimelinePlot(run))
        self.cards = (self.timeline,)
        self._lay_out()
        self.clock.moved.connect(self._on_moved)
        self._show_run(has_turned=True)
        open_at(self, 860, 700)

    def _lay_out(self) -> None:
        self.lanes = splitter(Qt.Orientation.Vertical, "raceLanes", (self.ours, 0), (self.plain, 0))
        head = row(self.speedup, (self.lead, 1), self.clock.time, spacing=10)
        race = boxed(column(self.subject, head, self.clock, (self.lanes, 1), self.texts, self.length, self.source))
        self.stack = QStackedWidget()
        self.stack.addWidget(self.empty)
        self.stack.addWidget(scrolled(race, "raceScroll"))
        self._frame, _ = card(self.stack)
        self.splitter = splitter(Qt.Orientation.Vertical, "raceSplitter", (self._frame, 3), (self.timeline, 1))
        self.splitter.setSizes([500, 180])
        boxed(column(self.splitter), self, margins=(16, 14, 16, 16))

    @Slot()
    def open(self) -> None:
        """Bring the window to the front, with the keyboard on its clock; before there is one, on no plot's menu."""
        bring_forward(self)
        (self if self._race is None else self.clock.play_button).setFocus()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Escape closes the window."""
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        """Make the race of a run that finished while the window was closed."""
        self._turn_lanes()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        """Pause a hidden race."""
        super().hideEvent(event)
        self.clock.pause()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the texts side by side if there is room."""
        super().resizeEvent(event)
        self._turn_lanes()

    def _turn_lanes(self) -> None:
        is_wide = self.width() >= scaled(BESIDE_WIDTH)
        self.lanes.setOrientation(Qt.Orientation.Horizontal if is_wide else Qt.Orientation.Vertical)

    def _show_run(self, *, has_turned: bool) -> None:
        if not has_turned:
            self.timeline.plot.refresh()
            return
        self.timeline.plot.settle(is_over=not self.is_running)
        run = self._run
        self.timeline.setVisible(bool(run.steps) or self.is_running)
        self._race = race = None if self.is_running else race_of(run)
        self.stack.setCurrentIndex(int(race is not None))
        # While there is only a sentence, the plot gets the room.
        is_waiting = race is None and not self.timeline.isHidden()
        self._frame.setMaximumHeight(scaled(WAITING_HEIGHT) if is_waiting else NO_LIMIT)
        if race is None:
            self.empty.setText(waiting_text(run, is_running=self.is_running))
            self.clock.set_end(0.0)
            return
        if self.focusWidget() is self:  # It was opened before there was a race.
            self.clock.play_button.setFocus()
        speedup = speedup_of(run, race)
        self.ours.set_run(run.tokens.steps, race.ours, run.coupling)
        plain: Sequence[Step] = run.baseline_steps
        if run.summary is not None and run.summary.baseline_text is not None:
            whole = replace(run.summary, finish_reason=FinishReason.STOP, text=run.summary.baseline_text)
            plain = whole.shown(plain)
        self.plain.set_run(plain, race.plain, run.coupling)
        between = f" (95 %: {run.interval})" if run.interval and race.is_whole else ""
        self.speedup.setText(f"{speedup:.2f}×{between}" if speedup is not None else "–")
        self._show_subject()
        self.length.setText(length_text(run, race))
        self.source.setText(held(source_text(run, race)))
        self.texts.setText(comparison_text(run))
        self.clock.set_end(race.duration_ms)

    @Slot(bool)
    def note_previous(self, is_previous: bool) -> None:
        """Say above the race whether a new run, which has not started, is not the one that is shown."""
        self._is_previous = is_previous
        self._show_subject()

    def _show_subject(self) -> None:
        whose = PREVIOUS if self._is_previous else ""
        self.subject.setText(" · ".join(filter(None, (whose, subject_text(self._run)))))

    @Slot(float)
    def _on_moved(self, clock_ms: float) -> None:
        if self._race is not None:
            self.lead.setText(lead_text(self._race, clock_ms))
            for lane in (self.ours, self.plain):
                lane.show_time(clock_ms)
