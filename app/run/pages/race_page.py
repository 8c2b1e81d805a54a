"""The page Race: the run and its baseline, measured one after the other, replayed side by side on one clock."""

from __future__ import annotations

from PySide6.QtCore import QElapsedTimer, QSignalBlocker, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QComboBox,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QSlider,
    QStackedWidget,
    QWidget,
)

from app.run.pages.race import (
    comparison_text,
    duration_ms,
    has_race,
    lead_text,
    seconds_text,
    source_text,
    speedup_of,
    tokens_text,
    waiting_text,
)
from app.run.run_page import RunPage
from app.run.run_view import RunView
from app.run.text.token_text import TokenText
from app.run.text.tokens import TokenStream
from app.theme import hold, scaled
from app.widgets.fields import (
    WheelGuard,
    boxed,
    card,
    column,
    describe,
    named,
    row,
    scrolled,
    text_label,
    wrapped_label,
)
from app.window_layout import splitter
from core.analysis.run_counts import Timeline
from core.types import Step

FRAME_MS = 33


PACES = {"× ¼": 0.25, "× 1": 1.0, "× 4": 4.0}
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
        self._stopwatch = QElapsedTimer()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(FRAME_MS)
        self._timer.timeout.connect(self._on_frame)
        self.play_button, self.restart_button = QPushButton("Play"), QPushButton("Restart")
        self.pace = QComboBox()
        self.pace.addItems(list(PACES))
        self.pace.setCurrentText("× 1")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.time = text_label("", "hint")
        self.time.setObjectName("raceTime")
        self.time.setToolTip(CLOCK_HELP)
        named(self.play_button, "racePlay", "Play or pause the race", "Replay both runs on one clock")
        named(self.restart_button, "raceRestart", "Restart the race", "Go back to the start and play")
        named(self.pace, "racePace", "Pace of the race", "× 1 is the measured time")
        named(self.slider, "raceSlider", "Clock of the race, in milliseconds", CLOCK_HELP)
        boxed(row(self.play_button, self.restart_button, self.pace, (self.slider, 1)), self)
        WheelGuard(self).watch(self.pace, self.slider)
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

    def pause(self) -> None:
        """Stop."""
        self._timer.stop()
        self.play_button.setText("Play")

    def seek(self, clock_ms: float) -> None:
        """Show a time between start and end."""
        self.now_ms = min(max(0.0, clock_ms), self.end_ms)
        with QSignalBlocker(self.slider):
            self.slider.setValue(round(self.now_ms))
        self.time.setText(seconds_text(self.now_ms))
        self.moved.emit(self.now_ms)

    def advance(self, elapsed_ms: float) -> None:
        """Advance by the elapsed milliseconds, at the current pace; stop at the end."""
        self.seek(self.now_ms + elapsed_ms * PACES[self.pace.currentText()])
        if self.now_ms >= self.end_ms:
            self.pause()

    @Slot()
    def _on_frame(self) -> None:
        self.advance(self._stopwatch.restart())

    @Slot()
    def _on_play(self) -> None:
        if self.is_playing:
            self.pause()
        else:
            self.play()

    @Slot()
    def _on_restart(self) -> None:
        self.seek(0.0)
        self.play()

    @Slot(int)
    def _on_slid(self, milliseconds: int) -> None:
        # The slider has whole milliseconds; its last one is the end.
        self.seek(self.end_ms if milliseconds == self.slider.maximum() else float(milliseconds))


BAR_HELP = "Tokens so far, as a share of the longer text."


