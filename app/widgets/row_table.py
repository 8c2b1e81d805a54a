"""What tables of rows share: a model with titled columns, and how their view behaves."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QAbstractTableModel, QItemSelectionModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QAbstractItemView, QTableView, QWidget

Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
R = TypeVar("R")


class RowsModel(QAbstractTableModel, Generic[R]):
    """Base of models that show one thing a row."""

    def __init__(
        self,
        parent: QWidget,
        titles: Sequence[str],
        text_columns: Container[int],
        help_texts: Mapping[int, str] | None = None,
    ) -> None:
        """
        Args:
            parent: that keeps it.
            titles: of the columns.
            text_columns: those that begin at the left; figures end at the right.
            help_texts: what columns mean, as far as their titles don't say it.
        """
        super().__init__(parent)
        self._titles, self._text_columns, self._help_texts = titles, text_columns, help_texts or {}
        self._rows: list[R] = []

    def _change(self, rows: list[R]) -> None:
        """Show new rows of the same things in their places: what is selected stays."""
        old, self._rows = self._rows, rows
        for index, row in enumerate(rows):
            if row is not old[index] and row != old[index]:
                self.dataChanged.emit(self.index(index, 0), self.index(index, len(self._titles) - 1))

    def _reset(self, rows: list[R]) -> None:
        """Show rows of other things."""
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def side(self, column: int) -> Qt.AlignmentFlag:
        """Where a column's texts stand."""
        side = Qt.AlignmentFlag.AlignLeft if column in self._text_columns else Qt.AlignmentFlag.AlignRight
        return side | Qt.AlignmentFlag.AlignVCenter

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows that are shown."""
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of columns."""
        return 0 if parent.isValid() else len(self._titles)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Role.DisplayRole) -> object:
        """The columns' titles, and what they mean."""
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Role.DisplayRole:
            return self._titles[section]
        if role == Role.ToolTipRole:
            return self._help_texts.get(section)
        return self.side(section) if role == Role.TextAlignmentRole else None


def prepare_rows(view: QTableView) -> None:
    """Rows to choose from: no grid, Tab leaves the table, and it scrolls smoothly. To be called when it has its model.

    Columns are never selected. Their head would ask for it all the same, each time that the selection changes: for the
    flags of each cell of each row in it, a fifth of a second for some thousands of rows.
    """
    header = view.horizontalHeader()
    header.setSelectionModel(QItemSelectionModel(view.model(), header))
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setTabKeyNavigation(False)
    view.setShowGrid(False)
    view.setWordWrap(False)
    view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    view.verticalHeader().hide()
