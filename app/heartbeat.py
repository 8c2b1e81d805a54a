"""How long a window's thread is kept from its events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import QObject, Qt, QTimer, Slot

BEAT_MS = 5


@dataclass(frozen=True, slots=True)
class Stalls:
    """By how much a timer of 5 ms in the window's thread was late: at worst, and at the 99th percentile."""

    longest_ms: float
    p99_ms: float
    num_beats: int


class Heartbeat(QObject):
    """A timer that notes how late it is called."""

    def __init__(self) -> None:
        super().__init__()
        self._lateness: list[float] = []
        self._last = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(BEAT_MS)
        self._timer.timeout.connect(self._on_beat)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Listen within the block."""
        self._last = time.perf_counter()
        self._timer.start()
        try:
            yield
        finally:
            # What held the thread up to the end of the block counts as well.
            self._on_beat()
            self._timer.stop()

    def take(self) -> Stalls:
        """What was heard since the last call."""
        lateness, self._lateness = self._lateness, []
        return stalls(lateness)

    @Slot()
    def _on_beat(self) -> None:
        now = time.perf_counter()
        self._lateness.append(max(0.0, 1e3 * (now - self._last) - BEAT_MS))
        self._last = now


def stalls(lateness_ms: Sequence[float]) -> Stalls:
    """Sum up how late each beat was."""
    if len(lateness_ms) < 2:
        return Stalls(max(lateness_ms, default=0.0), max(lateness_ms, default=0.0), len(lateness_ms))
    p99 = statistics.quantiles(lateness_ms, n=100, method="inclusive")[-1]
    return Stalls(max(lateness_ms), p99, len(lateness_ms))


def worst(several: Sequence[Stalls]) -> Stalls:
    """The worst of several, and the beats of all."""
    return Stalls(
        max(stalls.longest_ms for stalls in several),
        max(stalls.p99_ms for stalls in several),
        sum(stalls.num_beats for stalls in several),
    )
