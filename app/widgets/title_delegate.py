"""Draws an item of a list or table on two lines: a title with a badge and a note, and a subtitle below it."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from app.theme import current_theme, scaled, ui_font
from app.widgets.painted import CENTRE, LEFT, RIGHT, draw_box, draw_text

BADGE_ROLE = Qt.ItemDataRole.UserRole + 20
"""A short text on a pill after the title."""
NOTE_ROLE = Qt.ItemDataRole.UserRole + 21
"""A short text at the right end of the title's line."""
SUBTITLE_ROLE = Qt.ItemDataRole.UserRole + 22
BETWEEN = " · "
"""Separates the parts of a subtitle."""
GAP, TITLE_HEIGHT, SUBTITLE_HEIGHT = 8, 20, 16
BADGE_HEIGHT, BADGE_PADDING, BADGE_RADIUS = 16, 6, 4
FONT_PX, SMALL_PX, BADGE_PX = 13, 12, 11
MEDIUM = QFont.Weight.Medium
Index = QModelIndex | QPersistentModelIndex


class TitleDelegate(QStyledItemDelegate):
    """Texts that don't fit are shortened with an ellipsis."""

    inset = 10
    elided = Qt.TextElideMode.ElideMiddle
    """Where a subtitle is cut: paths may differ at either end. At the right, its last parts are left out first."""

    def subtitle(self, index: Index, _view: QWidget | None) -> str:
        """The second line of an item in a view; empty: none."""
        return str(index.data(SUBTITLE_ROLE) or "")

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw the style's background, and the texts over it."""
        item = QStyleOptionViewItem(option)
        self.initStyleOption(item, index)
        title, item.text = item.text, ""
        style = item.widget.style() if item.widget is not None else QApplication.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, item, painter, item.widget)
        badge, note = (str(index.data(role) or "") for role in (BADGE_ROLE, NOTE_ROLE))
        subtitle = self.subtitle(index, item.widget)
        is_selected = bool(option.state & QStyle.StateFlag.State_Selected)
        theme = current_theme()
        ink = theme.text if index.flags() & Qt.ItemFlag.ItemIsEnabled else theme.faint
        # The faint colour has too little contrast on a selected row.
        faint = theme.text if is_selected else theme.faint
        row = QRectF(option.rect.adjusted(self.inset, 0, -self.inset, 0))
        height = scaled(TITLE_HEIGHT) + (scaled(SUBTITLE_HEIGHT) if subtitle else 0)
        line = QRectF(row.left(), row.center().y() - height / 2 + 1, row.width(), scaled(TITLE_HEIGHT))
        painter.save()
        note_width = QFontMetrics(ui_font(FONT_PX)).horizontalAdvance(note) + GAP if note else 0
        badge_font = ui_font(BADGE_PX, weight=MEDIUM)
        badge_width = QFontMetrics(badge_font).horizontalAdvance(badge) + 2 * BADGE_PADDING if badge else 0
        painter.setFont(ui_font(FONT_PX, weight=MEDIUM if badge else QFont.Weight.Normal))
        painter.setPen(QColor(ink))
        metrics, room = painter.fontMetrics(), line.width() - note_width - (badge_width + GAP if badge else 0)
        shown = metrics.elidedText(title, Qt.TextElideMode.ElideRight, int(room))
        painter.drawText(line, LEFT, shown)
        if badge:
            left, tall = line.left() + metrics.horizontalAdvance(shown) + GAP, scaled(BADGE_HEIGHT)
            place = QRectF(left, line.center().y() - tall / 2 + 1, badge_width, tall)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            draw_box(painter, place, BADGE_RADIUS, fill=QColor(theme.field if is_selected else theme.hover))
            painter.setFont(badge_font)
            painter.setPen(QColor({"Damaged": theme.danger, "Base": theme.faint}.get(badge, theme.accent)))
            painter.drawText(place, CENTRE, badge)
        draw_text(painter, line, note, faint, RIGHT, pixels=FONT_PX)
        below = QRectF(line.left(), line.bottom(), line.width(), scaled(SUBTITLE_HEIGHT))
        if self.elided is Qt.TextElideMode.ElideRight:
            subtitle = first_parts(subtitle, below.width(), QFontMetrics(ui_font(SMALL_PX)))
        draw_text(painter, below, subtitle, faint, LEFT, pixels=SMALL_PX, elided=self.elided)
        painter.restore()


def first_parts(subtitle: str, room: float, metrics: QFontMetrics) -> str:
    """The first part of a subtitle, and of the others those that fit whole, in their order."""
    shown, *others = subtitle.split(BETWEEN)
    for part in others:
        longer = f"{shown}{BETWEEN}{part}"
        if metrics.horizontalAdvance(longer) <= room:
            shown = longer
    return shown
