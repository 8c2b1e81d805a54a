"""A plot with its title, its legend, what the pointer is on, and a menu to look closer and to take it away."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal, Slot
from PySide6.QtGui import QAction, QHelpEvent, QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QToolButton, QToolTip, QVBoxLayout, QWidget

from app.theme import Theme
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.figure_plot import FigurePlot
from app.widgets.plot_table import tip
from app.widgets.step_plot import StepPlot

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
