"""Starts, controls and stops runs: owns the engine's thread and the run's state, and doesn't depend on widgets."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from enum import StrEnum

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.worker import EngineTask, EngineWorker, OpenSession, Work, run_task, take_all
from core.controls import RunControls
from core.draft_length import DraftLength
from core.settings import RunRequest
from core.types import Event

BUSY_SENTENCE = "{} is in progress. {} before you start, open or delete anything else."

SWITCH_S = 0.0005
"""How long a thread computes in Python before it yields to another."""


class RunState(StrEnum):
    """State of a run, as the window sees it."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"


class RunController(QObject):
    """Starts, controls and stops runs.

    Signals:
        state_changed: the new `RunState`.
        run_requested: a `RunRequest` is on its way to the engine.
        task_began: an `EngineTask` other than a run has the engine.
        engine_ready: the engine has been imported, or the import failed.
        memory_held: a device, and the bytes on it that unloading the kept models would free.
        failed: one sentence that says why.
        freed: the engine can be used again; the sentence that said why not.
        run_ended: the run is over, for whatever reason, and all its events are available.
        closed: the engine's thread has ended.
    """

    state_changed = Signal(object)
    run_requested = Signal(object)
    task_began = Signal()
    engine_ready = Signal()
    memory_held = Signal(str, object)
    failed = Signal(str)
    freed = Signal(str)
    run_ended = Signal()
    closed = Signal()

    _warm_up_wanted = Signal()
    _task_wanted = Signal(object)
    _shut_down_wanted = Signal()

    def __init__(self, open_session: OpenSession, parent: QObject) -> None:
        super().__init__(parent)
        self.state = RunState.IDLE
        self._task: EngineTask | None = None
        """The run, or other work, that the engine does; in every state but idle, it is the run."""
        self._controls = RunControls()
        """Of the current run, or of the last one."""
        self._is_closing = False
        self._starts_paused = False
        self.request: RunRequest | None = None
        """Of the current run, or of the last one."""
        self._events: deque[Event] = deque()
        self._worker = EngineWorker(self._events, open_session)
        self._thread = QThread()
        self._thread.setObjectName("engine")
        self._worker.moveToThread(self._thread)
        self._warm_up_wanted.connect(self._worker.warm_up)
        self._task_wanted.connect(self._worker.perform)
        self._shut_down_wanted.connect(self._worker.shut_down)
        self._worker.ready.connect(self.engine_ready)
        self._worker.memory_held.connect(self.memory_held)
        self._worker.failed.connect(self.failed)
        self._worker.task_failed.connect(self._on_task_failed)
        self._worker.task_ended.connect(self._on_task_ended)
        self._thread.finished.connect(self.closed)
        # The engine needs the interpreter many times per token; by default the window's thread holds it for 5 ms.
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the engine's thread has ended."""
        return self._thread.isFinished()

    def take_events(self) -> Iterator[Event]:
        """The events since the last call, in order."""
        return take_all(self._events)

    @property
    def has_events(self) -> bool:
        """Whether there are events to take, possibly from a run that is over."""
        return bool(self._events)

    @Slot()
    def warm_up(self) -> None:
        """Import the engine in its thread, so that the first run starts at once."""
        if not self._is_closing:
            self._warm_up_wanted.emit()

    def busy_sentence(self) -> str:
        """Why nothing can be started now; empty if something can."""
        if self._task is None:
            return ""
        way = "Wait for it to end" if self._task.is_brief else "Stop it, or wait for it to end,"
        return BUSY_SENTENCE.format(self._task.title, way)

    def start_task(self, title: str, work: Work, device: str = "", *, is_brief: bool = False) -> EngineTask | None:
        """Start an `EngineTask` other than a run; None, with nothing started, while the engine is busy."""
        if self._is_closing or self.busy_sentence():
            return None
        self._task = EngineTask(title, work, self, device=device, is_brief=is_brief)
        self._task_wanted.emit(self._task)
        self.task_began.emit()
        return self._task

    def start(self, request: RunRequest) -> bool:
        """Start a run. While the engine is busy, emit `failed` and return False."""
        if self._is_closing:
            return False
        if sentence := self.busy_sentence():
            self.failed.emit(sentence)
            return False
        self.request, self._task = request, run_task(request, self._events, self)
        self._task.failed.connect(self.failed)
        before, self._controls = self._controls, self._task.controls
        self._controls.is_inspected, self._controls.stops_at_drafts = before.is_inspected, before.stops_at_drafts
        if self._starts_paused:
            self._controls.pause()
        self._set_state(RunState.PAUSED if self._starts_paused else RunState.RUNNING)
        self.run_requested.emit(request)
        self._task_wanted.emit(self._task)
        return True

    @Slot()
    def stop(self) -> None:
        """Ask the run to end before its next forward. Has no effect if already asked, or if nothing is running."""
        self._controls.cancel()
        if self.state in {RunState.RUNNING, RunState.PAUSED}:
            self._set_state(RunState.STOPPING)

    @Slot()
    def pause(self) -> None:
        """Pause the run before its next step. The baseline is never paused."""
        if self.state is RunState.RUNNING:
            self._controls.pause()
            self._set_state(RunState.PAUSED)

    @Slot()
    def resume(self) -> None:
        """Continue a paused run."""
        if self.state is RunState.PAUSED:
            self._controls.resume()
            self._set_state(RunState.RUNNING)

    @Slot()
    def step_once(self) -> None:
        """Take one more step, then pause; while the models load, that is the first step."""
        if self.state in {RunState.RUNNING, RunState.PAUSED}:
            self._controls.step_once()
            self._set_state(RunState.PAUSED)

    def set_stepwise(self, starts_paused: bool, *, stops_at_drafts: bool = False) -> None:
        """Set whether later runs begin paused, and whether a pause also stops at drafts, now and in later runs."""
        self._starts_paused = starts_paused
        self._controls.stops_at_drafts = stops_at_drafts

    def set_inspected(self, inspected: bool) -> None:
        """Set whether each step's evidence is delivered at once, now and in later runs."""
        self._controls.is_inspected = inspected

    @Slot(object)
    def set_num_draft_tokens(self, num_draft_tokens: DraftLength) -> None:
        """Change K, or the policy that chooses it, from the next step on."""
        self._controls.set_num_draft_tokens(num_draft_tokens)

    @Slot(float)
    def set_temperature(self, temperature: float) -> None:
        """Change the temperature from the next step on."""
        self._controls.set_temperature(temperature)

    def begin_close(self) -> None:
        """Stop the run, drop the models and end the thread. Returns at once; `closed` is emitted when done."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._task is not None:
            self._task.stop()
        self._shut_down_wanted.emit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; True if it has ended."""
        return self._thread.wait(milliseconds)

    @Slot(object, str)
    def _on_task_failed(self, task: EngineTask, sentence: str) -> None:
        task.failed.emit(sentence)  # In this thread: from the engine's it doesn't reach a tool window.

    @Slot(object)
    def _on_task_ended(self, task: EngineTask) -> None:
        sentence = self.busy_sentence()
        self._task = None
        if self.state is RunState.IDLE:
            task.ended.emit()
        else:
            self._set_state(RunState.IDLE)
            self.run_ended.emit()
        self.freed.emit(sentence)
        task.deleteLater()

    def _set_state(self, state: RunState) -> None:
        if state is not self.state:
            self.state = state
            self.state_changed.emit(state)
