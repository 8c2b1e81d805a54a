"""How far a download is, on stderr: a bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Protocol

from app.cli.errors import say
from app.cli.models.rendering import byte_text, printable

if TYPE_CHECKING:
    from core.models.downloads import DownloadProgress


class Display(Protocol):
    """Shows a download while it is entered.

    Attributes:
        done_bytes: of the download, as last heard; 0 before its first byte.
    """

    done_bytes: int

    def update(self, progress: DownloadProgress) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *details: object) -> None: ...


def open_progress() -> Display:
    """The display for this process's stderr."""
    with contextlib.suppress(AttributeError, ValueError):  # Closed, or not there.
        if sys.stderr.isatty():
            return _Bar()
    return _Lines()


class _Lines:
    """For a pipe or a file: a line whenever the stage changes."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self._stage = ""

    def update(self, progress: DownloadProgress) -> None:
        if progress.done_bytes:
            self.done_bytes = progress.done_bytes
        if progress.stage != self._stage:
            self._stage = progress.stage
            total = f" {byte_text(progress.total_bytes)}" if progress.total_bytes else ""
            say(f"{progress.stage}{total}")

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class _Bar:
    """For a terminal: stage, bar, bytes, rate and time left, in one line that is gone at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.done_bytes = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, figures="")

    def update(self, progress: DownloadProgress) -> None:
        if progress.done_bytes:
            self.done_bytes = progress.done_bytes
        self._progress.update(
            self._task,
            description=printable(progress.stage),
            completed=progress.done_bytes,
            # Without a total rich draws a bar that pulses, and it keeps a total that is not given.
            total=progress.total_bytes,
            figures=_figures(progress),
        )

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()


def _figures(progress: DownloadProgress) -> str:
    parts = []
    if progress.done_bytes or progress.total_bytes:
        total = f" of {byte_text(progress.total_bytes)}" if progress.total_bytes else ""
        parts.append(f"{byte_text(progress.done_bytes)}{total}")
    if progress.bytes_per_second:
        parts.append(f"{byte_text(round(progress.bytes_per_second))}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration_text(progress.seconds_left)} left")
    return "  ".join(parts)


def duration_text(seconds: float) -> str:
    """Minutes and seconds, 2:05; from an hour on, 1:02:05."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
