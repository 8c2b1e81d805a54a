"""The one table for lists of things, and rows of labelled figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic

from PySide6.QtCore import QItemSelection, QItemSelectionModel, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemDelegate,
    QAbstractItemView,
    QHeaderView,
    QLabel,
    QStyledItemDelegate,
    QTableView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.theme import scaled
from app.widgets.fields import grid, named, plain_tip, text_label, wrapped_label
from app.widgets.rows import Column, Role, Row, RowsModel, T, alignment
from app.widgets.title_delegate import TitleDelegate

if TYPE_CHECKING:
    from app.run.run_view import NamedValue

ROW_HEIGHT, TITLED_ROW_HEIGHT = 26, 46


def prepare_rows(view: QTableView) -> None:
    """Set up a table of selectable rows, after its model is set: no grid, Tab leaves it, smooth scrolling."""
    header = view.horizontalHeader()
    # Its own selection model: the default one reads the flags of every cell whenever the selection changes.
    header.setSelectionModel(QItemSelectionModel(view.model(), header))
    header.setHighlightSections(False)
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
    view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    view.setTabKeyNavigation(False)
    view.setShowGrid(False)
    view.setWordWrap(False)
    view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    view.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    view.verticalHeader().hide()
    view.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)


class Table(QTableView, Generic[T]):
    """Rows of items. The selection follows the items through sorting, searching and changes.

    Signals:
        chosen: the selection has changed.
        renamed: an item, and the new name that the user wants for it.
    """

    chosen = Signal()
    renamed = Signal(object, str)

    def __init__(
        self,
        name: str,
        title: str,
        columns: Sequence[Column],
        empty: str = "",
        *,
        stretched: int = 0,
        delegate: TitleDelegate | None = None,
        keeps_one: bool = False,
    ) -> None:
        """
        Args:
            name, title: the object name, and the name for assistive technology.
            empty: the text shown while there are no rows.
            stretched: the column that takes the remaining width.
            delegate: draws titles with subtitles; the table can then be sorted by its header.
            keeps_one: whether another row is selected in place of one that is gone.
        """
        super().__init__()
        named(self, name, title)
        self._columns, self._stretched, self._keeps_one = columns, stretched, keeps_one
        self._row_height = ROW_HEIGHT if delegate is None else TITLED_ROW_HEIGHT
        self._waiting: Sequence[Row[T]] | None = None
        self._before: tuple[set[object], int, int] = (set(), -1, 0)
        self._model: RowsModel[T] = RowsModel(self, columns)
        self._model.renamed.connect(self.renamed)
        self.setModel(self._model)
        self._model.modelAboutToBeReset.connect(self._before_reset)
        self._model.modelReset.connect(self._after_reset)
        prepare_rows(self)
        header = self.horizontalHeader()
        if delegate is not None:
            delegate.setParent(self)
            self.setItemDelegateForColumn(0, delegate)
            header.setSortIndicatorClearable(True)
            header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
            header.setMinimumSectionSize(40)
            self.setSortingEnabled(True)
        for place, column in enumerate(columns):
            if not column.width:
                is_stretched = place == stretched
                mode = QHeaderView.ResizeMode.Stretch if is_stretched else QHeaderView.ResizeMode.ResizeToContents
                header.setSectionResizeMode(place, mode)
        header.setStretchLastSection(stretched == len(columns) - 1)  # Also where that column is hidden.
        self.hint = EmptyHint(self, empty)
        self._model.modelReset.connect(self._stretch)
        self.restyle()
        self.selectionModel().selectionChanged.connect(self.chosen)

    def restyle(self) -> None:
        """Fit rows and columns to the size of the text."""
        self.verticalHeader().setDefaultSectionSize(scaled(self._row_height))
        for place, column in enumerate(self._columns):
            if column.width:
                self.setColumnWidth(place, scaled(column.width))
        self._stretch()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Hide columns that have no room, and give one the remaining width."""
        super().resizeEvent(event)
        self._stretch()

    def _hide_columns(self) -> None:
        columns, header = self._columns, self.horizontalHeader()
        for place in range(len(columns)):
            self.setColumnHidden(place, False)  # A hidden column's head has no width.
        wanted = [
            scaled(column.width) or max(self.sizeHintForColumn(place), header.sectionSizeHint(place))
            for place, column in enumerate(columns)
        ]
        excess = sum(wanted) - self.viewport().width()
        for place in sorted(range(len(columns)), key=lambda place: -columns[place].rank):
            self.setColumnHidden(place, is_hidden := excess > 0 and columns[place].rank > 0)
            excess -= wanted[place] if is_hidden else 0

    @Slot()
    def _stretch(self) -> None:
        if any(column.rank for column in self._columns):
            self._hide_columns()
        # Where all have a width; a stretched column would shrink to nothing before the table scrolls.
        if least := self._columns[self._stretched].width:
            others = sum(map(self.columnWidth, range(len(self._columns)))) - self.columnWidth(self._stretched)
            self.setColumnWidth(self._stretched, max(scaled(least), self.viewport().width() - others))

    def show_rows(self, rows: Sequence[Row[T]]) -> None:
        """Show these rows and no others. Waits while a name is being edited."""
        is_editing = self.state() is QAbstractItemView.State.EditingState
        self._waiting = rows if is_editing else None
        if not is_editing:
            self._model.show_rows(rows)

    def filter(self, is_wanted: Callable[[Row[T]], bool]) -> None:
        """Show only the rows for which this is true, until the next filter."""
        self._model.filter(is_wanted)

    def count(self) -> int:
        """Number of rows shown."""
        return len(self._model.rows)

    def items(self) -> list[T]:
        """The items that are shown, in order."""
        return [row.item for row in self._model.rows]

    def selected(self) -> list[T]:
        """The selected items, in the table's order."""
        return [row.item for row in self._selected_rows()]

    def _selected_rows(self) -> list[Row[T]]:
        ranges = self.selectionModel().selection().toList()
        places = {place for part in ranges for place in range(part.top(), part.bottom() + 1)}
        return [self._model.rows[place] for place in sorted(places)]

    def select(self, keys: Iterable[object]) -> None:
        """Select the items with these keys and no others; the first becomes the current one."""
        wanted = set(keys)
        places = [place for place, row in enumerate(self._model.rows) if row.key in wanted]
        selection = QItemSelection()
        for place in places:
            selection.select(self._model.index(place, 0), self._model.index(place, len(self._columns) - 1))
        flags = QItemSelectionModel.SelectionFlag
        if places:
            self.selectionModel().setCurrentIndex(self._model.index(places[0], 0), flags.NoUpdate)
        self.selectionModel().select(selection, flags.ClearAndSelect)

    def begin_rename(self) -> None:
        """Edit the current item's name."""
        if self.currentIndex().isValid():
            self.edit(self._model.index(self.currentIndex().row(), 0))

    def closeEditor(self, editor: QWidget, hint: QAbstractItemDelegate.EndEditHint) -> None:
        """Show the rows that arrived while a name was being edited."""
        super().closeEditor(editor, hint)
        if self._waiting is not None:
            self.show_rows(self._waiting)

    @Slot()
    def _before_reset(self) -> None:
        selected = {row.key for row in self._selected_rows()}
        self._before = (selected, self.currentIndex().row(), self.verticalScrollBar().value())

    @Slot()
    def _after_reset(self) -> None:
        selected, place, scroll = self._before
        if rows := self._model.rows:
            self.select(selected)
            if self._keeps_one and not self.selectionModel().hasSelection():
                self.select([rows[min(max(place, 0), len(rows) - 1)].key])
            self.verticalScrollBar().setValue(scroll)


