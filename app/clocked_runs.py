"""Runs whose speed is told in two ways, and a process that runs them without a window."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, Self

from app.cli.run import print_run
from app.services import open_session
from core.controls import RunControls
from core.errors import GenerationError
from core.types import Event, Finished, RunRequest, RunStarted, Step


class Speeds(NamedTuple):
    """Tokens per second: as a run tells it, over the sum of its steps' times; and by the clock on the wall.

    Beside them, how many tokens there were.
    """

    told: float
    wall: float
    num_tokens: int


@dataclass
class ClockedSession:
    """A session whose runs are timed in whichever thread they are run in."""

    session: Any
    speeds: list[Speeds] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """The session's events, the clock going from `RunStarted` to the last token."""
        started = wrote = time.perf_counter()
        for event in self.session.run(request, controls):
            if isinstance(event, RunStarted):
                started = time.perf_counter()
                self.environment = dict(event.environment)
            elif isinstance(event, Step):
                wrote = time.perf_counter()
            elif isinstance(event, Finished):
                summary = event.summary
                if summary.error is not None:
                    raise GenerationError(summary.error)
                count = summary.num_tokens
                self.speeds.append(Speeds(summary.tokens_per_second or 0.0, count / (wrote - started), count))
            yield event

    def held_bytes(self, device: str) -> int:
        """As the session says."""
        return int(self.session.held_bytes(device))

    def close(self) -> None:
        """Close the session."""
        self.session.close()


class HeadlessProcess:
    """Runs requests one at a time in a process of its own, as a terminal does, and keeps its models between them.

    In the window's process they would take a second thread, and with it a second team of OpenMP's workers: from then
    on the engine's own wait more hastily, which costs it a third of its speed.
    """

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=error is None, cancel_futures=True)

    def run(self, request: RunRequest) -> Speeds:
        """Run a request to its end: the engine alone, whose events nobody shows or keeps.

        Raises:
            OutriderError: it fails.
        """
        return self._run(run_here, request)

    def run_in_terminal(self, request: RunRequest) -> Speeds:
        """Run a request as `outrider run` does: its text goes to a terminal, and its log to a file.

        Raises:
            OutriderError: it fails.
        """
        return self._run(run_in_terminal_here, request)

    def _run(self, work: Callable[[RunRequest], Speeds], request: RunRequest) -> Speeds:
        try:
            return self._executor.submit(work, request).result()
        except BrokenProcessPool as error:
            raise GenerationError("The process that runs without the window ended early. Try again.") from error


@functools.cache
def _session() -> ClockedSession:
    return ClockedSession(open_session())


def run_here(request: RunRequest) -> Speeds:
    """Run a request in this process, which keeps its models."""
    session = _session()
    for _ in session.run(request, RunControls.from_request(request)):
        pass
    return session.speeds[-1]


class _Screen(io.TextIOWrapper):
    """A terminal that takes no time to draw what is written to it, as a real one would."""

    def isatty(self) -> bool:
        return True


def run_in_terminal_here(request: RunRequest) -> Speeds:
    """Run a request in this process, with its text coloured on standard output, which leads nowhere, and its log."""
    session = _session()
    with (
        TemporaryDirectory(prefix="outrider-") as folder,
        _Screen(Path(os.devnull).open("wb"), "utf-8") as screen,
        contextlib.redirect_stdout(screen),
    ):
        print_run(request, session, Path(folder) / "run.jsonl")
    return session.speeds[-1]
