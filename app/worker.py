"""The engine's side of the thread boundary: the only place in the window's process that runs models.

Events wait in a deque until the window's timer takes them, so the engine never waits for the window.
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
from core.controls import Cancelled, RunControls
from core.errors import OutriderError, sentence_of
from core.evidence import packed
from core.runlog.log import RunLogWriter
from core.runlog.tally import Tally
from core.runners.threads import limit_spinning, without_collection
from core.settings import RunRequest
from core.types import Event, Finished, FinishReason, Inspected, RunStarted, StageChanged

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


class EngineTask(QObject):
    """Work for the engine as the window sees it: a run, or what `RunController.start_task` starts.

    It lives in the window's thread, where its signals arrive.

    Signals:
        failed: one sentence; it may still be going on.
        ended: it is over, and all its events are available.
    """

    failed = Signal(str)
    ended = Signal()

    def __init__(
        self, title: str, work: Work, parent: QObject | None = None, *, device: str = "", is_brief: bool = False
    ) -> None:
        """
        Args:
            title: its name in a sentence, with an article: "A check".
            work: called and iterated in the engine's thread.
            device: if not empty, what the loaded models hold there is reported at the end.
            is_brief: whether it is short: it can't be stopped, and gets None in place of an engine that is not
                imported yet.
        """
        super().__init__(parent)
        self.title, self.work, self.device, self.is_brief = title, work, device, is_brief
        self.controls = RunControls()
        self.events: deque[Any] = deque()
        """From the engine's thread to the window's; both ends of a deque are thread-safe."""

    def stop(self) -> None:
        """Ask it to end; asking twice does nothing."""
        self.controls.cancel()

    def take_events(self) -> Iterator[Any]:
        """The events since the last call. Called in the window's thread."""
        return take_all(self.events)


def take_all(events: deque[Any]) -> Iterator[Any]:
    """Take what is there now; more may arrive meanwhile."""
    for _ in range(len(events)):
        yield events.popleft()


def run_task(request: RunRequest, events: deque[Any], parent: QObject | None = None) -> EngineTask:
    """A run, whose log is written as it goes. Its events go to `events`."""

    def work(session: Session, controls: RunControls) -> Iterator[Event]:
        log = _Log(task.failed.emit)
        try:
            for event in _events(session, request, controls):
                log.write(event)
                # The window keeps the evidence of the whole run, and shows that of one step at a time.
                yield replace(event, evidence=packed(event.evidence)) if isinstance(event, Inspected) else event
                # A complete run may still report an error of its baseline.
                if isinstance(event, Finished) and event.summary.error is not None:
                    task.failed.emit(event.summary.error)
        finally:
            log.close()

    task = EngineTask("The run", work, parent, device=str(request.device))
    task.controls, task.events = RunControls.from_request(request), events
    return task


def _events(session: Session, request: RunRequest, controls: RunControls) -> Iterator[Event]:
    if not request.engine:
        yield from session.run(request, controls)
        return
    from core.engines.server import identify  # Late: most runs need no HTTP.
    from core.engines.session import ServerSession

    try:
        server = identify(request.engine, check_cancelled=controls.check_cancelled)
    except Cancelled:
        yield Finished(Tally().summary(FinishReason.CANCELLED))
        return
    # The window asks for the evidence of every run; a server has none.
    yield from ServerSession(server).run(replace(request, inspect=False), controls)


class _Log:
    """Writes a run's log. A full disk doesn't stop the run: the log ends, and a sentence says so."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._writer: RunLogWriter | None = None

    def write(self, event: Event) -> None:
        try:
            if isinstance(event, RunStarted):
                folder = runs_folder()
                folder.mkdir(parents=True, exist_ok=True)
                self._writer = RunLogWriter(folder / f"{Path(event.run_id).name}.jsonl")
            if self._writer is not None:
                self._writer.write(event)
        except (OSError, OutriderError) as error:
            self.close()
            sentence = sentence_of(error, "The log of this run can't be written")
            self._report(f"{sentence} The run continues without it.")

    def close(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except (OSError, OutriderError) as error:
            self._report(sentence_of(error, "The log of this run could not be closed"))


class EngineWorker(QObject):
    """Lives in its own thread, holds the session and performs one task at a time.

    Signals:
        ready: the engine has been imported, or the import failed.
        failed: one sentence about the start of the engine.
        memory_held: a device, and the bytes on it that unloading the kept models would free. Sent before a run ends.
        task_failed: the task, and one sentence. task_ended: the task; always sent.
    """

    ready = Signal()
    failed = Signal(str)
    memory_held = Signal(str, object)
    task_failed = Signal(object, str)
    task_ended = Signal(object)

    def __init__(self, events: deque[Any], open_session: OpenSession) -> None:
        """
        Args:
            events: where its stages go.
        """
        super().__init__()
        self._events = events
        self._open_session = open_session
        self._session: Session | None = None

    @Slot()
    def warm_up(self) -> None:
        """Import the engine ahead of the first run. Loads no model."""
        try:
            self._opened_session()
        except BaseException as error:
            self.failed.emit(sentence_of(error, "The engine could not be started"))
            self._report_ready()

    @Slot(object)
    def perform(self, task: EngineTask) -> None:
        """Perform a task until it ends, fails or is cancelled."""
        try:
            session: Any = self._session if task.is_brief else self._opened_session()
            for event in task.work(session, task.controls):
                task.events.append(event)
        except BaseException as error:  # A panic of a tokenizer is no Exception.
            self.task_failed.emit(task, sentence_of(error, f"{task.title} failed"))
        finally:
            if task.events is self._events or self._session is None:
                self._events.append(StageChanged(""))  # What failed while loading is no longer loading.
            with contextlib.suppress(Exception):  # Only for forecasts; the run itself reports a missing device.
                if task.device and self._session is not None:
                    self.memory_held.emit(task.device, self._session.held_bytes(task.device))
            self.task_ended.emit(task)

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
            self._events.append(StageChanged(WARM_UP_STAGE))
            with without_collection():
                self._session = self._open_session()
            self._report_ready()
        return self._session

    def _report_ready(self) -> None:
        # The stage first: on `ready` the window reads the events for the last time.
        self._events.append(StageChanged(""))
        self.ready.emit()
