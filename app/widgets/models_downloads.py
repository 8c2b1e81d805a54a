"""The downloads at the foot of the models window: how far each one is, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.model_store import Download, DownloadState
from app.text_size import hold
from app.view_models.model_text import bytes_of_text, bytes_text, progress_text
from app.widgets.fields import describe, set_flag, text_label
from app.widgets.models_labels import ElidedLabel
from app.widgets.progress import STEPS, show_share
from core.figures import percent_text

ROW_HEIGHT, TALL_ROW_HEIGHT = 64, 80
"""A sentence about a failure has two lines."""
MAX_ROWS_SHOWN = 3
S = DownloadState


class DownloadRow(QFrame):
    """One download. Its height is the same all the way, unless it fails.

    Signals:
        get_requested: a reference, and whether to begin anew.
        cancel_requested, dismiss_requested: a reference.
    """

    get_requested = Signal(str, bool)
    cancel_requested = Signal(str)
    dismiss_requested = Signal(str)

    def __init__(self, ref: str) -> None:
        super().__init__()
        self.ref = ref
        self.setObjectName("downloadRow")
        hold(self, height=ROW_HEIGHT)
        self.name = ElidedLabel(ref, "strong", takes_all=True)
        self.note = text_label("", "hint")
        self.note.setObjectName("downloadNote")
        self.note.setTextFormat(Qt.TextFormat.PlainText)
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.percent = text_label("", "hint")
        self.bar = QProgressBar()
        self.bar.setObjectName("downloadBar")
        self.bar.setTextVisible(False)
        self.bar.setRange(0, STEPS)
        self.cancel = self._button("Cancel", "cancelDownloadButton")
        self.resume = self._button("Resume", "resumeDownloadButton")
        self.restart = self._button("Start over", "restartDownloadButton")
        self.dismiss = self._button("Dismiss", "dismissDownloadButton")
        describe(self.restart, f"Start over with {ref}", "Throw away what came so far, and begin anew")
        self._lay_out()
        self.cancel.clicked.connect(self._on_cancel)
        self.resume.clicked.connect(self._on_resume)
        self.restart.clicked.connect(self._on_restart)
        self.dismiss.clicked.connect(self._on_dismiss)

    def _button(self, text: str, name: str) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAutoDefault(False)
        describe(button, f"{text} {self.ref}")
        return button

    def _lay_out(self) -> None:
        texts = QGridLayout()
        texts.setVerticalSpacing(4)
        texts.addWidget(self.name, 0, 0)
        texts.addWidget(self.percent, 0, 1, Qt.AlignmentFlag.AlignRight)
        texts.addWidget(self.bar, 1, 0, 1, 2)
        texts.addWidget(self.note, 2, 0, 1, 2)
        texts.setColumnStretch(0, 1)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 4, 12, 4)
        layout.setSpacing(8)
        layout.addLayout(texts, 1)
        layout.addSpacing(8)
        for button in (self.resume, self.restart, self.cancel, self.dismiss):
            layout.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)

    def show_download(self, download: Download) -> None:
        """Show how it stands."""
        state, progress = download.state, download.progress
        self.cancel.setVisible(state.is_active)
        self.cancel.setEnabled(state is not S.STOPPING)
        for button in (self.resume, self.restart):
            button.setVisible(state in {S.STOPPED, S.FAILED})
        self.dismiss.setVisible(not state.is_active)
        note = _note(download)
        self.note.setText(note)
        self.note.setToolTip(download.sentence)
        set_flag(self.note, "role", "problem" if state is S.FAILED else "hint")
        self.note.setWordWrap(state is S.FAILED)
        self.note.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        hold(self, height=TALL_ROW_HEIGHT if state is S.FAILED else ROW_HEIGHT)
        share = progress.done_bytes / progress.total_bytes if progress is not None and progress.total_bytes else 0.0
        share = 1.0 if state is S.DONE else min(1.0, share)
        is_unknown = state is S.RUNNING and (progress is None or not progress.total_bytes)
        show_share(self.bar, None if is_unknown else share)
        self.percent.setText(percent_text(share) if share and not is_unknown else "")
        self.bar.setAccessibleName(f"{self.ref}: {note}")
        self.setAccessibleName(self.bar.accessibleName())

    @Slot()
    def _on_cancel(self) -> None:
        self.cancel_requested.emit(self.ref)

    @Slot()
    def _on_resume(self) -> None:
        self.get_requested.emit(self.ref, False)

    @Slot()
    def _on_restart(self) -> None:
        self.get_requested.emit(self.ref, True)

    @Slot()
    def _on_dismiss(self) -> None:
        self.dismiss_requested.emit(self.ref)


def _note(download: Download) -> str:
    state, progress = download.state, download.progress
    kept = ""
    if progress is not None and progress.done_bytes:
        total = progress.total_bytes
        kept = bytes_of_text(progress.done_bytes, total) if total else bytes_text(progress.done_bytes)
    if state is S.FAILED:
        return download.sentence
    if state is S.STOPPED:
        return f"Stopped. {kept} are kept." if kept else "Stopped before anything came."
    if state is S.WAITING:
        return "Waiting for the one before it"
    if state is S.STOPPING:
        return "Stopping…"
    if state is S.DONE:
        return f"Done · {bytes_text(progress.total_bytes)}" if progress and progress.total_bytes else "Done"
    return progress_text(progress) if progress is not None else "Asking the Hub…"


class DownloadsShelf(QScrollArea):
    """The downloads, the newest at the bottom; it grows upwards, so that nothing above moves.

    Signals:
        get_requested: a reference, and whether to begin anew.
        cancel_requested, dismiss_requested: a reference.
    """

    get_requested = Signal(str, bool)
    cancel_requested = Signal(str)
    dismiss_requested = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("downloadsShelf")
        self.setAccessibleName("Downloads")
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

    def row(self, ref: str) -> DownloadRow | None:
        """The row of a download."""
        return self._rows.get(ref)

    def show_download(self, download: Download) -> None:
        """Show how a download stands; a new one gets a row."""
        row = self._rows.get(download.ref)
        is_new = row is None
        if row is None:
            row = self._rows[download.ref] = DownloadRow(download.ref)
            row.get_requested.connect(self.get_requested)
            row.cancel_requested.connect(self.cancel_requested)
            row.dismiss_requested.connect(self.dismiss_requested)
            self._layout.insertWidget(self._layout.count() - 1, row)
        row.show_download(download)
        self._resize()
        if is_new:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def forget(self, ref: str) -> None:
        """Take a row away."""
        row = self._rows.pop(ref, None)
        if row is not None:
            self._layout.removeWidget(row)
            row.hide()
            row.deleteLater()
            self._resize()

    def rescale(self) -> None:
        """Make room for the rows as high as they now are."""
        self._resize()

    def _resize(self) -> None:
        heights = [row.minimumHeight() for row in self._rows.values()]
        self.setFixedHeight(sum(heights[-MAX_ROWS_SHOWN:]) + 2)
        self.setVisible(bool(heights))
