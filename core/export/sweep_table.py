"""A sweep's table as CSV: a row for each cell over all prompts, then by suite."""

from __future__ import annotations

import json
from typing import Any

from core.experiments.sweep_file import SweepLog
from core.experiments.sweep_plan import CellResult, DrafterChoice
from core.experiments.sweep_results import COLUMNS, SweepResults
from core.export.sweep_report import sweep_without_paths
from core.settings import rule_text
from core.text import csv_text

COUNTS = "num_planned,num_measured,num_failed"
"""Columns that no other table has."""


def to_csv(results: SweepResults) -> str:
    """The table: the baselines first; empty where there is no value.

    A figure has three columns: its name for the median, and with _q1 and _q3 for the quartiles.
    """
    log = sweep_without_paths(SweepLog(results.plan, results.measurements))
    results = SweepResults(log.plan, log.measurements)
    suites = results.suites if len(results.suites) > 1 else ()
    rows = [_row(results, result, suite) for suite in (None, *suites) for result in results.all(suite)]
    return csv_text(rows[0], (row.values() for row in rows))


def _row(results: SweepResults, result: CellResult, suite: str | None) -> dict[str, Any]:
    record = result.cell.to_record()
    row: dict[str, Any] = {
        "target": results.plan.target,
        **record,
        "method_options": json.dumps(record["method_options"]) if record["method_options"] else "",
        "verification": rule_text({"verification": results.plan.verification}),
        **(result.cell.drafter or DrafterChoice("plain")).shape,
        "suite": suite,
        "num_planned": result.num_planned,
        "num_measured": result.num_measured,
        "num_failed": len(result.measurements) - result.num_measured,
    }
    for figure in COLUMNS:
        found = figure.spread(result)
        low, high = found.quartiles if found is not None else (None, None)
        median, name = found.median if found is not None else None, figure.name
        row |= {name: median, f"{name}_q1": low, f"{name}_q3": high}
    return row
