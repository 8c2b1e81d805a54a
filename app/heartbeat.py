"""How long a window's thread is kept from its events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from PySide6.QtCore import QObject, Qt, QTimer, Slot

from app.core_watch import CoreWatch, Halt, without_halts

BEAT_MS = 5


@dataclass(frozen=True, slots=True)
class Stalls:
    """By how much a timer of 5 ms in the window's thread was late.

    Attributes:
        longest_ms, p99_ms: at worst, and at the 99th percentile; without the time in which a core of the machine stood
            still, where somebody watched for that.
        num_beats: times that it was called.
        with_halts_ms: at worst, that time included.
    """

    longest_ms: float
    p99_ms: float
    num_beats: int
    with_halts_ms: float = 0.0


class Heartbeat(QObject):
    """A timer that notes how late it is called."""

    def __init__(self, watch: CoreWatch | None = None) -> None:
        """
        Args:
            watch: tells when the machine itself stood still.
        """
        super().__init__()
        self._watch = watch
        self._beats: list[tuple[float, float]] = []
        self._last = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(BEAT_MS)
        self._timer.timeout.connect(self._on_beat)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Listen within the block."""
        with self._watch.listening() if self._watch is not None else nullcontext():
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
        beats, self._beats = self._beats, []
        return stalls(beats, self._watch.halts() if self._watch is not None else ())

    @Slot()
    def _on_beat(self) -> None:
        now = time.perf_counter()
        self._beats.append((self._last, now))
        self._last = now


def stalls(beats: Sequence[tuple[float, float]], halts: Sequence[Halt] = ()) -> Stalls:
    """Sum up how late each beat was.

    Args:
        beats: when the one before came, and when it came itself; seconds.
        halts: of the machine, in order.
    """
    with_halts = [_lateness_ms(end - begin) for begin, end in beats]
    lateness = [
        late if late <= BEAT_MS else _lateness_ms(without_halts(*beat, halts))
        for beat, late in zip(beats, with_halts, strict=True)
    ]
    longest = max(lateness, default=0.0)
    p99 = longest if len(beats) < 2 else statistics.quantiles(lateness, n=100, method="inclusive")[-1]
    return Stalls(longest, p99, len(beats), max(with_halts, default=0.0))


def _lateness_ms(seconds: float) -> float:
    return max(0.0, 1e3 * seconds - BEAT_MS)


def worst(several: Sequence[Stalls]) -> Stalls:
    """The worst of several, and the beats of all."""
    return Stalls(
        max(stalls.longest_ms for stalls in several),
        max(stalls.p99_ms for stalls in several),
        sum(stalls.num_beats for stalls in several),
        max(stalls.with_halts_ms for stalls in several),
    )
