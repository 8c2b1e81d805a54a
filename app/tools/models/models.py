"""Manages models for the panels: scans, verdicts on pairs, downloads, deletions, and the models window."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtCore import QObject, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.controller import RunController
from app.dialogs import Dialogs, OpenKind
from app.jobs import Job, Jobs
from app.setup.models_form import ModelsForm
from app.tools.models.downloads import Download, Downloads, DownloadState
from app.tools.models.window import GET, HERE, ModelsWindow
from core.errors import ModelNotFoundError, OutriderError, sentence_of
from core.models import catalogue, fit
from core.models.catalogue import ModelEntry
from core.models.folder import details
from core.models.folder.details import ModelDetails
from core.models.prompting import FilesState, files_state
from core.models.remote import hub, removal
from core.models.remote.removal import Removal

if TYPE_CHECKING:
    from core.controls import RunControls
    from core.session import Session

BATCH_S = 0.25
"""About how long results for many models are collected before they are shown as a batch."""


class FoundModels(NamedTuple):
    """The models on this computer, the download folder, and the free bytes on its disk; None if unknown.

    Of the models that were opened, `gone` are those that aren't there, and `states` those of the files of the others.
    """

    entries: tuple[ModelEntry, ...]
    folder: Path
    free_bytes: int | None
    gone: frozenset[str] = frozenset()
    states: Mapping[str, FilesState] | None = None


def find_models(opened: Sequence[str] = ()) -> FoundModels:
    """Find the models on this computer, look anew at those that were opened, and find the free disk space."""
    folder = hub.cache_folder()
    free = None
    with contextlib.suppress(OSError, StopIteration):  # A missing disk must not hide other models.
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    entries, gone = [*catalogue.local_models()], set()
    states: dict[str, FilesState] = {}
    for ref in opened:
        try:
            entries.append(catalogue.resolve(ref))
            states[ref] = files_state(entries[-1].path)
        except ModelNotFoundError:
            gone.add(ref)
        except OutriderError:
            pass  # It is damaged, or being written: its details and the check of the pair say so.
    return FoundModels(tuple(entries), folder, free, frozenset(gone), states)


def find_details(entry: ModelEntry) -> ModelDetails | str:
    """The details in a model's files, or a sentence if they can't be read."""
    try:
        return details.read_details(entry)
    except Exception as error:
        return sentence_of(error, f"{entry.title} could not be read")


def find_problem(target: str, draft: str) -> str | None:
    """Why two models can't work together, in a sentence; None if they can, or if only loading will show it."""
    try:
        return fit.pair_verdict(draft, target, with_memory=False).problem
    except OutriderError as error:
        return str(error)
    except Exception:
        return None  # The engine may still read the file, and reports more precisely what is wrong.


def answer_each(job: Job, items: Sequence[Any], key: Callable[[Any], str], ask: Callable[[Any], Any]) -> dict[str, Any]:
    """Compute an answer for each item, report the answers in batches, and return the last batch."""
    answers: dict[str, Any] = {}
    reported_at = time.monotonic()
    for item in items:
        job.check()
        answers[key(item)] = ask(item)
        if time.monotonic() - reported_at >= BATCH_S:
            job.report(answers)
            answers, reported_at = {}, time.monotonic()
    return answers


