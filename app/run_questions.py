"""What the window's thread and the run reader's say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from core.runs import KeptRun
from core.types import Event, RunRequest


@dataclass(frozen=True, slots=True)
class RunsFound:
    """The kept runs, newest first; perhaps not all yet."""

    runs: tuple[KeptRun, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A kept run, ready to be shown.

    Attributes:
        request: what it was asked for, as far as its log tells.
        problems: a sentence for each thing that is wrong with its log.
    """

    run: KeptRun
    request: RunRequest
    events: tuple[Event, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """A kept run that is to run again, and the text that it had; None where its end was cut off."""

    run: KeptRun
    request: RunRequest
    text: str | None
