"""Probability laws side by side: a row a token, a column of bars a law, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.theme import LIGHT, Theme, mono_font, scaled, ui_font
from app.view_models.laws import Share, number, percent
from app.widgets.inspector_chips import draw_text, format_of

HEADER_PX = 24
ROW_PX = 20
GAP_PX = 10
NUMBER_PX = 44
LEAST_BAR_PX = 1.5
"""A bar of something that is not 0 can be seen."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    token: str
    values: tuple[float | None, ...]


class DistributionBars(QWidget):
    """Draws `Share`s. Bars of all columns have one scale, so that lengths compare across them."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("distributionBars")
        self.setAccessibleName("Probabilities at this place")
        self._shares: tuple[Share, ...] = ()
        self._columns: tuple[_Column, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.set_theme(LIGHT)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        # Text may be larger since the last time.
        self._header, self._row, self._number = scaled(HEADER_PX), scaled(ROW_PX), scaled(NUMBER_PX)
        self.updateGeometry()
        self.update()

    def show_shares(self, shares: Sequence[Share]) -> None:
        """Show these rows."""
        self._shares = tuple(shares)
        columns = (
            _Column("draft q", "draft_bar", tuple(share.draft for share in shares)),
            _Column("target p", "target_bar", tuple(share.target for share in shares)),
            _Column("residual", "sample_bar", tuple(share.residual for share in shares)),
        )
        self._columns = tuple(column for column in columns if any(value is not None for value in column.values))
        self.setAccessibleDescription("; ".join(_in_words(share) for share in shares))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """As high as its rows."""
        return QSize(280, self._header + self._row * len(self._shares) + 2)

    def minimumSizeHint(self) -> QSize:
        """Rows are never cut."""
        return QSize(200, self.sizeHint().height())

    def row_at(self, y: float) -> int | None:
        """The row at a height."""
        row = int((y - self._header) // self._row)
        return row if y >= self._header and row < len(self._shares) else None

    def event(self, event: QEvent) -> bool:
        """A row's tooltip has its figures in full."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            row = self.row_at(event.pos().y())
            text = "" if row is None else f"<span>{escape(_in_words(self._shares[row]))}</span>"
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def _text_width(self) -> float:
        return min(scaled(180), max(scaled(72), 0.26 * self.width()))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the columns' names, then the rows."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        first = self._text_width() + GAP_PX
        count = max(1, len(self._columns))
        width = (self.width() - first - GAP_PX * (count - 1)) / count
        most = max((value or 0.0 for column in self._columns for value in column.values), default=0.0) or 1.0
        self._paint_texts(painter)
        for index, column in enumerate(self._columns):
            self._paint_column(painter, column, first + index * (width + GAP_PX), width, most)
        painter.end()

    def _paint_texts(self, painter: QPainter) -> None:
        mono, plain = mono_font(12), ui_font(12)
        for row, share in enumerate(self._shares):
            top = self._header + row * self._row
            if share.fate is not None:
                painter.fillRect(QRectF(0, top, self.width(), self._row), QColor(self._theme.hover))
            font = plain if share.token is None else mono
            text = QFontMetrics(font).elidedText(share.text, Qt.TextElideMode.ElideRight, int(self._text_width()) - 4)
            draw_text(painter, text, font, 4, top + 2, format_of(self._theme, share.fate, is_sum=share.token is None))

    def _paint_column(self, painter: QPainter, column: _Column, left: float, width: float, most: float) -> None:
        small = ui_font(11)
        painter.setFont(small)
        painter.setPen(QColor(self._theme.muted))
        align = Qt.AlignmentFlag.AlignVCenter
        color = QColor(getattr(self._theme, column.token))
        painter.fillRect(QRectF(left, self._header / 2 - 5, 8, 8), color)
        painter.drawText(QRectF(left + 12, 0, width - 12, self._header - 2), align, column.title)
        room = max(8.0, width - self._number)
        for row, value in enumerate(column.values):
            if value is None:
                continue
            top = self._header + row * self._row
            length = room * value / most
            if value > 0:
                painter.fillRect(QRectF(left, top + 5, max(LEAST_BAR_PX, length), self._row - 10), color)
            painter.setPen(QColor(self._theme.text if value > 0 else self._theme.faint))
            place = QRectF(left + max(LEAST_BAR_PX, length) + 4, top, self._number, self._row)
            painter.drawText(place, align, percent(value))


def _in_words(share: Share) -> str:
    name = share.text if share.token is None else f"“{share.text}” (id {share.token})"
    parts = [f"target {number(share.target)}"]
    if share.draft is not None:
        parts.append(f"draft {number(share.draft)}")
    if share.residual is not None:
        parts.append(f"residual {number(share.residual)}")
    fate = f", {share.fate.value} here" if share.fate is not None else ""
    return f"{name}{fate}: {', '.join(parts)}"
