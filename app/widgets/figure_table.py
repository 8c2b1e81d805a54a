"""Figures in rows: a name, a value, what belongs to it; how each came about is in its tooltip."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.view_models.theory import Row
from app.widgets.fields import text_label

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
