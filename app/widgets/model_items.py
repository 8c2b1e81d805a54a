"""How a model looks as an item of a dropdown: its name, its size, and beneath them why it can't be chosen."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QFont, QPainter, QPalette
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.theme import scaled

NOTE_ROLE = Qt.ItemDataRole.UserRole + 2
"""A short text at the right end."""
REASON_ROLE = Qt.ItemDataRole.UserRole + 3
"""A sentence on a second line."""
LINE_HEIGHT, REASON_HEIGHT, SEPARATOR_HEIGHT, INSET = 28, 18, 9, 8
SMALL_PX = 11


class ModelItemDelegate(QStyledItemDelegate):
    """Draws title and note on one line, a reason on a second."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        """One line, or two."""
        size = super().sizeHint(option, index)
        if index.data(Qt.ItemDataRole.AccessibleDescriptionRole) == "separator":
            return QSize(size.width(), SEPARATOR_HEIGHT)
        size.setHeight(scaled(LINE_HEIGHT + (REASON_HEIGHT if index.data(REASON_ROLE) else 0)))
        return size

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        """Draw the ground as the style does, and the texts upon it."""
        if index.data(Qt.ItemDataRole.AccessibleDescriptionRole) == "separator":
            painter.setPen(QApplication.palette().color(QPalette.ColorRole.AlternateBase))
            middle = option.rect.center().y()
            painter.drawLine(option.rect.left() + INSET, middle, option.rect.right() - INSET, middle)
            return
        item = QStyleOptionViewItem(option)
        self.initStyleOption(item, index)
        text, item.text = item.text, ""
        style = item.widget.style() if item.widget is not None else QApplication.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, item, painter, item.widget)
        enabled = bool(index.flags() & Qt.ItemFlag.ItemIsEnabled)
        group = QPalette.ColorGroup.Active if enabled else QPalette.ColorGroup.Disabled
        row = option.rect.adjusted(INSET, 0, -INSET, 0)
        line = QRect(row.left(), row.top(), row.width(), scaled(LINE_HEIGHT))
        painter.save()
        painter.setPen(QApplication.palette().color(group, QPalette.ColorRole.Text))
        painter.setFont(item.font)
        note = index.data(NOTE_ROLE) or ""
        note_width = painter.fontMetrics().horizontalAdvance(note) + INSET if note else 0
        _draw(painter, line.adjusted(0, 0, -note_width, 0), text, Qt.AlignmentFlag.AlignLeft)
        painter.setPen(QApplication.palette().color(QPalette.ColorRole.PlaceholderText))
        _draw(painter, line, note, Qt.AlignmentFlag.AlignRight)
        if reason := index.data(REASON_ROLE):
            small = QFont(item.font)
            small.setPixelSize(scaled(SMALL_PX))
            painter.setFont(small)
            below = QRect(row.left(), row.top() + scaled(LINE_HEIGHT) - 5, row.width(), scaled(REASON_HEIGHT))
            _draw(painter, below, reason, Qt.AlignmentFlag.AlignLeft)
        painter.restore()


def _draw(painter: QPainter, place: QRect, text: str, side: Qt.AlignmentFlag) -> None:
    elided = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, place.width())
    painter.drawText(place, side | Qt.AlignmentFlag.AlignVCenter, elided)
