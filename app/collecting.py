"""Python's garbage collector, kept to the window's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from core.machine import SoleCollector

INTERVAL_MS = 1000
"""So often something is collected at least. A run's frames do it too, at a better moment: see `collect_due`."""


class _WindowCollector(QObject):
    """Collects on a timer, and whenever another thread wants it.

    pyqtgraph has one like it, for the same reason; it knows of no pauses, though, would not wait for the moment when
    the engine stands still, and lets other threads collect what they want collected.
    """

    _woken = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._sole = SoleCollector(self._woken.emit)
        self._timer = QTimer(self)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._sole.collect_due)
        # To a slot of this object, so that it is called in this object's thread.
        self._woken.connect(self._on_woken)

    def begin(self) -> None:
        self._sole.begin()
        self._timer.start()

    def end(self) -> None:
        self._timer.stop()
        self._sole.end()

    def collect_due(self) -> None:
        self._sole.collect_due()
        # The next tick counts from here: each one that comes amid a step keeps a core from the engine.
        self._timer.start()

    @Slot()
    def _on_woken(self) -> None:
        self._sole.collect_wanted()


_collectors: list[_WindowCollector] = []


@contextlib.contextmanager
def collecting_here() -> Iterator[None]:
    """Within it, only the calling thread collects, which has to run Qt's event loop: see `SoleCollector`."""
    collector = _WindowCollector()
    collector.begin()
    _collectors.append(collector)
    try:
        yield
    finally:
        _collectors.remove(collector)
        collector.end()


def collect_due() -> None:
    """Collect what is due, at a moment when it disturbs nobody. Without `collecting_here` nothing is done."""
    if _collectors:
        _collectors[-1].collect_due()
