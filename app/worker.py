"""The engine's side of the thread boundary: the only place in the window's process that runs models.

Events wait in an `Inbox` until the window's timer takes them, so the engine never waits for the window.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.settings import runs_folder
from core.controls import RunControls
from core.errors import OutriderError, sentence_of
from core.evidence import packed
from core.runlog.log import RunLogWriter
from core.runners.threads import limit_spinning, without_collection
from core.settings import RunRequest
from core.types import Event, Finished, FinishReason, Inspected, RunStarted, StageChanged, Summary

if TYPE_CHECKING:
    from core.session import Session

Work = Callable[["Session", RunControls], Iterator[Any]]
"""Work other than a run: takes the engine and its controls, yields events of CPU scalars, strings and the like."""

OpenSession = Callable[[], "Session"]
"""Imports and starts the engine; tests pass a scripted one."""

WARM_UP_STAGE = "Starting the engine…"


def open_session() -> Session:
    """Import the engine, torch included. Takes seconds the first time; only called in the worker's thread."""
    limit_spinning()
    from core.session import Session

    return Session()


class Inbox:
    """Passes events from the engine's thread to the window's. Both ends of a deque are thread-safe."""

    def __init__(self) -> None:
        self._events: deque[Any] = deque()

    def put(self, event: Any) -> None:
        """Called in the engine's thread."""
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def take_all(self) -> Iterator[Any]:
        """The events since the last call. Called in the window's thread."""
        for _ in range(len(self._events)):
            yield self._events.popleft()


class EngineTask(QObject):
    """Work for the engine other than a run, as the window sees it. `RunController.start_task` makes and starts it.

    Signals:
        stop_asked: it was asked to end; for work with its own way to stop.
        failed: one sentence; `ended` follows.
        ended: it is over, and all its events are available.
    """

    stop_asked = Signal()
    failed = Signal(str)
    ended = Signal()

    def __init__(self, title: str, work: Work, parent: QObject | None = None) -> None:
        """
        Args:
            title: its name in a sentence, with an article: "A check".
            work: called and iterated in the engine's thread.
        """
        super().__init__(parent)
        self.title = title
        self.work = work
        self.controls = RunControls()
        self.inbox = Inbox()

    def stop(self) -> None:
        """Ask it to end; asking twice does nothing."""
        self.controls.cancel()
        self.stop_asked.emit()

    def take_events(self) -> Iterator[Any]:
        """The events since the last call. Called in the window's thread."""
        return self.inbox.take_all()


class EngineWorker(QObject):
    """Lives in its own thread, holds the session and runs one request at a time.

    Signals:
        ready: the engine has been imported, or the import failed.
        failed: one sentence about a run, its log or the start of the engine.
        memory_held: a device, and the bytes on it that unloading the kept models would free. Sent before `finished`.
        finished: a run is over, for whatever reason. Always sent.
        task_failed, task_finished: the same for work other than runs.
    """

    ready = Signal()
    failed = Signal(str)
    memory_held = Signal(str, object)
    finished = Signal()
    task_failed = Signal(str)
    task_finished = Signal()

    def __init__(self, inbox: Inbox, open_session: OpenSession = open_session) -> None:
        super().__init__()
        self._inbox = inbox
        self._open_session = open_session
        self._session: Session | None = None
        self._log: RunLogWriter | None = None

    @Slot()
    def warm_up(self) -> None:
        """Import the engine ahead of the first run. Loads no model."""
        try:
            self._opened_session()
        except Exception as error:
            self.failed.emit(sentence_of(error, "The engine could not be started"))
            self._report_ready()

    @Slot(object, object)
    def run(self, request: RunRequest, controls: RunControls) -> None:
        """Run a request until it ends, fails or is cancelled."""
        try:
            for event in self._opened_session().run(request, controls):
                self._take(event)
        except Exception as error:
            self.failed.emit(sentence_of(error, "The run failed"))
        finally:
            self._close_log()
            self._inbox.put(StageChanged(""))  # A run that failed while loading is no longer loading.
            self._report_memory(str(request.device))
            self.finished.emit()

    @Slot(object)
    def perform(self, task: EngineTask) -> None:
        """Do work other than a run until it ends, fails or is cancelled."""
        try:
            for event in task.work(self._opened_session(), task.controls):
                task.inbox.put(event)
        except Exception as error:
            self.task_failed.emit(sentence_of(error, f"{task.title} failed"))
        finally:
            self._inbox.put(StageChanged(""))
            self.task_finished.emit()

    @Slot()
    def shut_down(self) -> None:
        """Drop the models and end this thread's event loop."""
        session, self._session = self._session, None
        try:
            if session is not None:
                session.close()
        finally:
            QThread.currentThread().quit()

    def _opened_session(self) -> Session:
        if self._session is None:
            self._inbox.put(StageChanged(WARM_UP_STAGE))
            with without_collection():
                self._session = self._open_session()
            self._report_ready()
        return self._session

    def _report_ready(self) -> None:
        # The stage first: on `ready` the window reads the inbox for the last time.
        self._inbox.put(StageChanged(""))
        self.ready.emit()

    def _report_memory(self, device: str) -> None:
        with contextlib.suppress(Exception):  # Only for forecasts; the run itself reports a missing device.
            if self._session is not None:
                self.memory_held.emit(device, self._session.held_bytes(device))

    def _take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._open_log(event)
        self._write_log(event)
        # The window keeps the evidence of the whole run, and shows that of one step at a time.
        self._inbox.put(replace(event, evidence=packed(event.evidence)) if isinstance(event, Inspected) else event)
        if isinstance(event, Finished):
            self._report_error(event.summary)

    def _report_error(self, summary: Summary) -> None:
        # A complete run may still report an error of its baseline.
        if summary.error is not None:
            self.failed.emit(summary.error)
        elif summary.finish_reason is FinishReason.ERROR:
            self.failed.emit("The run failed, and the engine did not say why.")

    def _open_log(self, event: RunStarted) -> None:
        folder = runs_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._log = RunLogWriter(folder / f"{Path(event.run_id).name}.jsonl")
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
        # A full disk is no reason to stop a run.
        self._close_log()
        self.failed.emit(f"{sentence_of(error, 'The log of this run can not be kept')} The run continues without it.")

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close()
        except (OSError, OutriderError) as error:
            self.failed.emit(sentence_of(error, "The log of this run could not be closed"))
