"""What tables share: models with one item per row, their settings, and a hint while they are empty."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from PySide6.QtCore import QAbstractTableModel, QItemSelectionModel, QModelIndex, QPersistentModelIndex, Qt, Slot
from PySide6.QtWidgets import QAbstractItemView, QGridLayout, QLabel, QTableView, QVBoxLayout, QWidget

from app.widgets.fields import text_label

if TYPE_CHECKING:
    from app.run.run_view import NamedValue

Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
R = TypeVar("R")


def alignment(*, is_figure: bool) -> Qt.AlignmentFlag:
    """Figures are right-aligned, texts left-aligned."""
    side = Qt.AlignmentFlag.AlignRight if is_figure else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


class RowsModel(QAbstractTableModel, Generic[R]):
    """Base of models that show one item per row."""

    def __init__(
        self,
        parent: QWidget,
        titles: Sequence[str],
        text_columns: Container[int],
        help_texts: Mapping[int, str] | None = None,
    ) -> None:
        """
        Args:
            parent: owner of the model.
            titles: titles of the columns.
            text_columns: left-aligned columns; the others are right-aligned.
            help_texts: explanations of columns, if the titles don't suffice.
        """
        super().__init__(parent)
        self._titles, self._text_columns, self._help_texts = titles, text_columns, help_texts or {}
        self._rows: list[R] = []

    def _change(self, rows: list[R]) -> None:
        """Show new values of the same items, and keep the selection."""
        old, self._rows = self._rows, rows
        for index, row in enumerate(rows):
            if row is not old[index] and row != old[index]:
                self.dataChanged.emit(self.index(index, 0), self.index(index, len(self._titles) - 1))

    def _reset(self, rows: list[R]) -> None:
        """Show rows of other items."""
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def side(self, column: int) -> Qt.AlignmentFlag:
        """How a column is aligned."""
        return alignment(is_figure=column not in self._text_columns)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows shown."""
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
    """Set up a table of selectable rows, after its model is set: no grid, Tab leaves it, smooth scrolling."""
    header = view.horizontalHeader()
    # Its own selection model: the default one reads the flags of every cell whenever the selection changes.
    header.setSelectionModel(QItemSelectionModel(view.model(), header))
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setTabKeyNavigation(False)
    view.setShowGrid(False)
    view.setWordWrap(False)
    view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    view.verticalHeader().hide()


class FigureTable(QWidget):
    """Rows of three labels: a name, its value, and an interval or note."""

    def __init__(self, object_name: str, headings: tuple[str, str, str] | None = None) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(3)
        self._grid.setColumnStretch(0, 1)
        self.rows: list[tuple[QLabel, QLabel, QLabel]] = []
        for column, heading in enumerate(headings or ()):
            self._grid.addWidget(text_label(heading, "field"), 0, column, alignment(is_figure=column > 0))

    def show_rows(self, rows: Sequence[NamedValue]) -> None:
        """Replace the rows with these."""
        while len(self.rows) < len(rows):
            self._add_row()
        for index, labels in enumerate(self.rows):
            for label in labels:
                label.setVisible(index < len(rows))
        for row, labels in zip(rows, self.rows, strict=False):
            for label, text in zip(labels, (row.title, row.value, row.interval), strict=True):
                label.setText(text)
                label.setToolTip(row.how)
            labels[1].setAccessibleName(" ".join(filter(None, (f"{row.title}:", row.value, row.interval))))
            labels[1].setAccessibleDescription(row.how)

    def _add_row(self) -> None:
        labels = text_label("", "plain"), text_label("", "strong"), text_label("", "hint")
        labels[0].setWordWrap(True)
        labels[1].setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        place = self._grid.rowCount()
        # A name fills its column: an aligned label of two words would wrap after the first.
        self._grid.addWidget(labels[0], place, 0)
        for column in (1, 2):
            self._grid.addWidget(labels[column], place, column, alignment(is_figure=True))
        self.rows.append(labels)


class EmptyHint(QLabel):
    """A sentence in the middle of a table while it has no rows."""

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
        for changed in (self._model.rowsInserted, self._model.rowsRemoved, self._model.modelReset):
            changed.connect(self._show_or_hide)
        self._show_or_hide()

    @Slot()
    @Slot(QModelIndex, int, int)
    def _show_or_hide(self) -> None:
        self.setVisible(self._model.rowCount() == 0)
