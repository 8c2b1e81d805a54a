"""A plot as a file: title, legend and plot in one picture, or the figures themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pyqtgraph as pg
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import QGraphicsItem

from app.theme import Theme, scaled, ui_font
from app.widgets.figure_plot import FigurePlot
from app.widgets.pictures import image_of, png_bytes, svg_of
from app.widgets.plot_card import PlotCard, PlotFormat
from app.widgets.plot_table import to_csv
from app.widgets.step_plot import StepPlot

MARGIN = 12
HEADER = 56
"""Room for the title and the legend."""


def contents_of(kind: PlotFormat, card: PlotCard, theme: Theme) -> Callable[[], str | bytes]:
    """A card's plot as it is now.

    Returns:
        What gives the file's contents. It takes long for a long run, and may be called in another thread.
    """
    if kind is PlotFormat.CSV:
        return partial(to_csv, {name: tuple(column) for name, column in card.plot.table().items()})
    paint = partial(_paint, card=card, theme=theme)
    if kind is PlotFormat.PNG:
        return partial(png_bytes, image_of(_size(card), paint))
    # Axes are recorded at the screen's resolution, and would be played back smaller at another.
    contents = svg_of(_size(card), paint, card.title, resolution=card.plot.logicalDpiX())
    return lambda: contents


def _size(card: PlotCard) -> QSize:
    plot = card.plot.size()
    return QSize(plot.width() + 2 * MARGIN, plot.height() + scaled(HEADER) + MARGIN)


def _paint(painter: QPainter, card: PlotCard, theme: Theme) -> None:
    size, ground, view = _size(card), QColor(theme.surface), card.plot
    whole = QRectF(QPointF(0, 0), size.toSizeF())
    source = view.mapToScene(view.viewport().rect()).boundingRect()
    target = QRectF(QPointF(MARGIN, scaled(HEADER)), source.size())
    box = view.getViewBox()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillRect(whole, ground)
    with _as_lines(view.scene().items()):
        view.scene().render(painter, target, source)
        # A picture of lines knows no clipping: what reaches beyond the axes is covered, and the axes drawn once more.
        inside = box.sceneBoundingRect().translated(target.topLeft() - source.topLeft())
        for strip in _around(inside, whole):
            painter.fillRect(strip, ground)
        with _only_axes(view):
            view.scene().render(painter, target, source)
    _paint_header(painter, card, theme)


def _around(inside: QRectF, whole: QRectF) -> tuple[QRectF, ...]:
    """The four strips between two rectangles."""
    return (
        QRectF(whole.left(), whole.top(), whole.width(), inside.top()),
        QRectF(whole.left(), inside.bottom(), whole.width(), whole.bottom() - inside.bottom()),
        QRectF(whole.left(), inside.top(), inside.left(), inside.height()),
        QRectF(inside.right(), inside.top(), whole.right() - inside.right(), inside.height()),
    )


def _paint_header(painter: QPainter, card: PlotCard, theme: Theme) -> None:
    painter.setFont(ui_font(13, weight=QFont.Weight.DemiBold))
    painter.setPen(QColor(theme.text))
    painter.drawText(QRectF(MARGIN, 8, _size(card).width(), scaled(20)), Qt.AlignmentFlag.AlignVCenter, card.title)
    x = MARGIN
    for sample in card.samples:
        painter.save()
        painter.translate(x, scaled(30))
        sample.draw(painter, sample.sizeHint())
        painter.restore()
        x += sample.sizeHint().width() + 14


@contextmanager
def _only_axes(plot: StepPlot | FigurePlot) -> Iterator[None]:
    """Show the axes without their grid, and nothing between them."""
    box = plot.getViewBox()
    axes = [plot.getPlotItem().getAxis(name) for name in ("left", "bottom")]
    grids = [axis.grid for axis in axes]
    box.setOpacity(0)
    for axis in axes:
        axis.setGrid(False)
    try:
        yield
    finally:
        box.setOpacity(1)
        for axis, grid in zip(axes, grids, strict=True):
            axis.setGrid(grid)


@contextmanager
def _as_lines(items: list[QGraphicsItem]) -> Iterator[None]:
    """Have items draw themselves: else their pictures of themselves would go into the file, as coarse as the screen."""
    modes = [(item, item.cacheMode()) for item in items]
    scatters = [item for item in items if isinstance(item, pg.ScatterPlotItem)]
    for item, _ in modes:
        item.setCacheMode(QGraphicsItem.CacheMode.NoCache)
    for scatter in scatters:
        scatter.setExportMode(True, {})
    try:
        yield
    finally:
        for item, mode in modes:
            item.setCacheMode(mode)
        for scatter in scatters:
            scatter.setExportMode(False)
