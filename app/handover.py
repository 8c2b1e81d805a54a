"""Who has the processor: an engine that computes on all of them lets the window draw between two of its steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from PySide6.QtCore import QObject, Signal

MOST_S = 0.05
"""No longer does the engine wait for a window that draws, whatever keeps it."""

_SEVERAL = 2
"""Threads that compute: beside one alone there is room to draw, and nobody asks."""


class Handover(QObject):
    """Lets the window draw while the engine stands still, if both agree on when.

    A frame that is drawn in the middle of a step costs that step more than the frame takes: one of the threads that
    compute it is put aside, and all others wait for it. Between two steps it costs its own time, and no step's time
    has any of it.

    Signals:
        given: the engine stands still, until the window's `turn` is over. Emitted in the engine's thread.
    """

    given = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._is_wanted = False
        self._is_back = threading.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether the window waits for its turn."""
        return self._is_wanted

    def want(self) -> None:
        """Ask for a turn. Called in the window's thread."""
        self._is_wanted = True

    def withdraw(self) -> None:
        """Ask no more. Called in the window's thread."""
        self._is_wanted = False

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Draw within it, whatever it takes. Called in the window's thread."""
        try:
            yield
        finally:
            self._is_back.set()

    def offer(self) -> None:
        """Give the window its turn, if it asked for one, and wait until it is over. Called in the engine's thread."""
        if self._is_wanted:
            self._is_wanted = False
            self._is_back.clear()
            self.given.emit()
            self._is_back.wait(MOST_S)
