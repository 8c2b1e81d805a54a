"""Legends that stand beside the data and never on it."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen, QTextCharFormat, QTextLayout
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme import Theme, mono_font, ui_font

BAND_ALPHA = 48


class FormatSample(QWidget):
    """A word in a token kind's own format, line style included, drawn as the transcript draws it."""

    def __init__(self, text: str, tooltip: str) -> None:
        super().__init__()
        self._text = text
        self._format = QTextCharFormat()
        self.set_meaning(tooltip)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def set_meaning(self, tooltip: str) -> None:
        """Say what the format stands for."""
        self.setToolTip(tooltip)
        self.setAccessibleName(f"{self._text}: {tooltip}")

    def set_format(self, text_format: QTextCharFormat) -> None:
        """Draw in this format."""
        self._format = text_format
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Room for the word and its line."""
        metrics = QFontMetrics(mono_font(12))
        return QSize(metrics.horizontalAdvance(self._text) + 2, metrics.height() + 4)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the word."""
        layout = QTextLayout(self._text, mono_font(12))
        span = QTextLayout.FormatRange()
        span.start, span.length, span.format = 0, len(self._text), self._format
        layout.setFormats([span])
        layout.beginLayout()
        layout.createLine()
        layout.endLayout()
        painter = QPainter(self)
        layout.draw(painter, QPointF(1, 1))
        painter.end()


class Mark(StrEnum):
    """How a series is drawn."""

    BAR = "bar"
    LINE = "line"
    DASHES = "dashes"
    BAND = "band"
    DOT = "dot"
    DIAMOND = "diamond"


SHAPES = (Mark.BAR, Mark.DOT, Mark.DIAMOND)
"""Filled, where the others are lines."""


def band_color(color: QColor) -> QColor:
    """The fill of the band around a line."""
    band = QColor(color)
    band.setAlpha(BAND_ALPHA)
    return band


class SeriesSample(QWidget):
    """A series' mark with its name."""

    def __init__(self, text: str, mark: Mark, token: str, tooltip: str) -> None:
        super().__init__()
        self._text, self._mark, self._token = text, mark, token
        self._color = QColor()
        self._ink = QColor()
        self.set_meaning(text, tooltip)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def set_meaning(self, text: str, tooltip: str) -> None:
        """Say what the series is."""
        self._text = text
        self.setToolTip(tooltip)
        self.setAccessibleName(f"{text}: {tooltip}")
        self.updateGeometry()
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._color = QColor(getattr(theme, self._token))
        self._ink = QColor(theme.muted)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Room for the mark and the name."""
        metrics = QFontMetrics(ui_font(12))
        return QSize(self._mark_width() + 6 + metrics.horizontalAdvance(self._text) + 2, metrics.height() + 4)

    def _mark_width(self) -> int:
        return 10 if self._mark in SHAPES else 18

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw mark and name."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.draw(painter, QSize(self.width(), self.height()))
        painter.end()

    def draw(self, painter: QPainter, size: QSize) -> None:
        """Draw mark and name at a painter's origin, on screen or into a file."""
        middle, width = size.height() / 2, self._mark_width()
        if self._mark in SHAPES:
            self._draw_shape(painter, middle)
        else:
            pen = QPen(self._color, 2)
            if self._mark is Mark.BAND:
                painter.fillRect(QRectF(0, middle - 5, width, 10), band_color(self._color))
            if self._mark is Mark.DASHES:
                pen.setDashPattern([2.5, 2])
            painter.setPen(pen)
            painter.drawLine(QPointF(1, middle), QPointF(width - 1, middle))
        painter.setFont(ui_font(12))
        painter.setPen(self._ink)
        painter.drawText(
            QRect(width + 6, 0, size.width(), size.height()),
            Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft,
            self._text,
        )

    def _draw_shape(self, painter: QPainter, middle: float) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._color)
        if self._mark is Mark.BAR:
            painter.drawRoundedRect(QRectF(0, middle - 5, 10, 10), 2, 2)
        elif self._mark is Mark.DOT:
            painter.drawEllipse(QPointF(5, middle), 4, 4)
        else:
            corners = (QPointF(5, middle - 5), QPointF(9, middle), QPointF(5, middle + 5), QPointF(1, middle))
            painter.drawPolygon(corners)
