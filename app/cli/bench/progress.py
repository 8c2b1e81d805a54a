"""How far a bench is, on stderr: a bar on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import Protocol

from app.cli.errors import say


class Display(Protocol):
    """Shows a bench while it is entered."""

    def stage(self, text: str) -> None: ...

    def advance(self, text: str, done: int, total: int) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *details: object) -> None: ...


def open_progress() -> Display:
    """The display for this process's stderr."""
    with contextlib.suppress(AttributeError, ValueError):  # Closed, or not there.
        if sys.stderr.isatty():
            return _Bar()
    return _Lines()


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def stage(self, text: str) -> None:
        if text != self._last:
            self._last = text
            say(text)

    def advance(self, text: str, done: int, total: int) -> None:
        self.stage(text)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class _Bar:
    """Drawn between two runs and never during one: a thread that draws would be timed along."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            MofNCompleteColumn(),
            console=Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
            transient=True,
            expand=True,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=None)

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text, refresh=True)

    def advance(self, text: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=text, completed=done, total=total, refresh=True)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()