class Models(QObject):
    """Connects the library, its jobs, the form with the two dropdowns, and the models window.

    Signals:
        failed: one sentence for the main window, if the models window is not open to show it.
        mended: such a sentence, once a download was started again, or a model could be opened.
        model_opened: the reference of a model that the user opened.
        line_changed: a few words on the active downloads.
    """

    failed = Signal(str)
    mended = Signal(str)
    model_opened = Signal(str)
    line_changed = Signal(str)

    def __init__(
        self,
        jobs: Jobs,
        form: ModelsForm,
        controller: RunController,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._submit = partial(jobs.submit, lane="models")
        self.library = form.library
        self.form = form
        self._dialogs = dialogs
        self._parent = parent
        self._controller = controller
        self._details_job: Job | None = None
        self.window: ModelsWindow | None = None
        self.shown_elsewhere: frozenset[str] = frozenset()
        """Models whose downloads another panel shows, failures included."""
        self._reported: dict[str, str] = {}
        """The sentence of each failed download that `failed` reported, by its reference."""
        self._unopened = ""
        """The sentence that said why a model couldn't be opened."""
        self.downloads = Downloads(jobs, self)
        self.downloads.changed.connect(self._on_download_changed)
        self.downloads.arrived.connect(self._on_arrived)
        controller.engine_ready.connect(self.scan)
        form.browse_requested.connect(self.browse)
        form.check_requested.connect(self._check_pairs)

    # --- The models window ---

    @Slot()
    def open(self) -> None:
        """Show the models on this computer."""
        self._open(HERE)

    @Slot()
    def browse(self) -> None:
        """Show the models that can be downloaded."""
        self._open(GET)

    def _open(self, page: int) -> None:
        if self.window is None:
            self.window = ModelsWindow(self, self._parent)
            for mended in (self._controller.freed, self.mended):
                mended.connect(self.window.banner.retract)
        self.scan()
        self.window.open_page(page)

    def _show_problem(self, sentence: str) -> None:
        window = self.window
        (window.banner.show_sentence if window is not None and window.isVisible() else self.failed.emit)(sentence)

    # --- Local models ---

    def recall(self, *refs: str) -> None:
        """Look for models that were opened or chosen last time; those that are gone are skipped silently."""
        for ref in reversed(dict.fromkeys(refs)):
            if ref and ref not in self.library.refs:
                self.open_model(ref, is_new=False)

    @Slot()
    def scan(self) -> None:
        """Look for models on this computer."""
        opened = self.library.opened
        self._submit(
            lambda _job: find_models(opened),
            then=self._on_scanned,
            failed=self._show_problem,
            what="The models on this computer could not be listed",
        )

    def ask_for_model(self, kind: OpenKind, _checked: bool = False) -> None:
        """Let the user choose a folder or file, and open it."""
        if path := self._dialogs.ask_model_path(self.window or self._parent, kind):
            self.open_model(path)

    def open_model(self, ref: str, *, is_new: bool = True) -> None:
        """Find the model that a reference names, and select it unless it was opened by an earlier session."""

        def take(entry: ModelEntry) -> None:
            self.form.add_model(entry)
            self._read_details()
            if is_new:
                self.model_opened.emit(entry.ref)
                self.mended.emit(self._unopened)
                if self.window is not None:
                    self.window.select(entry.ref)

        def fail(sentence: str) -> None:
            self._unopened = sentence
            self._show_problem(sentence)

        # A model from an earlier session may be on a disk that is missing now, and the user did not just ask for it.
        failed = fail if is_new else None
        self._submit(lambda _job: catalogue.resolve(ref), then=take, failed=failed, what=f"{ref} could not be opened")

    def _on_scanned(self, found: FoundModels) -> None:
        self.library.take_scan(found.entries, found.gone, found.states)
        self.form.show_models()
        self.form.changed.emit()
        self._read_details()
        if self.window is not None:
            self.window.show_place(found)

    def _read_details(self) -> None:
        if self._details_job is not None:
            self._details_job.cancel()
        if missing := self.library.undescribed():
            self._details_job = self._submit(
                lambda job: answer_each(job, missing, lambda entry: entry.ref, find_details),
                then=self._on_all_details_read,
                progress=self._on_details_read,
            )

    def _on_details_read(self, details: dict[str, ModelDetails | str]) -> None:
        self.library.record_details(details)
        self._refresh()

    def _on_all_details_read(self, details: dict[str, ModelDetails | str]) -> None:
        self._on_details_read(details)
        self.form.changed.emit()  # Which drafts are smaller than a target is known now.

    @Slot(str, object)
    def _check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        def take(problems: dict[str, str | None]) -> None:
            self.form.take_problems(target, problems)
            self._refresh()

        self._submit(lambda job: answer_each(job, drafts, str, partial(find_problem, target)), then=take, progress=take)

    def _refresh(self) -> None:
        if self.window is not None:
            self.window.refresh()

    def show_folder(self, ref: str) -> None:
        """Open a model's folder on the desktop."""
        entry = self.library.entry(ref)
        if entry is not None:
            folder = entry.path if entry.path.is_dir() else entry.path.parent
            if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
                self._show_problem(f"This desktop can't open folders. The path is {str(folder)!r}.")

    # --- Downloads and deletions ---

    @Slot(object)
    def _on_download_changed(self, download: Download) -> None:
        is_shown = download.ref in self.shown_elsewhere or (self.window is not None and self.window.isVisible())
        if sentence := self._reported.pop(download.ref, ""):
            self.mended.emit(sentence)
        if download.state is DownloadState.FAILED and not is_shown:
            self._reported[download.ref] = download.sentence
            self.failed.emit(download.sentence)
        self.line_changed.emit(self.downloads.line())

    @Slot(object)
    def _on_arrived(self, entry: ModelEntry) -> None:
        # What was known about a damaged model no longer holds, although its entry looks the same.
        self.library.add(entry)
        self.scan()

    def remove(self, ref: str) -> None:
        """Delete a model, once the user has confirmed it."""
        if not self._is_in_use(ref):
            self._submit(
                lambda _job: removal.plan_removal(ref),
                then=self._on_removal_planned,
                failed=self._show_problem,
                what=f"{ref} can't be deleted",
            )

    def _on_removal_planned(self, plan: Removal) -> None:
        ref = plan.entry.ref

        def delete(session: Session | None, _: RunControls) -> Iterator[str]:
            if session is not None:
                session.drop(ref)
            removal.remove(ref)
            yield ref

        def finish() -> None:
            for removed in task.take_events() if task is not None else ():
                self.downloads.dismiss(removed)
            self.scan()

        if not self._dialogs.ask_removal(self.window or self._parent, plan) or self._is_in_use(ref):
            return
        last = self._controller.request
        device = str(last.device) if last is not None else ""
        # In the engine's thread, so that no run can load the model meanwhile, and a window that closes waits for it.
        task = self._controller.start_task(f"The deletion of {ref}", delete, device, is_brief=True)
        if task is not None:  # Else the window is closing.
            task.failed.connect(self._show_problem)
            task.ended.connect(finish)

    def _is_in_use(self, ref: str) -> bool:
        """Whether a model can't be deleted now; if so, show why."""
        sentence = self._controller.busy_sentence()
        if not sentence and self.downloads.is_active(ref):
            sentence = "This model is being downloaded. Cancel that before you delete it."
        if sentence:
            self._show_problem(sentence)
        return bool(sentence)
