"""How many threads a forward uses on the CPU, and how they wait for each other.

A forward is hundreds of short parallel stretches. Threads that spin between them answer at once, and on a quiet
machine that more than doubles a small model's speed; but as soon as something else wants a core, every stretch waits
for a thread that is not running, and decoding falls to a tenth. So threads spin briefly, and fall asleep after that;
and where even so one thread alone is faster, one is used. Beside a window each thread stays on its own core.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

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
