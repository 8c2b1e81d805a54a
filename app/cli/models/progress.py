"""How far a download is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from app.cli.errors import say
from app.cli.models.rendering import printable
from app.cli.progress import Bar, Lines
from app.cli.terminal import is_terminal
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
    return _Bar() if is_terminal(sys.stderr) else _Lines()


class _Lines(Lines):
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


class _Bar(Bar):
    """For a terminal: stage, bar, bytes, rate and time left."""

    def __init__(self) -> None:
        from rich.progress import TextColumn

        super().__init__(TextColumn("{task.fields[figures]}", markup=False))

    def update(self, progress: DownloadProgress) -> None:
        self._progress.update(
            self._task,
            description=printable(progress.stage),
            completed=progress.done_bytes,
            # Without a total rich draws a bar that pulses, and it keeps a total that is not given.
            total=progress.total_bytes,
            figures=progress_text(progress) if progress.done_bytes else "",
        )
