"""Python's lock, let go often: for a thread that works while the window answers.

Whoever waits for the lock gets it after the switch interval, 5 ms by default. The window asks for it each time that Qt
has done something for it, dozens of times for one picture, which beside a busy thread makes a picture of hundreds of
milliseconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SWITCH_S = 0.0001


class _Ways:
    """How many threads give way, and the interval that holds again when the last of them is through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_S, self._before))
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.setswitchinterval(self._before)


_ways = _Ways()


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Within it, every thread of this process has the interpreter's lock a tenth of a millisecond at a time.

    May be nested, and used in several threads at once.
    """
    _ways.begin()
    try:
        yield
    finally:
        _ways.end()
