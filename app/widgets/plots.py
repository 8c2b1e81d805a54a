"""What plots share: axes, colours, the view, and pointer handling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, Qt, Signal, Slot
from PySide6.QtGui import QColor, QPen, QTextOption
from PySide6.QtWidgets import QGraphicsItem

from app.theme import Theme, current_theme, hold, scaled, ui_font
from app.widgets.legend import Mark, SeriesSample, band_color
from app.widgets.pictures import Table

SOLID, DASHED, DOTTED = (), (3, 2), (1, 1.5)
"""Lengths of a line's dashes and gaps."""
THIN = 1.5
"""Width of reference lines."""


def ticks(places: Iterable[int]) -> list[tuple[int, str]]:
    """Whole numbers as the ticks of an axis."""
    return [(place, str(place)) for place in places]


QUARTERS = [(percent / 100, str(percent)) for percent in (0, 25, 50, 75, 100)]
"""The ticks of an axis of shares."""
TOP = 1.1
"""Its end: room for the label at 1."""


def set_whiskers(whiskers: pg.ErrorBarItem, x: Any, y: Any, low: Any, high: Any) -> None:
    """Let error bars reach from `low` to `high` around the points at x and y."""
    x, y, low, high = (np.asarray(values, dtype=np.float64) for values in (x, y, low, high))
    whiskers.setData(x=x, y=y, top=high - y, bottom=y - low)


BAR_WIDTH = 0.76
LEAST_TITLED = 110
"""A lower plot has no room for the title of its horizontal axis, which its card's title implies."""
TITLE_MARGINS = 24
"""Pixels around a title's words that may be cut."""
UNITS = {"ms per token": "ms", "accepted, %": "%", "of drafting steps, %": "%"}
"""What is left of a vertical title in a low plot."""

LABEL_ROOM = 9
"""Pixels beyond the ends of an axis, for half a label."""
SPARE = 1.25
"""How far the view grows beyond the figures, so that the axes rarely move."""
MARGIN = 1.03
"""Free space after the last figure once no more will come."""


class EndedAxis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph has no types
    """An axis that also has short labels at its ends: pyqtgraph leaves out those that reach beyond the axis."""

    def boundingRect(self) -> QRectF:
        """With room for half a label at both ends, as in the plot's margins."""
        room, found = scaled(LABEL_ROOM), QRectF(super().boundingRect())
        return found.adjusted(0, -room, 0, room) if self.orientation == "left" else found.adjusted(-room, 0, room, 0)

    def tickStrings(self, values: list[float], scale: float, spacing: float) -> list[str]:
        """With commas, as in all other texts."""
        parts = [text.partition(".") for text in super().tickStrings(values, scale, spacing)]
        return [f"{float(whole):,.0f}{point}{rest}" for whole, point, rest in parts]


