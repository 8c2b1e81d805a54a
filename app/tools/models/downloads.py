"""Downloads of models: their state, and the rows at the bottom of the models window that show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QGridLayout, QProgressBar, QScrollArea, QSizePolicy

from app.jobs import Job, Jobs
from app.setup.model_library import progress_text
from app.theme import hold
from app.widgets.fields import boxed, column, hint_label, named, plain_tip, push_button, row, scrolled, set_flag
from app.widgets.labels import ElidedLabel, show_share
from core.models.catalogue import ModelEntry
from core.models.remote import downloads as hub_downloads
from core.models.remote.hub import DownloadProgress
from core.text import bytes_of_text, bytes_text, percent_text

ROW_HEIGHT, TALL_ROW_HEIGHT = 64, 80
"""Row heights, normally and with a failure, whose sentence takes two lines."""
MAX_ROWS_SHOWN = 3


class DownloadState(StrEnum):
    """State of a download."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"

    @property
    def is_active(self) -> bool:
        """Whether it is running or waiting."""
        return self in {DownloadState.WAITING, DownloadState.RUNNING}


S = DownloadState


@dataclass(frozen=True, slots=True)
class Download:
    """The download of one model. `sentence` says why it failed."""

    ref: str
    state: DownloadState = S.WAITING
    progress: DownloadProgress | None = None
    sentence: str = ""

    @property
    def is_resumable(self) -> bool:
        """Whether it goes on from here after a stop or a failure."""
        return self.progress is None or self.progress.is_resumable

    @property
    def share(self) -> float | None:
        """The share of the stage that is done, from 0 to 1; None while unknown."""
        if self.state is S.DONE:
            return 1.0
        if not (self.state.is_active or self.is_resumable):
            return 0.0
        if self.progress is None or not (self.progress.total_bytes and self.progress.done_bytes):
            return None if self.state is S.RUNNING else 0.0
        return min(1.0, self.progress.done_bytes / self.progress.total_bytes)

    @property
    def note(self) -> str:
        """The state in a few words."""
        progress = self.progress
        total = progress.total_bytes if progress is not None else None
        if self.state is S.FAILED:
            return self.sentence
        if self.state is S.STOPPED:
            if not self.is_resumable:
                return "Stopped. It starts again from the beginning."
            if progress is None or not progress.done_bytes:
                return "Stopped before anything was received."
            done = progress.done_bytes
            return f"Stopped. {bytes_of_text(done, total) if total else bytes_text(done)} is kept."
        if self.state is S.WAITING:
            return "Waiting for the previous download"
        if self.state is S.DONE:
            return f"Done · {bytes_text(total)}" if total else "Done"
        return progress_text(progress) if progress is not None else "Asking the Hub…"


