"""The race: the run and its baseline, measured one after the other, replayed side by side on one clock."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate

from PySide6.QtCore import QElapsedTimer, QObject, QSignalBlocker, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QComboBox,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSlider,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.run.race import STEPS_PER_PIECE, Race, Runner, making_race, seconds_text, tokens_text, waiting_text
from app.run.run_view import RunView
from app.theme import Theme, hold, hold_font, scaled
from app.turns import Turns
from app.widgets.fields import WheelGuard, card, describe, text_label
from app.window_layout import splitter
from core.types import TokenKind

FRAME_MS = 33


class RaceClock(QObject):
    """Signals:
    moved: the clock shows another time, in milliseconds.
    playing_changed: whether it goes.
    """

    moved = Signal(float)
    playing_changed = Signal(bool)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.now_ms = 0.0
        self.end_ms = 0.0
        self._pace = 1.0
        self._stopwatch = QElapsedTimer()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(FRAME_MS)
        self._timer.timeout.connect(self._on_frame)

    @property
    def is_playing(self) -> bool:
        """Whether it goes."""
        return self._timer.isActive()

    def set_end(self, end_ms: float) -> None:
        """Stand still at the end of another race."""
        self.pause()
        self.end_ms = end_ms
        self.seek(end_ms)

    def set_pace(self, pace: float) -> None:
        """How many seconds of the race pass in a second."""
        self._pace = pace

    @Slot()
    def play(self) -> None:
        """Go on; from the start where the end was reached."""
        if self.is_playing or self.end_ms <= 0:
            return
        if self.now_ms >= self.end_ms:
            self.seek(0.0)
        self._stopwatch.start()
        self._timer.start()
        self.playing_changed.emit(True)

    @Slot()
    def pause(self) -> None:
        """Stand still."""
        if self.is_playing:
            self._timer.stop()
            self.playing_changed.emit(False)

    def seek(self, clock_ms: float) -> None:
        """Show a time between the start and the end."""
        self.now_ms = min(max(0.0, clock_ms), self.end_ms)
        self.moved.emit(self.now_ms)

    def advance(self, elapsed_ms: float) -> None:
        """Go on by a time that passed outside, at the pace in force; stop at the end."""
        self.seek(self.now_ms + elapsed_ms * self._pace)
        if self.now_ms >= self.end_ms:
            self.pause()

    @Slot()
    def _on_frame(self) -> None:
        self.advance(self._stopwatch.restart())


PACES = {"× ¼": 0.25, "× 1": 1.0, "× 4": 4.0}
STOPS = 100
"""Into how many steps the arrow keys cut the race."""

CLOCK_HELP = (
    "Time since the prompt was read. Reading it costs both the same and is left out; the rest is the steps' own time "
    "as it was measured."
)


class RaceControls(QWidget):
    """Shows and moves a `RaceClock`. `time`, its reading, is for the page to put where it is looked for."""

    def __init__(self, clock: RaceClock) -> None:
        super().__init__()
        self._clock = clock
        self._guard = WheelGuard(self)
        self.play = QPushButton("Play")
        self.play.setObjectName("racePlay")
        self.restart = QPushButton("Restart")
        self.restart.setObjectName("raceRestart")
        self.pace = QComboBox()
        self.pace.setObjectName("racePace")
        self.pace.addItems(list(PACES))
        self.pace.setCurrentText("× 1")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName("raceSlider")
        self.time = text_label("", "hint")
        self.time.setObjectName("raceTime")
        describe(self.play, "Play or pause the race", "Replay both runs on one clock")
        describe(self.restart, "Restart the race", "Go back to the start and play")
        describe(self.pace, "Pace of the race", "× 1 is the time that was measured")
        describe(self.slider, "Clock of the race, in milliseconds", CLOCK_HELP)
        self.time.setToolTip(CLOCK_HELP)
        self._guard.watch(self.pace, self.slider)
        buttons = QHBoxLayout(self)
        buttons.setContentsMargins(0, 0, 0, 0)
        buttons.setSpacing(8)
        for widget in (self.play, self.restart, self.pace):
            buttons.addWidget(widget)
        buttons.addWidget(self.slider, 1)
        self.play.clicked.connect(self._on_play)
        self.restart.clicked.connect(self._on_restart)
        self.pace.currentTextChanged.connect(self._on_pace)
        self.slider.valueChanged.connect(self._on_slid)
        clock.moved.connect(self._on_moved)
        clock.playing_changed.connect(self._on_playing_changed)

    @Slot()
    def _on_play(self) -> None:
        if self._clock.is_playing:
            self._clock.pause()
        else:
            self._clock.play()

    @Slot()
    def _on_restart(self) -> None:
        self._clock.seek(0.0)
        self._clock.play()

    @Slot(str)
    def _on_pace(self, name: str) -> None:
        self._clock.set_pace(PACES[name])

    @Slot(int)
    def _on_slid(self, milliseconds: int) -> None:
        # The last stop is the end, of which the slider knows whole milliseconds only.
        self._clock.seek(self._clock.end_ms if milliseconds == self.slider.maximum() else float(milliseconds))

    @Slot(float)
    def _on_moved(self, clock_ms: float) -> None:
        end = self._clock.end_ms
        with QSignalBlocker(self.slider):
            if self.slider.maximum() != round(end):
                self.slider.setRange(0, round(end))
                self.slider.setSingleStep(max(1, round(end / STOPS)))
                self.slider.setPageStep(max(1, round(end / 10)))
            self.slider.setValue(round(clock_ms))
        self.time.setText(seconds_text(clock_ms))

    @Slot(bool)
    def _on_playing_changed(self, is_playing: bool) -> None:
        self.play.setText("Pause" if is_playing else "Play")


MOST_TOKENS = 1000
"""How many tokens one frame adds at most, so that no jump of the clock holds the window up; the rest follow."""


class RaceText(QPlainTextEdit):
    """Shows the first so many of a text's tokens."""

    def __init__(self, object_name: str, name: str, *, in_kinds: bool) -> None:
        """Say who it is.

        Args:
            object_name: for the style sheet and for tests.
            name: for assistive technology.
            in_kinds: whether tokens are drawn in the look of their kind; plain text otherwise.
        """
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(name)
        self.setProperty("role", "raceText")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        hold(self, least_height=60)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._in_kinds = in_kinds
        self._texts: Sequence[str] = ()
        self._kinds: Sequence[TokenKind] = ()
        self._ends: list[int] = []
        """Where those tokens end that have been shown; no more, since all at once would take long."""
        self._formats: dict[TokenKind, QTextCharFormat] = {}
        self.num_shown = 0

    def sizeHint(self) -> QSize:
        """No more than the least: it takes whatever room there is."""
        return QSize(self.minimumWidth(), self.minimumHeight())

    def set_tokens(self, texts: Sequence[str], kinds: Sequence[TokenKind]) -> None:
        """Take another text, of which nothing is shown yet."""
        self._texts = texts
        self._kinds = kinds
        self._ends = []
        self.num_shown = 0
        self.clear()

    def set_theme(self, theme: Theme) -> None:
        """Start anew in a theme's colours; the tokens are to be shown again."""
        hold_font(self, 13, is_mono=True)
        self._formats = {kind: theme.token_format(kind) for kind in TokenKind} if self._in_kinds else {}
        self.num_shown = 0
        self.clear()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stay at the end where the end was in view: a text that is shown for the first time is given its room late."""
        follows = self._is_at_end()
        super().resizeEvent(event)
        if follows:
            self._to_end()

    def show_count(self, count: int) -> bool:
        """Show the first `count` tokens, or come nearer to it; whether that many are shown now."""
        if count == self.num_shown:
            return True
        follows = self._is_at_end()
        if count < self.num_shown:
            self._take_away(count)
        else:
            self._add(min(count, self.num_shown + MOST_TOKENS))
        if follows:
            self._to_end()
        return self.num_shown == count

    def _is_at_end(self) -> bool:
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 1

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())

    def _take_away(self, count: int) -> None:
        cursor = QTextCursor(self.document())
        cursor.setPosition(self._ends[count - 1] if count else 0)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        self.num_shown = count

    def _add(self, count: int) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        while self.num_shown < count:
            last = self._run_of_a_kind(count)
            kind = self._kinds[self.num_shown]
            texts = [_shown(text) for text in self._texts[self.num_shown : last]]
            cursor.insertText("".join(texts), self._formats.get(kind, QTextCharFormat()))
            del self._ends[self.num_shown :]
            before = self._ends[-1] if self._ends else 0
            self._ends.extend(before + length for length in accumulate(map(_units, texts)))
            self.num_shown = last
        cursor.endEditBlock()

    def _run_of_a_kind(self, count: int) -> int:
        """Behind how many tokens the first that isn't shown, and those like it, end."""
        if not self._in_kinds:
            return count
        kind, last = self._kinds[self.num_shown], self.num_shown
        while last < count and self._kinds[last] is kind:
            last += 1
        return last


