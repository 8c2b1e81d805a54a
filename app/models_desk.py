"""Everything about models that goes on behind the panels: scans, verdicts, downloads, deletions, the models window."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.dress import dressing
from app.model_checker import ModelCheckerThread
from app.model_questions import FoundModels, ModelRole, OpenedModel
from app.model_store import Download, DownloadState, ModelStore
from app.services import Services
from app.turns import Turns
from app.view_models.model_library import ModelLibrary
from app.widgets.model_picker import OpenKind
from app.widgets.models_form import ModelsForm
from app.widgets.models_panel import GET, HERE, ModelsWindow, download_line
from core.models.catalogue import ModelEntry
from core.types import RunRequest

if TYPE_CHECKING:
    from core.models.downloads import Removal


class ModelsDesk(QObject):
    """Connects the library, its threads, the form with the two dropdowns, and the models window.

    Signals:
        failed: one sentence for a person, where no models window shows it.
        model_opened: the reference of a model that a person opened.
        line_changed: the downloads in a few words.
    """

    failed = Signal(str)
    model_opened = Signal(str)
    line_changed = Signal(str)

    def __init__(
        self,
        services: Services,
        library: ModelLibrary,
        form: ModelsForm,
        controller: RunController,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._services = services
        self._library = library
        self._form = form
        self._controller = controller
        self._running: frozenset[str | None] = frozenset()
        """The models of the run that goes."""
        self._dialogs = dialogs
        self._parent = parent
        self.window: ModelsWindow | None = None
        self._opening = Turns(self)
        self.checker = ModelCheckerThread(services, self)
        self.store = ModelStore(services, self)
        self._connect()

    def _connect(self) -> None:
        self._controller.run_requested.connect(self._on_run_requested)
        self._controller.run_ended.connect(self._on_run_ended)
        # Not before: what the scan imports would wait for the system to load the engine's libraries, and keep Python's
        # lock from the window meanwhile; and behind that share the lock with the engine's import.
        self._controller.engine_ready.connect(self.scan)
        self._form.open_requested.connect(self.ask_for_model)
        self._form.browse_requested.connect(self.browse)
        self._form.check_requested.connect(self.checker.check_pairs)
        self.checker.opened.connect(self._on_opened)
        self.checker.open_failed.connect(self._on_open_failed)
        self.checker.pairs_checked.connect(self._form.on_pairs_checked)
        self.checker.pairs_checked.connect(self._on_library_changed)
        self.checker.scanned.connect(self._on_scanned)
        self.checker.details_read.connect(self._on_details_read)
        self.checker.removal_planned.connect(self._on_removal_planned)
        self.checker.removed.connect(self._on_removed)
        self.checker.failed.connect(self._tell)
        self.store.changed.connect(self._on_download_changed)
        self.store.dismissed.connect(self._on_download_dismissed)
        self.store.arrived.connect(self._on_arrived)

    # --- The models window ---

    @Slot()
    def open(self) -> None:
        """Show what is on this computer."""
        self._open(HERE)

    @Slot()
    def browse(self) -> None:
        """Show what can be had."""
        self._open(GET)

    def close(self) -> None:
        """Close the models window, or open it no more."""
        self._opening.stop()
        if self.window is not None:
            self.window.close()

    def _open(self, page: int) -> None:
        is_new = self.window is None
        window = self.window = self.window or self._make_window()
        self._opening.start(self._pieces(window, page, is_new=is_new))
        if not (is_new and self._parent.isVisible()):
            self._opening.finish()

    def _pieces(self, window: ModelsWindow, page: int, *, is_new: bool) -> Generator[None]:
        """To make it takes a turn, to dress it some more, to lay it out and paint it another one."""
        if not window.isVisible():
            # Not only a new one: it may have been asked for again before all of it was dressed.
            yield from dressing(window)
        if is_new:
            yield from self._opening.rest()
        window.set_offline(self._services.is_offline())
        self.checker.scan()
        window.open_page(page)

    def _make_window(self) -> ModelsWindow:
        window = ModelsWindow(self._library, self._parent)
        window.model_selected.connect(self._on_model_selected)
        window.use_requested.connect(self._form.choose)
        window.removal_requested.connect(self._on_removal_requested)
        window.folder_requested.connect(self._on_folder_requested)
        window.get_requested.connect(self._on_get_requested)
        window.cancel_requested.connect(self.store.cancel)
        window.dismiss_requested.connect(self.store.dismiss)
        for download in self.store.downloads:
            window.show_download(download)
        self._on_model_selected(window.table.selected())
        return window

    @Slot(str)
    def _tell(self, sentence: str) -> None:
        if self.window is not None and self.window.isVisible():
            self.window.banner.show_sentence(sentence)
        else:
            self.failed.emit(sentence)

    # --- What is here ---

    def recall(self, *refs: str) -> None:
        """Look for models that were opened or chosen last time, without waiting for the scan; of gone ones no word."""
        for ref in reversed(dict.fromkeys(refs)):
            if ref and ref not in self._library.refs:
                self.checker.open(ref, None)

    @Slot()
    def scan(self) -> None:
        """Look for models on this computer."""
        self.checker.scan()

    @Slot(object, object)
    def ask_for_model(self, kind: OpenKind, role: ModelRole) -> None:
        """Ask for a folder or file, and open it."""
        if path := self._dialogs.ask_model_path(self._parent, kind):
            self.checker.open(path, role)

    @Slot()
    def open_folder(self) -> None:
        """Ask for a target's folder."""
        self.ask_for_model(OpenKind.FOLDER, ModelRole.TARGET)

    @Slot()
    def open_gguf(self) -> None:
        """Ask for a target's .gguf file."""
        self.ask_for_model(OpenKind.GGUF, ModelRole.TARGET)

    @Slot(object)
    def _on_opened(self, opened: OpenedModel) -> None:
        self._form.on_model_opened(opened)
        self._read_details()
        self._on_library_changed()
        if opened.role is not None:
            self.model_opened.emit(opened.entry.ref)

    @Slot(str, object)
    def _on_open_failed(self, sentence: str, role: ModelRole | None) -> None:
        # A remembered model may be on a disk that isn't there today; nobody asked for it just now.
        if role is not None:
            self._tell(sentence)

    @Slot(object)
    def _on_scanned(self, found: FoundModels) -> None:
        self._library.take_scan(found.entries)
        self._form.show_models()
        self._form.changed.emit()
        self._read_details()
        if self.window is not None:
            self.window.show_place(found)
            self.window.refresh()
            self._on_model_selected(self.window.table.selected())

    def _read_details(self) -> None:
        if missing := self._library.undescribed():
            self.checker.read_details(missing)

    @Slot(object)
    def _on_details_read(self, details: object) -> None:
        if isinstance(details, dict):
            self._library.record_details(details)
        self._on_library_changed()

    @Slot()
    def _on_library_changed(self) -> None:
        if self.window is not None:
            self.window.refresh()

    @Slot(str)
    def _on_model_selected(self, ref: str) -> None:
        if ref and not self._library.target_problem(ref) and (drafts := self._library.take_questions(ref)):
            self.checker.check_pairs(ref, drafts)

    @Slot(str)
    def _on_folder_requested(self, ref: str) -> None:
        entry = self._library.entry(ref)
        if entry is not None:
            folder = entry.path if entry.path.is_dir() else entry.path.parent
            if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
                self._tell(f"This desktop opens no folders. It is {str(folder)!r}.")

    # --- Getting and deleting ---

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        self._running = frozenset((request.target, request.draft))

    @Slot()
    def _on_run_ended(self) -> None:
        self._running = frozenset()

    @Slot(str, bool)
    def _on_get_requested(self, ref: str, restart: bool) -> None:
        self.store.get(ref, restart=restart)

    @Slot(object)
    def _on_download_changed(self, download: Download) -> None:
        if self.window is not None:
            self.window.show_download(download)
        if download.state is DownloadState.FAILED and not (self.window is not None and self.window.isVisible()):
            self.failed.emit(download.sentence)
        self.line_changed.emit(download_line(self.store.downloads))

    @Slot(str)
    def _on_download_dismissed(self, ref: str) -> None:
        if self.window is not None:
            self.window.forget_download(ref)

    @Slot(object)
    def _on_arrived(self, entry: ModelEntry) -> None:
        # What was known of a damaged one holds no longer, though it looks the same from outside.
        self._library.add(entry)
        self.checker.scan()

    @Slot(str)
    def _on_removal_requested(self, ref: str) -> None:
        if sentence := self._removal_problem(ref):
            self._tell(sentence)
        else:
            self.checker.plan_removal(ref)

    @Slot(object)
    def _on_removal_planned(self, removal: Removal) -> None:
        parent = self.window if self.window is not None else self._parent
        if not self._dialogs.ask_removal(parent, removal):
            return
        if sentence := self._removal_problem(removal.entry.ref):
            self._tell(sentence)
        else:
            self.checker.remove(removal.entry.ref)

    def _removal_problem(self, ref: str) -> str:
        """Why a model can't be deleted now; empty if it can."""
        if ref in self._running:
            return "This model is in use by the run. Stop the run, or wait for its end, before you delete it."
        if any(download.ref == ref and download.state.is_active for download in self.store.downloads):
            return "This model is being downloaded. Cancel that before you delete it."
        return ""

    @Slot(str, object)
    def _on_removed(self, ref: str, _freed: int) -> None:
        self.store.dismiss(ref)
        self.checker.scan()
