"""How far a bench is, on stderr: a bar on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol

from app.cli.errors import say
from app.cli.progress import Bar, Lines
from app.cli.terminal import is_terminal


class Display(Protocol):
    """Shows a bench while it is entered."""

    def stage(self, text: str) -> None: ...

    def advance(self, text: str, done: int, total: int) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *details: object) -> None: ...


def open_progress() -> Display:
    """The display for this process's stderr."""
    return _Bar() if is_terminal(sys.stderr) else _Lines()


class _Lines(Lines):
    def __init__(self) -> None:
        self._last = ""

    def stage(self, text: str) -> None:
        if text != self._last:
            self._last = text
            say(text)

    def advance(self, text: str, done: int, total: int) -> None:
        self.stage(text)


class _Bar(Bar):
    """Drawn between two runs and never during one: a thread that draws would be timed along."""

    def __init__(self) -> None:
        from rich.progress import MofNCompleteColumn

        super().__init__(MofNCompleteColumn(), auto_refresh=False)

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text, refresh=True)

    def advance(self, text: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=text, completed=done, total=total, refresh=True)
