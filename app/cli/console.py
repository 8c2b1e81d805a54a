"""The real engine, which brings torch and transformers along: nothing of it is imported before it is needed."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Self

from core.experiments.bench import Spread
from core.machine import without_collection
from core.text import spaced_percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from core.session import Session


PIPE_WIDTH = 140
"""Columns of a table that goes to a file or another program."""


def is_terminal(stream: Any) -> bool:
    """Whether a person looks at it."""
    with contextlib.suppress(AttributeError, ValueError):  # Closed, or not there.
        return bool(stream.isatty())
    return False


def open_console(pipe_width: int = PIPE_WIDTH) -> Console | None:
    """For tables on standard output; None where there is none."""
    if sys.stdout is None:
        return None
    from rich.console import Console

    width = None if sys.stdout.isatty() else pipe_width
    return Console(highlight=False, markup=False, emoji=False, width=width)


NONE = "–"


def figure_text(value: Any, form: str, unit: str = "") -> str:
    """A figure in a format's form, such as ".2f"; a dash for None."""
    return NONE if value is None else f"{spaced_percent(format(value, form))}{unit}"


def spread_text(spread: Spread | None, form: str, unit: str = "") -> str:
    """A median, its quartiles in brackets; a dash for None."""
    if spread is None:
        return NONE
    low, high = (figure_text(value, form) for value in spread.quartiles)
    return f"{figure_text(spread.median, form, unit)} ({low}–{high})"


class Lines:
    """For a pipe or a file: what was said stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class Bar:
    """For a terminal: what goes on, a bar, and figures, in one line of stderr."""

    def __init__(self, figures: ProgressColumn, *, auto_refresh: bool = True) -> None:
        """
        Args:
            figures: behind the bar.
            auto_refresh: whether a thread draws in between.
        """
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            figures,
            console=Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
            transient=True,
            expand=True,
            auto_refresh=auto_refresh,
        )
        self._task = self._progress.add_task("", total=None, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()


def quiet_libraries() -> None:
    """Keep the bars and warnings of transformers away: they would stand among the stages, and in spite of --quiet."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def make_engine() -> Session:
    """An engine with nothing loaded."""
    quiet_libraries()
    with without_collection():
        from core.session import Session

    return Session()
