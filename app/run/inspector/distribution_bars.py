"""The probabilities at a position as bars: a row for each token, a column for each distribution."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize
from PySide6.QtGui import QColor, QPainter

from app.run.inspector.shares import Share, percent, share_text
from app.run.text.token_colors import draw_token, text_format, token_format
from app.theme import current_theme, mixed, mono_font, scaled, ui_font
from app.widgets.painted import LEFT, RIGHT, PaintedWidget, draw_text

HEADER_PX, ROW_PX, COLUMN_GAP_PX = 24, 20, 10
PALE = 0.45
"""Share of its colour in a bar, to keep the number readable."""
LEAST_BAR_PX = 1.5
"""A bar above 0 stays visible."""
COLUMNS = (
    ("draft q", "draft_bar", "draft"),
    ("target p", "target_bar", "target"),
    ("residual", "sample_bar", "residual"),
)


class DistributionBars(PaintedWidget):
    """Draws `Share`s. All columns share one scale, so that lengths can be compared."""

    def __init__(self) -> None:
        super().__init__("distributionBars", "Probabilities at this position")
        self._shares: tuple[Share, ...] = ()

    def show_shares(self, shares: Sequence[Share]) -> None:
        """Show these rows."""
        self._shares = tuple(shares)
        self.setAccessibleDescription("; ".join(map(share_text, shares)))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """The height of its rows."""
        return QSize(280, scaled(HEADER_PX) + scaled(ROW_PX) * len(self._shares) + 2)

    def minimumSizeHint(self) -> QSize:
        """Rows are never cut."""
        return QSize(200, self.sizeHint().height())

    def tip_at(self, point: QPointF) -> str:
        """A row's probabilities in full."""
        index = int((point.y() - scaled(HEADER_PX)) // scaled(ROW_PX))
        return share_text(self._shares[index]) if 0 <= index < len(self._shares) else ""

    def _paint(self, painter: QPainter) -> None:
        theme, header, height = current_theme(), scaled(HEADER_PX), scaled(ROW_PX)
        text_width = min(scaled(180), max(scaled(72), 0.26 * self.width()))
        for index, share in enumerate(self._shares):
            top = header + index * height
            if share.fate is not None:
                painter.fillRect(QRectF(0, top, self.width(), height), QColor(theme.hover))
            font, color = (ui_font(12), theme.muted) if share.token is None else (mono_font(12), theme.text)
            chosen = text_format(color) if share.fate is None else token_format(share.fate, share.text)
            draw_token(painter, share.text, chosen, QRectF(4, top + 2, text_width - 4, height), font)
        shown = [(title, token, [getattr(share, field) for share in self._shares]) for title, token, field in COLUMNS]
        shown = [column for column in shown if any(value is not None for value in column[2])]
        most = max((value or 0.0 for *_, values in shown for value in values), default=0.0) or 1.0
        width = (self.width() - text_width) / max(1, len(shown)) - COLUMN_GAP_PX
        for index, (title, token, values) in enumerate(shown):
            head = QRectF(text_width + COLUMN_GAP_PX + index * (width + COLUMN_GAP_PX), 0, width, header)
            self._paint_column(painter, title, QColor(getattr(theme, token)), values, head, most)

    def _paint_column(
        self, painter: QPainter, title: str, color: QColor, values: list[float | None], head: QRectF, most: float
    ) -> None:
        """A head, bars and their numbers; `most` is the largest value of all columns."""
        theme, left = current_theme(), head.left()
        painter.fillRect(QRectF(left, head.height() / 2 - 5, 8, 8), color)
        draw_text(painter, head.adjusted(12, 0, 0, -2), title, theme.muted, LEFT, pixels=11)
        pale, height = mixed(theme.surface, color.name(), PALE), scaled(ROW_PX)
        for index, value in enumerate(values):
            if value is None:
                continue
            top, length = head.height() + index * height, max(LEAST_BAR_PX, head.width() * value / most)
            if value > 0:
                painter.fillRect(QRectF(left, top + 3, length, height - 6), pale)
            # The number is on the bar, so the bar can fill its column in a narrow panel.
            place = QRectF(left, top, head.width() - 4, height)
            draw_text(painter, place, percent(value), theme.text if value > 0 else theme.faint, RIGHT, pixels=11)
