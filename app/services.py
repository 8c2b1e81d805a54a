"""What the window needs from the engine, by name, so that a test can put something else in its place.

Each function imports what it calls when it is called: the window is up before torch is loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.settings import SettingsStore, runs_folder, sweeps_folder
from core.controls import RunControls
from core.types import Event, RunRequest

if TYPE_CHECKING:
    from core.analysis.probe import ProbeRequest
    from core.experiments.check import CheckRequest


class Session(Protocol):
    """The engine, as the worker sees it: `core.session.Session`."""

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """Yield a run's events; closing the iterator stops it."""
        ...

    def held_bytes(self, device: str) -> int:
        """What the models that are kept take on a device; another run may have it."""
        ...

    def close(self) -> None:
        """Drop the models."""
        ...


class LogWriter(Protocol):
    """Writes events as they come: `core.runlog.log.RunLogWriter`."""

    def write(self, event: Event) -> None:
        """Append one event and flush it."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def load_libraries() -> None:
    """Load what `open_session` needs most time for, without holding up other threads; in the same thread, before it."""
    from core.machine import limit_spinning

    limit_spinning()


def open_session(while_loading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> Session:
    """Import the engine, torch included, and start it. Takes seconds the first time; for the worker's thread only.

    Args:
        while_loading: entered while models are loaded.
    """
    from core.machine import limit_spinning

    # A window and its engine share the processor, however the window was opened; torch reads this when it is imported.
    limit_spinning()
    from core.session import Session as EngineSession

    return EngineSession(while_loading=while_loading)


def open_session_beside_window() -> Session:
    """As `open_session`, in a process whose window draws while the engine computes, and answers while it loads."""
    return open_session()


def open_log(path: Path) -> LogWriter:
    """Start a run's log."""
    from core.runlog.log import RunLogWriter

    return RunLogWriter(path)


def find_drafts(target: str) -> tuple[str, ...]:
    """Drafts that are here for a target; see `core.analysis.probe.drafts_here`. Not for the window's thread."""
    from core.analysis.probe import drafts_here

    return drafts_here(target)


def check_exactness(session: Any, request: CheckRequest, controls: RunControls) -> Iterator[Any]:
    """Check a pair and its settings; see `core.experiments.exactness.check`. For the engine's thread."""
    from core.experiments.exactness import check

    return check(session, request, controls)


def probe_drafts(session: Any, request: ProbeRequest, controls: RunControls) -> Iterator[Any]:
    """Rank drafts for a target; see `core.analysis.probing.probe`. For the engine's thread."""
    from core.analysis.probing import probe

    return probe(session, request, controls)


@dataclass(frozen=True, slots=True)
class Services:
    """The engine's entry points that the window uses."""

    load_libraries: Callable[[], None] = load_libraries
    open_session: Callable[[], Session] = open_session_beside_window
    open_log: Callable[[Path], LogWriter] = open_log
    find_drafts: Callable[[str], tuple[str, ...]] = find_drafts
    check: Callable[[Any, CheckRequest, RunControls], Iterator[Any]] = check_exactness
    probe: Callable[[Any, ProbeRequest, RunControls], Iterator[Any]] = probe_drafts
    runs_folder: Callable[[], Path] = runs_folder
    sweeps_folder: Callable[[], Path] = sweeps_folder
    store: SettingsStore = field(default_factory=SettingsStore)
