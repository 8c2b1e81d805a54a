"""Writes a report whole, or not at all."""

from __future__ import annotations

import os

from core.files import write_atomically
from core.report.run_page import run_page
from core.trace import RunLog


def export_html(path: str | os.PathLike[str], log: RunLog) -> None:
    """Write a run's report.

    Raises:
        RunLogError: it can't be written.
    """
    write_atomically(path, run_page(log))
