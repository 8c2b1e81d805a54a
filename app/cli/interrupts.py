"""Ctrl-C as a request to end in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Protocol


class CanStop(Protocol):
    """What asks the work at hand to end, such as `core.controls.RunControls`."""

    @property
    def is_cancelled(self) -> bool: ...

    def cancel(self) -> None: ...


@contextlib.contextmanager
def handle_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C do this for a while. Outside of the main thread, where there are no signals, nothing is changed."""
    try:
        previous = signal.signal(signal.SIGINT, lambda _number, _frame: act())
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def stop_on_interrupt(controls: CanStop, *, can_wait: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The first Ctrl-C asks the engine to stop, the second one leaves at once.

    Args:
        controls: to stop through.
        can_wait: whether there is anything to end in order; where there is not, the first one leaves at once as well.
    """

    def act() -> None:
        if controls.is_cancelled or not can_wait():
            raise KeyboardInterrupt
        controls.cancel()

    with handle_interrupt(act):
        yield
