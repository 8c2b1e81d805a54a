"""The kept runs as a table: sorted by its head, filtered by words, renamed in place."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from PySide6.QtCore import QAbstractItemModel, QItemSelection, QItemSelectionModel, QRect, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemDelegate,
    QAbstractItemView,
    QHeaderView,
    QLineEdit,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from app.theme import scaled
from app.tools.models.table import BADGE_ROLE, SUBTITLE_ROLE, NameDelegate
from app.tools.runs.run_list import HELP, TEXT_COLUMNS, TITLES, RunColumn, RunRow
from app.turns import Turns
from app.widgets.tables import Index, Role, RowsModel, prepare_rows
from core.runlog.store import MAX_NAME, KeptRun, matches


class RunsTableModel(RowsModel[RunRow]):
    """Sorts and filters by itself: thousands of rows would be slow to compare through a proxy.

    What rows say that nobody has looked at yet is put together in several turns of the event loop: for thousands of
    runs at once it would take longer than the window may be kept from its events.

    Signals:
        rename_requested: an id and the new name.
    """

    rename_requested = Signal(str, str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, TITLES, TEXT_COLUMNS, HELP)
        self._all: list[RunRow] = []
        self._known: dict[str, RunRow] = {}
        self._ahead = Turns(self)
        self._words = ""
        self._order: tuple[RunColumn, bool] | None = None

    def show_runs(self, runs: Iterable[KeptRun]) -> None:
        """Show these, in the order and with the filter that are set."""
        self._all = []
        for run in runs:
            row = self._known.get(run.id)
            if row is None or row.run != run:
                # Kept for good: a run that is deleted may come back.
                row = self._known[run.id] = RunRow(run)
            self._all.append(row)
        self._show()
        self._ahead.start(_make_ahead(self._all))

    def filter(self, words: str) -> None:
        """Show only the runs that have these words."""
        self._words = words
        self._show()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Order by a column; -1: the newest first, as they come."""
        self._order = (RunColumn(column), order is Qt.SortOrder.DescendingOrder) if column >= 0 else None
        self._show()

    def _show(self) -> None:
        words = self._words
        rows = [row for row in self._all if matches(row.run, words, row.searchable)] if words else list(self._all)
        if self._order is not None:
            column, is_reversed = self._order
            rows.sort(key=lambda row: row.keys[column], reverse=is_reversed)
        if [row.run.id for row in rows] == [row.run.id for row in self._rows]:
            self._change(rows)
        else:
            self._reset(rows)

    def row(self, index: int) -> RunRow:
        """What a row shows."""
        return self._rows[index]

    def runs(self) -> list[KeptRun]:
        """The runs that are shown, in order."""
        return [row.run for row in self._rows]

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        if not index.isValid():
            return None
        row, column = self._rows[index.row()], RunColumn(index.column())
        if role == Role.DisplayRole:
            return row.texts[column]
        if role == Role.TextAlignmentRole:
            return self.side(column)
        if role == Role.ToolTipRole:
            return row.tip
        if role == Role.EditRole:
            return row.run.name
        if role == SUBTITLE_ROLE:
            return row.subtitle
        if role == BADGE_ROLE:
            return ""
        if role == Role.AccessibleTextRole and column is RunColumn.NAME:
            return f"{row.texts[column]}, {row.subtitle}"
        return None

    def setData(self, index: Index, value: object, role: int = Role.EditRole) -> bool:
        """Ask for a new name; the list shows it when it is kept."""
        run = self._rows[index.row()].run
        if role != Role.EditRole or str(value).strip() == run.name:
            return False
        self.rename_requested.emit(run.id, str(value))
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        """Only a name can be changed."""
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == RunColumn.NAME else flags


def _make_ahead(rows: Sequence[RunRow]) -> Generator[None]:
    for row in rows:
        row.make_whole()
        yield


class RunNameDelegate(NameDelegate):
    """Draws a run's name over what tells it apart, and edits the name in a field of a field's height."""

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        """A field that says what stands there without a name."""
        editor = QLineEdit(parent)
        editor.setObjectName("runNameEdit")
        editor.setAccessibleName("Name of the run")
        editor.setMaxLength(MAX_NAME)
        editor.setPlaceholderText(str(index.data(Role.DisplayRole)))
        return editor

    def setEditorData(self, editor: QWidget, index: Index) -> None:
        """Begin with the name that the run has."""
        if isinstance(editor, QLineEdit):
            editor.setText(str(index.data(Role.EditRole)))

    def setModelData(self, editor: QWidget, model: QAbstractItemModel, index: Index) -> None:
        """Hand the name over."""
        if isinstance(editor, QLineEdit):
            model.setData(index, editor.text(), Role.EditRole)

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, _index: Index) -> None:
        """Over all of the cell, so that nothing of it shows beneath."""
        cell: QRect = option.rect
        editor.setGeometry(cell.adjusted(2, 2, -2, -2))


ROW_HEIGHT = 46
WIDTHS = (190, 134, 152, 152, 48, 60, 80, 82, 76, 92)