class Plot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph has no types
    """Base of all plots: axes, theme, legend, a hint while empty, and pointer handling.

    A subclass adds its series, fills them in `_draw`, and returns their range from `_extent`. The view fits all
    figures until the user moves it.

    Signals:
        pointed: the index of the place under the pointer, or -1.
    """

    pointed = Signal(int)

    def __init__(self, *, object_name: str, title: str, x_label: str, y_label: str) -> None:
        axes = {name: EndedAxis(name) for name in ("left", "bottom")}
        super().__init__(background=None, enableMenu=False, axisItems=axes)
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self.setFrameShape(self.Shape.NoFrame)
        hold(self, least_height=80)
        self._labels = {"bottom": x_label, "left": y_label}
        self.samples: list[SeriesSample] = []
        """The series, for a legend beside the plot."""
        self._paints: list[Callable[[Theme], None]] = []
        self._fits = True
        self._shown: Any = (0.0, 0.0)
        """What `_fit` has brought into view."""
        self._is_empty = True
        self._pointer: QPointF | None = None
        self._spare = SPARE
        item = self.getPlotItem()
        item.hideButtons()
        # pyqtgraph's own menu, never shown, has no parent: it would outlive the window, and be styled with it.
        item.ctrlMenu.setParent(self, item.ctrlMenu.windowFlags())  # Without its flags it would be shown as a part.
        box = item.getViewBox()
        box.setDefaultPadding(0.0)
        box.disableAutoRange()
        self._hint = pg.TextItem(anchor=(0.5, 0.5))
        self._hint.textItem.document().setDefaultTextOption(QTextOption(Qt.AlignmentFlag.AlignCenter))
        self._hint.setParentItem(box)
        self._style()
        box.sigRangeChangedManually.connect(self._on_moved_by_hand)
        box.sigRangeChanged.connect(self._on_range_changed)
        box.sigResized.connect(self._on_resized)
        self.scene().sigMouseMoved.connect(self._on_mouse_moved)
        self.scene().sigMouseClicked.connect(self._on_mouse_clicked)

    # --- Series, which a subclass adds from back to front ---

    def add_item(self, item: Any, paint: Callable[[Theme], None], sample: SeriesSample | None = None) -> Any:
        """Add an item; `paint` gives it a theme's colours, and the sample represents it in the legend."""
        self.getPlotItem().addItem(item)
        self._paints.append(paint)
        paint(current_theme())
        if sample is not None:
            self.samples.append(sample)
        return item

    def add_bars(self, token: str, name: str = "", help_text: str = "", *, is_hollow: bool = False) -> Any:
        """Add bars in a colour of the theme, or their outlines; a name adds them to the legend."""
        bars = pg.BarGraphItem(x=[], height=[], width=BAR_WIDTH)
        bars.setZValue(-10)  # Below bands, which pyqtgraph puts below the lines.
        sample = _sample(name, Mark.HOLLOW if is_hollow else Mark.BAR, token, help_text)

        def paint(theme: Theme) -> None:
            color = getattr(theme, token)
            bars.setOpts(brush=None if is_hollow else color, pen=pg.mkPen(color, width=1) if is_hollow else None)

        return self.add_item(bars, paint, sample)

    def add_line(
        self,
        token: str,
        name: str = "",
        help_text: str = "",
        *,
        dashes: tuple[float, ...] = SOLID,
        mark: Mark = Mark.LINE,
        width: float = 2,
        angle: int | None = None,
    ) -> Any:
        """Add a line in a colour of the theme; a name adds it to the legend.

        Args:
            angle: 0 or 90 degrees for a hidden straight line from end to end; None for a curve.
        """
        if angle is None:
            line = pg.PlotDataItem(antialias=True, connect="finite")
        else:
            line = pg.InfiniteLine(angle=angle)
            line.hide()
        sample = _sample(name, mark, token, help_text, dashes)
        return self.add_item(
            line, lambda theme: line.setPen(pg.mkPen(getattr(theme, token), width=width, dash=dashes or None)), sample
        )

    def add_points(
        self, token: str, size: int, name: str = "", help_text: str = "", *, symbol: str = "o", edge: float = 0.0
    ) -> Any:
        """Add points, with an edge in the background's colour; a name adds them to the legend."""
        points = pg.ScatterPlotItem(symbol=symbol, size=size, pen=None)

        def paint(theme: Theme) -> None:
            points.setBrush(getattr(theme, token))
            points.setPen(pg.mkPen(theme.surface, width=edge) if edge else None)

        return self.add_item(
            points, paint, _sample(name, Mark.DIAMOND if symbol == "d" else Mark.DOT, token, help_text)
        )

    def add_band(self, token: str) -> tuple[Any, Any]:
        """Add the band around a line; returns its edges."""
        edges = (pg.PlotCurveItem(pen=None), pg.PlotCurveItem(pen=None))
        band = pg.FillBetweenItem(*edges)
        self.add_item(band, lambda theme: band.setBrush(band_color(QColor(getattr(theme, token)))))
        for edge in edges:
            self.getPlotItem().addItem(edge)
        return edges

    def add_whiskers(self, token: str, beam: float) -> Any:
        """Add error bars, whose ends are `beam` wide. They are drawn without antialiasing: one pixel, all alike."""
        whiskers = pg.ErrorBarItem(beam=beam)
        return self.add_item(whiskers, lambda theme: whiskers.setData(pen=pg.mkPen(getattr(theme, token))))

    def set_hint(self, text: str) -> None:
        """Set the text shown in an empty plot."""
        self._hint.setPlainText(text)
        self._place_hint()

    # --- For subclasses ---

    def readout(self, place: int) -> str:
        """The place under the pointer, on one short line: the title and the first figure of its details."""
        (title, _), (_, figure), *_ = self.details(place)
        return f"{title}: {figure}"

    def details(self, place: int) -> list[tuple[str, str]]:
        """The place under the pointer, as names and figures with their units; the first is its title."""
        raise NotImplementedError

    def table(self) -> Table:
        """Everything that is plotted, not only what is in view."""
        raise NotImplementedError

    def _draw(self) -> None:
        """Fill the items with what is in view."""
        raise NotImplementedError

    def _extent(self) -> tuple[float, float]:
        """The range of the figures along x and y; 0 along x if there are none."""
        raise NotImplementedError

    def _place_at(self, x: float) -> int:
        """The place at an x value; -1 if there is none."""
        raise NotImplementedError

    def _fit(self, extent: tuple[float, float]) -> None:
        """Bring all of it into view."""
        grown = tuple(
            self._spare * wanted if wanted > shown or wanted < 0.5 * shown else shown
            for wanted, shown in zip(extent, self._shown, strict=True)
        )
        if grown != self._shown:
            self._shown = grown
            self.getViewBox().setRange(xRange=(0, grown[0] or 1), yRange=(0, grown[1] or 1), padding=0)

    def _frame(
        self, x: tuple[float, float], y: tuple[float, float], marked: Mapping[str, list[Any]] | None = None
    ) -> None:
        """Bring a range into view, with these ticks by the names of the axes, unless it is there already."""
        if (wanted := (x, y, marked)) != self._shown:
            self._shown = wanted
            self.getViewBox().setRange(xRange=x, yRange=y, padding=0)
            for name, places in (marked or {}).items():
                self.getPlotItem().getAxis(name).setTicks([places])

    # --- For cards and pages ---

    def refresh(self) -> None:
        """Show what is new since the last call."""
        extent = self._extent()
        is_empty = extent[0] <= 0
        self._hint.setVisible(is_empty)
        if is_empty != self._is_empty:
            self._is_empty = is_empty
            self._style()
        if self._fits:
            self._fit(extent)
        self._draw()
        if self._pointer is not None:
            # What is under a pointer that rests may have changed, or be gone.
            self.pointed.emit(self._place_under(self._pointer))

    def reset_view(self) -> None:
        """Undo the user's zooming and panning."""
        self.follow()
        self.refresh()

    def follow(self) -> None:
        """Fit the view again at the next drawing, whatever the user made of it."""
        self._fits, self._shown = True, (0.0, 0.0)

    def settle(self, *, is_over: bool) -> None:
        """Set whether more figures will come, and fit the view, unless the user moved it."""
        self._spare = MARGIN if is_over else SPARE
        if self._fits:
            self.reset_view()
        else:
            self.refresh()

    def restyle(self) -> None:
        """Draw in the theme's colours, at the text's scale."""
        self._style()
        self._on_resized()
        self.refresh()

    def _style(self) -> None:
        theme = current_theme()
        self.setBackground(theme.surface)
        self._hint.setFont(ui_font(12))
        self._hint.setColor(theme.muted)
        self.getPlotItem().setContentsMargins(0, scaled(LABEL_ROOM), scaled(LABEL_ROOM), 0)
        for name, label in self._labels.items():
            self._style_axis(self.getPlotItem().getAxis(name), label)
        self.getPlotItem().showGrid(x=False, y=not self._is_empty, alpha=0.5)
        for paint in self._paints:
            paint(theme)
        self._fit_title()

    def _style_axis(self, axis: pg.AxisItem, label: str) -> None:
        """Give an axis the fonts, room and grid that all plots share; in an empty plot it only has a title."""
        theme = current_theme()
        if axis.autoSIPrefix:  # A second call would scale the numbers after all.
            axis.enableAutoSIPrefix(False)
        axis.setStyle(tickLength=-4, autoExpandTextSpace=False, maxTickLevel=0, showValues=not self._is_empty)
        axis.setStyle(tickFont=ui_font(11))
        axis.setTickDensity(11 / scaled(11))
        axis.setZValue(-100)  # The grid is behind the data.
        # Painting labels dominates a plot's cost, and they rarely change.
        axis.setCacheMode(QGraphicsItem.CacheMode.DeviceCoordinateCache)
        axis.label.setFont(ui_font(11))
        if axis.orientation == "left":
            axis.setWidth(scaled(50))
        else:
            self._fit_bottom()
        axis.setPen(QPen(Qt.PenStyle.NoPen) if self._is_empty else QPen(QColor(theme.border), 1))
        axis.setTextPen(QColor(theme.muted))
        # The pen has also changed the title's colour.
        axis.setLabel(label, color=theme.muted, **{"font-size": f"{scaled(11)}px"})

    # --- Pointer and size ---

    def _place_under(self, point: QPointF) -> int:
        """The place at a point of the scene; -1 if there is none."""
        box = self.getViewBox()
        return self._place_at(box.mapSceneToView(point).x()) if box.sceneBoundingRect().contains(point) else -1

    @Slot()
    def _on_moved_by_hand(self) -> None:
        if any(self.getViewBox().state["mouseEnabled"]):
            self._fits = False
            self._draw()

    @Slot()
    def _on_range_changed(self) -> None:
        if not self._fits:
            self._draw()

    @Slot(object)
    def _on_mouse_moved(self, point: QPointF) -> None:
        self._pointer = point
        self.pointed.emit(self._place_under(point))

    @Slot(object)
    def _on_mouse_clicked(self, event: Any) -> None:
        if event.double():
            self.reset_view()

    def leaveEvent(self, event: object) -> None:
        """Note that nothing is under the pointer."""
        super().leaveEvent(event)
        self._pointer = None
        self.pointed.emit(-1)

    @Slot()
    def _on_resized(self) -> None:
        self._place_hint()
        self._fit_title()

    def resizeEvent(self, event: object) -> None:
        """Fit the axis first: a height set while the plot is being laid out would only count for the next layout."""
        if hasattr(self, "_labels"):  # pyqtgraph calls this before there are axes, too.
            self._fit_bottom()
        super().resizeEvent(event)

    def _fit_title(self) -> None:
        """Show only the unit of a vertical title that would be cut off, or nothing if that would be, too."""
        axis, title, is_whole = self.getPlotItem().getAxis("left"), self._labels["left"], False
        room = self.getViewBox().boundingRect().height() + TITLE_MARGINS
        for text in (title, UNITS.get(title, title)):
            if not is_whole:
                axis.setLabel(text)
                axis.resizeEvent()  # Else a new title has the place of the one before.
                is_whole = axis.label.boundingRect().width() <= room
        axis.label.setOpacity(float(is_whole))

    def _fit_bottom(self) -> None:
        """Leave the horizontal title out of a low plot."""
        axis, is_titled = self.getPlotItem().getAxis("bottom"), self.height() >= scaled(LEAST_TITLED)
        axis.setHeight(6 + scaled(24 if is_titled else 12))
        axis.label.setOpacity(float(is_titled))

    def _place_hint(self) -> None:
        box = self.getViewBox().boundingRect()
        self._hint.setTextWidth(box.width())
        self._hint.setPos(box.center())


def _sample(
    name: str, mark: Mark, token: str, help_text: str, dashes: tuple[float, ...] = SOLID
) -> SeriesSample | None:
    return SeriesSample(name, mark, token, help_text, dashes) if name else None
