"""Writes a report whole, or not at all."""

from __future__ import annotations

import os

from core.files import write_atomically
from core.report.compare_page import compare_page
from core.report.run_page import run_page
from core.trace import RunLog


def export_html(path: str | os.PathLike[str], *logs: RunLog) -> None:
    """Write the report of a run, or of several that it compares.

    Raises:
        RunLogError: it can't be written.
    """
    write_atomically(path, run_page(logs[0]) if len(logs) == 1 else compare_page(logs))
