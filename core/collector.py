"""Python's garbage collector, kept from walking over all that the libraries hold."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


def set_aside() -> None:
    """Have the collector pass over all objects that there are now, until `collect_all`.

    A full collection walks over everything that torch and transformers hold, a quarter of a second in which no thread
    runs any Python: a window stands still, and a run with it. What is set aside is freed as ever when nothing refers
    to it any more; it is only rings of references that stay.
    """
    gc.freeze()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect nothing within it: what imports make stays, and looking through it again and again stops every thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
