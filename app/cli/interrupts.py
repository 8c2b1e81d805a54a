"""Ctrl-C as a request to end in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from core.controls import RunControls


@contextlib.contextmanager
def stop_on_interrupt(controls: RunControls) -> Iterator[None]:
    """The first Ctrl-C asks the engine to stop, the second one leaves at once."""

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        if controls.is_cancelled:
            raise KeyboardInterrupt
        controls.cancel()

    try:
        previous = signal.signal(signal.SIGINT, on_interrupt)
    except ValueError:  # Not the main thread, where there are no signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
