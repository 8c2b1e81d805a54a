"""The block that a token came from: a chip for each token, with its fate in words, to be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QHelpEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCharFormat,
    QTextLayout,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.theme import LIGHT, Theme, mono_font, scaled, ui_font
from app.view_models.inspection import Chip
from app.view_models.places import Fate
from core.types import TokenKind

CHIP_PX = 40
GAP_PX = 5
PADDING_PX = 6
MOST_TEXT_PX = 120

KINDS = {Fate.ACCEPTED: TokenKind.ACCEPTED, Fate.RESAMPLED: TokenKind.CORRECTION, Fate.BONUS: TokenKind.BONUS}

HELP = {
    Fate.ACCEPTED: "Drafted, tested and kept.",
    Fate.REJECTED: "Drafted, tested and turned down.",
    Fate.DISCARDED: "Drafted behind the rejected token: never tested.",
    Fate.RESAMPLED: "The target's own, in place of the rejected token.",
    Fate.BONUS: "The target's own, behind a block that was accepted in full, or where nothing was drafted.",
}


def format_of(theme: Theme, fate: Fate | None, *, is_sum: bool = False) -> QTextCharFormat:
    """The text format of a token of this fate, as the transcript has it."""
    if fate in KINDS:
        return theme.token_format(KINDS[fate])
    if fate is not None:
        return theme.ghost_format()
    text_format = QTextCharFormat()
    text_format.setForeground(QColor(theme.muted if is_sum else theme.text))
    return text_format


def draw_text(painter: QPainter, text: str, font: QFont, x: float, y: float, text_format: QTextCharFormat) -> None:
    """Draw a line of text in a format, line style included."""
    layout = QTextLayout(text, font)
    span = QTextLayout.FormatRange()
    span.start, span.length, span.format = 0, len(text.encode("utf-16-le", "surrogatepass")) // 2, text_format
    layout.setFormats([span])
    layout.beginLayout()
    layout.createLine()
    layout.endLayout()
    layout.draw(painter, QPointF(x, y))


class BlockRow(QWidget):
    """Draws `Chip`s, in as many lines as they take.

    Signals:
        chosen: the slot of the chip that was clicked.
    """

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("inspectorBlock")
        self.setAccessibleName("Drafted block")
        self.setMouseTracking(True)
        self._theme = LIGHT
        self._chips: tuple[Chip, ...] = ()
        self._boxes: list[QRectF] = []
        self._hovered: int | None = None
        self._has_focus = False
        self._make_fonts()
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self._make_fonts()
        self.show_chips(self._chips)

    def _make_fonts(self) -> None:
        # Text may be larger since the last time.
        self._mono, self._small = mono_font(12), ui_font(11)
        self._height = scaled(CHIP_PX)

    def show_chips(self, chips: Sequence[Chip]) -> None:
        """Show these tokens."""
        self._chips = tuple(chips)
        self._hovered = None
        self._boxes = self._lay_out(self.width())
        words = ", ".join(f"“{chip.text}” {chip.fate.value}{' (shown)' * chip.is_current}" for chip in chips)
        self.setAccessibleDescription(words)
        self.updateGeometry()
        self.update()

    def set_focus_shown(self, shown: bool) -> None:
        """Fill the chip that the keys move on from."""
        self._has_focus = shown
        self.update()

    def chip_at(self, point: QPointF) -> int | None:
        """The index of the chip under a point."""
        return next((index for index, box in enumerate(self._boxes) if box.contains(point)), None)

    def box_of(self, index: int) -> QRectF:
        """Where a chip stands."""
        return self._boxes[index]

    # --- Layout ---

    def hasHeightForWidth(self) -> bool:
        """Chips wrap."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The height of all lines."""
        boxes = self._lay_out(width)
        return int(boxes[-1].bottom()) + 2 if boxes else self._height + 2

    def sizeHint(self) -> QSize:
        """As it is now."""
        return QSize(280, self.heightForWidth(max(self.width(), 200)))

    def minimumSizeHint(self) -> QSize:
        """One chip a line, at worst."""
        return QSize(MOST_TEXT_PX + 2 * PADDING_PX, self.heightForWidth(max(self.width(), 200)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew, and ask for the height of the lines that there are now."""
        super().resizeEvent(event)
        self._boxes = self._lay_out(self.width())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def _lay_out(self, width: int) -> list[QRectF]:
        boxes, x, y = [], 1.0, 1.0
        for chip in self._chips:
            wide = self._width_of(chip)
            if x > 1 and x + wide > width - 1:
                x, y = 1.0, y + self._height + GAP_PX
            boxes.append(QRectF(x, y, wide, self._height))
            x += wide + GAP_PX
        return boxes

    def _width_of(self, chip: Chip) -> float:
        text = min(scaled(MOST_TEXT_PX), QFontMetrics(self._mono).horizontalAdvance(chip.text))
        return max(text, QFontMetrics(self._small).horizontalAdvance(chip.fate.value)) + 2 * PADDING_PX + 2

    # --- Events ---

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the chips."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for index, (chip, box) in enumerate(zip(self._chips, self._boxes, strict=True)):
            self._paint_chip(painter, chip, box, is_hovered=index == self._hovered)
        painter.end()

    def _paint_chip(self, painter: QPainter, chip: Chip, box: QRectF, *, is_hovered: bool) -> None:
        theme = self._theme
        painter.setPen(QPen(QColor(theme.accent), 2) if chip.is_current else QPen(QColor(theme.field_border), 1))
        is_filled = is_hovered or (chip.is_current and self._has_focus)
        painter.setBrush(QColor(theme.hover if is_filled else theme.surface))
        painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        room = int(box.width() - 2 * PADDING_PX)
        text = QFontMetrics(self._mono).elidedText(chip.text, Qt.TextElideMode.ElideRight, room + 1)
        draw_text(painter, text, self._mono, box.left() + PADDING_PX, box.top() + 3, format_of(theme, chip.fate))
        painter.setFont(self._small)
        painter.setPen(QColor(theme.kind(KINDS[chip.fate]).color if chip.fate in KINDS else theme.muted))
        below = QRectF(box.left() + PADDING_PX, box.top() + scaled(20), room + 2, scaled(17))
        painter.drawText(below, Qt.AlignmentFlag.AlignVCenter, chip.fate.value)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Show that a chip can be clicked."""
        self._hover(self.chip_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        """Nothing is hovered any more."""
        super().leaveEvent(event)
        self._hover(None)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose a chip."""
        index = self.chip_at(event.position())
        if event.button() is Qt.MouseButton.LeftButton and index is not None:
            self.chosen.emit(self._chips[index].slot)
        event.ignore()  # The panel takes the focus.

    def event(self, event: QEvent) -> bool:
        """A chip's tooltip says what its fate means."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            index = self.chip_at(QPointF(event.pos()))
            chip = None if index is None else self._chips[index]
            text = "" if chip is None else f"<span>“{escape(chip.text)}”, {chip.fate.value}. {HELP[chip.fate]}</span>"
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def _hover(self, index: int | None) -> None:
        if index != self._hovered:
            self._hovered = index
            self.setCursor(Qt.CursorShape.ArrowCursor if index is None else Qt.CursorShape.PointingHandCursor)
            self.update()
