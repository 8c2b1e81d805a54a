"""Saves plots: asks for a path, has them written, and says what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtWidgets import QWidget

from app.dialogs import Dialogs
from app.run_reader_thread import RunReaderThread
from app.theme import LIGHT, Theme
from app.view_models.run_view import RunView
from app.widgets.plot_card import PlotCard, PlotFormat
from app.widgets.plot_export import contents_of


class PlotDesk(QObject):
    """Signals:
    failed: one sentence about why nothing was written.
    saved: one sentence about where the plot is.
    """

    failed = Signal(str)
    saved = Signal(str)

    def __init__(
        self, window: QWidget, dialogs: Dialogs, run: RunView, reader: RunReaderThread, cards: Iterable[PlotCard]
    ) -> None:
        super().__init__(window)
        self._reader = reader
        self._owed: dict[object, Path] = {}
        self._window = window
        self._dialogs = dialogs
        self._run = run
        self._theme = LIGHT
        reader.plot_saved.connect(self._on_saved)
        for card in cards:
            card.save_requested.connect(partial(self.save, card))

    def set_theme(self, theme: Theme) -> None:
        """Plots are saved as they are seen."""
        self._theme = theme

    def save(self, card: PlotCard, kind: PlotFormat) -> None:
        """Ask where to, and have the plot written as it is now; `saved` or `failed` says when that is done."""
        path = self._dialogs.ask_plot_path(self._window, f"{self._name(card)}.{kind.value}")
        if path is not None:
            draw, key = contents_of(kind, card, self._theme), object()
            self._owed[key] = path
            self._reader.save_plot(draw, path, key)

    @Slot(object, str)
    def _on_saved(self, key: object, problem: str) -> None:
        # Another window's desk has its plots written by the same thread.
        path = self._owed.pop(key, None)
        if path is None:
            return
        if problem:
            self.failed.emit(problem)
        else:
            self.saved.emit(f"Saved to {path}")

    def _name(self, card: PlotCard) -> str:
        title = card.title.lower().replace(" ", "-")
        return f"{self._run.started.run_id}-{title}" if self._run.started is not None else title
