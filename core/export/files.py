"""A sweep in another form: CSV with a row a run, clean JSON Lines, or an HTML report."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from core.experiments.sweep import SweepResults
from core.experiments.sweep_log import SCHEMA, SweepLog, cell_to_record, run_to_record
from core.experiments.sweep_plan import Figures, Measurement
from core.export.run_report import compare_page, run_page
from core.export.sweep_report import sweep_page
from core.files import write_atomically
from core.runlog.log import RunLog, export_csv, export_jsonl, parse_line, to_line

_LONGEST_HEAD = 16_000_000
"""A first line holds the prompts; nothing longer is one."""


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a sweep's, of whatever version. What can't be read is none."""
    try:
        with Path(path).open("rb") as file:
            record = parse_line(file.readline(_LONGEST_HEAD).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return False
    schema = record.get("schema") if record else None
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]


def export_run(path: str | os.PathLike[str], *logs: RunLog) -> None:
    """Write a run in the form that the name's suffix asks for: .csv, .html, or else JSON Lines; several as a report.

    Raises:
        RunLogError: it can't be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix in {".html", ".htm"} or len(logs) > 1:
        export_html(path, *logs)
    else:
        (export_csv if suffix == ".csv" else export_jsonl)(path, logs[0])


def export_html(path: str | os.PathLike[str], *logs: RunLog) -> None:
    """Write the report of a run, or of several that it compares.

    Raises:
        RunLogError: it can't be written.
    """
    write_atomically(path, run_page(logs[0]) if len(logs) == 1 else compare_page(logs))


CELL_FIELDS = ("method", "draft", "num_speculative_tokens", "temperature")
"""K is num_speculative_tokens, as in vLLM's settings: num_draft_tokens counts all that a run drafted."""
RUN_FIELDS = ("index", "suite", "prompt", "prompt_index", "repeat", "seed", "started_at", "seconds")
FIGURE_FIELDS = tuple(item.name for item in fields(Figures))
SWEEP_CSV_FIELDS = (*CELL_FIELDS, *RUN_FIELDS, "measured_speedup", *FIGURE_FIELDS, "error")
"""A figure's name is that of a run log's summary, which is vLLM's where vLLM has it."""


def export_sweep_csv(path: str | os.PathLike[str], log: SweepLog) -> None:
    """Write a row a run under a row of names, or nothing.

    Raises:
        RunLogError: it can't be written.
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows(sweep_csv_rows(log))
    write_atomically(path, text.getvalue())


def sweep_csv_rows(log: SweepLog) -> Iterator[list[str]]:
    """The rows of the CSV file, in the order in which the runs were measured; an empty cell stands for null."""
    yield list(SWEEP_CSV_FIELDS)
    results = SweepResults(log.plan, log.measurements)
    for item in sorted(log.measurements, key=lambda measurement: measurement.index):
        values = _values(item, log, results)
        yield [_cell(values[name]) for name in SWEEP_CSV_FIELDS]


def _values(item: Measurement, log: SweepLog, results: SweepResults) -> dict[str, Any]:
    run = item.run
    figures = asdict(item.figures) if item.figures is not None else dict.fromkeys(FIGURE_FIELDS)
    record = run_to_record(item, log.plan)
    speedup = results.speedups(run.cell).get((run.prompt, run.repeat))
    cell = cell_to_record(run.cell)
    return {
        **record,
        **cell,
        "num_speculative_tokens": run.cell.num_draft_tokens,
        **figures,
        "measured_speedup": speedup,
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def export_sweep_jsonl(path: str | os.PathLike[str], log: SweepLog) -> None:
    """Write the sweep's plan and its whole runs, or nothing; the runs' logs are named from where the file will be.

    Raises:
        RunLogError: it can't be written.
    """
    folder = Path(path).absolute().parent
    records = (run_to_record(item, log.plan, folder) for item in log.measurements)
    write_atomically(path, b"".join(to_line(record) for record in (log.head, *records)))


def export_sweep_html(path: str | os.PathLike[str], log: SweepLog) -> None:
    """Write a sweep's report.

    Raises:
        RunLogError: it can't be written.
    """
    write_atomically(path, sweep_page(log))
