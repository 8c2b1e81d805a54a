"""The models window, and what it and the two dropdowns ask of the models on this computer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QLineEdit, QStackedWidget, QTabBar, QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.jobs import Job, Jobs
from app.setup.model_library import FoundModels, ModelLibrary, bytes_text, find_models
from app.setup.models_form import ModelRole, ModelsForm, OpenKind
from app.tools.models.details import ModelDetailsPane
from app.tools.models.downloads import Download, Downloads, DownloadsShelf, DownloadState, download_line
from app.tools.models.get import GetModelsPage
from app.tools.models.table import ModelsTable
from app.widgets.fields import column, describe, row, table_card, text_label
from app.widgets.labels import Banner
from app.window_layout import bring_forward, splitter
from core.errors import OutriderError, sentence_of
from core.models import catalogue, hub
from core.models.catalogue import ModelEntry
from core.types import RunRequest

if TYPE_CHECKING:
    from core.models.downloads import Removal

HERE, GET = 0, 1
NO_MATCH = "No model on this computer matches these words."
NO_MODEL = "There is no model on this computer yet. Choose one under Get models."
REPORT_S = 0.25
"""Answers about many models are reported in parts, each after about this long."""
LANE = "models"


class ModelsWindow(QDialog):
    """Two pages, on this computer and to get, and the downloads below them. Doesn't block the main window.

    Signals:
        model_selected: the reference of a model whose drafts should be checked.
        removal_requested, folder_requested: a reference.
    """

    model_selected = Signal(str)
    removal_requested = Signal(str)
    folder_requested = Signal(str)

    def __init__(self, library: ModelLibrary, downloads: Downloads, form: ModelsForm, parent: QWidget) -> None:
        super().__init__(parent)
        self._library = library
        self._place = ""
        self.setObjectName("modelsWindow")
        self.setWindowTitle("Models")
        self.setModal(False)
        self.tabs = QTabBar()
        self.tabs.setObjectName("modelsTabs")
        self.tabs.setDrawBase(False)
        self.tabs.setExpanding(False)
        self.tabs.addTab("On this computer")
        self.tabs.addTab("Get models")
        describe(self.tabs, "Pages")
        self.filter = QLineEdit()
        self.filter.setObjectName("modelsFilter")
        self.filter.setPlaceholderText("Filter")
        self.filter.setClearButtonEnabled(True)
        self.filter.setFixedWidth(220)
        describe(self.filter, "Filter the models", "By name, owner, precision or kind (Ctrl+F)")
        self.banner = Banner()
        self.table = ModelsTable()
        self.empty = text_label("", "hint")
        self.empty.setObjectName("modelsEmpty")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.details = ModelDetailsPane()
        self.details.setMinimumWidth(280)
        self.get_page = GetModelsPage(library, downloads)
        self.shelf = DownloadsShelf(downloads)
        self.foot = text_label("", "hint")
        self.foot.setObjectName("modelsFoot")
        self._list = QStackedWidget()
        self._list.addWidget(self.table)
        self._list.addWidget(self.empty)
        here = splitter(Qt.Orientation.Horizontal, "modelsSplitter", (table_card(self._list), 1), (self.details, 0))
        here.setSizes([840, 300])
        self.pages = QStackedWidget()
        self.pages.addWidget(here)
        self.pages.addWidget(self.get_page)
        head = row(self.tabs, None, self.filter)
        layout = column(head, self.banner, (self.pages, 1), self.shelf, self.foot)
        layout.setContentsMargins(16, 12, 16, 12)
        self.setLayout(layout)
        self.setMinimumSize(860, 520)
        self.resize(1180, 700)

        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.filter.textChanged.connect(self._on_filter_changed)
        self.table.model_selected.connect(self._on_model_selected)
        self.table.activated.connect(self.details.use_target.click)
        self.details.use_requested.connect(form.choose)
        self.details.again_requested.connect(partial(downloads.get, restart=True))
        self.details.removal_requested.connect(self.removal_requested)
        self.details.folder_requested.connect(self.folder_requested)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        delete = QShortcut(QKeySequence.StandardKey.Delete, self.table)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self.details.delete.click)
        self.refresh()

    def open_page(self, page: int) -> None:
        """Show one of the pages, in front of other windows."""
        is_offline = hub.is_offline()
        self.get_page.set_offline(is_offline)
        self.details.set_offline(is_offline)
        self.tabs.setCurrentIndex(page)
        bring_forward(self)
        (self.get_page.edit if page == GET else self.table).setFocus()

    def refresh(self) -> None:
        """Show the library as it is now."""
        self.table.show_models(self._library)
        self.get_page.refresh()
        self.details.show_model(self._library, self.table.selected())
        self._show_list()

    def show_place(self, found: FoundModels) -> None:
        """Show where downloads go, and how much free space there is."""
        free = "" if found.free_bytes is None else f"{bytes_text(found.free_bytes)} free · "
        self._place = f"{free}downloads go to {_short(found.folder)}"
        self._show_list()

    def _show_list(self) -> None:
        entries = self._library.entries
        self.empty.setText(NO_MATCH if entries else NO_MODEL)
        self._list.setCurrentIndex(0 if self.table.count() else 1)
        total = bytes_text(sum(entry.size_bytes for entry in entries))
        count = f"{len(entries)} model{'' if len(entries) == 1 else 's'}, {total}"
        self.foot.setText(" · ".join(part for part in (count, self._place) if part))

    @Slot(int)
    def _on_tab_changed(self, page: int) -> None:
        self.pages.setCurrentIndex(page)
        self.filter.setVisible(page == HERE)

    @Slot(str)
    def _on_filter_changed(self, words: str) -> None:
        self.table.filter(words)
        self._show_list()

    @Slot(str)
    def _on_model_selected(self, ref: str) -> None:
        self.details.show_model(self._library, ref)
        if ref:
            self.model_selected.emit(ref)

    @Slot()
    def _on_find(self) -> None:
        self.tabs.setCurrentIndex(HERE)
        self.filter.setFocus()
        self.filter.selectAll()


def _short(path: Path) -> str:
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


class Models(QObject):
    """Finds, opens, describes, checks and deletes models for the two dropdowns and the models window.

    Signals:
        failed: one sentence, if no models window is visible to show it.
        model_opened: the reference of a model that a person opened.
        line_changed: the downloads in a few words.
    """

    failed = Signal(str)
    model_opened = Signal(str)
    line_changed = Signal(str)

    def __init__(
        self,
        jobs: Jobs,
        library: ModelLibrary,
        form: ModelsForm,
        controller: RunController,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._jobs, self._library, self._form, self._dialogs, self._parent = jobs, library, form, dialogs, parent
        self._in_use: frozenset[str | None] = frozenset()
        self.window: ModelsWindow | None = None
        self.downloads = Downloads(jobs, self)
        controller.run_requested.connect(self._on_run_requested)
        controller.run_ended.connect(self._on_run_ended)
        # After the engine's import, which holds Python's lock.
        controller.engine_ready.connect(self.scan)
        form.open_requested.connect(self.ask_for_model)
        form.browse_requested.connect(self.browse)
        form.check_requested.connect(self.check_pairs)
        self.downloads.changed.connect(self._on_download_changed)
        self.downloads.arrived.connect(self._on_arrived)

    # --- The models window ---

    @Slot()
    def open(self) -> None:
        """Show the models on this computer."""
        self._open(HERE)

    @Slot()
    def browse(self) -> None:
        """Show the models to get."""
        self._open(GET)

    def close(self) -> None:
        """Close the models window."""
        if self.window is not None:
            self.window.close()

    def _open(self, page: int) -> None:
        if self.window is None:
            self.window = ModelsWindow(self._library, self.downloads, self._form, self._parent)
            self.window.model_selected.connect(self._on_model_selected)
            self.window.removal_requested.connect(self._on_removal_requested)
            self.window.folder_requested.connect(self._on_folder_requested)
            self._on_model_selected(self.window.table.selected())
        self.scan()
        self.window.open_page(page)

    @Slot(str)
    def _show_problem(self, sentence: str) -> None:
        if self.window is not None and self.window.isVisible():
            self.window.banner.show_sentence(sentence)
        else:
            self.failed.emit(sentence)

    def _refresh(self) -> None:
        if self.window is not None:
            self.window.refresh()

    # --- Models on this computer ---

    @Slot()
    def scan(self) -> None:
        """Find the models on this computer."""
        what = "The models on this computer could not be listed"
        self._jobs.submit(lambda _job: find_models(), self._on_scanned, failed=self._show_problem, what=what, lane=LANE)

    def _on_scanned(self, found: FoundModels) -> None:
        self._library.take_scan(found.entries)
        self._form.show_models()
        self._form.changed.emit()
        self._read_details()
        if self.window is not None:
            self.window.show_place(found)
            self.window.refresh()
            self._on_model_selected(self.window.table.selected())

    def recall(self, *refs: str) -> None:
        """Open the models that were open or chosen last time; those that are gone are skipped silently."""
        for ref in reversed(dict.fromkeys(refs)):
            if ref and ref not in self._library.refs:
                self._open_model(ref, None)

    @Slot(object, object)
    def ask_for_model(self, kind: OpenKind, role: ModelRole = ModelRole.TARGET) -> None:
        """Ask for a folder or file, and open it."""
        if path := self._dialogs.ask_model_path(self._parent, kind):
            self._open_model(path, role)

    @Slot()
    def open_folder(self) -> None:
        """Ask for a target's folder."""
        self.ask_for_model(OpenKind.FOLDER)

    @Slot()
    def open_gguf(self) -> None:
        """Ask for a target's .gguf file."""
        self.ask_for_model(OpenKind.GGUF)

    def _open_model(self, ref: str, role: ModelRole | None) -> None:
        # A remembered model may be on a disk that is not connected today, so its problem is not shown.
        failed = None if role is None else self._show_problem
        then = partial(self._on_opened, role)
        what = f"{ref} could not be opened"
        self._jobs.submit(lambda _job: catalogue.resolve(ref), then, failed=failed, what=what, lane=LANE)

    def _on_opened(self, role: ModelRole | None, entry: ModelEntry) -> None:
        self._form.on_model_opened(entry, role)
        self._read_details()
        self._refresh()
        if role is not None:
            self.model_opened.emit(entry.ref)

    def _read_details(self) -> None:
        if entries := {entry.ref: entry for entry in self._library.undescribed()}:
            work = partial(_in_parts, tuple(entries), lambda ref: _details(entries[ref]))
            self._jobs.submit(work, self._on_details_read, progress=self._on_details_read, lane=LANE)

    def _on_details_read(self, details: dict[str, Any]) -> None:
        self._library.record_details(details)
        self._refresh()

    @Slot(str, object)
    def check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        """Find out which of these drafts fit a target."""
        record = partial(self._on_pairs_checked, target)
        work = partial(_in_parts, drafts, lambda draft: _pair_problem(draft, target))
        self._jobs.submit(work, record, progress=record, lane=LANE)

    def _on_pairs_checked(self, target: str, problems: dict[str, str | None]) -> None:
        self._form.on_pairs_checked(target, problems)
        self._refresh()

    @Slot(str)
    def _on_model_selected(self, ref: str) -> None:
        if ref and not self._library.target_problem(ref) and (drafts := self._library.take_questions(ref)):
            self.check_pairs(ref, drafts)

    @Slot(str)
    def _on_folder_requested(self, ref: str) -> None:
        entry = self._library.entry(ref)
        if entry is not None:
            folder = entry.path if entry.path.is_dir() else entry.path.parent
            if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
                self._show_problem(f"This desktop can't open folders. The model is in {str(folder)!r}.")

    # --- Downloads and deletions ---

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        self._in_use = frozenset((request.target, request.draft))

    @Slot()
    def _on_run_ended(self) -> None:
        self._in_use = frozenset()

    @Slot(object)
    def _on_download_changed(self, download: Download) -> None:
        is_visible = self.window is not None and self.window.isVisible()
        if download.state is DownloadState.FAILED and not is_visible:
            self.failed.emit(download.sentence)
        self.line_changed.emit(download_line(self.downloads.all()))

    @Slot(object)
    def _on_arrived(self, entry: ModelEntry) -> None:
        # A damaged model that was downloaded again looks the same from outside, so it is read again.
        self._library.add(entry)
        self.scan()

    @Slot(str)
    def _on_removal_requested(self, ref: str) -> None:
        if sentence := self._removal_problem(ref):
            self._show_problem(sentence)
            return

        def plan(_job: Job) -> Removal:
            from core.models import downloads

            return downloads.plan_removal(ref)

        what = f"{ref} can't be deleted"
        self._jobs.submit(plan, self._on_removal_planned, failed=self._show_problem, what=what, lane=LANE)

    def _on_removal_planned(self, removal: Removal) -> None:
        ref = removal.entry.ref
        if not self._dialogs.ask_removal(self.window or self._parent, removal):
            return
        if sentence := self._removal_problem(ref):
            self._show_problem(sentence)
            return

        def remove(_job: Job) -> str:
            from core.models import downloads

            downloads.remove(ref)
            return ref

        what = f"{ref} could not be deleted"
        self._jobs.submit(remove, self._on_removed, failed=self._show_problem, what=what, lane=LANE)

    def _on_removed(self, ref: str) -> None:
        self.downloads.dismiss(ref)
        self.scan()

    def _removal_problem(self, ref: str) -> str:
        """Why a model can't be deleted now; empty if it can."""
        if ref in self._in_use:
            return "This model is in use by the current run. Stop the run, or wait until it ends, and delete it then."
        if self.downloads.is_active(ref):
            return "This model is being downloaded. Cancel the download before you delete it."
        return ""


def _in_parts(refs: Sequence[str], ask: Callable[[str], Any], job: Job) -> dict[str, Any]:
    """Answers by reference; reported in parts meanwhile, and the last part returned."""
    answers: dict[str, Any] = {}
    reported_at = time.monotonic()
    for ref in refs:
        job.check()
        answers[ref] = ask(ref)
        if time.monotonic() - reported_at >= REPORT_S:
            job.report(answers)
            answers, reported_at = {}, time.monotonic()
    return answers


def _details(entry: ModelEntry) -> object:
    """A model's details, or the sentence that says why they can't be read."""
    from core.models import details

    try:
        return details.read_details(entry)
    except Exception as error:
        return sentence_of(error, f"{entry.title} could not be read")


def _pair_problem(draft: str, target: str) -> str | None:
    """Why a draft doesn't fit a target; None if it does, or if only the engine can tell."""
    from core.models import fit

    try:
        return fit.pair_verdict(draft, target, with_memory=False).problem
    except OutriderError as error:
        return str(error)
    except Exception:
        return None
