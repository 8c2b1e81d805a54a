"""Python's garbage collector, kept from walking over all that the libraries hold."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

_MANY_MODULES = 50
"""So many make a full collection long; fewer are not worth having all that is there set aside."""

_YOUNG = 1
"""The generation up to which a collection takes a few milliseconds."""

_PATIENCE_S = 1.0
"""For the thread that collects, which may itself be waiting, at the end, for the one that wants it done."""


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

    @property
    def are_on(self) -> bool:
        return self._count > 0


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
def making_what_stays() -> Iterator[None]:
    """As `paused`; and what there is at its end is set aside: for so much that one look through it halts a window.

    Young rings that were out of use before are collected first, by the thread that may; for older ones a window would
    stand still too long. While a run goes neither is done, because the run's caches would be set aside, too.
    """
    if not _runs:
        _collect(partial(gc.collect, _YOUNG), wait_s=_PATIENCE_S)
    with paused():
        yield
        if not _runs:
            set_aside()


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


class SoleCollector:
    """Has one thread do all of a process's collecting, between `begin` and `end`.

    For a process with a window, for which Python's own way is dangerous: it collects wherever it happens to make an
    object, and what it destroys there may be widgets, a closed window's menus say. In another thread than the one that
    draws them, that ends the process sooner or later; and in a call of Qt's that holds a lock, such as to disconnect a
    signal, the process waits for that lock for ever. So one thread collects, at moments of its own.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """
        Args:
            wake: has the collecting thread call `collect_wanted` soon. Called in other threads.
        """
        self._wake = wake
        self._thread = 0
        self._went_on = True
        self._wanted: deque[tuple[Callable[[], object], threading.Event]] = deque()

    def begin(self) -> None:
        """From now on the calling thread collects, when it calls `collect_due`, and no other one."""
        self._thread = threading.get_ident()
        self._went_on = gc.isenabled()
        gc.disable()
        _soles.append(self)

    def end(self) -> None:
        """Collect once more, and have Python do it as before."""
        _soles.remove(self)
        self.collect_wanted()
        gc.collect()
        if self._went_on:
            gc.enable()

    @property
    def is_here(self) -> bool:
        """Whether it is the calling thread that collects."""
        return threading.get_ident() == self._thread

    def collect_due(self) -> None:
        """Collect as much as Python would by now, unless that is paused; never all while a run goes.

        What a full collection finds in use may be set aside: a run's caches would then stay when it is over.
        """
        counts = list(zip(gc.get_count(), gc.get_threshold(), strict=True))[: 2 if _runs else 3]
        due = [generation for generation, (count, most) in enumerate(counts) if count > most > 0]
        if due and not _pauses.are_on:
            gc.collect(due[-1])

    def collect_wanted(self) -> None:
        """Do for other threads what they wait for."""
        while self._wanted:
            collect, is_done = self._wanted.popleft()
            collect()
            is_done.set()

    def want(self, collect: Callable[[], object], *, wait_s: float) -> None:
        """Have it done in the collecting thread, and wait for that no longer than this."""
        is_done = threading.Event()
        self._wanted.append((collect, is_done))
        self._wake()
        is_done.wait(wait_s)


_runs: list[object] = []
"""One for each block of `only_new_objects` that is under way."""

_soles: list[SoleCollector] = []
"""The last of them collects. There is one at most, but where a window is opened within another's process of tests."""


def _collect(collect: Callable[[], object], *, wait_s: float) -> None:
    sole = next(iter(_soles[-1:]), None)
    if sole is None or sole.is_here:
        collect()
    else:
        sole.want(collect, wait_s=wait_s)


def collect_new() -> None:
    """Collect what was made since anything was set aside, in the thread that may."""
    _collect(gc.collect, wait_s=_PATIENCE_S)


def collect_all() -> None:
    """Collect what was set aside too, in the thread that may. Takes a quarter of a second and more."""
    _collect(_collect_all, wait_s=_PATIENCE_S)


def _collect_all() -> None:
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
    run = object()
    _runs.append(run)
    set_aside()
    try:
        yield
    finally:
        _runs.remove(run)
        # The next run, of a sweep say, would set aside what this one leaves.
        collect_new()
