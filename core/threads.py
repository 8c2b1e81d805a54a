"""How many threads a forward uses on the CPU, and how they wait for each other.

A forward is hundreds of short parallel stretches. Threads that spin between them answer at once, and on a quiet
machine that more than doubles a small model's speed; but as soon as something else wants a core, every stretch waits
for a thread that is not running, and decoding falls to a tenth. So threads spin briefly, and fall asleep after that;
and where even so one thread alone is faster, one is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import psutil

from core.types import Step

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

_SPINS = "30000"
"""Some 100 microseconds: longer than the gap between two forwards of a draft, which is 12 % of a step of the embedded
pair; shorter than a scheduler's slice."""

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
    return min(most, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else most


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
