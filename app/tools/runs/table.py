"""The list of kept runs: sorted by its header, filtered by search words, renamed in place."""

from __future__ import annotations

from collections.abc import Iterable
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
from app.tools.runs.rows import HELP, TEXT_COLUMNS, TITLES, RunColumn, RunRow
from app.widgets.tables import Index, Role, RowsModel, prepare_rows
from app.widgets.title_delegate import BADGE_ROLE, SUBTITLE_ROLE, TitleDelegate
from core.runlog.store import MAX_NAME, KeptRun, matches


class RunsTableModel(RowsModel[RunRow]):
    """Sorts and filters its rows itself: a proxy model compares thousands of rows too slowly.

    Signals:
        rename_requested: a run's id and its new name.
    """

    rename_requested = Signal(str, str)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, TITLES, TEXT_COLUMNS, HELP)
        self._all: list[RunRow] = []
        self._words = ""
        self._order: tuple[RunColumn, bool] | None = None

    def show_runs(self, runs: Iterable[KeptRun]) -> None:
        """Show these runs in the current order, with the current filter."""
        known = {row.run.id: row for row in self._all}
        self._all = [row if (row := known.get(run.id)) is not None and row.run == run else RunRow(run) for run in runs]
        self._show()

    def filter(self, words: str) -> None:
        """Show only the runs that match these words."""
        self._words = words
        self._show()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column; -1: newest first."""
        self._order = (RunColumn(column), order is Qt.SortOrder.DescendingOrder) if column >= 0 else None
        self._show()

    def _show(self) -> None:
        rows = [row for row in self._all if not self._words or matches(row.run, self._words, row.searchable)]
        if self._order is not None:
            column, is_reversed = self._order
            rows.sort(key=lambda row: row.keys[column], reverse=is_reversed)
        if [row.run.id for row in rows] == [row.run.id for row in self._rows]:
            self._change(rows)
        else:
            self._reset(rows)

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
            return row.tooltip
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
        """Request a new name; the list shows it once it is saved."""
        run = self._rows[index.row()].run
        if role != Role.EditRole or str(value).strip() == run.name:
            return False
        self.rename_requested.emit(run.id, str(value))
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        """Only names can be edited."""
        flags = super().flags(index)
        return flags | Qt.ItemFlag.ItemIsEditable if index.column() == RunColumn.NAME else flags


class RunNameDelegate(TitleDelegate):
    """Draws a run's name above its subtitle, and edits the name in place."""

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        """A field whose placeholder is the title of a run without a name."""
        editor = QLineEdit(parent)
        editor.setObjectName("runNameEdit")
        editor.setAccessibleName("Name of the run")
        editor.setMaxLength(MAX_NAME)
        editor.setPlaceholderText(str(index.data(Role.DisplayRole)))
        return editor

    def setEditorData(self, editor: QWidget, index: Index) -> None:
        """Start with the current name."""
        if isinstance(editor, QLineEdit):
            editor.setText(str(index.data(Role.EditRole)))

    def setModelData(self, editor: QWidget, model: QAbstractItemModel, index: Index) -> None:
        """Pass the edited name to the model."""
        if isinstance(editor, QLineEdit):
            model.setData(index, editor.text(), Role.EditRole)

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, _index: Index) -> None:
        """Cover the whole cell."""
        cell: QRect = option.rect
        editor.setGeometry(cell.adjusted(2, 2, -2, -2))


ROW_HEIGHT = 46
WIDTHS = (190, 134, 152, 152, 48, 60, 80, 82, 76, 92)


class _Place(NamedTuple):
    """What to restore after the list is replaced: selected ids, current row, scroll position."""

    selected: list[str]
    row: int
    scroll: int


class RunsTable(QTableView):
    """Signals:
    selected: the selection has changed.
    rename_requested: a run's id and its new name.
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
        self.restyle()
        self.selectionModel().selectionChanged.connect(self._on_selection_changed)

    def restyle(self) -> None:
        """Fit rows and columns to the size of the text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        for column, width in enumerate(WIDTHS):
            self.setColumnWidth(column, scaled(width))
        self._fit_names()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give names the remaining width."""
        super().resizeEvent(event)
        self._fit_names()

    def _fit_names(self) -> None:
        # A stretched column would shrink to nothing before the table scrolls.
        others = sum(self.columnWidth(column) for column in RunColumn if column is not RunColumn.NAME)
        self.setColumnWidth(RunColumn.NAME, max(scaled(WIDTHS[RunColumn.NAME]), self.viewport().width() - others))

    def show_runs(self, runs: tuple[KeptRun, ...]) -> None:
        """Show these runs and keep the selection. Waits while a name is being edited."""
        if self.state() is QAbstractItemView.State.EditingState:
            self._waiting = runs
            return
        self._waiting = None
        self._rows.show_runs(runs)

    def filter(self, words: str) -> None:
        """Show only the runs that match these words."""
        self._rows.filter(words)

    def count(self) -> int:
        """Number of runs that are shown."""
        return self._rows.rowCount()

    def runs(self) -> list[KeptRun]:
        """The runs that are shown, in order."""
        return self._rows.runs()

    def selected_runs(self) -> list[KeptRun]:
        """The selected runs, in the order of the list."""
        ranges = self.selectionModel().selection().toList()
        rows = {row for part in ranges for row in range(part.top(), part.bottom() + 1)}
        runs = self._rows.runs()
        return [runs[row] for row in sorted(rows)]

    def select(self, run_ids: Iterable[str]) -> None:
        """Select these runs and no others; the first becomes the current one."""
        wanted = set(run_ids)
        rows = [row for row, run in enumerate(self._rows.runs()) if run.id in wanted]
        selection = QItemSelection()
        for row in rows:
            selection.select(self._rows.index(row, 0), self._rows.index(row, len(TITLES) - 1))
        flags = QItemSelectionModel.SelectionFlag
        if rows:
            self.selectionModel().setCurrentIndex(self._rows.index(rows[0], RunColumn.NAME), flags.NoUpdate)
        self.selectionModel().select(selection, flags.ClearAndSelect)

    def begin_rename(self) -> None:
        """Edit the current run's name."""
        current = self.currentIndex()
        if current.isValid():
            self.edit(self._rows.index(current.row(), RunColumn.NAME))

    def closeEditor(self, editor: QWidget, hint: QAbstractItemDelegate.EndEditHint) -> None:
        """Show the list that arrived while a name was being edited."""
        super().closeEditor(editor, hint)
        if self._waiting is not None:
            self.show_runs(self._waiting)

    @Slot()
    def _before_reset(self) -> None:
        selected = [run.id for run in self.selected_runs()]
        self._before = _Place(selected, self.currentIndex().row(), self.verticalScrollBar().value())

    @Slot()
    def _after_reset(self) -> None:
        runs = self._rows.runs()
        if not runs:
            return
        self.select(self._before.selected)
        if not self.selectionModel().hasSelection():
            # The selected runs were deleted; select their neighbour.
            self.select([runs[min(max(self._before.row, 0), len(runs) - 1)].id])
        self.verticalScrollBar().setValue(self._before.scroll)

    @Slot()
    def _on_selection_changed(self) -> None:
        self.selected.emit()
