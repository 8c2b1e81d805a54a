"""The models on this computer as a table, with kind, size and time of last use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from PySide6.QtCore import QItemSelectionModel, QSortFilterProxyModel, Qt, Signal, Slot
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from app.setup.model_library import (
    ORIGINS,
    UNKNOWN,
    ModelLibrary,
    age_text,
    bytes_text,
    count_text,
    describe,
    kind_text,
)
from app.theme import scaled
from app.widgets.tables import Index, Role, RowsModel, prepare_rows
from app.widgets.title_delegate import BADGE_ROLE, SUBTITLE_ROLE, TitleDelegate
from core.models.catalogue import ModelEntry, ModelOrigin

SORT_ROLE = Role.UserRole + 10
REF_ROLE = Role.UserRole + 11
FILTER_ROLE = Role.UserRole + 12
ROW_HEIGHT = 46


class Column(IntEnum):
    """The columns, from left to right."""

    NAME, PARAMETERS, PRECISION, CONTEXT, VOCABULARY, SIZE, USED = range(7)


TITLES = ("Model", "Parameters", "Precision", "Context", "Vocabulary", "Size", "Last used")
WIDTHS = (240, 90, 84, 78, 90, 84, 114)
_TEXT_COLUMNS = {Column.NAME, Column.PRECISION, Column.USED}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a text and a sort key for each column."""

    entry: ModelEntry
    badge: str
    texts: tuple[str, ...]
    keys: tuple[object, ...]
    problem: str


def make_row(library: ModelLibrary, entry: ModelEntry) -> Row:
    """What is known about a model, with dashes for what is unknown."""
    details = library.details(entry.ref)
    known = details is not None
    parameters = details.num_parameters if details else 0
    context = (details.context_length or 0) if details else 0
    vocabulary = details.vocab_size if details else 0
    precision = details.precision if details else UNKNOWN
    return Row(
        entry,
        kind_text(entry, details),
        (
            entry.title,
            count_text(parameters) if known else UNKNOWN,
            precision,
            f"{context:,}" if context else UNKNOWN,
            f"{vocabulary:,}" if vocabulary else UNKNOWN,
            bytes_text(entry.size_bytes),
            age_text(entry.last_used),
        ),
        (
            entry.title.lower(),
            # Qt compares integers as 32 bits.
            float(parameters),
            precision,
            float(context),
            float(vocabulary),
            float(entry.size_bytes),
            entry.last_used or 0.0,
        ),
        library.details_problem(entry.ref),
    )


class ModelsTableModel(RowsModel[Row]):
    """The library's models, one per row."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, TITLES, _TEXT_COLUMNS)

    def show_rows(self, rows: list[Row]) -> None:
        """Show these; if the models are the same, update the rows in place and keep the selection."""
        is_same = [row.entry.ref for row in rows] == [row.entry.ref for row in self._rows]
        (self._change if is_same else self._reset)(rows)

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows, and what it is sorted and filtered by."""
        if not index.isValid():
            return None
        row, column = self._rows[index.row()], Column(index.column())
        entry = row.entry
        if role == Role.DisplayRole:
            return row.texts[column]
        if role == Role.TextAlignmentRole:
            return self.side(column)
        if role == Role.ToolTipRole:
            return row.problem or describe(entry)
        if role == SORT_ROLE:
            return row.keys[column]
        if role == REF_ROLE:
            return entry.ref
        if role == BADGE_ROLE:
            return "Damaged" if row.problem else row.badge
        if role == SUBTITLE_ROLE:
            return subtitle(entry)
        if role == FILTER_ROLE:
            return " ".join((entry.ref, row.badge, *row.texts, ORIGINS[entry.origin]))
        if role == Role.AccessibleTextRole and column is Column.NAME:
            return ", ".join(part for part in (entry.title, row.badge, subtitle(entry)) if part)
        return None


def subtitle(entry: ModelEntry) -> str:
    """A model's owner or folder, and its origin."""
    is_own = entry.origin in {ModelOrigin.FOLDER, ModelOrigin.GGUF}
    owner = str(entry.path.parent) if is_own else entry.ref.rpartition("/")[0]
    return " · ".join(filter(None, (owner, ORIGINS[entry.origin])))


class ModelsTable(QTableView):
    """A table that can be sorted by its header and filtered by words.

    Signals:
        model_selected: the reference of the selected model; empty if there is none.
    """

    model_selected = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("modelsTable")
        self.setAccessibleName("Models on this computer")
        self._rows = ModelsTableModel(self)
        self._proxy = QSortFilterProxyModel(self)
        self._proxy.setSourceModel(self._rows)
        self._proxy.setSortRole(SORT_ROLE)
        self._proxy.setFilterRole(FILTER_ROLE)
        self._proxy.setFilterKeyColumn(Column.NAME)
        self._proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.setModel(self._proxy)
        self.setItemDelegateForColumn(Column.NAME, TitleDelegate(self))
        prepare_rows(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setSortingEnabled(True)
        self.restyle()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSortIndicatorClearable(True)
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        for column, width in enumerate(WIDTHS):
            self.setColumnWidth(column, width)
        header.setSectionResizeMode(Column.NAME, QHeaderView.ResizeMode.Stretch)
        self.selectionModel().selectionChanged.connect(self._on_selection_changed)

    def restyle(self) -> None:
        """Set the rows' height to their two lines of text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))

    def show_models(self, library: ModelLibrary) -> None:
        """Show the library; keep the selected model, or else select the first."""
        selected = self.selected()
        self._rows.show_rows([make_row(library, entry) for entry in library.entries])
        if not self.selected() and not self.select(selected):
            self._select_first()

    def filter(self, words: str) -> None:
        """Show only the models whose row contains this text."""
        self._proxy.setFilterFixedString(words.strip())
        if not self.selected():
            self._select_first()

    def count(self) -> int:
        """Number of models shown."""
        return self._proxy.rowCount()

    def selected(self) -> str:
        """The selected model's reference; empty if there is none."""
        rows = self.selectionModel().selectedRows()
        return str(rows[0].data(REF_ROLE)) if rows else ""

    def select(self, ref: str) -> bool:
        """Select a model; False if it isn't shown."""
        for row in range(self._proxy.rowCount()):
            index = self._proxy.index(row, 0)
            if index.data(REF_ROLE) == ref:
                flags = QItemSelectionModel.SelectionFlag
                self.selectionModel().setCurrentIndex(index, flags.ClearAndSelect | flags.Rows)
                return True
        return False

    def _select_first(self) -> None:
        if self._proxy.rowCount():
            self.select(str(self._proxy.index(0, 0).data(REF_ROLE)))

    @Slot()
    def _on_selection_changed(self) -> None:
        self.model_selected.emit(self.selected())
