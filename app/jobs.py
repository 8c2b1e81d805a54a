"""Runs work that may block (disk, network, long computation) outside the window's thread.

jobs.submit(lambda job: read_run_log(path), then=self._show, failed=self.banner.show_sentence)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from PySide6.QtCore import QCoreApplication, QObject, QThreadPool, Signal, Slot

from core.controls import Cancelled
from core.errors import sentence_of

MAX_THREADS = 4


@dataclass(eq=False)
class Job:
    """A submitted piece of work, shared by both threads; for its fields see `Jobs.submit`."""

    work: Callable[[Job], Any] | None
    then: Callable[[Any], None] | None
    failed: Callable[[str], None] | None
    progress: Callable[[Any], None] | None
    what: str
    lane: str
    must_finish: bool
    _report: Callable[[Job, Any], None]
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Ask the work to end; `then` and `failed` are no longer called."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether its result is no longer wanted; long work checks it regularly."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if the job was cancelled. Called by the work, as often as needed."""
        if self.is_cancelled:
            raise Cancelled

    def report(self, value: Any) -> None:
        """Pass a value to `progress`, in the window's thread. Called by the work."""
        self._report(self, value)


class Jobs(QObject):
    """Runs jobs in a thread pool and calls back in the window's thread, where it must be created.

    Signals:
        became_idle: the last job has ended.
    """

    became_idle = Signal()

    _reported = Signal(object, object)
    _ended = Signal(object, object, object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._pool = QThreadPool(self)
        self._pool.setMaxThreadCount(MAX_THREADS)
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._is_closing = False
        self._reported.connect(self._on_reported)
        self._ended.connect(self._on_ended)

    @property
    def is_idle(self) -> bool:
        """Whether no job is running or waiting."""
        return not self._running and not self._waiting

    @property
    def must_finish(self) -> bool:
        """Whether there is a job that must run to its end."""
        return any(job.must_finish for job in (*self._running, *self._waiting))

    def submit(
        self,
        work: Callable[[Job], Any],
        then: Callable[[Any], None] | None = None,
        *,
        failed: Callable[[str], None] | None = None,
        progress: Callable[[Any], None] | None = None,
        what: str = "The work failed",
        lane: str = "",
        must_finish: bool = False,
    ) -> Job:
        """Run `work(job)` in another thread.

        Args:
            work: must not touch widgets. It may read `job.is_cancelled` and call `job.check()` and `job.report(value)`.
            then: called with the result, in the window's thread.
            failed: called with one sentence if the work raises, in the window's thread.
            progress: called with each reported value, in the window's thread.
            what: how the sentence for an unexpected error begins, such as "The run could not be opened".
            lane: jobs in the same named lane run one at a time, in order.
            must_finish: the job runs to its end even if the window closes, such as to write a requested file.
        """
        job = Job(work, then, failed, progress, what, lane, must_finish, self._reported.emit)
        if self._is_closing:
            job.cancel()
            return job
        self._waiting.append(job)
        self._start_waiting()
        return job

    def close(self) -> None:
        """Cancel all jobs except those that must finish, and accept no more. Returns at once."""
        self._is_closing = True
        for job in (*self._running, *self._waiting):
            if not job.must_finish:
                job.cancel()
        self._waiting = deque(job for job in self._waiting if job.must_finish)

    def wait(self, milliseconds: int) -> bool:
        """Wait for the running jobs; True if they all ended."""
        return self._pool.waitForDone(milliseconds)

    def finish(self, milliseconds: int) -> None:
        """Close, and wait for the jobs that must finish, even if no event loop is running.

        Args:
            milliseconds: how long to wait for other jobs.
        """
        self.close()
        while not self.is_idle and (self.wait(milliseconds) or self.must_finish):
            QCoreApplication.sendPostedEvents(self)

    def _start_waiting(self) -> None:
        busy = {job.lane for job in self._running}
        for job in tuple(self._waiting):
            if job.lane and job.lane in busy:
                continue
            busy.add(job.lane)
            self._waiting.remove(job)
            self._running.append(job)
            self._pool.start(partial(self._perform, job))

    def _perform(self, job: Job) -> None:
        result: Any = None
        sentence: str | None = None
        try:
            if not job.is_cancelled and job.work is not None:
                result = job.work(job)
        except Cancelled:
            job.cancel()
        except BaseException as error:  # A job that never ends would keep the window from closing.
            sentence = sentence_of(error, job.what)
        self._ended.emit(job, result, sentence)

    @Slot(object, object)
    def _on_reported(self, job: Job, value: Any) -> None:
        if job.progress is not None and not job.is_cancelled:
            job.progress(value)

    @Slot(object, object, object)
    def _on_ended(self, job: Job, result: Any, sentence: str | None) -> None:
        self._running.remove(job)
        called, value = (job.then, result) if sentence is None else (job.failed, sentence)
        # Here and not in the pool's thread: these may hold the last reference to a widget.
        job.work = job.then = job.failed = job.progress = None
        self._start_waiting()
        if called is not None and not job.is_cancelled:
            called(value)
        if self.is_idle:
            self.became_idle.emit()
