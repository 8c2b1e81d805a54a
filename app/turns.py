"""Work that is done in pieces, over several turns of the event loop, so that no turn keeps a window from its events."""

from __future__ import annotations

import time
from collections.abc import Generator

from PySide6.QtCore import QObject, QTimer, Slot

TURN_S = 0.008
"""No further piece is begun in a turn that has lasted this long."""


class Turns(QObject):
    """Does one work at a time; a new one takes the place of one that is not done."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._pieces: Generator[None] | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(0)
        self._timer.timeout.connect(self._on_turn)

    @property
    def is_going(self) -> bool:
        """Whether anything is left to be done."""
        return self._pieces is not None

    def start(self, pieces: Generator[None]) -> None:
        """Do this from the next turn on, a piece or some in each: up to a `yield` counts as one piece."""
        self.stop()
        self._pieces = pieces
        self._timer.start()

    def stop(self) -> None:
        """Give up what is not done."""
        self._timer.stop()
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            pieces.close()

    def finish(self) -> None:
        """Do all that is left at once."""
        self._run(float("inf"))

    @Slot()
    def _on_turn(self) -> None:
        self._run(time.perf_counter() + TURN_S)

    def _run(self, until: float) -> None:
        try:
            while self._pieces is not None:
                next(self._pieces)
                if time.perf_counter() >= until:
                    break
        except StopIteration:
            self.stop()
        except Exception:
            self.stop()
            raise
