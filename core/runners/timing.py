"""Measures the models' time and peak memory, with stopwatches that wait for the device."""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil
import torch


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
    """Times the parts of a step; on a GPU by events, so that nothing waits for the device until the times are read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: list[tuple[Any, Any]] = []
        self._started: Any = None

    def start(self) -> None:
        """Begin a part."""
        self._started = self._now()

    def stop(self) -> None:
        """End the current part."""
        self._parts.append((self._started, self._now()))

    def read(self) -> list[float]:
        """Milliseconds of each part."""
        if self._device.type == "cpu":
            return [(end - begin) * 1e3 for begin, end in self._parts]
        synchronize(self._device)
        return [begin.elapsed_time(end) for begin, end in self._parts]

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