class Downloads(QObject):
    """All requested downloads, which run one at a time.

    Signals:
        changed: a `Download` that is new or has changed.
        dismissed: the reference of one that is no longer shown.
        arrived: the `ModelEntry` of a downloaded model.
    """

    changed = Signal(object)
    dismissed = Signal(str)
    arrived = Signal(object)

    def __init__(self, jobs: Jobs, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs = jobs
        self._downloads: dict[str, Download] = {}
        self._running: dict[str, Job] = {}

    def all(self) -> tuple[Download, ...]:
        """The downloads that have not been dismissed, in order."""
        return tuple(self._downloads.values())

    def is_active(self, ref: str) -> bool:
        """Whether a model is being downloaded or waiting."""
        return ref in self._downloads and self._downloads[ref].state.is_active

    def get(self, ref: str, restart: bool = False) -> None:
        """Queue a download; resumes it unless `restart` is set. Does nothing if it is already active."""
        if self.is_active(ref):
            return
        self._put(Download(ref))
        self._running[ref] = self._jobs.submit(
            lambda job: hub_downloads.download(ref, on_progress=job.report, check_cancelled=job.check, restart=restart),
            then=partial(self._on_done, ref),
            failed=partial(self._on_failed, ref),
            progress=partial(self._on_progress, ref),
            what="The download failed",
            lane="downloads",
        )

    def cancel(self, ref: str) -> None:
        """Stop a running or waiting download; keep what was received."""
        if self.is_active(ref):
            self._running.pop(ref).cancel()
            self._put(replace(self._downloads[ref], state=S.STOPPED))

    def dismiss(self, ref: str) -> None:
        """Remove a download that is over."""
        if ref in self._downloads and not self.is_active(ref):
            del self._downloads[ref]
            self.dismissed.emit(ref)

    def line(self) -> str:
        """The active downloads in a few words, for the main window's footer; empty if there are none."""
        active = [download for download in self._downloads.values() if download.state.is_active]
        running = next((download for download in active if download.state is S.RUNNING), None)
        if running is None:
            return ""
        share = f" {percent_text(running.share)}" if running.share is not None else "…"
        more = f", {len(active) - 1} more" if len(active) > 1 else ""
        return f"Getting {running.ref.rpartition('/')[2]}{share}{more}"

    def _on_progress(self, ref: str, progress: DownloadProgress) -> None:
        self._put(Download(ref, S.RUNNING, progress))

    def _on_done(self, ref: str, entry: ModelEntry) -> None:
        self.arrived.emit(entry)
        self._put(replace(self._downloads[ref], state=S.DONE))

    def _on_failed(self, ref: str, sentence: str) -> None:
        self._put(replace(self._downloads[ref], state=S.FAILED, sentence=sentence))

    def _put(self, download: Download) -> None:
        self._downloads[download.ref] = download
        self.changed.emit(download)


class DownloadRow(QFrame):
    """A row for one download. Its height changes only if the download fails."""

    def __init__(self, ref: str, downloads: Downloads) -> None:
        super().__init__()
        self.ref = ref
        self.setObjectName("downloadRow")
        hold(self, height=ROW_HEIGHT)
        self.name = ElidedLabel(ref, "strong", takes_all=True)
        self.note = hint_label("downloadNote")
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.note.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.percent = hint_label("downloadPercent")
        self.bar = named(QProgressBar(), "downloadBar", ref)
        self.bar.setTextVisible(False)
        start_over = "Discard what was received, and start again"
        self.resume = push_button("Resume", "resumeDownloadButton", "", lambda: downloads.get(ref))
        self.restart = push_button("Start over", "restartDownloadButton", start_over, lambda: downloads.get(ref, True))
        self.cancel = push_button("Cancel", "cancelDownloadButton", "", lambda: downloads.cancel(ref))
        self.dismiss = push_button("Dismiss", "dismissDownloadButton", "", lambda: downloads.dismiss(ref))
        texts = QGridLayout()
        texts.setVerticalSpacing(4)
        texts.addWidget(self.name, 0, 0)
        texts.addWidget(self.percent, 0, 1, Qt.AlignmentFlag.AlignRight)
        texts.addWidget(self.bar, 1, 0, 1, 2)
        texts.addWidget(self.note, 2, 0, 1, 2)
        texts.setColumnStretch(0, 1)
        layout = row((texts, 1))
        layout.setContentsMargins(12, 4, 12, 4)
        layout.addSpacing(8)
        for button in (self.resume, self.restart, self.cancel, self.dismiss):
            button.setAccessibleName(f"{button.text()}: {ref}")
            layout.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)
        self.setLayout(layout)

    def show_download(self, download: Download) -> None:
        """Show the download's state."""
        state, share = download.state, download.share
        self.cancel.setVisible(state.is_active)
        has_ended_early = state in {S.STOPPED, S.FAILED}
        self.resume.setVisible(has_ended_early and download.is_resumable)
        self.restart.setVisible(has_ended_early)
        self.dismiss.setVisible(not state.is_active)
        self.note.setText(download.note)
        self.note.setToolTip(plain_tip(download.sentence))
        set_flag(self.note, "role", "problem" if state is S.FAILED else "hint")
        self.note.setWordWrap(state is S.FAILED)
        hold(self, height=TALL_ROW_HEIGHT if state is S.FAILED else ROW_HEIGHT)
        show_share(self.bar, share)
        self.percent.setText(percent_text(share) if share else "")
        self.bar.setAccessibleName(f"{self.ref}: {download.note}")
        self.setAccessibleName(self.bar.accessibleName())


class DownloadsList(QScrollArea):
    """The list of downloads, newest at the bottom; it grows upwards, so that nothing above moves."""

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self.setAccessibleName("Downloads")
        self._downloads = downloads
        self.rows: dict[str, DownloadRow] = {}
        self._layout = column(None, spacing=0)
        scrolled(boxed(self._layout), "downloadsShelf", self)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.hide()
        downloads.changed.connect(self._on_changed)
        downloads.dismissed.connect(self._on_dismissed)
        for download in downloads.all():
            self._on_changed(download)

    @Slot(object)
    def _on_changed(self, download: Download) -> None:
        is_new = download.ref not in self.rows
        if is_new:
            self.rows[download.ref] = DownloadRow(download.ref, self._downloads)
            self._layout.insertWidget(self._layout.count() - 1, self.rows[download.ref])
        self.rows[download.ref].show_download(download)
        self.restyle()
        if is_new:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    @Slot(str)
    def _on_dismissed(self, ref: str) -> None:
        gone = self.rows.pop(ref)
        self._layout.removeWidget(gone)
        gone.hide()
        gone.deleteLater()
        self.restyle()

    def restyle(self) -> None:
        """Fit the height to the rows."""
        heights = [shown.minimumHeight() for shown in self.rows.values()]
        self.setFixedHeight(sum(heights[-MAX_ROWS_SHOWN:]) + 2)
        self.setVisible(bool(heights))
