"""The rows of kept runs: a model that sorts and filters by itself, and the cell in which a run is named."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from PySide6.QtCore import (
    QAbstractItemModel,
    QRect,
    Qt,
    Signal,
)
from PySide6.QtWidgets import QLineEdit, QStyleOptionViewItem, QWidget

from app.turns import Turns
from app.view_models.run_list import HELP, TEXT_COLUMNS, TITLES, RunColumn, RunRow
from app.widgets.models_cells import BADGE_ROLE, SUBTITLE_ROLE, NameDelegate
from app.widgets.row_table import Index, Role, RowsModel
from core.run_search import matches
from core.runs import MAX_NAME, KeptRun


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
