"""The models window: the models on this computer, those to download, and the downloads below."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QStackedWidget, QTabBar, QWidget

from app.dialogs import OPEN_TITLES
from app.menus import key_text
from app.setup.model_library import ORIGINS, UNKNOWN, ModelLibrary, kind_text, model_text, parameters_text
from app.theme import scaled
from app.tools.models.details import ModelDetailsPane
from app.tools.models.downloads import DownloadsList
from app.tools.models.suggestions import SuggestionsPage
from app.widgets.fields import boxed, column, hint_label, line_edit, menu_button, named, row, table_card
from app.widgets.labels import Banner
from app.widgets.rows import Column, Row
from app.widgets.tables import Table
from app.widgets.title_delegate import TitleDelegate
from app.window_layout import bring_forward, hold_beside, open_at, splitter
from core.files import short_path
from core.models.catalogue import SUGGESTIONS, ModelEntry, ModelOrigin
from core.text import bytes_text, count_text

if TYPE_CHECKING:
    from app.tools.models.models import FoundModels, Models

HERE, GET = 0, 1
NO_MATCH = "No model on this computer matches these words."
NO_MODEL = "There is no model on this computer yet. Add one, or choose one under Get models."

COLUMNS = (
    Column("Model", width=240),
    Column("Parameters", width=90, is_figure=True, rank=1),
    Column("Stored as", "The precision of the weights in the files; a run may use another", 84, rank=2),
    Column("Context", width=78, is_figure=True, rank=3),
    Column("Vocabulary", width=90, is_figure=True, rank=4),
    Column("Size", width=84, is_figure=True),
)


def model_row(library: ModelLibrary, entry: ModelEntry, role: str) -> Row[ModelEntry]:
    """What is known about a model, with dashes for what is unknown, and its role in the next run, if any."""
    details, problem = library.details(entry.ref), library.details_problem(entry.ref)
    parameters, context, vocabulary, precision = 0, 0, 0, UNKNOWN
    if details is not None:
        parameters, context = details.num_parameters, details.context_length or 0
        vocabulary, precision = details.vocab_size, details.precision
    texts = (
        entry.title,
        UNKNOWN if details is None else parameters_text(parameters),
        precision,
        f"{context:,}" if context else UNKNOWN,
        f"{vocabulary:,}" if vocabulary else UNKNOWN,
        bytes_text(entry.size_bytes),
    )
    kind, size = kind_text(entry, details), entry.size_bytes
    return Row(
        item=entry,
        key=entry.ref,
        texts=texts,
        tip=problem or model_text(entry),
        sort_keys=(entry.title.lower(), parameters, precision, context, vocabulary, size),
        subtitle=_subtitle(entry, role),
        badge="Damaged" if problem else kind,
        words=" ".join((entry.ref, kind, *texts, ORIGINS[entry.origin])).casefold(),
    )


def _subtitle(entry: ModelEntry, role: str) -> str:
    """A model's role, its owner or folder, and its only target or its origin."""
    is_own = entry.origin in {ModelOrigin.FOLDER, ModelOrigin.GGUF}
    owner = str(entry.path.parent) if is_own else entry.ref.rpartition("/")[0]
    # What a drafter is for says more than its origin, and both don't fit.
    last = f"For {entry.serves.rpartition('/')[2]}" if entry.serves else ORIGINS[entry.origin]
    return " · ".join(filter(None, (role, owner, last)))


