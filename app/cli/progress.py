"""What displays of progress are made of: lines, or a bar that is gone at the end. Both are shown while entered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


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
