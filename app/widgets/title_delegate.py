"""Draws an item of a list or table on two lines: a title with a badge and a note, and a subtitle below it."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPalette
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.theme import scaled

BADGE_ROLE = Qt.ItemDataRole.UserRole + 20
"""A short text on a pill after the title."""
NOTE_ROLE = Qt.ItemDataRole.UserRole + 21
"""A short text at the right end of the title's line."""
SUBTITLE_ROLE = Qt.ItemDataRole.UserRole + 22
GAP, TITLE_HEIGHT, SUBTITLE_HEIGHT = 8, 20, 16
BADGE_HEIGHT, BADGE_PADDING, BADGE_RADIUS = 16, 6, 4
SMALL_PX, BADGE_PX = 12, 11
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
INK = QPalette.ColorRole

Index = QModelIndex | QPersistentModelIndex


class TitleDelegate(QStyledItemDelegate):
    """Texts that don't fit are shortened with an ellipsis."""

    inset = 10

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw the style's background, and the texts over it."""
        item = QStyleOptionViewItem(option)
        self.initStyleOption(item, index)
        title, item.text = item.text, ""
        style = item.widget.style() if item.widget is not None else QApplication.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, item, painter, item.widget)
        badge, note, subtitle = (str(index.data(role) or "") for role in (BADGE_ROLE, NOTE_ROLE, SUBTITLE_ROLE))
        is_selected = bool(option.state & QStyle.StateFlag.State_Selected)
        is_enabled = bool(index.flags() & Qt.ItemFlag.ItemIsEnabled)
        palette = QApplication.palette()
        ink = palette.color(QPalette.ColorGroup.Active if is_enabled else QPalette.ColorGroup.Disabled, INK.Text)
        # The faint colour has too little contrast on a selected row.
        faint = palette.color(INK.Text if is_selected else INK.PlaceholderText)
        row = option.rect.adjusted(self.inset, 0, -self.inset, 0)
        height = scaled(TITLE_HEIGHT) + (scaled(SUBTITLE_HEIGHT) if subtitle else 0)
        line = QRect(row.left(), row.center().y() - height // 2 + 1, row.width(), scaled(TITLE_HEIGHT))

        painter.save()
        painter.setFont(item.font)
        room = line.width() - (painter.fontMetrics().horizontalAdvance(note) + GAP if note else 0)
        if badge:
            room -= _badge_width(badge, item.font) + GAP
            font = QFont(item.font)
            font.setWeight(QFont.Weight.Medium)
            painter.setFont(font)
        shown = painter.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, room)
        painter.setPen(ink)
        painter.drawText(line, LEFT, shown)
        if badge:
            left = line.left() + painter.fontMetrics().horizontalAdvance(shown) + GAP
            _draw_badge(painter, left, line.center().y(), badge, is_selected)
        painter.setPen(faint)
        painter.setFont(item.font)
        painter.drawText(line, RIGHT, note)
        if subtitle:
            small = QFont(item.font)
            small.setPixelSize(scaled(SMALL_PX))
            painter.setFont(small)
            below = QRect(line.left(), line.bottom() + 1, line.width(), scaled(SUBTITLE_HEIGHT))
            text = painter.fontMetrics().elidedText(subtitle, Qt.TextElideMode.ElideMiddle, below.width())
            painter.drawText(below, LEFT, text)
        painter.restore()


def _badge_font(font: QFont) -> QFont:
    small = QFont(font)
    small.setPixelSize(scaled(BADGE_PX))
    small.setWeight(QFont.Weight.Medium)
    return small


def _badge_width(text: str, font: QFont) -> int:
    return QFontMetrics(_badge_font(font)).horizontalAdvance(text) + 2 * BADGE_PADDING


def _draw_badge(painter: QPainter, left: int, middle: int, text: str, is_selected: bool) -> None:
    palette = QApplication.palette()
    ink = {"Damaged": INK.BrightText, "Base": INK.PlaceholderText}.get(text, INK.Link)
    height = scaled(BADGE_HEIGHT)
    place = QRectF(left, middle - height / 2 + 1, _badge_width(text, painter.font()), height)
    painter.setFont(_badge_font(painter.font()))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(palette.color(INK.Base if is_selected else INK.AlternateBase))
    painter.drawRoundedRect(place, BADGE_RADIUS, BADGE_RADIUS)
    painter.setPen(palette.color(ink))
    painter.drawText(place, Qt.AlignmentFlag.AlignCenter, text)
