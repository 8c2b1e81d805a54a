"""Sweep files: where they are kept, and how they are opened and exported."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from app.tools.runs.table import MONTHS
from core.errors import RunLogError
from core.experiments.sweep_file import read_sweep
from core.experiments.sweep_plan import SweepFinished, SweepPlan, SweepStarted
from core.experiments.sweep_results import SweepResults, verdicts
from core.export.files import export_sweep_csv, export_sweep_html, export_sweep_jsonl
from core.export.sweep_table import to_csv
from core.files import write_atomically
from core.text import short_name

MAX_LISTED = 20
_STAMP = "%Y%m%d-%H%M%S"


class SweepExport(StrEnum):
    """What a sweep is exported as; pictures are drawn by the window."""

    HTML = "Report, HTML…"
    CELLS = "Table of cells, CSV…"
    RUNS = "Table of runs, CSV…"
    JSONL = "Sweep, JSON Lines…"
    PNG = "Heatmap, PNG…"
    SVG = "Heatmap, SVG…"

    def name_for(self, source: Path) -> str:
        """A name for the file of a sweep's export."""
        kind = self.name.lower()
        return f"{source.stem}-{kind}.csv" if "CSV" in self.value else f"{source.stem}.{kind}"


def new_path(folder: Path, plan: SweepPlan, moment: datetime) -> Path:
    """An unused path, named after the time and the target."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", short_name(plan.target)).strip("-.")
    stem = f"{moment.strftime(_STAMP)}-{name[:40] or 'sweep'}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.jsonl" for number in range(1, 1000))
    return next(path for path in (folder / each for each in names) if not path.exists())


def earlier_sweeps(folder: Path) -> list[Path]:
    """The newest sweeps, newest first."""
    with contextlib.suppress(OSError):
        return sorted(folder.glob("*.jsonl"), key=lambda path: path.name, reverse=True)[:MAX_LISTED]
    return []


def title_of(path: Path) -> str:
    """The title of a sweep in a list."""
    with contextlib.suppress(ValueError):
        moment = datetime.strptime(path.stem[:15], _STAMP)
        return f"{moment.day} {MONTHS[moment.month - 1]} {moment:%Y, %H:%M} · {path.stem[16:]}"
    return path.stem


def open_sweep(path: Path) -> tuple[SweepStarted, SweepFinished]:
    """Read a sweep, as the events of one that was continued with nothing left to measure.

    Raises:
        OutriderError: it can't be read.
    """
    log = read_sweep(path)
    results, num_done = SweepResults(log.plan, log.measurements), len(log.measurements)
    cells = results.all()
    started = SweepStarted(log.plan, num_done, cells, tuple(log.problems))
    return started, SweepFinished(num_done >= log.plan.num_runs, cells, verdicts(results))


def export_sweep(source: Path, kind: SweepExport, path: Path) -> None:
    """Write a sweep in another format, atomically.

    Raises:
        OutriderError: it can't be read or written.
    """
    if path.exists() and path.samefile(source):
        raise RunLogError("The sweep itself is stored there; choose another file.")
    log = read_sweep(source)
    if kind is SweepExport.CELLS:
        write_atomically(path, to_csv(SweepResults(log.plan, log.measurements)))
    elif kind is SweepExport.RUNS:
        export_sweep_csv(path, log)
    else:
        {SweepExport.JSONL: export_sweep_jsonl, SweepExport.HTML: export_sweep_html}[kind](path, log)
