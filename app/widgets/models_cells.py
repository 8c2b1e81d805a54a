"""The cell that names a model: its title, a badge, and beneath them where it comes from."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPalette
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.theme import scaled

BADGE_ROLE = Qt.ItemDataRole.UserRole + 20
SUBTITLE_ROLE = Qt.ItemDataRole.UserRole + 21
INSET, GAP = 10, 8
TITLE_HEIGHT, SUBTITLE_HEIGHT = 20, 16
BADGE_HEIGHT, BADGE_PADDING, BADGE_RADIUS = 16, 6, 4
SMALL_PX, TINY_PX = 12, 11


class NameDelegate(QStyledItemDelegate):
    """Draws title, badge and subtitle."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        """Draw the ground as the style does, and the texts upon it."""
        item = QStyleOptionViewItem(option)
        self.initStyleOption(item, index)
        title, item.text = item.text, ""
        style = item.widget.style() if item.widget is not None else QApplication.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, item, painter, item.widget)
        top = option.rect.center().y() - scaled(TITLE_HEIGHT + SUBTITLE_HEIGHT) // 2 + 1
        width = option.rect.width() - 2 * INSET
        line = QRect(option.rect.left() + INSET, top, width, scaled(TITLE_HEIGHT))
        below = QRect(line.left(), line.bottom() + 1, width, scaled(SUBTITLE_HEIGHT))
        is_selected = bool(option.state & QStyle.StateFlag.State_Selected)
        painter.save()
        badge = str(index.data(BADGE_ROLE) or "")
        font = QFont(item.font)
        font.setWeight(QFont.Weight.Medium)
        painter.setFont(font)
        room = width - (_badge_width(badge, item.font) + GAP if badge else 0)
        shown = painter.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, room)
        painter.setPen(option.palette.color(QPalette.ColorRole.Text))
        painter.drawText(line, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)
        if badge:
            left = line.left() + painter.fontMetrics().horizontalAdvance(shown) + GAP
            _draw_badge(painter, left, line.center().y(), badge, QApplication.palette(), is_selected)
        small = QFont(item.font)
        small.setPixelSize(scaled(SMALL_PX))
        painter.setFont(small)
        # The faint ink of a subtitle would be too faint on a selected row.
        ink = QPalette.ColorRole.Text if is_selected else QPalette.ColorRole.PlaceholderText
        painter.setPen(QApplication.palette().color(ink))
        text = painter.fontMetrics().elidedText(str(index.data(SUBTITLE_ROLE)), Qt.TextElideMode.ElideMiddle, width)
        painter.drawText(below, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, text)
        painter.restore()


def _badge_font(font: QFont) -> QFont:
    tiny = QFont(font)
    tiny.setPixelSize(scaled(TINY_PX))
    tiny.setWeight(QFont.Weight.Medium)
    return tiny


def _badge_width(text: str, font: QFont) -> int:
    return QFontMetrics(_badge_font(font)).horizontalAdvance(text) + 2 * BADGE_PADDING


def _draw_badge(painter: QPainter, left: int, middle: int, text: str, palette: QPalette, is_selected: bool) -> None:
    painter.setFont(_badge_font(painter.font()))
    width = painter.fontMetrics().horizontalAdvance(text) + 2 * BADGE_PADDING
    place = QRectF(left, middle - scaled(BADGE_HEIGHT) / 2 + 1, width, scaled(BADGE_HEIGHT))
    ground, ink = _badge_colors(text, palette)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(palette.color(QPalette.ColorRole.Base) if is_selected else ground)
    painter.drawRoundedRect(place, BADGE_RADIUS, BADGE_RADIUS)
    painter.setPen(ink)
    painter.drawText(place, Qt.AlignmentFlag.AlignCenter, text)


def _badge_colors(text: str, palette: QPalette) -> tuple[QColor, QColor]:
    role = QPalette.ColorRole
    if text == "Damaged":
        return palette.color(role.AlternateBase), palette.color(role.BrightText)
    if text == "Base":
        return palette.color(role.AlternateBase), palette.color(role.PlaceholderText)
    return palette.color(role.AlternateBase), palette.color(role.Link)
