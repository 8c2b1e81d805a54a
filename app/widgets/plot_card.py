"""Saves plots: asks for a path, has them written, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QAction, QColor, QFont, QHelpEvent, QKeyEvent, QPainter
from PySide6.QtWidgets import QGraphicsItem, QHBoxLayout, QMenu, QToolButton, QToolTip, QVBoxLayout, QWidget

from app.dialogs import Dialogs
from app.jobs import Jobs
from app.run.run_view import RunView
from app.run.step_plots import StepPlot
from app.theme import LIGHT, Theme, scaled, ui_font
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.plots import FigurePlot, image_of, png_bytes, svg_of, tip, to_csv
from core.files import write_atomically

ZOOM = 0.8
PAN = 0.2
MENU_HELP = "Reset the view, or save the plot. Wheel or + and - zoom, dragging or Shift+arrow pans, Home resets."


class PlotFormat(StrEnum):
    """What a plot can be saved as; the value is the suffix."""

    PNG = "png"
    SVG = "svg"
    CSV = "csv"


FORMAT_HELP = {
    PlotFormat.PNG: "The plot as it is seen, at twice the size",
    PlotFormat.SVG: "The plot as it is seen, as lines and text",
    PlotFormat.CSV: "All figures that the plot is made of, not only those in view",
}


class PlotCard(QWidget):
    """Frames a plot.

    Signals:
        save_requested: the `PlotFormat` in which the plot is to be taken away.
    """

    save_requested = Signal(object)

    def __init__(self, title: str, plot: StepPlot | FigurePlot) -> None:
        super().__init__()
        self.title = title
        self.plot = plot
        self.samples = plot.legend()
        self._place = -1
        self._readout = text_label("", "hint")
        self.menu = self._make_menu()
        self.menu_button = self._make_button()
        self._frame, self._layout = card()
        layout = self._layout
        layout.setContentsMargins(12, 8, 8, 4)
        layout.setSpacing(2)
        header = QHBoxLayout()
        header.setSpacing(8)
        header.addWidget(text_label(title, "section"))
        header.addStretch(1)
        header.addWidget(self._readout)
        header.addWidget(self.menu_button)
        legend = QHBoxLayout()
        legend.setSpacing(14)
        for sample in self.samples:
            legend.addWidget(sample)
        legend.addStretch(1)
        layout.addLayout(header)
        layout.addLayout(legend)
        layout.addWidget(self.plot, 1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._frame)
        pointed = plot.step_hovered if isinstance(plot, StepPlot) else plot.pointed
        pointed.connect(self._on_pointed)
        self.plot.installEventFilter(self)
        self.plot.viewport().installEventFilter(self)
        self.plot.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.plot.customContextMenuRequested.connect(self._on_menu_requested)

    def _make_menu(self) -> QMenu:
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        reset = menu.addAction("Reset view")
        reset.setToolTip("Show all again, and follow a run that goes (double click)")
        reset.triggered.connect(self.plot.reset_view)
        menu.addSeparator()
        for kind in PlotFormat:
            action = menu.addAction(f"Save as {kind.name}…")
            action.setToolTip(FORMAT_HELP[kind])
            action.setData(kind)
        menu.triggered.connect(self._on_chosen)
        return menu

    def _make_button(self) -> QToolButton:
        button = QToolButton()
        button.setObjectName("plotMenuButton")
        button.setText("⋯")
        button.setProperty("role", "quiet")
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        button.setMenu(self.menu)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        describe(button, f"{self.title}: view and save", MENU_HELP)
        return button

    def add_row(self, row: QWidget) -> None:
        """Put a row of controls under the title."""
        self._layout.insertWidget(1, row)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.plot.set_theme(theme)
        for sample in self.samples:
            sample.set_theme(theme)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Tooltips of the place under the pointer, and keys that zoom and pan."""
        if watched is self.plot and event.type() in {QEvent.Type.FocusIn, QEvent.Type.FocusOut}:
            # A plot has no frame of its own to show that the keys are its.
            set_flag(self._frame, "focused", event.type() is QEvent.Type.FocusIn)
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            text = tip(self.plot.details(self._place)) if self._place >= 0 else ""
            QToolTip.showText(event.globalPos(), text, self.plot)
            return True
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress and watched is self.plot:
            return self._press(event)
        return super().eventFilter(watched, event)

    def _press(self, event: QKeyEvent) -> bool:
        key, is_shifted = event.key(), bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if key in {Qt.Key.Key_Plus, Qt.Key.Key_Equal}:
            self._zoom(ZOOM)
        elif key == Qt.Key.Key_Minus:
            self._zoom(1 / ZOOM)
        elif is_shifted and key in {Qt.Key.Key_Left, Qt.Key.Key_Right}:
            self._pan(PAN if key == Qt.Key.Key_Right else -PAN)
        elif key == Qt.Key.Key_Home:
            self.plot.reset_view()
        else:
            return False
        return True

    def _zoom(self, factor: float) -> None:
        box = self.plot.getViewBox()
        # As the wheel does, and announced first, so that the plot draws what comes into view.
        mask = box.state["mouseEnabled"]
        box.sigRangeChangedManually.emit(mask)
        box.scaleBy([factor if is_free else 1.0 for is_free in mask])

    def _pan(self, share: float) -> None:
        box = self.plot.getViewBox()
        left, right = box.viewRange()[0]
        box.sigRangeChangedManually.emit(box.state["mouseEnabled"])
        box.translateBy(x=share * (right - left))

    @Slot(int)
    def _on_pointed(self, place: int) -> None:
        self._place = place
        self._readout.setText(self.plot.readout(place) if place >= 0 else "")

    @Slot(QPoint)
    def _on_menu_requested(self, point: QPoint) -> None:
        self.menu.popup(self.plot.mapToGlobal(point))

    @Slot(QAction)
    def _on_chosen(self, action: QAction) -> None:
        if action.data() is not None:
            self.save_requested.emit(PlotFormat(action.data()))


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


class PlotDesk(QObject):
    """Signals:
    failed: one sentence about why nothing was written.
    saved: one sentence about where the plot is.
    """

    failed = Signal(str)
    saved = Signal(str)

    def __init__(self, window: QWidget, dialogs: Dialogs, run: RunView, jobs: Jobs, cards: Iterable[PlotCard]) -> None:
        super().__init__(window)
        self._window, self._dialogs, self._run, self._jobs = window, dialogs, run, jobs
        self._theme = LIGHT
        for shown in cards:
            shown.save_requested.connect(partial(self.save, shown))

    def set_theme(self, theme: Theme) -> None:
        """Plots are saved as they are seen."""
        self._theme = theme

    def save(self, card: PlotCard, kind: PlotFormat) -> None:
        """Ask where to, and write the plot as it is now; `saved` or `failed` says when that is done."""
        path = self._dialogs.ask_plot_path(self._window, f"{self._name(card)}.{kind.value}")
        if path is None:
            return
        draw = contents_of(kind, card, self._theme)
        self._jobs.submit(
            lambda job: write_atomically(path, draw()),
            lambda _: self.saved.emit(f"Saved to {path}"),
            failed=self.failed.emit,
            what="The plot could not be saved",
            must_finish=True,
        )

    def _name(self, card: PlotCard) -> str:
        title = card.title.lower().replace(" ", "-")
        return f"{self._run.started.run_id}-{title}" if self._run.started is not None else title
