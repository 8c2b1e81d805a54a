"""Downloads of models, one after the other: where each one stands, and the rows that show it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.jobs import Job, Jobs
from app.setup.model_library import bytes_of_text, bytes_text, progress_text
from app.theme import hold
from app.widgets.fields import describe, push_button, row, set_flag, text_label
from app.widgets.labels import STEPS, ElidedLabel, show_share
from core.controls import Cancelled
from core.text import percent_text

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry
    from core.models.downloads import DownloadProgress

ROW_HEIGHT, FAILED_ROW_HEIGHT = 64, 80
MAX_ROWS_SHOWN = 3


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
        """Whether it is running, or will run without being asked again."""
        return self in {DownloadState.WAITING, DownloadState.RUNNING, DownloadState.STOPPING}


S = DownloadState


@dataclass(frozen=True, slots=True)
class Download:
    """One model's download. `sentence` says why it failed."""

    ref: str
    state: DownloadState = S.WAITING
    progress: DownloadProgress | None = None
    sentence: str = ""


class Downloads(QObject):
    """Starts and stops downloads and knows how each one stands.

    Signals:
        changed: a `Download` is new or has changed.
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
        self._stops: dict[str, threading.Event] = {}

    def all(self) -> tuple[Download, ...]:
        """Every download that was asked for and not dismissed, in order."""
        return tuple(self._downloads.values())

    def is_active(self, ref: str) -> bool:
        """Whether a model is being downloaded, or waits to be."""
        return ref in self._downloads and self._downloads[ref].state.is_active

    def get(self, ref: str, *, restart: bool = False) -> None:
        """Download a model after those before it. Resumes unless `restart`; does nothing if it is active already."""
        if self.is_active(ref):
            return
        stop = self._stops[ref] = threading.Event()
        self._put(Download(ref))
        self._jobs.submit(
            partial(_download, ref, restart, stop),
            partial(self._on_ended, ref, stop),
            failed=partial(self._on_failed, ref, stop),
            progress=partial(self._on_progress, ref, stop),
            what="The download failed",
            lane="downloads",
        )

    @Slot(str)
    def cancel(self, ref: str) -> None:
        """Stop a download; the bytes received are kept."""
        if self.is_active(ref):
            self._stops[ref].set()
            download = self._downloads[ref]
            self._put(replace(download, state=S.STOPPED if download.state is S.WAITING else S.STOPPING))

    @Slot(str)
    def dismiss(self, ref: str) -> None:
        """No longer show a download that has ended."""
        if ref in self._downloads and not self.is_active(ref):
            del self._downloads[ref], self._stops[ref]
            self.dismissed.emit(ref)

    def _on_progress(self, ref: str, stop: threading.Event, latest: Callable[[], DownloadProgress | None]) -> None:
        if self._stops.get(ref) is stop and self.is_active(ref):
            download = self._downloads[ref]
            state = S.STOPPING if stop.is_set() else S.RUNNING
            self._put(replace(download, state=state, progress=latest() or download.progress))

    def _on_ended(self, ref: str, stop: threading.Event, ended: tuple[ModelEntry | None, Any]) -> None:
        entry, progress = ended
        if entry is not None:
            self.arrived.emit(entry)
        if self._stops.get(ref) is stop:
            self._put(replace(self._downloads[ref], state=S.STOPPED if entry is None else S.DONE, progress=progress))

    def _on_failed(self, ref: str, stop: threading.Event, sentence: str) -> None:
        if self._stops.get(ref) is stop:
            self._put(replace(self._downloads[ref], state=S.FAILED, sentence=sentence))

    def _put(self, download: Download) -> None:
        self._downloads[download.ref] = download
        self.changed.emit(download)


def _download(
    ref: str, restart: bool, stop: threading.Event, job: Job
) -> tuple[ModelEntry | None, DownloadProgress | None]:
    """The downloaded model, None if it was stopped, and the last progress."""
    from core.models import downloads

    last: DownloadProgress | None = None
    is_reported = False

    def check_cancelled() -> None:
        if stop.is_set():
            raise Cancelled
        job.check()

    def on_progress(progress: DownloadProgress) -> None:
        nonlocal last, is_reported
        last = progress
        # One report waits for the window at a time, and finds the latest progress.
        if not is_reported:
            is_reported = True
            job.report(latest)

    def latest() -> DownloadProgress | None:
        nonlocal is_reported
        is_reported = False
        return last

    try:
        check_cancelled()
        job.report(latest)
        entry = downloads.download(ref, on_progress=on_progress, check_cancelled=check_cancelled, restart=restart)
    except Cancelled:
        return None, last
    return entry, last


def download_line(downloads: tuple[Download, ...]) -> str:
    """The active downloads in a few words, for the main window's foot; empty if there is none."""
    active = [download for download in downloads if download.state.is_active]
    current = next((download for download in active if download.state is not S.WAITING), None)
    if current is None:
        return ""
    share = f" {percent_text(_share(current))}" if current.progress and current.progress.total_bytes else "…"
    more = f", {len(active) - 1} more" if len(active) > 1 else ""
    return f"Getting {current.ref.rpartition('/')[2]}{share}{more}"


def _share(download: Download) -> float:
    progress = download.progress
    if download.state is S.DONE:
        return 1.0
    return min(1.0, progress.done_bytes / progress.total_bytes) if progress and progress.total_bytes else 0.0


