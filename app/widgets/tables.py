"""What a table says as long as nothing stands in it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QAbstractTableModel, QItemSelectionModel, QModelIndex, QPersistentModelIndex, Qt, Slot
from PySide6.QtWidgets import QAbstractItemView, QGridLayout, QLabel, QTableView, QVBoxLayout, QWidget

from app.run.theory import Row
from app.widgets.fields import text_label

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


ROLES = ("plain", "strong", "hint")


class FigureTable(QWidget):
    """Rows of three labels each. A label is made once and used again."""

    def __init__(self, object_name: str, headings: tuple[str, str, str] | None = None) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(3)
        self._grid.setColumnStretch(0, 1)
        self.rows: list[tuple[QLabel, QLabel, QLabel]] = []
        self._first = 0
        if headings is not None:
            self._first = 1
            for column, heading in enumerate(headings):
                self._grid.addWidget(text_label(heading, "field"), 0, column, _alignment(column))

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows and no others."""
        while len(self.rows) < len(rows):
            self._add_row()
        for index, labels in enumerate(self.rows):
            row = rows[index] if index < len(rows) else Row("", "", "", "")
            for label, text in zip(labels, (row.title, row.value, row.interval), strict=True):
                label.setText(text)
                label.setToolTip(row.how)
                label.setVisible(index < len(rows))
            labels[1].setAccessibleName(" ".join(filter(None, (f"{row.title}:", row.value, row.interval))))
            labels[1].setAccessibleDescription(row.how)

    def _add_row(self) -> None:
        labels = text_label("", ROLES[0]), text_label("", ROLES[1]), text_label("", ROLES[2])
        labels[0].setWordWrap(True)
        row = self._first + len(self.rows)
        for column, label in enumerate(labels):
            # A name has its column's whole width: aligned in it, a label of two words is as narrow as one of them.
            self._grid.addWidget(label, row, column, _alignment(column) if column else Qt.AlignmentFlag(0))
        self.rows.append(labels)


def _alignment(column: int) -> Qt.AlignmentFlag:
    across = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
    return across | Qt.AlignmentFlag.AlignVCenter


class EmptyHint(QLabel):
    """A sentence in the middle of a table, gone with the first row and back with the last."""

    def __init__(self, table: QTableView, sentence: str) -> None:
        super().__init__(sentence, table.viewport())
        self._model = table.model()
        self.setObjectName("emptyHint")
        self.setProperty("role", "hint")
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        layout = QVBoxLayout(table.viewport())
        layout.setContentsMargins(24, 8, 24, 8)
        layout.addWidget(self)
        table.setAccessibleDescription(sentence)
        self._model.rowsInserted.connect(self._show_or_hide)
        self._model.rowsRemoved.connect(self._show_or_hide)
        self._model.modelReset.connect(self._show_or_hide)
        self._show_or_hide()

    @Slot()
    @Slot(QModelIndex, int, int)
    def _show_or_hide(self) -> None:
        self.setVisible(self._model.rowCount() == 0)