class ModelsWindow(QDialog):
    """Two pages, with the downloads below them."""

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._models, self._library = models, models.library
        self._place = ""
        self.setObjectName("modelsWindow")
        self.setWindowTitle("Models")
        self.tabs = named(QTabBar(), "modelsTabs", "Pages")
        self.tabs.setDrawBase(False)
        self.tabs.setExpanding(False)
        self.tabs.addTab("On this computer")
        self.tabs.addTab("Get models")
        filter_help = f"By name, owner, precision or kind ({key_text('Ctrl+F')})"
        self.filter = line_edit("modelsFilter", "Filter", "Filter the models", filter_help)
        self.open_button = menu_button("Add model", "openModelButton", "Add a model from another folder")
        for kind, title in OPEN_TITLES.items():
            self.open_button.menu().addAction(title).triggered.connect(partial(models.ask_for_model, kind))
        self.banner = Banner()
        self.table: Table[ModelEntry] = Table(
            "modelsTable", "Models on this computer", COLUMNS, NO_MODEL, delegate=TitleDelegate(), keeps_one=True
        )
        self.details = ModelDetailsPane(models)
        self.suggestions = SuggestionsPage(SUGGESTIONS, models.downloads)
        self.downloads = DownloadsList(models.downloads)
        self.foot = hint_label("modelsFoot")
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
        parts = (table_card(self.table), 1), (self.details, 0)
        self.splitter = splitter(Qt.Orientation.Horizontal, "modelsSplitter", *parts)
        self.restyle()
        self.pages = QStackedWidget()
        self.pages.addWidget(self.splitter)
        self.pages.addWidget(self.suggestions)
        head = row(self.tabs, None, (self.filter, 1), self.open_button)
        boxed(column(head, self.banner, (self.pages, 1), self.downloads, self.foot), self, margins=(16, 12, 16, 12))
        self.setMinimumSize(860, 520)
        open_at(self, 1180, 700)

    def restyle(self) -> None:
        """Fit the card and the filter to the size of the text."""
        self.filter.setMaximumWidth(scaled(220))
        hold_beside(self.details, scaled(304))

    def _connect(self) -> None:
        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.filter.textChanged.connect(self._on_filter_changed)
        self.table.chosen.connect(self._on_chosen)
        self.table.activated.connect(self.details.use_target.click)
        for button in (self.details.use_target, self.details.use_draft):
            # The button is disabled then, and the next one must not get the focus.
            button.clicked.connect(self.table.setFocus)
        self._models.form.changed.connect(self.refresh)
        # Queued: the settings set the form's method first.
        self._models.form.method_chosen.connect(self.refresh, Qt.ConnectionType.QueuedConnection)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        for keys in (QKeySequence.StandardKey.Delete, QKeySequence("Backspace")):  # The delete key of a Mac.
            delete = QShortcut(keys, self.table, context=Qt.ShortcutContext.WidgetShortcut)
            delete.activated.connect(self.details.delete.click)

    def open_page(self, page: int) -> None:
        """Open the window on one of its pages, and bring it to the front."""
        self.tabs.setCurrentIndex(page)
        bring_forward(self)
        (self.suggestions.edit if page == GET else self.table).setFocus()

    @Slot()
    def refresh(self) -> None:
        """Show the current library."""
        form = self._models.form
        roles = {form.draft.ref: "Current draft"} if form.method.needs_draft_model else {}
        roles[form.target.ref] = "Current target"
        entries = self._library.entries
        self.table.show_rows([model_row(self._library, entry, roles.get(entry.ref, "")) for entry in entries])
        self.suggestions.show_here(self._library.refs)
        self._on_chosen()
        self._show_list()

    def select(self, ref: str) -> None:
        """Select a model."""
        self.filter.clear()
        self.table.select([ref])
        self._on_chosen()

    def selected(self) -> str:
        """The reference of the selected model; empty if there is none."""
        return next((entry.ref for entry in self.table.selected()), "")

    def show_place(self, found: FoundModels) -> None:
        """Show where downloads are stored, and the free space there."""
        free = "" if found.free_bytes is None else f"{bytes_text(found.free_bytes)} free · "
        self._place = f"{free}downloads: {short_path(found.folder)}"
        self._show_list()

    def _show_list(self) -> None:
        entries = self._library.entries
        self.table.hint.setText(NO_MATCH if entries else NO_MODEL)
        total = bytes_text(sum(entry.size_bytes for entry in entries))
        count = f"{count_text(len(entries), 'model')}, {total}"
        self.foot.setText(" · ".join(part for part in (count, self._place) if part))

    @Slot(int)
    def _on_tab_changed(self, page: int) -> None:
        self.pages.setCurrentIndex(page)
        for widget in (self.filter, self.open_button):
            widget.setVisible(page == HERE)

    @Slot(str)
    def _on_filter_changed(self, words: str) -> None:
        wanted = words.strip().casefold()
        self.table.filter(lambda model: wanted in model.words)
        self._on_chosen()
        self._show_list()

    @Slot()
    def _on_chosen(self) -> None:
        ref = self.selected()
        self.details.show_model(self._library, ref)
        self._models.form.ask(ref)

    @Slot()
    def _on_find(self) -> None:
        self.tabs.setCurrentIndex(HERE)
        self.filter.setFocus()
        self.filter.selectAll()
