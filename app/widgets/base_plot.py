"""What all plots share: two axes, a hint where there is nothing to plot, a theme, and a view that a person may move."""

from __future__ import annotations

from typing import Any

import pyqtgraph as pg
from PySide6.QtCore import QPointF, Qt, Slot
from PySide6.QtGui import QColor, QPen, QTextOption
from PySide6.QtWidgets import QGraphicsItem

from app.theme import LIGHT, Theme, scaled, ui_font

BAR_WIDTH = 0.76
TITLE_MARGINS = 24
"""Pixels around a title's words that may be cut."""


class BasePlot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph has no types
    """Base of the plots by step and of the others."""

    def __init__(self, *, object_name: str, title: str, x_label: str, y_label: str) -> None:
        super().__init__(background=None)
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self.setFrameShape(self.Shape.NoFrame)
        self.setMinimumHeight(110)
        self._theme = LIGHT
        self._labels = {"bottom": x_label, "left": y_label}
        item = self.getPlotItem()
        item.hideButtons()
        item.setMenuEnabled(False)
        item.setContentsMargins(0, 4, 4, 0)
        for name in self._labels:
            prepare_axis(item.getAxis(name))
        box = item.getViewBox()
        box.setDefaultPadding(0.0)
        box.disableAutoRange()
        self._hint = pg.TextItem(anchor=(0.5, 0.5))
        self._hint.setFont(ui_font(12))
        self._hint.textItem.document().setDefaultTextOption(QTextOption(Qt.AlignmentFlag.AlignCenter))
        self._hint.setParentItem(box)
        box.sigRangeChangedManually.connect(self._on_moved_by_hand)
        box.sigResized.connect(self._on_resized)
        self.scene().sigMouseMoved.connect(self._on_mouse_moved)
        self.scene().sigMouseClicked.connect(self._on_mouse_clicked)

    # --- For subclasses ---

    def redraw(self) -> None:
        """Draw again although nothing has come."""
        raise NotImplementedError

    def reset_view(self) -> None:
        """Undo what was zoomed and panned by hand."""
        raise NotImplementedError

    def _restyle(self, theme: Theme) -> None:
        """Give the items a theme's colours."""
        raise NotImplementedError

    @Slot()
    def _on_moved_by_hand(self) -> None:
        raise NotImplementedError

    @Slot(object)
    def _on_mouse_moved(self, point: QPointF) -> None:
        raise NotImplementedError

    @Slot(object)
    def _on_mouse_clicked(self, event: Any) -> None:
        """A double click shows all again."""
        if event.double():
            self.reset_view()

    # --- For cards and pages ---

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.setBackground(theme.surface)
        item = self.getPlotItem()
        self._hint.setFont(ui_font(12))
        self._place_hint()
        for name, label in self._labels.items():
            axis = item.getAxis(name)
            axis.setLabel(label, color=theme.muted, **{"font-size": f"{scaled(11)}px"})
            fit_axis_text(axis)
            axis.setTextPen(QColor(theme.muted))
        self._hint.setColor(theme.muted)
        self._fit_title()
        self._restyle(theme)
        self.redraw()

    def set_hint(self, text: str) -> None:
        """What an empty plot says."""
        self._hint.setPlainText(text)
        self._place_hint()

    @Slot()
    def _on_resized(self) -> None:
        self._place_hint()
        self._fit_title()

    def _place_hint(self) -> None:
        """In the middle, wrapped where the plot is narrower than the sentence."""
        box = self.getViewBox().boundingRect()
        self._hint.setTextWidth(box.width())
        self._hint.setPos(box.center())

    def _fit_title(self) -> None:
        """Leave out the upright title where it would be cut off: a part of it says less than the card's own title."""
        label, box = self.getPlotItem().getAxis("left").label, self.getViewBox().boundingRect()
        label.setOpacity(1.0 if label.boundingRect().width() <= box.height() + TITLE_MARGINS else 0.0)


def prepare_axis(axis: pg.AxisItem) -> None:
    """Give an axis the fonts, the room and the grid that all plots share."""
    axis.enableAutoSIPrefix(False)
    axis.setStyle(tickLength=-4, autoExpandTextSpace=False, maxTickLevel=0)
    # Behind the data: a grid is there to read bars by, not to cut them.
    axis.setZValue(-100)
    # Painting labels is most of a plot's cost, and they rarely change.
    axis.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
    fit_axis_text(axis)


def show_axes(item: pg.PlotItem, theme: Theme, *, is_empty: bool) -> None:
    """Draw both axes. An empty plot keeps their titles: numbers, lines and a grid would be about nothing."""
    for name in ("left", "bottom"):
        axis = item.getAxis(name)
        axis.setStyle(showValues=not is_empty)
        axis.setPen(QPen(Qt.PenStyle.NoPen) if is_empty else QPen(QColor(theme.border), 1))
        # The pen has taken the title's colour along.
        axis.setLabel(axis.labelText, **{**axis.labelStyle, "color": theme.muted})
    item.showGrid(x=False, y=not is_empty, alpha=0.25)


def fit_axis_text(axis: pg.AxisItem) -> None:
    """Numbers and title at the text's scale, with the room that they take."""
    axis.setStyle(tickFont=ui_font(11))
    axis.label.setFont(ui_font(11))
    if axis.orientation == "left":
        axis.setWidth(scaled(50))
    else:
        axis.setHeight(14 + scaled(24))


def line_pen(color: str, *, dashed: bool = False) -> QPen:
    """The pen of a plot's line."""
    pen = QPen(QColor(color), 2)
    pen.setCosmetic(True)
    if dashed:
        pen.setStyle(Qt.PenStyle.CustomDashLine)
        pen.setDashPattern([3, 2])
    return pen


def thin_pen(color: str) -> QPen:
    """The pen of whiskers, and of lines to measure by."""
    pen = QPen(QColor(color), 1.5)
    pen.setCosmetic(True)
    return pen
