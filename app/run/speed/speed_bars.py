"""Bars of the Speed page: the parts of a time, and a speedup beside plain decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPen

from app.run.speed.speed import Gain, Part
from app.theme import current_theme, scaled, ui_font
from app.widgets.fields import describe
from app.widgets.painted import LEFT, RIGHT, PaintedWidget, draw_box, draw_text

BAR_HEIGHT, GAIN_HEIGHT = 18, 8
RADIUS = 3
GAP = 2


class ReportBar(PaintedWidget):
    """A title and a value, and a bar of a given height below, in pixels."""

    def __init__(self, object_name: str, height: int) -> None:
        super().__init__(object_name)
        self._height = height
        self._title = self._value = ""
        self._is_strong = True

    def sizeHint(self) -> QSize:
        """A line of text and the bar."""
        return QSize(200, self._line_height() + 4 + scaled(self._height))

    def _place(self, left: float, width: float) -> QRectF:
        return QRectF(left, self._line_height() + 3, width, scaled(self._height))

    def _paint(self, painter: QPainter) -> None:
        theme, line = current_theme(), QRectF(0, 0, self.width(), self._line_height())
        draw_text(painter, line, self._value, theme.text, RIGHT)
        line.setWidth(line.width() - painter.fontMetrics().horizontalAdvance(self._value) - 8)
        color = theme.text if self._is_strong else theme.muted
        draw_text(painter, line, self._title, color, LEFT, elided=Qt.TextElideMode.ElideRight)

    @staticmethod
    def _line_height() -> int:
        return QFontMetrics(ui_font(12)).height()


class TimeBar(ReportBar):
    """A time in parts. Bars with the same `full_ms` can be compared."""

    def __init__(self, object_name: str) -> None:
        super().__init__(object_name, BAR_HEIGHT)
        self._full_ms = 1.0
        self._parts: tuple[Part, ...] = ()

    def show_parts(self, title: str, parts: Sequence[Part], full_ms: float) -> None:
        """Show a time, on a scale that ends at `full_ms`."""
        self._title, self._parts, self._full_ms = title, tuple(parts), max(full_ms, 1e-9)
        self._value = f"{sum(part.milliseconds for part in parts):.2f} ms"
        self.setAccessibleName(f"{title}: {self._value}")
        self.setAccessibleDescription(", ".join(f"{part.title} {part.milliseconds:.2f} ms" for part in parts))
        self.update()

    def parts(self) -> list[tuple[Part, QRectF]]:
        """Each part and its rectangle."""
        found, left = [], 0.0
        for part in self._parts:
            width = self.width() * part.milliseconds / self._full_ms
            found.append((part, self._place(left, width)))
            left += width
        return found

    def tip_at(self, point: QPointF) -> str:
        """The part at a point, in a sentence; empty beside the bar."""
        found = next((part for part, place in self.parts() if place.contains(point)), None)
        return f"{found.title}: {found.milliseconds:.2f} ms. {found.how}" if found is not None else ""

    def _paint(self, painter: QPainter) -> None:
        super()._paint(painter)
        for part, place in self.parts():
            if place.width() < 0.5:
                continue
            color = QColor(getattr(current_theme(), part.token))
            # An extra part is hatched, so that colour is not the only cue.
            painter.setPen(QPen(color, 1) if part.is_extra else Qt.PenStyle.NoPen)
            painter.setBrush(QBrush(color, Qt.BrushStyle.BDiagPattern) if part.is_extra else color)
            inset, gap = 0.5 * part.is_extra, min(GAP, place.width() / 2)
            painter.drawRoundedRect(place.adjusted(inset, inset, -inset - gap, -inset), RADIUS, RADIUS)


class GainBar(ReportBar):
    """A speedup, with a mark at plain decoding."""

    def __init__(self) -> None:
        super().__init__("gainBar", GAIN_HEIGHT)
        self._gain = Gain("", 0.0, False, "")
        self._ran, self._full = 0.0, 1.0

    def show_gain(self, gain: Gain, ran: float, full: float) -> None:
        """Show a speedup on a scale that ends at `full`, with another colour beyond the measured one, `ran`."""
        self._gain, self._ran, self._full = gain, ran, full
        self._title, self._is_strong = gain.title, gain.is_main
        self._value = f"{gain.speedup:.2f}×" if math.isfinite(gain.speedup) else "–"
        describe(self, f"{gain.title}: {self._value}", gain.how)
        self.update()

    def _paint(self, painter: QPainter) -> None:
        super()._paint(painter)
        theme, width = current_theme(), self.width()
        reached, ran, plain = (width * min(1.0, speedup / self._full) for speedup in (self._gain.speedup, self._ran, 1))
        more = QColor(theme.accent)
        more.setAlphaF(1.0 if self._is_strong else 0.45)
        for length, color in ((width, theme.track), (reached, more), (min(ran, reached), theme.muted)):
            draw_box(painter, self._place(0, length), RADIUS, fill=QColor(color))
        pen = QPen(QColor(theme.text), 2)
        pen.setDashPattern([1.5, 1])
        painter.setPen(pen)
        bar = self._place(0, width)
        painter.drawLine(QPointF(round(plain), bar.top() - 2), QPointF(round(plain), bar.bottom() + 2))