class RaceLane(QWidget):
    """One of the two runs at the clock's time."""

    def __init__(self, name: str, title: str, help_text: str, *, by_kind: bool) -> None:
        super().__init__()
        self.setObjectName(f"{name}Lane")
        self._timeline = Timeline()
        self.text = TokenText(by_kind=by_kind, font_size=13)
        self.text.setObjectName(f"{name}RaceText")
        self.text.setAccessibleName(f"{title} text")
        self.text.setProperty("role", "raceText")
        hold(self.text, least_height=60)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        self.count = text_label("", "hint")
        self.count.setObjectName(f"{name}RaceCount")
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        # It changes every frame, and must not move its neighbours.
        self.count.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.bar = QProgressBar()
        self.bar.setObjectName(f"{name}RaceBar")
        self.bar.setTextVisible(False)
        describe(self.bar, f"{title} progress", BAR_HELP)
        heading = text_label(title, "section")
        heading.setToolTip(help_text)
        boxed(column(row(heading, (self.count, 1)), self.bar, (self.text, 1), spacing=4), self)

    def set_run(self, timeline: Timeline, steps: list[Step], most_tokens: int) -> None:
        """Show a run; the bar is full at `most_tokens`."""
        self._timeline = timeline
        self.bar.setRange(0, max(1, most_tokens))
        self.text.set_stream(TokenStream(steps=steps))

    def show_time(self, clock_ms: float) -> None:
        """Show the run's progress at this time."""
        timeline = self._timeline
        tokens, elapsed = timeline.tokens_at(clock_ms), min(clock_ms, timeline.end_ms)
        self.bar.setValue(tokens)
        parts = [tokens_text(tokens)]
        if tokens and elapsed > 0:
            parts.append(f"{1000 * tokens / elapsed:.1f} tokens/s")
        if clock_ms >= timeline.end_ms:
            parts.append(f"done at {seconds_text(timeline.end_ms)}")
        self.count.setText(" · ".join(parts))
        self.text.set_limit(timeline.steps_at(clock_ms), follows=self.text.is_at_end)


BESIDE_WIDTH = 680
"""From this width on the texts are side by side."""

OURS_HELP = "The run, step by step as measured; a step's tokens appear together when it ends."
PLAIN_HELP = "Plain decoding of the same prompt with the same sampler, measured after the run: one token per forward."


class RacePage(RunPage):
    """Shows a `RunView`'s race once both runs are over. It is active only while visible."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("racePage")
        self._run = run
        self._has_race = False
        self.clock = RaceClock()
        self.ours = RaceLane("speculative", "Speculative", OURS_HELP, by_kind=True)
        self.plain = RaceLane("baseline", "Baseline", PLAIN_HELP, by_kind=False)
        self.speedup = text_label("", "title")
        self.speedup.setObjectName("raceSpeedup")
        self.speedup.setToolTip("Tokens per second of the run over those of the baseline")
        self.lead = wrapped_label("raceLead", "strong")
        self.lead.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.source, self.texts = wrapped_label("raceSource", "hint"), wrapped_label("raceTexts", "hint")
        self.empty = wrapped_label("raceEmpty", "hint")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setContentsMargins(48, 0, 48, 0)
        self._lay_out()
        self.clock.moved.connect(self._on_moved)
        self._show_run(has_turned=True)

    def _lay_out(self) -> None:
        self.lanes = splitter(Qt.Orientation.Vertical, "raceSplitter", (self.ours, 0), (self.plain, 0))
        head = row(self.speedup, (self.lead, 1), self.clock.time, spacing=10)
        race = boxed(column(head, self.source, self.texts, self.clock, (self.lanes, 1)))
        # In a low window the page scrolls, so that it doesn't take the prompt's height.
        race.setObjectName("raceBody")
        area = scrolled(race, "raceScroll")
        self.stack = QStackedWidget()
        self.stack.addWidget(self.empty)
        self.stack.addWidget(area)
        frame, layout = card(self.stack)
        layout.setContentsMargins(12, 10, 12, 10)
        boxed(column(frame), self)

    def refresh(self, *, has_news: bool) -> None:
        """Nothing to do: a race is shown when the run is over."""

    def showEvent(self, event: QShowEvent) -> None:
        """Make the race of a run that finished while the page was hidden."""
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
        run = self._run
        self.clock.pause()
        self._has_race = not self.is_running and has_race(run)
        self.stack.setCurrentIndex(int(self._has_race))
        if not self._has_race:
            self.empty.setText(waiting_text(run, is_running=self.is_running))
            self.clock.set_end(0.0)
            return
        ours, plain, speedup = run.counts.timeline, run.baseline.timeline, speedup_of(run)
        most = max(ours.num_tokens, plain.num_tokens)
        self.ours.set_run(ours, run.steps, most)
        self.plain.set_run(plain, run.baseline_steps, most)
        self.speedup.setText(f"{speedup:.2f}×" if speedup is not None else "–")
        self.source.setText(source_text(run))
        self.texts.setText(comparison_text(run))
        self.clock.set_end(duration_ms(run))

    @Slot(float)
    def _on_moved(self, clock_ms: float) -> None:
        if self._has_race:
            self.lead.setText(lead_text(self._run, clock_ms))
            for lane in (self.ours, self.plain):
                lane.show_time(clock_ms)
