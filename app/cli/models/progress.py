"""How far a download is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Protocol

from app.cli.errors import say
from app.cli.models.rendering import printable
from app.view_models.model_text import bytes_text, progress_text

if TYPE_CHECKING:
    from core.models.downloads import DownloadProgress


class Display(Protocol):
    """Shows a download while it is entered."""

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
    """For a pipe or a file: a line for each stage and for each file, whatever comes back to it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def update(self, progress: DownloadProgress) -> None:
        if progress.total_bytes:
            self._say_once("total", f"{bytes_text(progress.total_bytes)} in all")
        stage = f"{progress.stage.rstrip('…')} {progress.file}" if progress.file else progress.stage
        self._say_once(progress.file or progress.stage, printable(stage))

    def _say_once(self, key: str, line: str) -> None:
        if key not in self._said:
            self._said.add(key)
            say(line)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class _Bar:
    """For a terminal: stage, bar, bytes, rate and time left, in one line that is gone at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, figures="")

    def update(self, progress: DownloadProgress) -> None:
        self._progress.update(
            self._task,
            description=printable(progress.stage),
            completed=progress.done_bytes,
            # Without a total rich draws a bar that pulses, and it keeps a total that is not given.
            total=progress.total_bytes,
            figures=progress_text(progress) if progress.done_bytes else "",
        )

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()
