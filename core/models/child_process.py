"""Work that may crash, hang or swallow memory, done in a process that can be killed for it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import psutil

POLL_S = 0.1
"""How soon a stop, or a child that takes too much, is seen."""
_MEASURE_S = 1.0
_LONGEST_LINE = 65_536
_KEPT_LINES = 50


class ChildFailure(StrEnum):
    """Why a child did not come to its end."""

    ERROR = "error"
    SIGNAL = "signal"
    MEMORY = "memory"
    STALL = "stall"


class ChildFailedError(Exception):
    """A child ended badly, or was ended.

    Attributes:
        failure: why.
        said: the last line of what it wrote to stderr; empty if it wrote nothing.
    """

    def __init__(self, failure: ChildFailure, said: str) -> None:
        super().__init__(f"{failure}: {said}")
        self.failure = failure
        self.said = said


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take: bytes of resident memory, and seconds without a sign of progress."""

    memory_bytes: int
    stall_s: float = 300.0


def supervise(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    limits: Limits,
    check_cancelled: Callable[[], None] = lambda: None,
    output: Path | None = None,
) -> Generator[Mapping[str, Any] | None, None, None]:
    """Run a command at low priority until it ends, and kill it where it must be.

    Its stdin stays open as long as this process lives, so that it can end itself when this one is gone. What it writes
    to stdout is taken as messages, one JSON object a line; anything else there is ignored.

    Args:
        command: program and arguments.
        environment: all of the child's variables.
        limits: a message, or growth of `output`, counts as progress.
        check_cancelled: raises to give up; called many times a second.
        output: the folder that it writes to.

    Yields:
        Each message, and None now and then while there is none.

    Raises:
        ChildFailedError: it ended with an error, or had to be killed.
        OSError: it could not be started.
    """
    child = _start(command, environment)
    said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    messages: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    readers = [
        threading.Thread(target=_read_messages, args=(child.stdout, messages), daemon=True),
        threading.Thread(target=_read_lines, args=(child.stderr, said), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        gauge = _Gauge(child.pid, limits, output)
        while child.poll() is None:
            check_cancelled()
            message = _next(messages, POLL_S)
            failure = gauge.failure(has_message=message is not None)
            if failure is not None and child.poll() is None:
                raise ChildFailedError(failure, _last(said))
            yield message
        for reader in readers:
            reader.join(timeout=5)
        while (message := _next(messages, 0)) is not None:
            yield message
        if child.returncode:
            failure = ChildFailure.SIGNAL if child.returncode < 0 else ChildFailure.ERROR
            raise ChildFailedError(failure, _last(said))
    finally:
        _end(child, readers)


class _Gauge:
    """Measures what a child takes, and how long it has shown no progress."""

    def __init__(self, pid: int, limits: Limits, output: Path | None) -> None:
        self._pid = pid
        self._limits = limits
        self._output = output
        self._written = 0
        self._measured_at = self._progress_at = time.monotonic()

    def failure(self, *, has_message: bool) -> ChildFailure | None:
        now = time.monotonic()
        # A child that is just gone takes nothing; how it went is seen elsewhere.
        with contextlib.suppress(psutil.Error):
            if psutil.Process(self._pid).memory_info().rss > self._limits.memory_bytes:
                return ChildFailure.MEMORY
        if has_message or self._has_grown(now):
            self._progress_at = now
        return ChildFailure.STALL if now - self._progress_at > self._limits.stall_s else None

    def _has_grown(self, now: float) -> bool:
        if self._output is None or now - self._measured_at < _MEASURE_S:
            return False
        self._measured_at = now
        before, self._written = self._written, folder_bytes(self._output)
        return self._written != before


def folder_bytes(folder: Path) -> int:
    """What the files right in a folder come to; 0 where it is not there."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                total += entry.stat().st_size
    return total


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Names that exist on Windows alone, where the child lowers its priority in no other way and would open a console.
    flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        creationflags=flags,
        # Ctrl+C in a terminal is for this process to act on, which ends the child.
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
    for reader in readers:
        if reader.ident is not None:
            reader.join(timeout=5)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _read_messages(pipe: IO[bytes], messages: queue.SimpleQueue[Mapping[str, Any]]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while line := pipe.readline(_LONGEST_LINE):
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.put(message)


def _read_lines(pipe: IO[bytes], lines: collections.deque[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while line := pipe.readline(_LONGEST_LINE):
            text = line.decode("utf-8", "replace").strip()
            if text:
                lines.append(text)


def _next(messages: queue.SimpleQueue[Mapping[str, Any]], timeout: float) -> Mapping[str, Any] | None:
    try:
        return messages.get(timeout=timeout) if timeout else messages.get_nowait()
    except queue.Empty:
        return None


def _last(lines: collections.deque[str]) -> str:
    return lines[-1] if lines else ""
