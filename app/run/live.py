"""The 30 Hz loop between the engine's events and the panels: the only place where the two meet."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

from PySide6.QtCore import QCoreApplication, QObject, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QApplication, QWidget

from app.collecting import collect_due
from app.controller import RunController, RunState
from app.frame_pace import FRAME_MS, FramePace
from app.run.run_view import RunView
from app.run.tiles import MeasurementsPanel, StatusStrip
from app.run.transcript import TranscriptPanel
from app.turns import Turns
from core.types import Device, Event, RunRequest, RunStarted

APPLY_S = 0.008
"""Time that one frame takes to apply events, of which a kept run or a fast engine may have thousands."""


class LivePanel(Protocol):
    """A panel that shows the run as it goes."""

    def begin(self) -> None:
        """A run starts."""

    def refresh(self, *, has_news: bool) -> None:
        """A frame: show what has come, if it is seen at all."""

    def end(self) -> None:
        """A run is over: show all of it."""


class LiveView(QObject):
    """Takes events on a timer, applies them to the `RunView`, and has the panels draw what is new.

    A run that was kept is shown in the same way, a piece in each frame, from the events of its log.

    Signals:
        run_begun: a run has started, and its log with it.
        run_shown: a run is over, or was kept, and all of it is on screen.
    """

    run_begun = Signal()
    run_shown = Signal()

    def __init__(
        self,
        controller: RunController,
        run: RunView,
        transcript: TranscriptPanel,
        measurements: MeasurementsPanel,
        status: StatusStrip,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._run = run
        self._transcript = transcript
        self._panels: list[LivePanel] = [measurements]
        self._evidence_readers: list[QWidget] = []
        self._status = status
        self._pace = FramePace()
        self._beginnings = Turns(self)
        self._endings = Turns(self)
        self._endings.done.connect(self._on_end_shown)
        self._has_news = False
        self._is_ending = False
        self._blinking_ms: int | None = None
        self._stage_shown = ""
        self._kept: Iterator[Event] | None = None
        self.kept_title = ""
        """What the run on screen is called, if it was kept and not just run."""
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(self._pace.interval_ms)
        self._timer.timeout.connect(self._on_frame)
        controller.handover.given.connect(self._on_turn)
        controller.run_requested.connect(self._on_run_requested)
        controller.run_ended.connect(self._on_run_ended)
        controller.engine_ready.connect(self._on_engine_ready)
        controller.state_changed.connect(self._on_state_changed)
        self._show_status()

    def attach(self, *panels: LivePanel) -> None:
        """Have more panels shown the run as it goes."""
        self._panels.extend(panels)

    def send_evidence_to(self, *panels: QWidget) -> None:
        """While one of them is seen, the engine sends at once what the models said in each step."""
        self._evidence_readers.extend(panels)

    @Slot()
    def watch_warm_up(self) -> None:
        """Show the engine's stages although no run goes yet. Who was quicker to start one has seen them by now."""
        if self._run.request is None:
            self._timer.start()

    def show_kept(self, request: RunRequest, events: Iterable[Event], title: str) -> None:
        """Show a run that was kept. Not while another one goes."""
        self._begin(request)
        self._kept, self.kept_title = iter(events), title
        self._show_status()

    def finish(self) -> None:
        """Show the rest of a run that is over, at once; `run_shown` is emitted within, if it has not been.

        To be called before another run is begun, since what `run_shown` leads to may itself begin one.
        """
        while self._is_ending:
            self._end_if_whole(math.inf)
        self._endings.finish()

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        self.finish()
        self._kept, self.kept_title = None, ""
        self._begin(request)

    def _begin(self, request: RunRequest) -> None:
        self.finish()
        self._take_events()
        self._run.begin(request)
        self._transcript.begin(self._run.tokens)
        self._show_status()
        # One after another: to empty and paint them all takes longer than a window may be busy.
        self._beginnings.start(self._begin_panels())
        self._pace.begin()
        self._timer.setInterval(self._pace.interval_ms)
        self._timer.start()

    def _begin_panels(self) -> Generator[None]:
        for panel in self._panels:
            yield from self._beginnings.rest()
            panel.begin()

    def _tell_engine(self) -> None:
        # In a window that is put away everything counts as visible.
        is_seen = any(panel.isVisible() and not panel.window().isMinimized() for panel in self._evidence_readers)
        self._controller.set_inspected(is_seen)

    @Slot()
    def _on_frame(self) -> None:
        self._tell_engine()
        handover = self._controller.handover
        # A step may last; nobody waits longer for its end than from one frame to the next.
        if self._is_held_up and not handover.is_wanted:
            handover.want()
            return
        handover.withdraw()
        self._draw()

    @Slot()
    def _on_turn(self) -> None:
        with self._controller.handover.turn():
            self._draw()
            # What would be laid out and painted when the event loop comes to it, which is too late.
            QCoreApplication.sendPostedEvents()

    def _draw(self) -> None:
        self._beginnings.finish()
        if self._is_ending:
            self._end_if_whole(APPLY_S)
            return
        # A person who follows the single steps, or reads a kept run, waits for nothing.
        has_come = self._take_events(APPLY_S)
        # Until the first text is there, each frame looks for it.
        is_contended = self._is_held_up and bool(self._run.steps)
        self._hold_caret(is_contended)
        draws_all = self._pace.frame(is_contended=is_contended)
        if has_come:
            self._has_news = True
            self._transcript.view.refresh()
        if draws_all:
            for panel in self._panels:
                panel.refresh(has_news=self._has_news)
            self._has_news = False
        # A bar that says "busy" draws itself all the time; and no text may stand there while its prompt is being read.
        if draws_all or self._status.is_busy or self._run.stage != self._stage_shown:
            self._show_status()
        if self._kept is not None:
            self._take_kept()
        else:
            self._timer.setInterval(self._pace.interval_ms)
        collect_due()

    @property
    def _is_held_up(self) -> bool:
        """Whether drawing takes from a run that nobody holds back."""
        is_racing = self._kept is None and self._controller.is_at_full_speed
        return is_racing and _takes_all_processors(self._run)

    def _hold_caret(self, is_held: bool) -> None:
        """Let the caret of the prompt, or of another field, not blink: each time the window draws for it."""
        if is_held and self._blinking_ms is None:
            self._blinking_ms = QApplication.cursorFlashTime()
            QApplication.setCursorFlashTime(0)
        elif not is_held and self._blinking_ms is not None:
            QApplication.setCursorFlashTime(self._blinking_ms)
            self._blinking_ms = None

    def _take_kept(self) -> None:
        """Apply as much of a kept run as leaves the window answering."""
        deadline = time.perf_counter() + APPLY_S
        for event in self._kept or ():
            self._run.apply(event)
            if time.perf_counter() > deadline:
                break
        else:
            self._kept = None
            self._on_run_ended()
            return
        self._transcript.view.refresh()

    @Slot()
    def _on_run_ended(self) -> None:
        self._controller.handover.withdraw()
        self._hold_caret(False)
        self._beginnings.finish()
        self._is_ending = True
        self._end_if_whole(APPLY_S)

    def _end_if_whole(self, most_s: float) -> None:
        """Show that the run is over once all of it has been taken: its last events may be thousands."""
        self._take_events(most_s)
        self._transcript.view.refresh()
        if self._controller.has_events:
            self._timer.start(FRAME_MS)
            return
        self._is_ending = False
        self._timer.stop()
        self._endings.start(self._end_panels())

    def _end_panels(self) -> Generator[None]:
        for panel in self._panels:
            panel.end()
            yield

    @Slot()
    def _on_end_shown(self) -> None:
        self._show_status()
        self.run_shown.emit()
        collect_due()

    @Slot()
    def _on_engine_ready(self) -> None:
        if self._controller.state is RunState.IDLE and self._kept is None and not self._is_ending:
            self._timer.stop()
            self._take_events()
            self._show_status()

    @Slot(object)
    def _on_state_changed(self, state: RunState) -> None:
        # What an idle window says of a run is known when its end is shown, which is next.
        if state is not RunState.IDLE:
            self._show_status()

    def _take_events(self, most_s: float = math.inf) -> bool:
        """Apply what has come, for so long at most; what is left waits for the next frame."""
        is_any = False
        deadline = time.perf_counter() + most_s
        for event in self._controller.take_events():
            self._run.apply(event)
            is_any = True
            if isinstance(event, RunStarted):
                self.run_begun.emit()
            if time.perf_counter() > deadline:
                break
        return is_any

    def _show_status(self) -> None:
        run, state = self._run, self._controller.state
        self._stage_shown = run.stage
        is_idle = state is RunState.IDLE and not self._is_ending and not self._endings.is_going
        if state is RunState.STOPPING:
            stage = "Stopping…"
        elif state is RunState.PAUSED and run.prefill is not None:
            stage = f"Paused before step {len(run.steps)}"
        elif is_idle:
            stage = run.stage or run.outcome or ("Not run" if run.request is not None else "Ready")
            if self.kept_title:
                stage = f"Opening {self.kept_title!r}…" if self._kept else f"Kept run {self.kept_title!r} · {stage}"
        else:
            stage = run.stage or ("Generating…" if run.started is not None else "Preparing…")
        self._status.show_stage(stage)
        self._status.show_place(_place(run))
        wanted = run.request.max_new_tokens if run.request is not None else 0
        self._status.show_count(f"{run.tokens.num_tokens:,} of {wanted:,} tokens" if wanted else "")
        if is_idle and run.summary is None:
            self._status.show_progress(None if run.stage else 0.0)
        else:
            self._status.show_progress(run.progress)


def _takes_all_processors(run: RunView) -> bool:
    """Whether the engine of the run that goes leaves no processor to draw with."""
    if run.started is None or run.started.config.get("device") != Device.CPU:
        return False
    threads = run.started.environment.get("threads")
    return isinstance(threads, int) and threads >= (os.cpu_count() or 1)


def _place(run: RunView) -> str:
    if run.started is None:
        return ""
    environment, config = run.started.environment, run.started.config
    device = environment.get("device_name") or config.get("device")
    return " · ".join(str(part) for part in (device, config.get("dtype")) if part)
