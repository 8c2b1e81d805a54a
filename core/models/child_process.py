"""Runs work that may crash, hang or use too much memory in a child process that can be killed."""

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
from typing import Any

import psutil

POLL_S = 0.1
_MEASURE_S = 1.0
_LONGEST_LINE = 65_536
_KEPT_LINES = 50


class ChildFailure(StrEnum):
    """Why a child did not finish."""

    ERROR = "error"
    SIGNAL = "signal"
    MEMORY = "memory"
    STALL = "stall"


class ChildFailedError(Exception):
    """A child failed, or was killed; `said` is the last line of its stderr, empty if there was none."""

    def __init__(self, failure: ChildFailure, said: str) -> None:
        super().__init__(f"{failure}: {said}")
        self.failure = failure
        self.said = said


@dataclass(frozen=True, slots=True)
class Limits:
    """A child's limits: bytes of resident memory, and seconds without progress."""

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
    """Run a command until it ends; kill it when it exceeds its limits, or when this generator is closed.

    The child's stdin stays open while this process lives, so that the child can exit when it closes. Each line
    of its stdout that is a JSON object is a message; other lines are ignored.

    Args:
        environment: the child's complete environment.
        limits: a message, or growth of `output`, counts as progress.
        check_cancelled: raises to cancel; called about ten times a second.
        output: the folder that the child writes to.

    Yields:
        Each message, and None periodically while there is none.

    Raises:
        ChildFailedError: it ended with an error, or had to be killed.
        OSError: it could not be started.
    """
    # The flags exist on Windows only, where they lower the priority and keep a console from opening.
    flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
    pipe = subprocess.PIPE
    # In its own session: Ctrl+C reaches only this process, which then ends the child.
    child = subprocess.Popen(
        list(command), env=dict(environment), stdin=pipe, stdout=pipe, stderr=pipe, creationflags=flags,
        start_new_session=True,
    )  # fmt: skip
    said: collections.deque[str] = collections.deque([""], maxlen=_KEPT_LINES)
    messages: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def take_message(line: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(message := json.loads(line), dict):
                messages.put(message)

    def take_words(line: bytes) -> None:
        if text := line.decode("utf-8", "replace").strip():
            said.append(text)

    readers = [
        threading.Thread(target=_read_lines, args=arguments, daemon=True)
        for arguments in ((child.stdout, take_message), (child.stderr, take_words))
    ]
    for reader in readers:
        reader.start()
    written, measured_at = 0, time.monotonic()
    progress_at = measured_at
    try:
        while child.poll() is None:
            check_cancelled()
            message = None
            with contextlib.suppress(queue.Empty):
                message = messages.get(timeout=POLL_S)
            now = time.monotonic()
            if output is not None and now - measured_at >= _MEASURE_S:
                before, written, measured_at = written, folder_bytes(output), now
                progress_at = now if written != before else progress_at
            progress_at = now if message is not None else progress_at
            failure = ChildFailure.STALL if now - progress_at > limits.stall_s else None
            with contextlib.suppress(psutil.Error):  # It may have just exited.
                if psutil.Process(child.pid).memory_info().rss > limits.memory_bytes:
                    failure = ChildFailure.MEMORY
            if failure is not None and child.poll() is None:
                raise ChildFailedError(failure, said[-1])
            yield message
        for reader in readers:
            reader.join(timeout=5)
        while not messages.empty():
            yield messages.get()
        if child.returncode:
            raise ChildFailedError(ChildFailure.SIGNAL if child.returncode < 0 else ChildFailure.ERROR, said[-1])
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        for reader in readers:
            reader.join(timeout=5)
        for end in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                end.close()  # type: ignore[union-attr]


def folder_bytes(folder: Path) -> int:
    """The total size of the files directly in a folder; 0 if there is no such folder."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                total += entry.stat().st_size
    return total


def _read_lines(pipe: Any, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while line := pipe.readline(_LONGEST_LINE):
            take(line)