class _Place(NamedTuple):
    """What was selected, the current row, and how far down the list was scrolled."""

    selected: list[str]
    row: int
    scroll: int


class RunsTable(QTableView):
    """Signals:
    selected: what is selected has changed.
    rename_requested: an id and the new name.
    """

    selected = Signal()
    rename_requested = Signal(str, str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("runsTable")
        self.setAccessibleName("Kept runs")
        self._waiting: tuple[KeptRun, ...] | None = None
        self._rows = RunsTableModel(self)
        self._rows.rename_requested.connect(self.rename_requested)
        self.setModel(self._rows)
        self._before = _Place([], -1, 0)
        self._rows.modelAboutToBeReset.connect(self._before_reset)
        self._rows.modelReset.connect(self._after_reset)
        self.setItemDelegateForColumn(RunColumn.NAME, RunNameDelegate(self))
        prepare_rows(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSortIndicatorClearable(True)
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.setSortingEnabled(True)
        header.setMinimumSectionSize(40)
        self.rescale()
        self.selectionModel().selectionChanged.connect(self._on_selection_changed)

    def rescale(self) -> None:
        """Make rows as high, and columns as wide, as their text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        for column, width in enumerate(WIDTHS):
            self.setColumnWidth(column, scaled(width))
        self._fit_names()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Names take the room that is left."""
        super().resizeEvent(event)
        self._fit_names()

    def _fit_names(self) -> None:
        # Not by a stretched column, which would shrink to nothing before the table scrolls.
        others = sum(self.columnWidth(column) for column in RunColumn if column is not RunColumn.NAME)
        self.setColumnWidth(RunColumn.NAME, max(scaled(WIDTHS[RunColumn.NAME]), self.viewport().width() - others))

    def show_runs(self, runs: tuple[KeptRun, ...]) -> None:
        """Show these runs; what is selected stays selected. Waits while a name is typed."""
        if self.state() is QAbstractItemView.State.EditingState:
            self._waiting = runs
            return
        self._waiting = None
        self._rows.show_runs(runs)

    def filter(self, words: str) -> None:
        """Show only what has these words."""
        self._rows.filter(words)

    def count(self) -> int:
        """Number of runs that are shown."""
        return self._rows.rowCount()

    def runs(self) -> list[KeptRun]:
        """The runs that are shown, in order."""
        return self._rows.runs()

    def selected_runs(self) -> list[KeptRun]:
        """The selected runs, in the order of the list."""
        # By their ranges: to ask for each row's index takes a tenth of a second for a thousand.
        ranges = self.selectionModel().selection().toList()
        rows = {row for part in ranges for row in range(part.top(), part.bottom() + 1)}
        return [self._rows.row(row).run for row in sorted(rows)]

    def select(self, run_ids: Iterable[str]) -> None:
        """Select these runs, and no others; the first becomes the current one."""
        wanted = set(run_ids)
        selection = QItemSelection()
        rows = [row for row, run in enumerate(self._rows.runs()) if run.id in wanted]
        for first, last in _stretches(rows):
            selection.select(self._rows.index(first, 0), self._rows.index(last, len(TITLES) - 1))
        flags = QItemSelectionModel.SelectionFlag
        if rows:
            self.selectionModel().setCurrentIndex(self._rows.index(rows[0], RunColumn.NAME), flags.NoUpdate)
        self.selectionModel().select(selection, flags.ClearAndSelect)

    def begin_rename(self) -> None:
        """Edit the name of the current run."""
        current = self.currentIndex()
        if current.isValid():
            self.edit(self._rows.index(current.row(), RunColumn.NAME))

    def closeEditor(self, editor: QWidget, hint: QAbstractItemDelegate.EndEditHint) -> None:
        """Catch up with what came while a name was typed."""
        super().closeEditor(editor, hint)
        if self._waiting is not None:
            self.show_runs(self._waiting)

    # --- What is selected stays so when the list changes ---
    # Not by moving Qt's indexes along, one for each cell: a quarter of a second for a thousand selected rows.

    @Slot()
    def _before_reset(self) -> None:
        selected = [run.id for run in self.selected_runs()]
        self._before = _Place(selected, self.currentIndex().row(), self.verticalScrollBar().value())

    @Slot()
    def _after_reset(self) -> None:
        if not self._rows.rowCount():
            return
        self.select(self._before.selected)
        if not self.selectionModel().hasSelection():
            # What was selected is gone; its neighbour takes its place.
            place = min(max(self._before.row, 0), self._rows.rowCount() - 1)
            self.select([self._rows.row(place).run.id])
        self.verticalScrollBar().setValue(self._before.scroll)

    @Slot()
    def _on_selection_changed(self) -> None:
        self.selected.emit()


def _stretches(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of rows, in order, that follow each other."""
    for _, places in itertools.groupby(enumerate(rows), lambda place: place[1] - place[0]):
        stretch = [row for _, row in places]
        yield stretch[0], stretch[-1]
