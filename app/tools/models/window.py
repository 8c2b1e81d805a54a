"""Everything about models that goes on behind the panels: scans, verdicts, downloads, deletions, the models window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QStackedWidget, QTabBar, QVBoxLayout, QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.services import Services
from app.setup.model_library import ModelLibrary, bytes_text
from app.setup.models_form import ModelsForm, OpenKind
from app.tools.models.checker import ModelCheckerThread
from app.tools.models.details import ModelDetailsPane
from app.tools.models.downloads import DownloadsShelf, SuggestionsPage
from app.tools.models.questions import FoundModels, ModelRole, OpenedModel
from app.tools.models.store import Download, DownloadState, ModelStore
from app.tools.models.table import ModelsTable
from app.widgets.fields import describe, table_card, text_label
from app.widgets.labels import Banner
from app.window_layout import bring_forward, splitter
from core.models.catalogue import ModelEntry
from core.text import percent_text
from core.types import RunRequest

if TYPE_CHECKING:
    from core.models.downloads import Removal


HERE, GET = 0, 1
NO_MATCH = "No model on this computer has these words."
NO_MODEL = "There is no model on this computer yet. Choose one under Get models."


class ModelsWindow(QDialog):
    """Two pages, and the downloads beneath them.

    Signals:
        model_selected: a reference, whose pairs are wanted.
        use_requested: a `ModelRole` and a reference.
        removal_requested, folder_requested: a reference.
        get_requested: a reference, and whether to begin anew.
        cancel_requested, dismiss_requested: a reference.
    """

    model_selected = Signal(str)
    use_requested = Signal(object, str)
    removal_requested = Signal(str)
    folder_requested = Signal(str)
    get_requested = Signal(str, bool)
    cancel_requested = Signal(str)
    dismiss_requested = Signal(str)

    def __init__(self, library: ModelLibrary, parent: QWidget | None = None) -> None:
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
        self.suggestions = SuggestionsPage(library.suggestions)
        self.shelf = DownloadsShelf()
        self.foot = text_label("", "hint")
        self.foot.setObjectName("modelsFoot")
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.addWidget(self.tabs)
        head.addStretch(1)
        head.addWidget(self.filter)
        self._list = QStackedWidget()
        self._list.addWidget(self.table)
        self._list.addWidget(self.empty)
        parts = (table_card(self._list), 1), (self.details, 0)
        self.splitter = splitter(Qt.Orientation.Horizontal, "modelsSplitter", *parts)
        self.details.setMinimumWidth(280)
        self.splitter.setSizes([840, 300])
        self.pages = QStackedWidget()
        self.pages.addWidget(self.splitter)
        self.pages.addWidget(self.suggestions)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 12)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addWidget(self.banner)
        layout.addWidget(self.pages, 1)
        layout.addWidget(self.shelf)
        layout.addWidget(self.foot)
        self.setMinimumSize(860, 520)
        self.resize(1180, 700)

    def _connect(self) -> None:
        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.filter.textChanged.connect(self._on_filter_changed)
        self.table.model_selected.connect(self._on_model_selected)
        self.table.activated.connect(self._on_row_activated)
        self.details.use_requested.connect(self.use_requested)
        self.details.again_requested.connect(self._on_again_requested)
        self.details.removal_requested.connect(self.removal_requested)
        self.details.folder_requested.connect(self.folder_requested)
        self.suggestions.get_requested.connect(self._on_get_requested)
        self.shelf.get_requested.connect(self.get_requested)
        self.shelf.cancel_requested.connect(self.cancel_requested)
        self.shelf.dismiss_requested.connect(self.dismiss_requested)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        delete = QShortcut(QKeySequence.StandardKey.Delete, self.table)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self.details.delete.click)

    def open_page(self, page: int) -> None:
        """Show the window, on top, with one of its pages."""
        self.tabs.setCurrentIndex(page)
        bring_forward(self)
        (self.suggestions.edit if page == GET else self.table).setFocus()

    def refresh(self) -> None:
        """Show the library as it is now."""
        self.table.show_models(self._library)
        self.suggestions.show_here(self._library.refs)
        self.details.show_model(self._library, self.table.selected())
        self._show_list()

    def show_place(self, found: FoundModels) -> None:
        """Say where downloads go, and how much room there is."""
        free = "" if found.free_bytes is None else f"{bytes_text(found.free_bytes)} free · "
        self._place = f"{free}downloads go to {_short(found.folder)}"
        self._show_list()

    def set_offline(self, is_offline: bool) -> None:
        """Whether the network is to be left alone."""
        self.suggestions.set_offline(is_offline)
        self.details.set_offline(is_offline)

    def show_download(self, download: Download) -> None:
        """Show how a download stands."""
        self.shelf.show_download(download)
        self.suggestions.show_download(download)

    def forget_download(self, ref: str) -> None:
        """A download is to be seen no longer."""
        self.shelf.forget(ref)
        self.suggestions.forget_download(ref)

    def _show_list(self) -> None:
        self.empty.setText(NO_MATCH if self._library.entries else NO_MODEL)
        self._list.setCurrentIndex(0 if self.table.count() else 1)
        entries = self._library.entries
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
    def _on_row_activated(self) -> None:
        self.details.use_target.click()

    @Slot(str)
    def _on_get_requested(self, ref: str) -> None:
        self.get_requested.emit(ref, False)

    @Slot(str)
    def _on_again_requested(self, ref: str) -> None:
        self.get_requested.emit(ref, True)

    @Slot()
    def _on_find(self) -> None:
        self.tabs.setCurrentIndex(HERE)
        self.filter.setFocus()
        self.filter.selectAll()


def download_line(downloads: tuple[Download, ...]) -> str:
    """All downloads in a few words, for the main window's foot; empty if none goes on."""
    active = [download for download in downloads if download.state.is_active]
    going = next((download for download in active if download.state is not DownloadState.WAITING), None)
    if going is None:
        return ""
    progress = going.progress
    share = f" {percent_text(progress.done_bytes / progress.total_bytes)}" if progress and progress.total_bytes else ""
    more = f", {len(active) - 1} more" if len(active) > 1 else ""
    return f"Getting {going.ref.rpartition('/')[2]}{share or '…'}{more}"


def _short(path: Path) -> str:
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


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
        """Close the models window."""
        if self.window is not None:
            self.window.close()

    def _open(self, page: int) -> None:
        window = self.window = self.window or self._make_window()
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
