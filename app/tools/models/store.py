"""Downloads models in a thread of its own, one after the other; what came of a stopped one is kept for later."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.services import Services
from app.threads import Answerer, AnsweringThread
from core.controls import Cancelled
from core.errors import sentence_of

if TYPE_CHECKING:
    from core.models.downloads import DownloadProgress


TELL_MS = 100
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


@dataclass(slots=True, eq=False)
class DownloadJob:
    """What is handed to the thread.

    Attributes:
        ref, restart: what to get, and whether to begin anew.
        cancelled: set by the window's thread; stops it, or keeps it from starting.
        progress: set by the download's thread; the latest, which the window's thread looks up in its own time.
    """

    ref: str
    restart: bool
    cancelled: threading.Event = field(default_factory=threading.Event)
    progress: DownloadProgress | None = None

    def check_cancelled(self) -> None:
        """Raises:
        Cancelled: if it was asked to stop.
        """
        if self.cancelled.is_set():
            raise Cancelled

    def take_progress(self, progress: DownloadProgress) -> None:
        """Note how far it is."""
        self.progress = progress


class Downloader(Answerer):
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

    def fetch(self, job: DownloadJob) -> None:
        """Download a model to its end, its failure or its cancellation; told by `changed` in each case."""

        def tell(state: DownloadState, sentence: str = "") -> None:
            self.changed.emit(job, Download(job.ref, state, job.progress, sentence))

        try:
            job.check_cancelled()
            tell(DownloadState.RUNNING)
            entry = self._services.download(
                job.ref, on_progress=job.take_progress, check_cancelled=job.check_cancelled, restart=job.restart
            )
        except Cancelled:
            tell(DownloadState.STOPPED)
        except Exception as error:
            tell(DownloadState.FAILED, sentence_of(error, "The download failed"))
        else:
            self.arrived.emit(entry)
            tell(DownloadState.DONE)


class ModelStore(AnsweringThread):
    """The window's handle on the downloads, which knows how each one stands.

    Signals:
        changed: a `Download` is new, or has news.
        dismissed: the reference of one that is to be seen no longer.
        arrived: the `ModelEntry` of a model that is here now.
    """

    changed = Signal(object)
    dismissed = Signal(str)
    arrived = Signal(object)

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        self._downloader = downloader = Downloader(services)
        super().__init__("model downloads", downloader, parent)
        self._jobs: dict[str, DownloadJob] = {}
        self._downloads: dict[str, Download] = {}
        self._timer = QTimer(self)
        self._timer.setInterval(TELL_MS)
        self._timer.timeout.connect(self._on_tick)
        downloader.changed.connect(self._on_changed)
        downloader.arrived.connect(self.arrived)

    @property
    def downloads(self) -> tuple[Download, ...]:
        """All that were asked for and not dismissed, in their order."""
        return tuple(self._downloads.values())

    def get(self, ref: str, *, restart: bool = False) -> None:
        """Download a model after those before it; resumes unless `restart`. Does nothing if it is on its way."""
        known = self._downloads.get(ref)
        if known is not None and known.state.is_active:
            return
        job = self._jobs[ref] = DownloadJob(ref, restart)
        self._put(Download(ref))
        self._timer.start()
        self._ask(self._downloader.fetch, job)

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
        super().begin_close()

    @Slot()
    def _on_tick(self) -> None:
        active = [download for download in self._downloads.values() if download.state.is_active]
        if not active:
            self._timer.stop()
        for download in active:
            progress = self._jobs[download.ref].progress
            if progress is not None and progress is not download.progress:
                self._put(replace(download, progress=progress))

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
