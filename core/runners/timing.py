"""Measures the models' time and peak memory, with stopwatches that wait for the device."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch

_BEAT_S, _SILENCE_S = 0.25, 1.0


@contextlib.contextmanager
def watching_for_silence() -> Iterator[Callable[[], float]]:
    """Yields a function: milliseconds for which a thread that beats four times a second was silent for over a second.

    Then the machine slept, this process was stopped, or a library held Python's lock: processor time tells which.
    """
    state = [(0.0, time.perf_counter())]
    ended = threading.Event()

    def silence_ms() -> float:
        before, last_beat = state[0]
        silence = time.perf_counter() - last_beat
        return before + (silence * 1e3 if silence > _SILENCE_S else 0.0)

    def beat() -> None:
        while not ended.wait(_BEAT_S):
            state[0] = (silence_ms(), time.perf_counter())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield silence_ms
    finally:
        ended.set()
        thread.join()


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on this device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def is_asynchronous(device: torch.device) -> bool:
    """Whether the host runs ahead of this device, so that reading a value means waiting for it."""
    return device.type != "cpu"


class Stopwatch:
    """Times laps, each of which ends only when the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        synchronize(device)
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Milliseconds since the last lap, or since the start."""
        synchronize(self._device)
        now = time.perf_counter()
        elapsed, self._last = (now - self._last) * 1e3, now
        return elapsed


class StepClock:
    """Times the parts of a step; on a GPU by events, so that nothing waits for the device until the times are read.

    Time in which the machine slept or the process was stopped belongs to no part; `absent_ms` is what `read` left out.
    """

    def __init__(self, device: torch.device, silence_ms: Callable[[], float] = lambda: 0.0) -> None:
        """`silence_ms` is of `watching_for_silence`."""
        self.absent_ms = 0.0
        self._device = device
        self._silence_ms = silence_ms
        self._parts: list[tuple[Any, Any, float, float]] = []
        self._started: Any = None

    def start(self) -> None:
        """Begin a part."""
        self._started = self._silence_ms(), time.process_time(), self._now()

    def stop(self) -> None:
        """End the current part."""
        before, used, began = self._started
        computed_ms = (time.process_time() - used) * 1e3
        self._parts.append((began, self._now(), max(0.0, self._silence_ms() - before), computed_ms))

    def read(self) -> list[float]:
        """Milliseconds of each part."""
        if self._device.type != "cpu":
            synchronize(self._device)
        times = []
        for began, ended, silence, computed_ms in self._parts:
            whole = (ended - began) * 1e3 if self._device.type == "cpu" else began.elapsed_time(ended)
            times.append(min(whole, max(whole - silence, computed_ms)) if silence else whole)
            self.absent_ms += whole - times[-1]
        return times

    def _now(self) -> Any:
        if self._device.type == "cuda":
            event: Any = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            return event
        if self._device.type == "mps":
            event = torch.mps.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak, if the device counts one."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak memory in MB of 10^6 bytes: on CUDA the device's since the reset, else this process's so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / 1e6
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
