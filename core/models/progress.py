"""How far a download is, at what rate, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_INTERVAL_SECONDS = 0.1
_SMOOTHING_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is.

    Attributes:
        stage: what goes on, in words.
        file: the file it goes on with; empty where there is none.
        done_bytes: of all files together, with those that were here already.
        total_bytes: of all files together; None while it is not known.
        bytes_per_second: smoothed over a few seconds; None until it was measured.
        seconds_left: at that rate; None where that can't be said.
    """

    stage: str
    file: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None


def ignore_progress(_progress: DownloadProgress) -> None:
    """For callers that show none."""


def never_cancelled() -> None:
    """For callers that never stop what they started."""


class Meter:
    """Counts bytes, and reports at most ten times a second; a new stage or file at once."""

    def __init__(
        self,
        on_progress: Callable[[DownloadProgress], None] = ignore_progress,
        *,
        total_bytes: int | None = None,
        done_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._total = total_bytes
        self._done = done_bytes
        self._stage = ""
        self._file = ""
        self._rate: float | None = None
        self._unmeasured = 0
        self._measured_at = clock()
        self._is_receiving = False

    def enter(self, stage: str, file: str = "", *, is_receiving: bool = False) -> None:
        """Say what goes on from now on. A rate is measured only of what is received."""
        self._stage, self._file = stage, file
        if is_receiving and not self._is_receiving:
            self._measured_at, self._unmeasured = self._clock(), 0
        self._is_receiving = is_receiving
        self._report()

    def count(self, num_bytes: int) -> None:
        """Bytes came in."""
        self._done += num_bytes
        self._unmeasured += num_bytes
        elapsed = self._clock() - self._measured_at
        if elapsed >= _INTERVAL_SECONDS:
            self._measure(elapsed)
            self._report()

    def set_done(self, done_bytes: int) -> None:
        """So many bytes are here; it says nothing about the rate."""
        self._done = done_bytes

    def rewind(self, num_bytes: int) -> None:
        """Bytes that were counted are thrown away."""
        self._done -= num_bytes

    def _measure(self, elapsed: float) -> None:
        latest = self._unmeasured / elapsed
        weight = 1.0 - math.exp(-elapsed / _SMOOTHING_SECONDS)
        self._rate = latest if self._rate is None else self._rate + weight * (latest - self._rate)
        self._measured_at, self._unmeasured = self._clock(), 0

    def _report(self) -> None:
        rate = self._rate if self._is_receiving else None
        left = None
        if rate and self._total is not None:
            left = max(0, self._total - self._done) / rate
        self._on_progress(DownloadProgress(self._stage, self._file, self._done, self._total, rate, left))
