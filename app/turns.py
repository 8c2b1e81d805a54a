"""Work that is done in pieces, over several turns of the event loop, so that no turn keeps a window from its events."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from PySide6.QtCore import QObject, QTimer, Signal, Slot

TURN_S = 0.004
"""No further piece is begun in a turn that has lasted this long."""


def next_turn_timer(parent: QObject) -> QTimer:
    """A timer that, once started, fires in the next turn of the event loop; for another turn it is started anew.

    One that repeats by itself fires twice in the turn that follows its start (measured with Qt 6.11 and
    GLib's loop): two pieces would go by before anything else is answered.
    """
    timer = QTimer(parent)
    timer.setInterval(0)
    timer.setSingleShot(True)
    return timer


class Turns(QObject):
    """Does one work at a time; a new one takes the place of one that is not done.

    Signals:
        done: a work was done to its end.
    """

    done = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._pieces: Generator[None] | None = None
        self._ends_here = False
        self._timer = next_turn_timer(self)
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
        while self.is_going:
            self._run(float("inf"))

    def rest(self) -> Generator[None]:
        """Pieces that leave a turn to whatever waits, such as to painting what was just shown."""
        for _ in ("of this turn", "of the turn in which it is painted"):
            self._ends_here = True
            yield

    @Slot()
    def _on_turn(self) -> None:
        self._run(time.perf_counter() + TURN_S)
        if self.is_going:
            self._timer.start()

    def _run(self, until: float) -> None:
        try:
            self._ends_here = False
            while self._pieces is not None and not self._ends_here:
                next(self._pieces)
                if time.perf_counter() >= until:
                    break
        except StopIteration:
            self.stop()
            self.done.emit()
        except Exception:
            self.stop()
            raise


def at_once(pieces: Iterable[None]) -> None:
    """Do all of a work that could be done in turns."""
    for _piece in pieces:
        pass
