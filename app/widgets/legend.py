"""The legend of a plot: each series' mark beside its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme import current_theme, ui_font
from app.widgets.fields import plain_tip
from app.widgets.painted import LEFT, PaintedWidget, draw_box, draw_text


class Mark(StrEnum):
    """How a series is drawn."""

    BAR = "bar"
    LINE = "line"
    BAND = "band"
    REGION = "region"
    DOT = "dot"
    DIAMOND = "diamond"
    HOLLOW = "hollow"
    HATCHED = "hatched"


W = TypeVar("W", bound=QWidget)
GAP = 10
LINE_WIDTH = 2

SHAPES = (Mark.BAR, Mark.REGION, Mark.DOT, Mark.DIAMOND, Mark.HOLLOW, Mark.HATCHED)
"""Areas, while the others are lines."""


def band_color(color: QColor) -> QColor:
    """The fill of the band around a line."""
    band = QColor(color)
    band.setAlpha(48)
    return band


class SeriesSample(PaintedWidget):
    """The mark of a series, in a colour of the theme, with its name. A dashed line has its dashes, in line widths."""

    def __init__(self, text: str, mark: Mark, token: str, tooltip: str, dashes: Sequence[float] = ()) -> None:
        super().__init__("")
        self._mark, self._token, self._dashes = mark, token, dashes
        # Room for all dashes, and for the first one to begin again.
        self._mark_width = 10 if mark in SHAPES else max(18, round(LINE_WIDTH * (sum(dashes) + 3)) + 2)
        self.set_meaning(text, tooltip)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def set_meaning(self, text: str, tooltip: str) -> None:
        """Set the text and tooltip that say what the series is."""
        self._text = text
        self.setToolTip(plain_tip(tooltip))
        self.setAccessibleName(f"{text}: {tooltip}")
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Room for the mark and the name."""
        metrics = QFontMetrics(ui_font(12))
        return QSize(self._mark_width + 6 + metrics.horizontalAdvance(self._text) + 2, metrics.height() + 4)

    def _paint(self, painter: QPainter) -> None:
        self.draw(painter, self.size())

    def draw(self, painter: QPainter, size: QSize) -> None:
        """Draw mark and name at a painter's origin, on screen or into a file."""
        middle, width = size.height() / 2, self._mark_width
        color = QColor(getattr(current_theme(), self._token))
        if self._mark in SHAPES:
            self._draw_shape(painter, middle, color)
        else:
            pen = QPen(color, LINE_WIDTH)
            if self._mark is Mark.BAND:
                painter.fillRect(QRectF(0, middle - 5, width, 10), band_color(color))
            if self._dashes:
                pen.setDashPattern(self._dashes)
            painter.setPen(pen)
            painter.drawLine(QPointF(1, middle), QPointF(width - 1, middle))
        draw_text(painter, QRectF(width + 6, 0, size.width(), size.height()), self._text, current_theme().muted, LEFT)

    def _draw_shape(self, painter: QPainter, middle: float, color: QColor) -> None:
        square = QRectF(1, middle - 4, 8, 8)
        if self._mark is Mark.HOLLOW:
            draw_box(painter, square, line=QPen(color, 1.5))
        elif self._mark is Mark.HATCHED:
            hatched = QBrush(color, Qt.BrushStyle.BDiagPattern)
            draw_box(painter, square.adjusted(-0.5, -0.5, 0.5, 0.5), 2, fill=hatched, line=color)
        elif self._mark is Mark.REGION:
            draw_box(painter, square, fill=band_color(color))
            painter.setPen(color)
            for edge in (square.left(), square.right()):
                painter.drawLine(QPointF(edge, square.top()), QPointF(edge, square.bottom()))
        elif self._mark is Mark.BAR:
            draw_box(painter, square.adjusted(-1, -1, 1, 1), 2, fill=color)
        elif self._mark is Mark.DOT:
            draw_box(painter, square, 4, fill=color)
        else:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(color)
            corners = (QPointF(5, middle - 5), QPointF(9, middle), QPointF(5, middle + 5), QPointF(1, middle))
            painter.drawPolygon(corners)


def flow(samples: Iterable[W], width: int, gap: int, down: int = 0) -> Iterator[tuple[W, QRect]]:
    """The samples that are shown, each with its place, on as many lines as the width needs; gaps in pixels."""
    x = y = height = 0
    for sample in samples:
        # One of a saved plot alone has no window, and counts as hidden though nothing has hidden it.
        if sample.isHidden() and sample.testAttribute(Qt.WidgetAttribute.WA_WState_ExplicitShowHide):
            continue
        size = sample.sizeHint()
        if x and x + size.width() > width:
            x, y, height = 0, y + height + down, 0
        yield sample, QRect(QPoint(x, y), size)
        x, height = x + size.width() + gap, max(height, size.height())


class Legend(QWidget):
    """Samples, on as many lines as their width needs."""

    def __init__(self, samples: Iterable[QWidget], *, gap: int = GAP) -> None:
        """`gap`: pixels between two samples."""
        super().__init__()
        self._samples, self._gap = list(samples), gap
        for sample in self._samples:
            sample.setParent(self)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def event(self, event: QEvent) -> bool:
        """Place the samples anew when the width changes, or one is hidden, shown or renamed."""
        if event.type() in {QEvent.Type.Resize, QEvent.Type.LayoutRequest, QEvent.Type.Show}:
            self._place()
        return super().event(event)

    def width_on_one_line(self) -> int:
        """The width that all samples shown take beside each other."""
        return sum(sample.sizeHint().width() + self._gap for sample in self._samples if not sample.isHidden())

    def _place(self) -> None:
        height = 0
        for sample, place in flow(self._samples, self.width(), self._gap):
            sample.setGeometry(place)
            height = place.y() + place.height()
        self.setFixedHeight(height)
