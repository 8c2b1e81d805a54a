"""Rows of items as a Qt model: sorted, filtered and renamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QWidget

from app.theme import current_theme
from app.widgets.fields import plain_tip
from app.widgets.title_delegate import BADGE_ROLE, SUBTITLE_ROLE

Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
T = TypeVar("T")


class Column(NamedTuple):
    """A column of a `Table`.

    Attributes:
        width: in pixels; 0: as wide as its contents.
        is_figure: right-aligned.
        rank: where there is no room for all columns, those with the highest rank are hidden first; 0: never.
    """

    title: str
    help: str = ""
    width: int = 0
    is_figure: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """What a `Table` shows of an item.

    Attributes:
        key: identifies the item, so that it stays selected.
        texts, sort_keys: one per column.
        subtitle, badge: drawn below and beside the first text.
        words: what a search covers.
        name: the first text while it is edited; None if it can't be.
    """

    item: T
    key: object
    texts: tuple[str, ...]
    tip: str = ""
    sort_keys: tuple[Any, ...] = ()
    subtitle: str = ""
    badge: str = ""
    words: str = ""
    name: str | None = None
    is_bad: bool = False
    is_enabled: bool = True


def alignment(*, is_figure: bool) -> Qt.AlignmentFlag:
    """Figures are right-aligned, texts left-aligned."""
    side = Qt.AlignmentFlag.AlignRight if is_figure else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


class RowsModel(QAbstractTableModel, Generic[T]):
    """Sorts and filters its rows itself: a proxy model compares thousands of rows too slowly.

    Signals:
        renamed: an item, and the new name that the user wants for it.
    """

    renamed = Signal(object, str)

    def __init__(self, parent: QWidget, columns: Sequence[Column]) -> None:
        super().__init__(parent)
        self._columns = columns
        self._all: Sequence[Row[T]] = ()
        self._is_wanted: Callable[[Row[T]], bool] | None = None
        self._order: tuple[int, bool] | None = None
        self.rows: list[Row[T]] = []
        """The rows that are shown, in order."""

    def show_rows(self, rows: Sequence[Row[T]]) -> None:
        """Show these in the current order, with the current filter."""
        self._all = rows
        self._show()

    def filter(self, is_wanted: Callable[[Row[T]], bool]) -> None:
        """Show only the rows for which this is true."""
        self._is_wanted = is_wanted
        self._show()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column; -1: the order in which the rows were given."""
        self._order = (column, order is Qt.SortOrder.DescendingOrder) if column >= 0 else None
        self._show()

    def _show(self) -> None:
        rows = [row for row in self._all if self._is_wanted is None or self._is_wanted(row)]
        if self._order is not None:
            column, is_reversed = self._order
            rows.sort(key=lambda row: row.sort_keys[column], reverse=is_reversed)
        if [row.key for row in rows] != [row.key for row in self.rows]:
            self.beginResetModel()
            self.rows = rows
            self.endResetModel()
            return
        old, self.rows = self.rows, rows
        for index, row in enumerate(rows):
            if row != old[index]:
                self.dataChanged.emit(self.index(index, 0), self.index(index, len(self._columns) - 1))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows shown."""
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of columns."""
        return 0 if parent.isValid() else len(self._columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Role.DisplayRole) -> object:
        """The columns' titles, and what they mean."""
        if orientation is not Qt.Orientation.Horizontal:
            return None
        column = self._columns[section]
        if role == Role.DisplayRole:
            return column.title
        if role == Role.ToolTipRole:
            return plain_tip(column.help)
        return alignment(is_figure=column.is_figure) if role == Role.TextAlignmentRole else None

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        row, column = self.rows[index.row()], index.column()
        match role:
            case Role.DisplayRole:
                return row.texts[column]
            case Role.TextAlignmentRole:
                return alignment(is_figure=self._columns[column].is_figure)
            case Role.ToolTipRole:
                return plain_tip(row.tip)
            case Role.ForegroundRole:
                return QColor(current_theme().danger) if row.is_bad else None
            case Role.EditRole:
                return row.name
            case Role.AccessibleTextRole if column == 0:
                return ", ".join(filter(None, (row.texts[0], row.badge, row.subtitle)))
            case _:
                return {SUBTITLE_ROLE: row.subtitle, BADGE_ROLE: row.badge}.get(role)

    def setData(self, index: Index, value: object, role: int = Role.EditRole) -> bool:
        """Request a new name; the table shows it once it is saved."""
        row = self.rows[index.row()]
        if role != Role.EditRole or str(value).strip() == row.name:
            return False
        self.renamed.emit(row.item, str(value))
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        """Only names can be edited."""
        row = self.rows[index.row()]
        if not row.is_enabled:
            return Qt.ItemFlag.NoItemFlags
        editable = Qt.ItemFlag.ItemIsEditable if row.name is not None and not index.column() else Qt.ItemFlag(0)
        return super().flags(index) | editable
