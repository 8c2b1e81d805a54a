"""Saves plots: asks for a path, writes, and says what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.dialogs import Dialogs
from app.theme import LIGHT, Theme
from app.view_models.run_view import RunView
from app.widgets.plot_card import PlotCard, PlotFormat
from app.widgets.plot_export import save_plot
from core.errors import OutriderError


class PlotDesk(QObject):
    """Signals:
    failed: one sentence about why nothing was written.
    saved: one sentence about where the plot is.
    """

    failed = Signal(str)
    saved = Signal(str)

    def __init__(self, window: QWidget, dialogs: Dialogs, run: RunView, cards: Iterable[PlotCard]) -> None:
        super().__init__(window)
        self._window = window
        self._dialogs = dialogs
        self._run = run
        self._theme = LIGHT
        for card in cards:
            card.save_requested.connect(partial(self.save, card))

    def set_theme(self, theme: Theme) -> None:
        """Plots are saved as they are seen."""
        self._theme = theme

    def save(self, card: PlotCard, kind: PlotFormat) -> None:
        """Ask where to, and write."""
        path = self._dialogs.ask_plot_path(self._window, f"{self._name(card)}.{kind.value}")
        if path is None:
            return
        try:
            save_plot(path, kind, card, self._theme)
        except OutriderError as error:
            self.failed.emit(str(error))
        else:
            self.saved.emit(f"Saved to {path}")

    def _name(self, card: PlotCard) -> str:
        title = card.title.lower().replace(" ", "-")
        return f"{self._run.started.run_id}-{title}" if self._run.started is not None else title
