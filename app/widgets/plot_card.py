"""A framed plot with title, legend, readout and menu, which can be saved as PNG, SVG or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from html import escape

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRect, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QAction, QColor, QHelpEvent, QKeyEvent, QPainter
from PySide6.QtWidgets import QGraphicsItem, QToolTip, QWidget

from app.dialogs import Dialogs
from app.jobs import Jobs
from app.theme import current_theme, scaled
from app.widgets.fields import boxed, card, column, menu_button, row, set_flag, tip_table
from app.widgets.labels import ElidedLabel
from app.widgets.legend import Legend, SeriesSample, flow
from app.widgets.painted import LEFT, draw_text
from app.widgets.pictures import image_of, png_bytes, svg_of, to_csv
from app.widgets.plots import Plot
from core.files import write_atomically

ZOOM = 0.8
PAN = 0.2
MENU_HELP = "Reset the view, or save the plot. Wheel or + and - zoom, dragging or Shift+arrow pans, Home resets."


class PlotFormat(StrEnum):
    """Formats that a plot can be saved in; the value is the suffix."""

    PNG = "png"
    SVG = "svg"
    CSV = "csv"


FORMAT_HELP = {
    PlotFormat.PNG: "The plot as it is shown, at twice the size",
    PlotFormat.SVG: "The plot as it is shown, as vector graphics",
    PlotFormat.CSV: "All of the plot's figures, not only those in view",
}


def tip(rows: Sequence[tuple[str, str]]) -> str:
    """Figures as a tooltip's rich text; the first row is its title."""
    figures = tip_table((escape(name), escape(value)) for name, value in rows[1:])
    return f"<b>{escape(rows[0][0])}</b>{figures}"


class PlotCard(QWidget):
    """Frames a plot.

    Signals:
        save_requested: the `PlotFormat` to save the plot in.
    """

    save_requested = Signal(object)

    def __init__(self, title: str, plot: Plot) -> None:
        super().__init__()
        self.title, self.plot, self.samples = title, plot, plot.samples
        self._place = -1
        # Neither its name nor what is pointed at makes a card wider than its column, which would cut its plot.
        name, self._readout = ElidedLabel(title, "section"), ElidedLabel("", "hint")
        self._readout.hide()  # An empty one would take room from the name.
        self.menu_button = menu_button(
            "⋯", "plotMenuButton", MENU_HELP, accessible_name=f"{title}: view and save", role="quiet"
        )
        self.menu = self.menu_button.menu()
        self._fill_menu()
        header = row(name, None, self._readout, self.menu_button)
        self._frame, self._layout = card(header, Legend(self.samples), (plot, 1))
        self._layout.setContentsMargins(12, 8, 8, 2)
        self._layout.setSpacing(2)
        boxed(column(self._frame), self)
        plot.pointed.connect(self._on_pointed)
        plot.installEventFilter(self)
        plot.viewport().installEventFilter(self)
        plot.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        plot.customContextMenuRequested.connect(self._on_menu_requested)

    def _fill_menu(self) -> None:
        menu = self.menu
        reset = menu.addAction("Reset view")
        reset.setToolTip("Show all again, and follow a run in progress (double click)")
        reset.triggered.connect(self.plot.reset_view)
        menu.addSeparator()
        for kind in PlotFormat:
            action = menu.addAction(f"Save as {kind.name}…")
            action.setToolTip(FORMAT_HELP[kind])
            action.setData(kind)
        menu.triggered.connect(self._on_chosen)

    def add_row(self, row: QWidget) -> None:
        """Put a row of controls under the title."""
        self._layout.insertWidget(1, row)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Show tooltips for the place under the pointer, and zoom and pan by keys."""
        if watched is self.plot and event.type() in {QEvent.Type.FocusIn, QEvent.Type.FocusOut}:
            # A plot has no frame to show the focus.
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
        # Signalled first, as for the wheel, so that the plot draws the range about to be shown.
        mask = box.state["mouseEnabled"]
        if not any(mask):
            return
        box.sigRangeChangedManually.emit(mask)
        box.scaleBy([factor if is_free else 1.0 for is_free in mask])

    def _pan(self, share: float) -> None:
        box = self.plot.getViewBox()
        left, right = box.viewRange()[0]
        if not box.state["mouseEnabled"][0]:
            return
        box.sigRangeChangedManually.emit(box.state["mouseEnabled"])
        box.translateBy(x=share * (right - left))

    @Slot(int)
    def _on_pointed(self, place: int) -> None:
        self._place = place
        self._readout.setText(self.plot.readout(place) if place >= 0 else "")
        self._readout.setVisible(place >= 0)

    @Slot(QPoint)
    def _on_menu_requested(self, point: QPoint) -> None:
        self.menu.popup(self.plot.mapToGlobal(point))

    @Slot(QAction)
    def _on_chosen(self, action: QAction) -> None:
        if action.data() is not None:
            self.save_requested.emit(PlotFormat(action.data()))


# --- Files ---

MARGIN = 12
HEADER = 56
"""Room for the title and the legend."""


def contents_of(kind: PlotFormat, card: PlotCard) -> Callable[[], str | bytes]:
    """A function that returns the file's contents for the plot as it is now. May be called in another thread."""
    if kind is PlotFormat.CSV:
        return partial(to_csv, {name: tuple(column) for name, column in card.plot.table().items()})
    paint = partial(_paint, card=card)
    if kind is PlotFormat.PNG:
        return partial(png_bytes, image_of(_size(card), paint))
    # Axes are recorded at the screen's resolution, and would appear smaller at another.
    contents = svg_of(_size(card), paint, card.title, resolution=card.plot.logicalDpiX())
    return lambda: contents


