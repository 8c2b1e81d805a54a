"""Copies to a device, clocks of prefills and steps, and peak memory: what waits for the device, and what doesn't."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor

_BEAT_S, _SILENCE_S = 0.25, 1.0


@contextlib.contextmanager
def watching_for_silence() -> Iterator[Callable[[], float]]:
    """Yields a function: milliseconds in which neither its callers nor a thread that beats was heard for over a second.

    Then the machine slept, this process was stopped, or a library held Python's lock: processor time tells which.
    """
    state = [(0.0, time.perf_counter())]
    ended = threading.Event()

    def silence_ms() -> float:
        # Who asks is heard, too: on a busy machine the thread may be late although steps go on.
        before, last_heard = state[0]
        now = time.perf_counter()
        silence = now - last_heard
        total = before + (silence * 1e3 if silence > _SILENCE_S else 0.0)
        state[0] = (total, now)
        return total

    def beat() -> None:
        while not ended.wait(_BEAT_S):
            silence_ms()

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
        _in_flight.clear()


def is_asynchronous(device: torch.device) -> bool:
    """Whether the host runs ahead of this device, so that reading a value means waiting for it."""
    return device.type != "cpu"


_in_flight: deque[Tensor] = deque(maxlen=1024)
"""What Apple's GPUs may still have to read: torch copies to them late, and may free the memory meanwhile."""


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, copied there without waiting if it isn't; on the CPU it is the same one."""
    if values.device.type == "cpu" and device.type == "cuda":
        # From other memory CUDA copies only once the device is idle.
        values = values.pin_memory()
    elif values.device.type == "cpu" and device.type == "mps":
        _in_flight.append(values)
    return values.to(device, non_blocking=True)


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
    """Times the parts of a step, and reads its results.

    On a GPU events time what was queued, so that nothing but `fetch` waits; what follows is timed by the host's clock.
    Time in which the machine slept or the process was stopped belongs to no part; `absent_ms` is what `read` left out.
    """

    def __init__(self, device: torch.device, silence_ms: Callable[[], float]) -> None:
        """`silence_ms` is of `watching_for_silence`."""
        self.absent_ms = 0.0
        self._device = device
        self._silence_ms = silence_ms
        self._parts: list[list[tuple[Any, Any, float, float]]] = []
        self._started: Any = None
        self._has_waited = False

    def start(self) -> None:
        """Begin a part."""
        self._parts.append([])
        self._begin()

    def _begin(self) -> None:
        self._started = self._silence_ms(), time.process_time(), self._now()

    def stop(self) -> None:
        """End the current part."""
        before, used, began = self._started
        computed_ms = (time.process_time() - used) * 1e3
        self._parts[-1].append((began, self._now(), max(0.0, self._silence_ms() - before), computed_ms))

    def fetch(self, values: Tensor) -> list[float]:
        """Read a tensor (n,) within a part: the only wait of verification on a GPU."""
        self.stop()
        found: list[float] = values.tolist()
        _in_flight.clear()
        self._has_waited = True
        self._begin()
        return found

    def read(self) -> list[float]:
        """Milliseconds of each part. On a GPU, call it after `fetch`, when all events have passed."""
        times = []
        for spans in self._parts:
            times.append(0.0)
            for began, ended, silence, computed_ms in spans:
                whole = (ended - began) * 1e3 if isinstance(began, float) else _between_ms(began, ended)
                present = min(whole, max(whole - silence, computed_ms)) if silence else whole
                times[-1] += present
                self.absent_ms += whole - present
        return times

    def _now(self) -> Any:
        if self._device.type == "cuda" and not self._has_waited:
            event: Any = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            return event
        if self._device.type == "mps" and not self._has_waited:
            event = torch.mps.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()


def _between_ms(began: Any, ended: Any) -> float:
    try:
        return float(began.elapsed_time(ended))
    except RuntimeError:
        # On MPS two events with almost nothing between may be seen in the wrong order.
        if isinstance(began, torch.mps.Event):
            return 0.0
        raise


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