def _note(download: Download) -> str:
    state, progress = download.state, download.progress
    if state is S.FAILED:
        return download.sentence
    if state is S.STOPPED:
        if not (progress and progress.done_bytes):
            return "Stopped before anything arrived."
        total = progress.total_bytes
        kept = bytes_of_text(progress.done_bytes, total) if total else bytes_text(progress.done_bytes)
        return f"Stopped. {kept} are kept."
    if state is S.WAITING:
        return "Waiting for the download before it"
    if state is S.STOPPING:
        return "Stopping…"
    if state is S.DONE:
        return f"Done · {bytes_text(progress.total_bytes)}" if progress and progress.total_bytes else "Done"
    return progress_text(progress) if progress is not None else "Asking the Hub…"


class DownloadRow(QFrame):
    """One download. Its height stays the same unless it fails, when the sentence takes two lines."""

    def __init__(self, ref: str, downloads: Downloads) -> None:
        super().__init__()
        self.ref = ref
        self.setObjectName("downloadRow")
        self.name = ElidedLabel(ref, "strong", takes_all=True)
        self.note = text_label("", "hint")
        self.note.setObjectName("downloadNote")
        self.note.setTextFormat(Qt.TextFormat.PlainText)
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.note.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.percent = text_label("", "hint")
        self.bar = QProgressBar()
        self.bar.setObjectName("downloadBar")
        self.bar.setTextVisible(False)
        self.bar.setRange(0, STEPS)
        self.cancel = self._button("Cancel", "cancelDownloadButton", partial(downloads.cancel, ref))
        self.resume = self._button("Resume", "resumeDownloadButton", partial(downloads.get, ref))
        self.restart = self._button("Start over", "restartDownloadButton", partial(downloads.get, ref, restart=True))
        self.dismiss = self._button("Dismiss", "dismissDownloadButton", partial(downloads.dismiss, ref))
        describe(self.restart, f"Start over with {ref}", "Delete the bytes received so far and download again")
        texts = QGridLayout()
        texts.setVerticalSpacing(4)
        texts.addWidget(self.name, 0, 0)
        texts.addWidget(self.percent, 0, 1, Qt.AlignmentFlag.AlignRight)
        texts.addWidget(self.bar, 1, 0, 1, 2)
        texts.addWidget(self.note, 2, 0, 1, 2)
        texts.setColumnStretch(0, 1)
        layout = row((texts, 1), self.resume, self.restart, self.cancel, self.dismiss)
        layout.setContentsMargins(12, 4, 12, 4)
        self.setLayout(layout)

    def _button(self, text: str, name: str, action: partial[None]) -> QPushButton:
        button = push_button(text, name, "")
        describe(button, f"{text} {self.ref}")
        # `clicked` has an argument of its own, which the action doesn't take.
        button.clicked.connect(lambda _checked=False: action())
        return button

    def show_download(self, download: Download) -> None:
        """Show how it stands."""
        state, progress = download.state, download.progress
        has_failed = state is S.FAILED
        self.cancel.setVisible(state.is_active)
        self.cancel.setEnabled(state is not S.STOPPING)
        for button in (self.resume, self.restart):
            button.setVisible(state in {S.STOPPED, S.FAILED})
        self.dismiss.setVisible(not state.is_active)
        note = _note(download)
        self.note.setText(note)
        self.note.setToolTip(download.sentence)
        self.note.setWordWrap(has_failed)
        set_flag(self.note, "role", "problem" if has_failed else "hint")
        hold(self, height=FAILED_ROW_HEIGHT if has_failed else ROW_HEIGHT)
        share = _share(download)
        is_unknown = state is S.RUNNING and (progress is None or not progress.total_bytes)
        show_share(self.bar, None if is_unknown else share)
        self.percent.setText(percent_text(share) if share and not is_unknown else "")
        self.bar.setAccessibleName(f"{self.ref}: {note}")
        self.setAccessibleName(self.bar.accessibleName())


class DownloadsShelf(QScrollArea):
    """The downloads, the newest at the bottom; it grows upwards, so that nothing above it moves."""

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self.setObjectName("downloadsShelf")
        self.setAccessibleName("Downloads")
        self._downloads = downloads
        self._rows: dict[str, DownloadRow] = {}
        body = QWidget()
        body.setObjectName("downloadsBody")
        self._layout = QVBoxLayout(body)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)
        self._layout.addStretch(1)
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.hide()
        for download in downloads.all():
            self.show_download(download)
        downloads.changed.connect(self.show_download)
        downloads.dismissed.connect(self._on_dismissed)

    def row(self, ref: str) -> DownloadRow | None:
        """The row of a download."""
        return self._rows.get(ref)

    @Slot(object)
    def show_download(self, download: Download) -> None:
        """Show how a download stands; a new one gets a row."""
        is_new = download.ref not in self._rows
        if is_new:
            shown = self._rows[download.ref] = DownloadRow(download.ref, self._downloads)
            self._layout.insertWidget(self._layout.count() - 1, shown)
        self._rows[download.ref].show_download(download)
        self.rescale()
        if is_new:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    @Slot(str)
    def _on_dismissed(self, ref: str) -> None:
        gone = self._rows.pop(ref)
        self._layout.removeWidget(gone)
        gone.hide()
        gone.deleteLater()
        self.rescale()

    def rescale(self) -> None:
        """Make room for the last rows at their present height."""
        heights = [shown.minimumHeight() for shown in self._rows.values()]
        self.setFixedHeight(sum(heights[-MAX_ROWS_SHOWN:]) + 2)
        self.setVisible(bool(heights))
