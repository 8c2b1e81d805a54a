"""The models window: what is on this computer, and what can be had. It blocks nothing, and runs go on behind it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLineEdit,
    QStackedWidget,
    QTabBar,
    QVBoxLayout,
    QWidget,
)

from app.dress import DressingDialog
from app.model_questions import FoundModels
from app.model_store import Download, DownloadState
from app.view_models.model_library import ModelLibrary
from app.view_models.model_text import bytes_text
from app.widgets.banner import Banner
from app.widgets.fields import describe, table_card, text_label
from app.widgets.models_details import ModelDetailsPane
from app.widgets.models_downloads import DownloadsShelf
from app.widgets.models_suggestions import SuggestionsPage
from app.widgets.models_table import ModelsTable
from app.window_layout import bring_forward, splitter
from core.figures import percent_text

HERE, GET = 0, 1
NO_MATCH = "No model on this computer has these words."
NO_MODEL = "There is no model on this computer yet. Choose one under Get models."


class ModelsWindow(DressingDialog):
    """Two pages, and the downloads beneath them. To be dressed in parts, by whoever makes it.

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
