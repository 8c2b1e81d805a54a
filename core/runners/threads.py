"""How this process shares the machine: OpenMP's spinning, the number of threads, and Python's garbage collector."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from core.types import Step

SPIN_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""The variables that say how long a waiting thread of OpenMP spins."""

_SPINS = "1000000"
"""3 to 50 ms: longer than a frame of the window, so that no core goes to sleep while the engine waits for it."""

_SLOW = 2.0
"""A step is slow if it takes this many times the best of its kind."""
_SLOW_STEPS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 24, 1024


def limit_spinning() -> bool:
    """Let OpenMP's threads spin only briefly while they wait.

    Call it before torch is imported, because OpenMP reads the setting once. The user's own environment variable takes
    precedence.

    Returns:
        Whether it was set; False if the user has set it, or if torch is already imported.
    """
    if "torch" in sys.modules or any(name in os.environ for name in SPIN_SETTINGS):
        return False
    if sys.platform == "linux":
        os.environ["GOMP_SPINCOUNT"] = _SPINS
    else:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Use a number of threads within the block; None keeps the current one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_processors() -> int:
    """Number of physical cores that this process may use, within its affinity and limits; on a Mac the fast ones."""
    most = min(psutil.cpu_count(logical=False) or 1, processors_allowed(), _performance_cores())
    return min(most, len(os.sched_getaffinity(os.getpid()))) if hasattr(os, "sched_getaffinity") else most


@functools.cache
def _performance_cores() -> int:
    """How many an Apple chip has, which is also torch's default: its other cores slow down all threads. Else many."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # Intel's have no such levels.
            asked = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
            return int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout)
    return sys.maxsize


def processors_allowed(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processors' time the container may use; many without a limit."""
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit.
        quota, period = map(int, (groups / "cpu.max").read_text("ascii").split())
        return max(1, round(quota / period))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (
            int((groups / "cpu" / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period")
        )
        if quota > 0:
            return max(1, round(quota / period))
    return sys.maxsize


@contextlib.contextmanager
def without_collection(*, freezes: bool = True) -> Iterator[None]:
    """For importing large libraries: the garbage collector pauses, and ignores their objects from then on.

    Without `freezes` it only pauses: what is made may become garbage later, as the models of a session do.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        if was_enabled:
            gc.enable()


class ThreadGovernor:
    """Chooses between all threads and one by timing both; checks again when steps become slow."""

    def __init__(self, time_step: Callable[[], float], set_threads: Callable[[int], None], most: int) -> None:
        """`time_step` runs a forward and returns its milliseconds; `most` threads are used while the cores are free."""
        self._time_step = time_step
        self._set_threads = set_threads
        self._most = most
        self._best: dict[int, float] = {}
        self._slow_steps = 0
        self._steps_left = 0
        self._pause = _FIRST_PAUSE
        self.num_threads = most

    def settle(self) -> int:
        """Time both, set the faster number and return it. In a tie, use all threads."""
        self._best.clear()
        self._slow_steps = 0
        try:
            times = self._time_both()
            if times[1] < times[self._most]:
                # A brief load slows many threads far more than one: measure twice.
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
        """Learn from a step; settle again when steps become slow, or after a while on one thread."""
        positions = step.num_draft_tokens + 1
        best = self._best[positions] = min(self._best.get(positions, step.verify_ms), step.verify_ms)
        self._slow_steps = self._slow_steps + 1 if step.verify_ms > _SLOW * best else 0
        if self.num_threads == self._most:
            if self._slow_steps >= _SLOW_STEPS:
                self.settle()
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            # Each check that finds the cores still busy makes the next one rarer.
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if self.settle() == self._most:
                self._pause = _FIRST_PAUSE
