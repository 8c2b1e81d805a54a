"""The models window: the models on this computer, those to download, and the downloads below."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QLineEdit, QStackedWidget, QTabBar, QWidget

from app.setup.model_library import ModelLibrary, bytes_text
from app.tools.models.details import ModelDetailsPane
from app.tools.models.downloads import Download, DownloadsList
from app.tools.models.suggestions import SuggestionsPage
from app.tools.models.table import ModelsTable
from app.widgets.fields import column, describe, row, table_card, text_label
from app.widgets.labels import Banner
from app.window_layout import bring_forward, splitter

if TYPE_CHECKING:
    from app.tools.models.models import FoundModels

HERE, GET = 0, 1
NO_MATCH = "No model on this computer matches these words."
NO_MODEL = "There is no model on this computer yet. Choose one under Get models."


class ModelsWindow(QDialog):
    """Two pages, with the downloads below them.

    Signals:
        model_selected: a reference, whose pairs should be checked.
        get_requested: a reference, and whether to start over.
    """

    model_selected = Signal(str)
    get_requested = Signal(str, bool)

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
        self.downloads = DownloadsList()
        self.foot = text_label("", "hint")
        self.foot.setObjectName("modelsFoot")
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
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
        layout = column(row(self.tabs, None, self.filter), self.banner, (self.pages, 1), self.downloads, self.foot)
        layout.setContentsMargins(16, 12, 16, 12)
        self.setLayout(layout)
        self.setMinimumSize(860, 520)
        self.resize(1180, 700)

    def _connect(self) -> None:
        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.filter.textChanged.connect(self._on_filter_changed)
        self.table.model_selected.connect(self._on_model_selected)
        self.table.activated.connect(self.details.use_target.click)
        self.details.again_requested.connect(self._on_again_requested)
        self.suggestions.get_requested.connect(self._on_get_requested)
        self.downloads.get_requested.connect(self.get_requested)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        delete = QShortcut(QKeySequence.StandardKey.Delete, self.table)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self.details.delete.click)

    def open_page(self, page: int) -> None:
        """Open the window on one of its pages, and bring it to the front."""
        self.tabs.setCurrentIndex(page)
        bring_forward(self)
        (self.suggestions.edit if page == GET else self.table).setFocus()

    def refresh(self) -> None:
        """Show the current library."""
        self.table.show_models(self._library)
        self.suggestions.show_here(self._library.refs)
        self.details.show_model(self._library, self.table.selected())
        self._show_list()

    def show_place(self, found: FoundModels) -> None:
        """Show where downloads are stored, and the free space there."""
        free = "" if found.free_bytes is None else f"{bytes_text(found.free_bytes)} free · "
        folder = str(found.folder)
        with contextlib.suppress(ValueError, RuntimeError):
            folder = str(Path("~") / found.folder.relative_to(Path.home()))
        self._place = f"{free}downloads go to {folder}"
        self._show_list()

    def set_offline(self, is_offline: bool) -> None:
        """Whether offline mode is on."""
        self.suggestions.set_offline(is_offline)
        self.details.set_offline(is_offline)

    def show_download(self, download: Download) -> None:
        """Show the state of a download."""
        self.downloads.show_download(download)
        self.suggestions.show_download(download)

    def forget_download(self, ref: str) -> None:
        """Remove a dismissed download."""
        self.downloads.forget(ref)
        self.suggestions.forget_download(ref)

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
