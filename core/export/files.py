"""Exports runs and sweeps atomically as CSV, JSON Lines or HTML reports."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from core.draft_length import shown_draft_length
from core.errors import RunLogError
from core.experiments.sweep_file import SCHEMA, SweepLog, run_to_record
from core.experiments.sweep_plan import SHAPE_OPTIONS, SUMMARY_FIELDS, DrafterChoice, Measurement
from core.experiments.sweep_results import SweepResults
from core.export.run_data import without_folders, without_paths
from core.export.run_report import compare_page, run_page
from core.export.sweep_report import sweep_page, sweep_without_paths
from core.files import FileClaim, open_regular, read_lines, shown_path, write_atomically
from core.runlog.log import STEP_FIELDS, to_line, to_record
from core.runlog.reading import RunLog, number_of, parse_line, text_of
from core.runlog.replay import step_from_record, steps
from core.settings import is_lossy, rule_text
from core.text import csv_text, short_name

CELL_FIELDS = ("method", "draft", *SHAPE_OPTIONS, "num_speculative_tokens", "temperature")
"""A shape is that of trees only. K is num_speculative_tokens, as in vLLM's settings; num_draft_tokens counts all
tokens that a run drafted."""
RUN_FIELDS = ("index", "suite", "prompt", "prompt_index", "repeat", "seed", "started_at", "seconds")
SWEEP_CSV_FIELDS = (
    *CELL_FIELDS, *RUN_FIELDS, "measured_speedup", *SUMMARY_FIELDS, "error", "verification", "method_options",
)  # fmt: skip
"""Figures have the names of a run log's summary, which are vLLM's if vLLM has the figure."""

LONGEST_PART = 60
"""Most characters of a part of a file's name."""
UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')
"""Characters that some file systems or shells refuse."""

File = str | os.PathLike[str]
"""Where to write. Each function raises `RunLogError` if it can't."""


def readable_name(config: Mapping[str, Any], started_at: datetime | None, name: str = "") -> str:
    """A file name for a run's report, such as "outrider SmolLM2-135M K=2 T=0.7 2026-11-24.html", safe on every system.

    Args:
        config: the log's settings.
        name: what the user calls the run, if anything; it replaces the target.
    """
    target = short_name(text_of(config.get("target")))
    k, temperature = shown_draft_length(config), number_of(config.get("temperature"))
    parts = (
        "outrider",
        name or target.removeprefix("outrider-"),
        "" if k is None else f"K={k}",
        "" if temperature is None else f"T={temperature:g}",
        "lossy" if is_lossy(config) else "",
        f"{started_at.astimezone():%Y-%m-%d}" if started_at else "",
    )
    words = (" ".join(UNSAFE.sub(" ", part[:LONGEST_PART]).split()) for part in parts)
    return f"{' '.join(filter(None, words))}.html"


def export_run(path: File, *logs: RunLog, titles: Sequence[str] = ()) -> None:
    """Write a run in the format of the file's suffix: .csv, .html, or else JSON Lines; several runs as a report.

    `titles`: what the report calls several runs, or "" for one without a name.
    """
    suffix = Path(path).suffix.lower()
    with replacing(path):
        if suffix in {".html", ".htm"} or len(logs) > 1:
            export_html(path, *logs, titles=titles)
        else:
            (export_csv if suffix == ".csv" else export_jsonl)(path, logs[0])


@contextlib.contextmanager
def replacing(path: File) -> Iterator[None]:
    """Reserve a file that may exist, from before a log is read until its export is written.

    Raises:
        RunLogError: a run or a sweep is writing it.
    """
    claim = FileClaim(path) if os.path.isfile(path) else None
    if claim is not None and not claim.take():
        raise RunLogError(f"{shown_path(path)} is being written; wait until its run ends, or choose another name.")
    try:
        yield
    finally:
        if claim is not None:
            claim.give_back()


def export_html(path: File, *logs: RunLog, titles: Sequence[str] = ()) -> None:
    """Write the report of a run, or a comparison of several, whose names may be given."""
    write_atomically(path, run_page(logs[0]) if len(logs) == 1 else compare_page(logs, titles))


def export_jsonl(path: File, log: RunLog, *, in_place: bool = False) -> None:
    """Write a run log without its damaged lines, and, unless it replaces itself, without this machine's folders."""
    if not in_place:
        run, summary = log.run | {"config": without_paths(log.run["config"])}, log.summary
        if summary and "error" in summary:
            summary = summary | {"error": without_folders(text_of(summary["error"]))}
        log = replace(log, run=run, summary=summary)
    write_atomically(path, b"".join(map(to_line, log.records())))


def export_csv(path: File, log: RunLog) -> None:
    """Write one row per step, with the schema's fields of a step as columns, and the run's rule of verification, and
    K or the policy that chose it. Lists are joined by spaces. What a server or an older log didn't report is empty."""
    rule = rule_text(log.run["config"])
    is_ours = all(step.get("source") is None for step in log.steps)
    whole = (record for record in log.steps if step_from_record(record) is not None)
    records = whole if is_ours else (to_record(step) or {} for step in steps(log))
    rows = ([*(record.get(name) for name in STEP_FIELDS), rule, record.get("draft_length")] for record in records)
    write_atomically(path, csv_text((*STEP_FIELDS, "verification", "draft_length"), rows))


def is_sweep(path: File) -> bool:
    """Whether a file is a sweep, of any version."""
    try:
        with open_regular(path) as file:
            record = parse_line(next(read_lines(file), b"").removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return False
    schema = record.get("schema") if record else None
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]


def export_sweep_html(path: File, log: SweepLog) -> None:
    """Write a sweep's report."""
    write_atomically(path, sweep_page(log))


def export_sweep_jsonl(path: File, log: SweepLog, *, in_place: bool = False) -> None:
    """Write a sweep without its damaged lines, and, unless it replaces itself, without this machine's folders: of a
    run's log outside the new file's folder, only the name."""
    folder = Path(os.path.abspath(path)).parent
    if not in_place:
        log = sweep_without_paths(log)
        log = replace(log, measurements=[_moved(item, folder) for item in log.measurements])
    write_atomically(path, b"".join(map(to_line, log.records(folder))))


def _moved(item: Measurement, folder: Path) -> Measurement:
    if item.log is None or item.log.absolute().is_relative_to(folder):
        return item
    return replace(item, log=Path(item.log.name))


def export_sweep_csv(path: File, log: SweepLog) -> None:
    """Write one row per run, in the order in which the runs were measured."""
    write_atomically(path, csv_text(SWEEP_CSV_FIELDS, _sweep_rows(log)))


def _sweep_rows(log: SweepLog) -> Iterator[list[Any]]:
    log = sweep_without_paths(log)
    results = SweepResults(log.plan, log.measurements)
    for item in sorted(log.measurements, key=lambda measurement: measurement.index):
        run = item.run
        record, cell = run_to_record(item, log.plan), run.cell.to_record()
        options = cell["method_options"]
        values = {
            **record,
            **cell,
            "method_options": json.dumps(options) if options else "",
            **(run.cell.drafter or DrafterChoice("plain")).shape,
            "num_speculative_tokens": run.cell.num_draft_tokens,
            **(record["summary"] or dict.fromkeys(SUMMARY_FIELDS)),
            "verification": rule_text({"verification": log.plan.verification}),
            "measured_speedup": results.speedups(run.cell).get((run.prompt, run.repeat)),
        }
        yield [values[name] for name in SWEEP_CSV_FIELDS]
