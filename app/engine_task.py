"""Work for the engine's thread that is no run: a check, a probe, a sweep. One at a time, and never beside a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.services import Session
from core.controls import RunControls

Work = Callable[[Session, RunControls], Iterator[Any]]
"""From the engine and the way to stop to what comes of it, bit by bit; only CPU scalars, strings and the like."""


class EngineTask(QObject):
    """One piece of such work, from the window's side. `RunController.start_task` makes and starts it.

    Signals:
        stop_asked: it is to end; for work with a way to stop of its own.
        failed: one sentence for a person; `ended` follows.
        ended: it is over, however it ended; all its events can be taken now.
    """

    stop_asked = Signal()
    failed = Signal(str)
    ended = Signal()

    def __init__(self, title: str, work: Work, parent: QObject | None = None) -> None:
        """
        Args:
            title: what it is called in a sentence, with its article: "A check".
            work: called and gone through in the engine's thread.
            parent: that keeps it.
        """
        super().__init__(parent)
        self.title = title
        self.controls = RunControls()
        self._work = work
        self._events: deque[Any] = deque()

    def stop(self) -> None:
        """Ask it to end; asking twice does nothing."""
        self.controls.cancel()
        self.stop_asked.emit()

    def take_events(self) -> Iterator[Any]:
        """What has come since the last call. Called in the window's thread."""
        for _ in range(len(self._events)):
            yield self._events.popleft()

    def perform(self, session: Session) -> None:
        """Do it. Called in the engine's thread."""
        for event in self._work(session, self.controls):
            self._events.append(event)
