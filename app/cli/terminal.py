"""What the standard streams lead to, and tables for whatever that is."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

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
