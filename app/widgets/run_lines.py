"""How each of several runs is drawn: a colour, a line style and a marker, none of which two runs share."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QSizePolicy

from app.theme import LIGHT, Theme, scaled, ui_font
from app.widgets.legend import Mark, SeriesSample

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.8), (6, 2, 1.5, 2), (10, 3), (6, 2, 1.5, 2, 1.5, 2))
"""Each run's line style, in line widths; the first is solid."""
MARKERS = ("o", "s", "t", "d", "+", "x")
"""Each run's marker, by pyqtgraph's letters."""
SAMPLE_WIDTH = 30
MAX_NAME_WIDTH = 190


def run_color(theme: Theme, index: int) -> str:
    """The colour of a run's line."""
    return str(getattr(theme, f"run_{index + 1}"))


def run_pen(theme: Theme, index: int) -> QPen:
    """The pen of a run's line."""
    pen = QPen(QColor(run_color(theme, index)), 2)
    pen.setCosmetic(True)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    if DASHES[index]:
        pen.setDashPattern(list(DASHES[index]))
    return pen


def draw_sample(painter: QPainter, place: QRectF, theme: Theme, index: int) -> None:
    """Draw a piece of a run's line with its marker."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    middle = place.center()
    painter.setPen(run_pen(theme, index))
    painter.drawLine(QPointF(place.left(), middle.y()), QPointF(place.right(), middle.y()))
    color = QColor(run_color(theme, index))
    painter.setPen(QPen(color, 2))
    painter.setBrush(color)
    x, y, r = middle.x(), middle.y(), 3.5
    if MARKERS[index] == "o":
        painter.drawEllipse(middle, r, r)
    elif MARKERS[index] == "s":
        painter.drawRect(QRectF(x - r, y - r, 2 * r, 2 * r))
    elif MARKERS[index] == "t":
        painter.drawPolygon([QPointF(x - r, y - r), QPointF(x + r, y - r), QPointF(x, y + r)])
    elif MARKERS[index] == "d":
        painter.drawPolygon([QPointF(x - r, y), QPointF(x, y - r), QPointF(x + r, y), QPointF(x, y + r)])
    elif MARKERS[index] == "+":
        painter.drawLine(QPointF(x, y - r - 1), QPointF(x, y + r + 1))
    else:
        painter.drawLine(QPointF(x - r, y - r), QPointF(x + r, y + r))
        painter.drawLine(QPointF(x - r, y + r), QPointF(x + r, y - r))


class RunSample(SeriesSample):
    """A run's line with its name, for a legend; a long name is cut, and told whole in the tooltip."""

    def __init__(self, name: str, index: int, room: int = MAX_NAME_WIDTH) -> None:
        super().__init__(name, Mark.LINE, f"run_{index + 1}", f"Line {index + 1} of the plots")
        self._index, self._room, self._theme = index, room, LIGHT
        self.setToolTip(name)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        super().set_theme(theme)

    def sizeHint(self) -> QSize:
        """Room for line and name."""
        metrics = QFontMetrics(ui_font(12))
        width = min(scaled(self._room), metrics.horizontalAdvance(self._text))
        return QSize(SAMPLE_WIDTH + 8 + width + 2, metrics.height() + 4)

    def minimumSizeHint(self) -> QSize:
        """Room for the line, and some of the name."""
        return QSize(SAMPLE_WIDTH + 40, self.sizeHint().height())

    def draw(self, painter: QPainter, size: QSize) -> None:
        """Draw line and name at a painter's origin, on screen or into a file."""
        draw_sample(painter, QRectF(1, 0, SAMPLE_WIDTH, size.height()), self._theme, self._index)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.text))
        place = QRect(SAMPLE_WIDTH + 8, 0, size.width() - SAMPLE_WIDTH - 8, size.height())
        shown = painter.fontMetrics().elidedText(self._text, Qt.TextElideMode.ElideRight, place.width())
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, shown)
