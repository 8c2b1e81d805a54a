"""What the window needs from the engine, by name, so that a test can put something else in its place.

Each function imports what it calls when it is called: the window is up before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.settings import SettingsStore, runs_folder
from core.controls import RunControls
from core.models.catalogue import ModelEntry, embedded_models, resolve
from core.types import Event, RunRequest


class Session(Protocol):
    """The engine, as the worker sees it: `core.session.Session`."""

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """Yield a run's events; closing the iterator stops it."""
        ...

    def close(self) -> None:
        """Drop the models."""
        ...


class LogWriter(Protocol):
    """Writes events as they come: `core.trace.RunLogWriter`."""

    def write(self, event: Event) -> None:
        """Append one event and flush it."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_session() -> Session:
    """Import the engine, torch included, and start it. Takes seconds the first time; for the worker's thread only."""
    from core.threads import limit_spinning

    # A window and its engine share the processor, however the window was opened; torch reads this when it is imported.
    limit_spinning()
    from core.session import Session as EngineSession

    return EngineSession()


def open_log(path: Path) -> LogWriter:
    """Start a run's log."""
    from core.trace import RunLogWriter

    return RunLogWriter(path)


def find_pair_problem(draft: str, target: str) -> str | None:
    """Why two models can't work together, in a sentence; None if they can. Reads files; not for the window's thread."""
    from core.models.compatibility import pair_problem

    return pair_problem(draft, target)


@dataclass(frozen=True, slots=True)
class Services:
    """The engine's entry points that the window uses."""

    open_session: Callable[[], Session] = open_session
    open_log: Callable[[Path], LogWriter] = open_log
    pair_problem: Callable[[str, str], str | None] = find_pair_problem
    embedded_models: Callable[[], tuple[ModelEntry, ...]] = embedded_models
    resolve: Callable[[str], ModelEntry] = resolve
    runs_folder: Callable[[], Path] = runs_folder
    store: SettingsStore = field(default_factory=SettingsStore)