def _shown(text: str) -> str:
    """As a document has it, which counts any end of a line as one position."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _units(text: str) -> int:
    """Length as a document counts it: in units of UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


BAR_HELP = "Tokens written by now, of the tokens that the longer of the two texts has."


class RaceLane(QWidget):
    """Shows a `Runner` at a moment of the clock."""

    def __init__(self, name: str, title: str, help_text: str, *, in_kinds: bool) -> None:
        super().__init__()
        self.setObjectName(f"{name}Lane")
        self._runner: Runner | None = None
        self.text = RaceText(f"{name}RaceText", f"{title} text", in_kinds=in_kinds)
        self.count = text_label("", "hint")
        self.count.setObjectName(f"{name}RaceCount")
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        # What it says changes with every frame, and must not move what stands around it.
        self.count.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.bar = QProgressBar()
        self.bar.setObjectName(f"{name}RaceBar")
        self.bar.setTextVisible(False)
        describe(self.bar, f"{title} progress", BAR_HELP)
        heading = text_label(title, "section")
        heading.setToolTip(help_text)
        header = QHBoxLayout()
        header.setSpacing(8)
        header.addWidget(heading)
        header.addWidget(self.count, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(header)
        layout.addWidget(self.bar)
        layout.addWidget(self.text, 1)

    def set_runner(self, runner: Runner, most_tokens: int) -> None:
        """Stand at the start of a race; the bar is full at `most_tokens`."""
        self._runner = runner
        self.bar.setRange(0, max(1, most_tokens))
        self.text.set_tokens(runner.texts, runner.kinds)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.text.set_theme(theme)

    def show_moment(self, clock_ms: float) -> bool:
        """Show how far it has come by then; whether all of the text up to there is shown."""
        if self._runner is None:
            return True
        timeline = self._runner.timeline
        tokens = timeline.tokens_at(clock_ms)
        self.bar.setValue(tokens)
        parts = [tokens_text(tokens)]
        elapsed = min(clock_ms, timeline.end_ms)
        if tokens and elapsed > 0:
            parts.append(f"{1000 * tokens / elapsed:.1f} tokens/s")
        if clock_ms >= timeline.end_ms:
            parts.append(f"done at {seconds_text(timeline.end_ms)}")
        self.count.setText(" · ".join(parts))
        return self.text.show_count(tokens)


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
