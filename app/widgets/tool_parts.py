"""What the windows of the menu Tools are made of."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QLabel, QPushButton, QTableWidget, QTableWidgetItem

from app.widgets.empty_hint import EmptyHint
from app.widgets.fields import describe, text_label


def figure_table(name: str, title: str, columns: Iterable[tuple[str, str, bool]], empty: str) -> QTableWidget:
    """An empty table of rows to look at and choose from.

    Args:
        name, title: of the widget, and for those who hear it.
        columns: heading, its explanation, and whether figures stand there, at the right.
        empty: what will stand there, said as long as nothing does.
    """
    headings = [_heading(*column) for column in columns]
    table = QTableWidget(0, len(headings))
    table.setObjectName(name)
    table.setAccessibleName(title)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setTabKeyNavigation(False)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    for column, heading in enumerate(headings):
        table.setHorizontalHeaderItem(column, heading)
    header = table.horizontalHeader()
    header.setHighlightSections(False)
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
    EmptyHint(table, empty)
    return table


def _heading(title: str, help_text: str, is_figure: bool) -> QTableWidgetItem:
    heading = QTableWidgetItem(title)
    heading.setToolTip(help_text)
    across = Qt.AlignmentFlag.AlignRight if is_figure else Qt.AlignmentFlag.AlignLeft
    heading.setTextAlignment(across | Qt.AlignmentFlag.AlignVCenter)
    return heading


def push_button(title: str, name: str, help_text: str) -> QPushButton:
    """A button that Enter elsewhere in the window does not press."""
    button = QPushButton(title)
    button.setObjectName(name)
    button.setAutoDefault(False)
    describe(button, title.rstrip("…"), help_text)
    return button


def wrapped_label(name: str, role: str) -> QLabel:
    """A text of several lines, to be selected, and never read as markup."""
    label = text_label("", role)
    label.setObjectName(name)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
