"""The kept runs as a table: sorted by its head, filtered by words, renamed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PySide6.QtCore import QItemSelection, QItemSelectionModel, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractItemDelegate, QAbstractItemView, QHeaderView, QTableView, QWidget

from app.theme import scaled
from app.view_models.run_list import TITLES, RunColumn
from app.widgets.row_table import prepare_rows
from app.widgets.runs_rows import RunNameDelegate, RunsTableModel
from core.runs import KeptRun

ROW_HEIGHT = 46
WIDTHS = (190, 134, 152, 152, 48, 60, 80, 82, 76, 92)


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
        self._keeping_selection(lambda: self._rows.show_runs(runs))

    def filter(self, words: str) -> None:
        """Show only what has these words."""
        self._keeping_selection(lambda: self._rows.filter(words))

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
        for row in rows:
            selection.select(self._rows.index(row, 0), self._rows.index(row, len(TITLES) - 1))
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

    def _keeping_selection(self, change: Callable[[], None]) -> None:
        selected = [run.id for run in self.selected_runs()]
        row, scroll = self.currentIndex().row(), self.verticalScrollBar().value()
        change()
        if not self._rows.rowCount() or self.selectionModel().hasSelection():
            return
        self.select(selected)
        if not self.selectionModel().hasSelection():
            # What was selected is gone; its neighbour takes its place.
            place = min(max(row, 0), self._rows.rowCount() - 1)
            self.select([self._rows.row(place).run.id])
        self.verticalScrollBar().setValue(scroll)

    @Slot()
    def _on_selection_changed(self) -> None:
        self.selected.emit()
