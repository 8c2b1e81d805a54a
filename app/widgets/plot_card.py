"""A plot with its title, its legend and what the pointer is on."""

from __future__ import annotations

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.theme import Theme
from app.widgets.acceptance_plot import AcceptancePlot
from app.widgets.fields import card, text_label
from app.widgets.latency_plot import LatencyPlot


class PlotCard(QWidget):
    """Frames one of the two plots."""

    def __init__(self, title: str, plot: AcceptancePlot | LatencyPlot) -> None:
        super().__init__()
        self.plot = plot
        self._samples = plot.legend()
        self._readout = text_label("", "hint")
        frame, layout = card()
        layout.setContentsMargins(12, 10, 8, 4)
        layout.setSpacing(2)
        header = QHBoxLayout()
        header.setSpacing(8)
        header.addWidget(text_label(title, "section"))
        header.addStretch(1)
        header.addWidget(self._readout)
        legend = QHBoxLayout()
        legend.setSpacing(14)
        for sample in self._samples:
            legend.addWidget(sample)
        legend.addStretch(1)
        layout.addLayout(header)
        layout.addLayout(legend)
        layout.addWidget(plot, 1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(frame)
        plot.step_hovered.connect(self._on_step_hovered)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.plot.set_theme(theme)
        for sample in self._samples:
            sample.set_theme(theme)

    @Slot(int)
    def _on_step_hovered(self, step: int) -> None:
        self._readout.setText(self.plot.readout(step) if step >= 0 else "")
