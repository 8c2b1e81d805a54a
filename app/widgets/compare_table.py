"""Compared runs as a table: the settings that differ, the results, and, when asked for, the settings that agree."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from app.theme import LIGHT, Theme, scaled, ui_font
from app.view_models.comparison import Comparison
from app.widgets.row_table import Index, Role, prepare_rows
from app.widgets.run_lines import SAMPLE_WIDTH, draw_sample

ROW_HEIGHT = 28
TITLE_WIDTH, RUN_WIDTH, WIDE_RUN_WIDTH = 156, 104, 150
HEADER_HEIGHT = 46
DIFFERING, RESULTS, AGREEING = "Settings that differ", "Results", "Settings that agree"

NAME_ROLE = Role.UserRole + 1


@dataclass(frozen=True, slots=True)
class _Line:
    """A row on screen; a section's title has no texts."""

    title: str
    texts: tuple[str, ...] = ()
    help: str = ""
    best: frozenset[int] = frozenset()
    is_section: bool = False
    is_highlighted: bool = False


class CompareModel(QAbstractTableModel):
    """A `Comparison` in rows."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = LIGHT
        self._names: tuple[str, ...] = ()
        self.lines: list[_Line] = []

    def show(self, comparison: Comparison, *, with_agreeing: bool) -> None:
        """Show these runs."""
        self.beginResetModel()
        self._names = comparison.names
        differing = [_Line(row.title, row.texts, row.help, is_highlighted=True) for row in comparison.differing]
        self.lines = [
            _Line(DIFFERING if differing else "No setting differs", is_section=True),
            *differing,
            _Line(RESULTS, is_section=True),
            *(_Line(row.title, row.texts, row.help, row.best) for row in comparison.results),
        ]
        if with_agreeing:
            self.lines += [
                _Line(AGREEING, is_section=True),
                *(_Line(row.title, row.texts, row.help) for row in comparison.agreeing),
            ]
        self.endResetModel()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """Number of rows, titles included."""
        return 0 if parent.isValid() else len(self.lines)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        """A title, and one column a run."""
        return 0 if parent.isValid() else 1 + len(self._names)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Role.DisplayRole) -> object:
        """The runs' names, each with its line."""
        if orientation is not Qt.Orientation.Horizontal or section == 0:
            return "" if role == Role.DisplayRole else None
        if role in {Role.ToolTipRole, Role.AccessibleTextRole, NAME_ROLE}:
            return self._names[section - 1]
        return "" if role == Role.DisplayRole else None

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        line, column = self.lines[index.row()], index.column()
        text = line.title if column == 0 else line.texts[column - 1] if line.texts else ""
        is_best = column - 1 in line.best
        if role == Role.DisplayRole:
            return " ".join(text.split()) if column else text
        if role == Role.ToolTipRole:
            return line.help if column == 0 else text
        if role == Role.AccessibleTextRole:
            return f"{text}, best" if is_best else text
        if role == Role.FontRole and (line.is_section or is_best):
            return ui_font(13, weight=QFont.Weight.DemiBold)
        if role == Role.BackgroundRole and line.is_highlighted:
            return QBrush(QColor(self._theme.correction_tint))
        if role == Role.ForegroundRole:
            return self._ink(line, column, is_best)
        return None

    def _ink(self, line: _Line, column: int, is_best: bool) -> QBrush:
        theme = self._theme
        if is_best:
            return QBrush(QColor(theme.accent))
        return QBrush(QColor(theme.muted if column == 0 and not line.is_section else theme.text))

    def flags(self, index: Index) -> Qt.ItemFlag:
        """A section's title is not to be selected."""
        return Qt.ItemFlag.ItemIsEnabled if self.lines[index.row()].is_section else super().flags(index)


class RunHeader(QHeaderView):
    """A head that shows each run's line above its name."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._theme = LIGHT
        self.setHighlightSections(False)
        self.setSectionsClickable(False)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.viewport().update()

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        return QSize(super().sizeHint().width(), scaled(HEADER_HEIGHT))

    def paintSection(self, painter: QPainter, rect: QRect, index: int) -> None:
        """Draw the ground as the style does, and line and name upon it."""
        painter.save()
        super().paintSection(painter, rect, index)
        painter.restore()
        if index == 0:
            return
        painter.save()
        inside = rect.adjusted(8, 4, -4, -4)
        draw_sample(painter, QRectF(inside.left(), inside.top(), SAMPLE_WIDTH, 14), self._theme, index - 1)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.text))
        name = str(self.model().headerData(index, Qt.Orientation.Horizontal, NAME_ROLE))
        shown = painter.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, inside.width())
        painter.drawText(inside, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom, shown)
        painter.restore()


class _Ground(QStyledItemDelegate):
    """Paints a row's own ground, which the style sheet would pass over."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw the ground, and the cell upon it."""
        ground = index.data(Role.BackgroundRole)
        if isinstance(ground, QBrush):
            painter.fillRect(option.rect, ground)
        super().paint(painter, option, index)


class CompareTable(QTableView):
    """Shows a `Comparison`."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("compareTable")
        self.setAccessibleName("Compared runs")
        self.rows = CompareModel(self)
        self.head = RunHeader()
        self.setHorizontalHeader(self.head)
        self.setModel(self.rows)
        self.setItemDelegate(_Ground(self))
        prepare_rows(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.rescale()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)

    def rescale(self) -> None:
        """Make rows as high, and columns as wide, as their text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        self.horizontalHeader().setMinimumSectionSize(scaled(RUN_WIDTH))
        if self.rows.columnCount() > 1:
            self.horizontalHeader().resizeSection(0, scaled(TITLE_WIDTH))

    def wanted_width(self) -> int:
        """Room for all runs without scrolling; more for each where there are few."""
        runs = self.rows.columnCount() - 1
        return scaled(TITLE_WIDTH + 24) + runs * scaled(WIDE_RUN_WIDTH if runs <= 3 else RUN_WIDTH)

    def show_comparison(self, comparison: Comparison, *, with_agreeing: bool) -> None:
        """Show these runs; what is scrolled to stays."""
        scroll = self.verticalScrollBar().value()
        self.clearSpans()
        self.rows.show(comparison, with_agreeing=with_agreeing)
        header = self.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Fixed)
        header.resizeSection(0, scaled(TITLE_WIDTH))
        for column in range(1, self.rows.columnCount()):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.Stretch)
        for row, line in enumerate(self.rows.lines):
            if line.is_section:
                self.setSpan(row, 0, 1, self.rows.columnCount())
        self.verticalScrollBar().setValue(scroll)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.rows.set_theme(theme)
        self.head.set_theme(theme)
        self.viewport().update()
