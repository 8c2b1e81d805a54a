"""The engine's side of the thread boundary: the one place in the window's process that runs models.

Events go into an `EventInbox` instead of one signal each: the window empties it 30 times a second, so a fast model
doesn't flood the window's event loop, and the engine never waits for the window.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.services import LogWriter, Services, Session
from core.controls import RunControls
from core.errors import OutriderError, sentence_of
from core.evidence import packed
from core.machine import without_collection
from core.types import Event, Finished, FinishReason, Inspected, RunRequest, RunStarted, StageChanged, Summary

Work = Callable[[Session, RunControls], Iterator[Any]]
"""From the engine and the way to stop to what comes of it, bit by bit; only CPU scalars, strings and the like."""


class EngineTask(QObject):
    """One piece of such work, from the window's side. `RunController.start_task` makes and starts it.

    Signals:
        stop_asked: it is to end; for work with a way to stop of its own.
        failed: one sentence for a person; `ended` follows.
        ended: it is over, however it ended; all its events can be taken now.
    """

    stop_asked = Signal()
    failed = Signal(str)
    ended = Signal()

    def __init__(self, title: str, work: Work, parent: QObject | None = None) -> None:
        """
        Args:
            title: what it is called in a sentence, with its article: "A check".
            work: called and gone through in the engine's thread.
            parent: that keeps it.
        """
        super().__init__(parent)
        self.title = title
        self.controls = RunControls()
        self._work = work
        self._events: deque[Any] = deque()

    def stop(self) -> None:
        """Ask it to end; asking twice does nothing."""
        self.controls.cancel()
        self.stop_asked.emit()

    def take_events(self) -> Iterator[Any]:
        """What has come since the last call. Called in the window's thread."""
        for _ in range(len(self._events)):
            yield self._events.popleft()

    def perform(self, session: Session) -> None:
        """Do it. Called in the engine's thread."""
        for event in self._work(session, self.controls):
            self._events.append(event)


WARM_UP_STAGE = "Starting the engine…"


class EventInbox:
    """Events on their way from the engine's thread to the window's. A deque's ends are thread-safe by themselves."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def put(self, event: Event) -> None:
        """Called in the engine's thread."""
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def take_all(self) -> Iterator[Event]:
        """What has come since the last call. Called in the window's thread."""
        for _ in range(len(self._events)):
            yield self._events.popleft()


class EngineWorker(QObject):
    """Lives in its own thread, holds the session and runs one request at a time.

    Signals:
        ready: the engine is imported, or could not be.
        failed: one sentence for a person: a run, or the start of the engine, went wrong.
        memory_held: a device, and the bytes of it that the kept models would make room with. Sent before `finished`.
        log_failed: one sentence: the run goes on, but its log can't be kept.
        finished: a run is over, however it ended. Always sent.
        task_failed, task_finished: the same for other work than runs.
    """

    ready = Signal()
    failed = Signal(str)
    log_failed = Signal(str)
    memory_held = Signal(str, object)
    finished = Signal()
    task_failed = Signal(str)
    task_finished = Signal()

    def __init__(self, services: Services, inbox: EventInbox) -> None:
        super().__init__()
        self._services = services
        self._inbox = inbox
        self._session: Session | None = None
        self._log: LogWriter | None = None

    @Slot()
    def warm_up(self) -> None:
        """Import the engine, so that the first run doesn't have to. Loads no model."""
        try:
            self._opened_session()
        except Exception as error:
            self.failed.emit(sentence_of(error, "The engine could not be started"))
            self._tell_ready()

    @Slot(object, object)
    def run(self, request: RunRequest, controls: RunControls) -> None:
        """Run a request to its end, its failure or its cancellation."""
        try:
            self._run(request, controls)
        except Exception as error:
            self.failed.emit(sentence_of(error, "The run failed"))
        finally:
            self._close_log()
            # A run that failed while it loaded is loading no more.
            self._inbox.put(StageChanged(""))
            self._tell_memory(str(request.device))
            self.finished.emit()

    @Slot(object)
    def perform(self, task: EngineTask) -> None:
        """Do other work than a run, to its end, its failure or its cancellation."""
        try:
            task.perform(self._opened_session())
        except Exception as error:
            self.task_failed.emit(sentence_of(error, f"{task.title} failed"))
        finally:
            self._inbox.put(StageChanged(""))
            self.task_finished.emit()

    def _opened_session(self) -> Session:
        if self._session is None:
            self._inbox.put(StageChanged(WARM_UP_STAGE))
            with without_collection():
                self._services.load_libraries()
                self._session = self._services.open_session()
            self._tell_ready()
        return self._session

    def _tell_ready(self) -> None:
        # First the stage: who hears that the engine is ready looks into the inbox once more, and then no longer.
        self._inbox.put(StageChanged(""))
        self.ready.emit()

    def _run(self, request: RunRequest, controls: RunControls) -> None:
        for event in self._opened_session().run(request, controls):
            if isinstance(event, RunStarted):
                self._open_log(event)
            self._write_log(event)
            # The window keeps all of a run's evidence, and shows one step's at a time.
            self._inbox.put(replace(event, evidence=packed(event.evidence)) if isinstance(event, Inspected) else event)
            if isinstance(event, Finished):
                self._tell_error(event.summary)

    def _tell_memory(self, device: str) -> None:
        with contextlib.suppress(Exception):  # Only for forecasts; a device that isn't there was told by the run.
            if self._session is not None:
                self.memory_held.emit(device, self._session.held_bytes(device))

    def _tell_error(self, summary: Summary) -> None:
        # A run that is whole may still have an error to tell: that of its baseline.
        if summary.error is not None:
            self.failed.emit(summary.error)
        elif summary.finish_reason is FinishReason.ERROR:
            self.failed.emit("The run failed, and the engine did not say why.")

    def _open_log(self, event: RunStarted) -> None:
        folder = self._services.runs_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._log = self._services.open_log(folder / f"{Path(event.run_id).name}.jsonl")
        except (OSError, OutriderError) as error:
            self._give_up_log(error)

    def _write_log(self, event: Event) -> None:
        if self._log is None or isinstance(event, StageChanged):
            return
        try:
            self._log.write(event)
        except (OSError, OutriderError) as error:
            self._give_up_log(error)

    def _give_up_log(self, error: Exception) -> None:
        # A full disk is no reason to stop a run that a person is watching.
        self._close_log()
        self.log_failed.emit(f"{sentence_of(error, 'The log of this run can not be kept')} The run goes on without it.")

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close()
        except (OSError, OutriderError) as error:
            self.log_failed.emit(sentence_of(error, "The log of this run could not be closed"))

    @Slot()
    def shut_down(self) -> None:
        """Drop the models and end this thread's event loop."""
        session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        finally:
            QThread.currentThread().quit()