def _size(card: PlotCard) -> QSize:
    plot = card.plot.size()
    return QSize(plot.width() + 2 * MARGIN, plot.height() + _header(card) + MARGIN)


def _header(card: PlotCard) -> int:
    """Room for the title and the lines of the legend."""
    return scaled(HEADER) + max((place.y() for _, place in _legend(card)), default=0)


def _legend(card: PlotCard) -> Iterator[tuple[SeriesSample, QRect]]:
    return flow(card.samples, card.plot.width(), gap=14, down=2)


def _paint(painter: QPainter, card: PlotCard) -> None:
    plot, theme = card.plot, current_theme()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillRect(QRectF(QPointF(0, 0), _size(card).toSizeF()), QColor(theme.surface))
    head = QRectF(MARGIN, 8, _size(card).width(), scaled(20))
    draw_text(painter, head, card.title, theme.text, LEFT, pixels=13, is_strong=True)
    for sample, place in _legend(card):
        painter.save()
        painter.translate(MARGIN + place.x(), scaled(30) + place.y())
        sample.draw(painter, place.size())
        painter.restore()
    source = plot.mapToScene(plot.viewport().rect()).boundingRect()
    with _as_lines(plot.scene().items()):
        plot.scene().render(painter, QRectF(QPointF(MARGIN, _header(card)), source.size()), source)


@contextmanager
def _as_lines(items: list[QGraphicsItem]) -> Iterator[None]:
    """Make items draw themselves, or their cached pixels would be written to the file."""
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


def save_plots(
    cards: Iterable[PlotCard],
    window: QWidget,
    dialogs: Dialogs,
    jobs: Jobs,
    *,
    saved: Callable[[str], None],
    failed: Callable[[str], None],
    prefix: Callable[[], str] = str,
) -> None:
    """From now on, save the plots of cards as they are then, to files that the user names.

    Args:
        saved, failed: called with a sentence about the file, or about why there is none.
        prefix: returns the beginning of the file's suggested name.
    """

    def save(card: PlotCard, kind: PlotFormat) -> None:
        title = card.title.lower().replace(" ", "-")
        path = dialogs.ask_save_path(window, f"{prefix()}{title}.{kind.value}", title="Save plot")
        if path is None:
            return
        contents = contents_of(kind, card)
        jobs.submit(
            lambda _job: write_atomically(path, contents()),
            lambda _: saved(f"Saved to {path}"),
            failed=failed,
            what="The plot could not be saved",
            must_finish=True,
        )

    for each in cards:
        each.save_requested.connect(partial(save, each))
