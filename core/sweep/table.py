"""A sweep's results as rows of plain values, for CSV and whatever else reads tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from core.bench.statistics import Spread
from core.sweep.records import cell_to_record
from core.sweep.results import SweepResults
from core.sweep.types import CellResult

FIGURES = ("speedup", "tokens_per_second", "draft_acceptance_rate", "block_efficiency", "cost_coefficient")
"""Each in three columns: its name for the median, and the same with _q1 and _q3 for the quartiles."""

_KEYS = (
    "target", "method", "draft", "method_options", "num_draft_tokens", "temperature", "suite", "num_planned",
    "num_measured", "num_failed",
)  # fmt: skip


def table_rows(results: SweepResults) -> Iterator[dict[str, Any]]:
    """A row for each cell, the baselines first, over all prompts; then, of several suites, for each cell and suite."""
    suites = results.suites
    for suite in (None, *(suites if len(suites) > 1 else ())):
        for result in results.all(suite):
            yield _row(results.plan.target, result, suite or "")


def _row(target: str, result: CellResult, suite: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "target": target,
        **cell_to_record(result.cell),
        "suite": suite,
        "num_planned": result.num_planned,
        "num_measured": result.num_measured,
        "num_failed": len(result.measurements) - result.num_measured,
    }
    for name in FIGURES:
        spread: Spread | None = getattr(result, name)
        low, high = spread.quartiles if spread is not None else (None, None)
        row |= {name: spread.median if spread is not None else None, f"{name}_q1": low, f"{name}_q3": high}
    return row


def to_csv(results: SweepResults) -> str:
    """The table as CSV under a row of names; an empty cell stands for no value."""
    columns = [*_KEYS, *(f"{name}{end}" for name in FIGURES for end in ("", "_q1", "_q3"))]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in table_rows(results):
        options = row["method_options"]
        row["method_options"] = json.dumps(options) if options else ""
        writer.writerow(["" if row[name] is None else row[name] for name in columns])
    return text.getvalue()
