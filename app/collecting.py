"""Python's garbage collector, kept to the window's thread: collecting Qt objects in another thread ends the process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from PySide6.QtCore import QTimer

INTERVAL_MS = 1000


def collect_due() -> None:
    """Collect as much as Python would by now."""
    due = [generation for generation, most in enumerate(gc.get_threshold()) if gc.get_count()[generation] > most > 0]
    if due:
        gc.collect(due[-1])


@contextlib.contextmanager
def collecting_here() -> Iterator[None]:
    """Within it, nothing is collected but by a timer in the calling thread, which runs Qt's event loop."""
    was_enabled = gc.isenabled()
    gc.disable()
    timer = QTimer(interval=INTERVAL_MS)
    timer.timeout.connect(collect_due)
    timer.start()
    try:
        yield
    finally:
        timer.stop()
        gc.collect()
        if was_enabled:
            gc.enable()
