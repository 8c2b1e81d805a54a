"""The kept runs as a table: sorted by its head, filtered by words, renamed in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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
