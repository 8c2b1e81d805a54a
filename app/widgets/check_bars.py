"""How often each first token came, beside how often it should have: a pair of bars a token."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme import LIGHT, Theme, mono_font, scaled, ui_font
from core.check.types import FirstTokens, TokenCount

_ROW, _BAR = 26, 7
_TEXT_WIDTH, _FIGURE_WIDTH, _GAP = 110, 150, 10
_NUM_ROWS = 9
OTHERS = "all others"
LEAST_EXPECTED = 0.05
"""What would be written as 0.0."""


def is_worth_a_row(item: TokenCount) -> bool:
    """Whether more than nothing was expected of a token, or drawn."""
    return bool(item.observed) or item.expected >= LEAST_EXPECTED


class CheckBars(QWidget):
    """The target's expectation as an outline, what came as a filled bar under it."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("checkBars")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._theme = LIGHT
        self._counts: tuple[TokenCount, ...] = ()
        self.show_tokens(None)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.updateGeometry()
        self.update()

    def show_tokens(self, found: FirstTokens | None) -> None:
        """Show the first tokens after a prompt; None: nothing yet."""
        self._counts = tuple(filter(is_worth_a_row, found.counts)) if found is not None else ()
        self.setAccessibleName(f"First tokens after {found.prompt}" if found else "First tokens: nothing yet")
        self.setAccessibleDescription("; ".join(map(spoken, self._counts)))
        self.setToolTip("Outlined: expected of the target. Filled: observed." if found else "")
        self.update()

    def sizeHint(self) -> QSize:
        """A row for each token that there may be, so that nothing moves when they come."""
        return QSize(420, _NUM_ROWS * scaled(_ROW))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw a row a token."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        most = max((max(item.observed, item.expected) for item in self._counts), default=1.0) or 1.0
        left, right = scaled(_TEXT_WIDTH), self.width() - scaled(_FIGURE_WIDTH)
        for index, item in enumerate(self._counts[:_NUM_ROWS]):
            row = QRectF(0, index * scaled(_ROW), self.width(), scaled(_ROW))
            self._draw_words(painter, row, item)
            room = max(right - left - scaled(_GAP), 1)
            self._draw_bars(painter, row, item, left, room / most)
        painter.end()

    def _draw_words(self, painter: QPainter, row: QRectF, item: TokenCount) -> None:
        vertical = Qt.AlignmentFlag.AlignVCenter
        font = mono_font() if item.text else ui_font(12)
        painter.setFont(font)
        painter.setPen(QColor(self._theme.text if item.text else self._theme.muted))
        width = scaled(_TEXT_WIDTH - _GAP)
        shown = QFontMetrics(font).elidedText(shown_text(item), Qt.TextElideMode.ElideRight, width)
        painter.drawText(QRectF(0, row.top(), width, row.height()), vertical | Qt.AlignmentFlag.AlignLeft, shown)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.muted))
        painter.drawText(
            row, vertical | Qt.AlignmentFlag.AlignRight, f"{item.observed:,}, expected {item.expected:,.1f}"
        )

    def _draw_bars(self, painter: QPainter, row: QRectF, item: TokenCount, left: float, scale: float) -> None:
        height, middle = scaled(_BAR), row.center().y()
        painter.setPen(QPen(QColor(self._theme.bonus), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(left + 0.5, middle - height + 0.5, max(item.expected * scale, 1), height - 2))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.draft_bar))
        painter.drawRect(QRectF(left, middle + 1, item.observed * scale + 1, height - 1))


def shown_text(item: TokenCount) -> str:
    """A token as it can be seen."""
    return repr(item.text)[1:-1].replace(" ", "·") if item.text else OTHERS


def spoken(item: TokenCount) -> str:
    """A row in words."""
    return f"{shown_text(item)}: {item.observed:,} observed, {item.expected:,.1f} expected"
