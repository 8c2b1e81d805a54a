"""Python's garbage collector, kept from walking over all that the libraries hold."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import psutil

from core.types import Step

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

_SPINS = "1000000"
"""By the processor 3 to 50 ms: longer than a window takes for a frame, during which the engine waits for Python's lock.
A core whose thread has fallen asleep by then stays slow for dozens of steps: a frame of 5 ms costs 20 to 35 ms with a
tenth of these turns, and 5 to 9 with them. Beside processes that take cores, steps have .55 to 1.8 of the speed they
have with a tenth, as the governor happens to choose; no less in the mean."""

_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

_first_core: set[int] = set()
"""Where OpenMP expects the thread that computes; empty where its threads may move."""
_all_cores: set[int] = set()
"""Where that thread may be while it doesn't compute; likewise."""

_SLOW = 2.0
"""A step this many times as long as the best of its kind is a slow one."""
_SLOW_STEPS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 24, 1024


def limit_spinning() -> bool:
    """Let OpenMP's threads spin only briefly while they wait.

    To be called before torch is imported, because OpenMP reads the setting once. A choice that the user made in the
    environment stays.

    Returns:
        Whether the setting was made; False where the user has chosen, or where torch is already here.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _CHOICES):
        return False
    if sys.platform == "linux":
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    else:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True


def num_processors() -> int:
    """Cores that this process may use: physical ones, and no more than its affinity or container allows."""
    most = psutil.cpu_count(logical=False) or 1
    # Of the process, that is of its first thread: the one that asks may be kept to a core.
    return min(most, len(os.sched_getaffinity(os.getpid()))) if hasattr(os, "sched_getaffinity") else most


@contextlib.contextmanager
def placing_threads() -> Iterator[None]:
    """Import torch within it, in the thread that will compute: OpenMP's threads then stay each on a core of its own.

    For a process whose window draws now and then. That takes a core for 3 ms; where threads may move, the one that had
    it goes and waits on the other core, behind the one that waits for it, and a step takes 10 to 20 ms longer.
    Does nothing where torch is here already, where the user has chosen, and on other systems than Linux.
    """
    if sys.platform != "linux" or "torch" in sys.modules or any(name in os.environ for name in _PLACES):
        yield
        return
    everywhere = os.sched_getaffinity(0)
    # Processes that are started from here have windows, and threads, of their own.
    os.environ.update(OMP_PROC_BIND="true", OMP_PLACES="cores")
    try:
        yield
    finally:
        del os.environ["OMP_PROC_BIND"], os.environ["OMP_PLACES"]
        # OpenMP has put the thread that imported it on the first core. Only while it computes should it stay there.
        bound = os.sched_getaffinity(0)
        if bound != everywhere:
            _first_core.update(bound)
            _all_cores.update(everywhere)
            _place(threading.get_native_id(), everywhere)


@contextlib.contextmanager
def on_first_core() -> Iterator[Callable[[int], None]]:
    """Within it, a thread that computes together with OpenMP's stays where these expect it.

    Yields:
        To be told how many threads compute from now on: one alone may go where there is room.
    """
    if not _first_core:
        yield lambda _count: None
        return
    # By its number: a run that is dropped may be closed in another thread, which keeps its own cores.
    thread = threading.get_native_id()
    everywhere = os.sched_getaffinity(thread)
    try:
        yield lambda count: _place(thread, _first_core if count > 1 else everywhere)
    finally:
        _place(thread, everywhere)


def leave_core() -> None:
    """Let the calling thread run everywhere: it may have been started by one that was on the first core just then."""
    if _all_cores:
        _place(threading.get_native_id(), _all_cores)


def _place(thread: int, cores: set[int]) -> None:
    # Where a container has lost a core meanwhile, or the thread has ended, a run goes on where it is.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, cores)


class ThreadGovernor:
    """Chooses between all threads and one by timing both, and looks again when steps become slow."""

    def __init__(self, time_step: Callable[[], float], set_threads: Callable[[int], None], most: int) -> None:
        """
        Args:
            time_step: runs and times a forward at the current number of threads, in milliseconds.
            set_threads: puts a number of threads in force.
            most: the number to use while the cores are free.
        """
        self._time_step = time_step
        self._set_threads = set_threads
        self._most = most
        self._best: dict[int, float] = {}
        self._slow_steps = 0
        self._steps_left = 0
        self._pause = _FIRST_PAUSE
        self.num_threads = most

    def settle(self) -> int:
        """Time both, put the faster in force and return it. All threads win a tie."""
        self._best.clear()
        self._slow_steps = 0
        try:
            times = self._time_both()
            if times[1] < times[self._most]:
                # A moment in which a window draws strikes all threads where it would hardly strike one: look twice.
                again = self._time_both()
                times = {count: min(times[count], again[count]) for count in times}
            self.num_threads = self._most if times[self._most] <= times[1] else 1
        finally:
            self._set_threads(self.num_threads)
        self._steps_left = self._pause
        return self.num_threads

    def _time_both(self) -> dict[int, float]:
        times = {}
        for count in (1, self._most):
            self._set_threads(count)
            times[count] = self._time_step()
        return times

    def record(self, step: Step) -> None:
        """Learn from a step; settle anew when steps turn slow, or after a while on one thread."""
        if self._most == 1:
            return
        positions = step.num_draft_tokens + 1
        best = self._best[positions] = min(self._best.get(positions, step.verify_ms), step.verify_ms)
        self._slow_steps = self._slow_steps + 1 if step.verify_ms > _SLOW * best else 0
        if self.num_threads == self._most:
            if self._slow_steps >= _SLOW_STEPS:
                self.settle()
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            # Each look that finds the cores still taken makes the next one rarer.
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if self.settle() == self._most:
                self._pause = _FIRST_PAUSE


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
