"""Downloads models in a thread of its own, one after the other; what came of a stopped one is kept for later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.services import Services
from core.controls import Cancelled
from core.errors import OutriderError

if TYPE_CHECKING:
    from core.models.downloads import DownloadProgress

EVENTS_INTERVAL_S = 0.1
"""Progress is told no more often than this, however fast the pieces come."""


class DownloadState(StrEnum):
    """Where a download stands."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"

    @property
    def is_active(self) -> bool:
        """Whether it goes on, or will, by itself."""
        return self in {DownloadState.WAITING, DownloadState.RUNNING, DownloadState.STOPPING}


@dataclass(frozen=True, slots=True)
class Download:
    """One model on its way. `sentence` says why it failed."""

    ref: str
    state: DownloadState = DownloadState.WAITING
    progress: DownloadProgress | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DownloadJob:
    """What is handed to the thread. Setting `cancelled` stops it, or keeps it from starting."""

    ref: str
    restart: bool
    cancelled: threading.Event = field(default_factory=threading.Event)

    def check_cancelled(self) -> None:
        """Raises:
        Cancelled: if it was asked to stop.
        """
        if self.cancelled.is_set():
            raise Cancelled


class Downloader(QObject):
    """Lives in its own thread.

    Signals:
        changed: a `DownloadJob`, and a `Download` with its news.
        arrived: the `ModelEntry` of a model that is here now.
    """

    changed = Signal(object, object)
    arrived = Signal(object)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services

    @Slot(object)
    def fetch(self, job: DownloadJob) -> None:
        """Download a model to its end, its failure or its cancellation; told by `changed` in each case."""
        throttle = _Throttle(lambda progress: tell(DownloadState.RUNNING, progress))

        def tell(state: DownloadState, progress: DownloadProgress | None, sentence: str = "") -> None:
            self.changed.emit(job, Download(job.ref, state, progress, sentence))

        try:
            job.check_cancelled()
            tell(DownloadState.RUNNING, None)
            entry = self._services.download(
                job.ref, on_progress=throttle.put, check_cancelled=job.check_cancelled, restart=job.restart
            )
        except Cancelled:
            tell(DownloadState.STOPPED, throttle.latest)
        except Exception as error:
            sentence = str(error) if isinstance(error, OutriderError) else f"The download failed: {error}."
            tell(DownloadState.FAILED, throttle.latest, sentence)
        else:
            self.arrived.emit(entry)
            tell(DownloadState.DONE, throttle.latest)


class _Throttle:
    """Passes progress on at a readable pace; a new stage at once."""

    def __init__(self, tell: Callable[[DownloadProgress], None]) -> None:
        self._tell = tell
        self._told_at = 0.0
        self.latest: DownloadProgress | None = None

    def put(self, progress: DownloadProgress) -> None:
        is_new_stage = self.latest is None or self.latest.stage != progress.stage
        self.latest = progress
        now = time.monotonic()
        if is_new_stage or now - self._told_at >= EVENTS_INTERVAL_S:
            self._told_at = now
            self._tell(progress)


class ModelStore(QObject):
    """The window's handle on the downloads: owns the thread, and knows how each one stands.

    Signals:
        changed: a `Download` is new, or has news.
        dismissed: the reference of one that is to be seen no longer.
        arrived: the `ModelEntry` of a model that is here now.
        closed: the thread has ended.
    """

    changed = Signal(object)
    dismissed = Signal(str)
    arrived = Signal(object)
    closed = Signal()

    _fetch_wanted = Signal(object)

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs: dict[str, DownloadJob] = {}
        self._downloads: dict[str, Download] = {}
        self._downloader = Downloader(services)
        self._thread = QThread()
        self._thread.setObjectName("model downloads")
        self._downloader.moveToThread(self._thread)
        self._fetch_wanted.connect(self._downloader.fetch)
        self._downloader.changed.connect(self._on_changed)
        self._downloader.arrived.connect(self.arrived)
        self._thread.finished.connect(self.closed)
        self._thread.start()

    @property
    def downloads(self) -> tuple[Download, ...]:
        """All that were asked for and not dismissed, in their order."""
        return tuple(self._downloads.values())

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return self._thread.isFinished()

    def get(self, ref: str, *, restart: bool = False) -> None:
        """Download a model after those before it; resumes unless `restart`. Does nothing if it is on its way."""
        known = self._downloads.get(ref)
        if known is not None and known.state.is_active:
            return
        job = self._jobs[ref] = DownloadJob(ref, restart)
        self._put(Download(ref))
        self._fetch_wanted.emit(job)

    @Slot(str)
    def cancel(self, ref: str) -> None:
        """Stop a download, or one that waits; what came of it is kept."""
        job, download = self._jobs.get(ref), self._downloads.get(ref)
        if job is None or download is None or not download.state.is_active:
            return
        job.cancelled.set()
        is_waiting = download.state is DownloadState.WAITING
        self._put(replace(download, state=DownloadState.STOPPED if is_waiting else DownloadState.STOPPING))

    @Slot(str)
    def dismiss(self, ref: str) -> None:
        """Show a download that is over no longer."""
        download = self._downloads.get(ref)
        if download is not None and not download.state.is_active:
            del self._downloads[ref]
            del self._jobs[ref]
            self.dismissed.emit(ref)

    def begin_close(self) -> None:
        """Stop everything and end the thread. Returns at once; `closed` says when it is done."""
        for job in self._jobs.values():
            job.cancelled.set()
        self._thread.quit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)

    @Slot(object, object)
    def _on_changed(self, job: DownloadJob, news: Download) -> None:
        if self._jobs.get(news.ref) is not job:
            return  # It was asked for anew since.
        known = self._downloads[news.ref]
        is_stopping = known.state is DownloadState.STOPPING and news.state is DownloadState.RUNNING
        state = known.state if is_stopping else news.state
        self._put(replace(news, state=state, progress=news.progress or known.progress))

    def _put(self, download: Download) -> None:
        self._downloads[download.ref] = download
        self.changed.emit(download)
