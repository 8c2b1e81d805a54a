"""Python's garbage collector, kept from walking over all that the libraries hold."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

_MANY_MODULES = 50
"""So many make a full collection long; fewer are not worth having all that is there set aside."""


def set_aside() -> None:
    """Have the collector pass over all objects that there are now, until `collect_all`.

    A full collection walks over everything that torch and transformers hold, a quarter of a second in which no thread
    runs any Python: a window stands still, and a run with it. What is set aside is freed as ever when nothing refers
    to it any more; it is only rings of references that stay.
    """
    gc.freeze()


class _Pauses:
    """How many threads have the collector pause, and whether it is to go on when the last of them is through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._goes_on = False

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._goes_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._goes_on:
                gc.enable()


_pauses = _Pauses()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect nothing within it, in any thread: for work that makes much that stays.

    Each look through that would halt every thread. May be nested, and used in several threads at once.
    """
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within it, modules may be imported without a look through them; those that were are set aside at its end."""
    known = len(sys.modules)
    with paused():
        try:
            yield
        finally:
            if len(sys.modules) - known >= _MANY_MODULES:
                set_aside()


def collect_all() -> None:
    """Collect what was set aside too. Takes a quarter of a second and more."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def short_pauses() -> Iterator[None]:
    """Within it, what a full collection has found in use is set aside: no object is walked over a second time.

    For a process with a window, in which a long run's steps alone would make for pauses that a person sees.
    """
    gc.callbacks.append(_set_survivors_aside)
    try:
        yield
    finally:
        gc.callbacks.remove(_set_survivors_aside)


def _set_survivors_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        set_aside()


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Within it, the collector looks at objects made since; at its end, at all of these.

    What there is then, of this run, waits for `collect_all`. May be nested, and used in several threads.
    """
    set_aside()
    try:
        yield
    finally:
        gc.collect()
