"""Python's lock, let go often: for a thread that works while the window answers.

Whoever waits for the lock gets it after the switch interval, 5 ms by default. The window asks for it each time that Qt
has done something for it, dozens of times for one picture, which beside a busy thread makes a picture of hundreds of
milliseconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, Signal, Slot

SWITCH_S = 0.0001

WORK_S = 0.002
"""So long a thread works that lets the window go first; then it waits until the window is through."""
MOST_S = 0.1
"""No longer does it wait, whatever the window does."""


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


class WindowFirst(QObject):
    """Has a thread wait, every few milliseconds, until the window's thread has done all that waits for it.

    For a thread that asks the system for something every few microseconds, as one does that reads many small files.
    Each time it lets go of Python's lock and has it back before the window has woken up: no switch interval is ever
    over, and the window's first picture of a list takes a fifth of a second.

    To be made in the window's thread.
    """

    _asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._is_through = threading.Event()
        self._since = 0.0
        self._asked.connect(self._on_asked, Qt.ConnectionType.QueuedConnection)

    def let(self) -> None:
        """Wait if it is time to. Called in the thread that works, as often as it likes."""
        if time.perf_counter() - self._since >= WORK_S:
            self._is_through.clear()
            self._asked.emit()
            self._is_through.wait(MOST_S)
            self._since = time.perf_counter()

    @Slot()
    def _on_asked(self) -> None:
        # Behind painting, which has the lowest priority that Qt gives.
        last = Qt.EventPriority.LowEventPriority.value - 1
        QCoreApplication.postEvent(self, QEvent(QEvent.Type.User), last)

    def event(self, event: QEvent) -> bool:
        """Nothing else waits any more."""
        if event.type() == QEvent.Type.User:
            self._is_through.set()
            return True
        return super().event(event)