class GridTable(QTableWidget):
    """A read-only table whose cells are drawn by a delegate."""

    def __init__(self, name: str, title: str, delegate: QStyledItemDelegate) -> None:
        super().__init__()
        named(self, name, title)
        delegate.setParent(self)
        self.setItemDelegate(delegate)
        prepare_rows(self)

    def set_head(self, place: int, title: str, help_text: str, spoken: str = "") -> None:
        """Set a column's heading, what it means, and what assistive technology says instead."""
        head = QTableWidgetItem(title)
        head.setToolTip(plain_tip(help_text))
        head.setData(Role.AccessibleTextRole, spoken or title)
        self.setHorizontalHeaderItem(place, head)


class EmptyHint(QLabel):
    """A sentence in the middle of a table while it has no rows."""

    def __init__(self, table: QTableView, sentence: str) -> None:
        super().__init__(sentence, table.viewport())
        self._table = table
        self.setObjectName("emptyHint")
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("role", "hint")
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        layout = QVBoxLayout(table.viewport())
        layout.setContentsMargins(24, 8, 24, 8)
        layout.addWidget(self)
        table.setAccessibleDescription(sentence)
        table.model().modelReset.connect(self._show_or_hide)

    def setText(self, sentence: str) -> None:
        """Show another sentence."""
        super().setText(sentence)
        self._table.setAccessibleDescription(sentence)

    @Slot()
    def _show_or_hide(self) -> None:
        self.setVisible(self._table.model().rowCount() == 0)


class FigureTable(QWidget):
    """Rows of three labels: a name, its value, and an interval or note."""

    def __init__(
        self, object_name: str, headings: tuple[str, str, str] | None = None, *, shows_how: bool = False
    ) -> None:
        """`shows_how`: below each row, how the value is computed; else only in its tooltip."""
        super().__init__()
        self._shows_how = shows_how
        self.setObjectName(object_name)
        self._grid = grid(self, across=10, down=3)
        self._grid.setColumnStretch(0, 1)
        self.rows: list[tuple[QLabel, ...]] = []
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
            for label, text in zip(labels, (row.title, row.value, row.interval, row.how), strict=False):
                label.setText(text.replace(" − ", "\u00a0−\u00a0"))  # A difference stays on one line.
                label.setToolTip(plain_tip(row.how))
            labels[2].setVisible(bool(row.interval))
            labels[1].setAccessibleName(" ".join(filter(None, (f"{row.title}:", row.value, row.interval))))
            labels[1].setAccessibleDescription(row.how)

    def _add_row(self) -> None:
        labels: tuple[QLabel, ...] = text_label("", "plain"), text_label("", "strong"), text_label("", "hint")
        labels[0].setWordWrap(True)
        labels[1].setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        place = self._grid.rowCount()
        # A name fills its column: an aligned label of two words would wrap after the first.
        self._grid.addWidget(labels[0], place, 0)
        for column in (1, 2):
            self._grid.addWidget(labels[column], place, column, alignment(is_figure=True))
        if self._shows_how:
            labels = (*labels, wrapped_label("", "hint"))
            self._grid.addWidget(labels[3], place + 1, 0, 1, 3)
        self.rows.append(labels)
