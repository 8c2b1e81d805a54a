"""A bench's figures on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from app.cli.errors import writing_output
from app.cli.figures import figure_text, spread_text
from app.cli.models.rendering import printable
from app.cli.terminal import open_console

if TYPE_CHECKING:
    from core.bench.record import Report
    from core.bench.results import Row

_LEGEND = (
    "Medians over the rounds, quartiles in brackets; ratios are taken round by round. tokens/s: all new tokens / wall "
    "clock, reading the prompt included. tokens/forward: of the target. overhead: a step / (K draft forwards + one "
    "scoring forward, timed bare) − 1. bare c: a bare forward of the draft / one of the target, in turn."
)
_RANDOM = "Above temperature 0 each engine draws from a random stream of its own: texts differ, and laws should not."


def write_report(report: Report) -> None:
    """Print a table for each temperature, what the figures mean, and what was different.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    with writing_output():
        for line in _head(report):
            console.print(Text(line))
        for temperature in report.config["temperatures"]:
            table = [row for row in report.rows if row.temperature == temperature]
            if table:
                console.print()
                console.print(Text(f"Temperature {temperature:g}", "bold"))
                console.print(_table(table))
        console.print()
        for line in _foot(report):
            console.print(Text(line))
        sys.stdout.flush()


def _head(report: Report) -> list[str]:
    config, place = report.config, report.environment
    draft = config["draft"] or "no draft model"
    prompts = ", ".join(f"{item['name']} ({item['num_tokens']} tokens)" for item in config["prompts"])
    flashspec = f", flashspec {place['flashspec']}" if place["flashspec"] else ""
    lines = [
        f"{config['target']}, drafted by {draft}, K = {config['num_draft_tokens']}",
        f"{place['device_name']} ({config['device']}), {config['dtype']}, {_count(place['threads'], 'thread')}",
        f"Python {place['python']}, torch {place['torch']}, transformers {place['transformers']}{flashspec}",
        f"{_count(config['max_new_tokens'], 'new token')}, {_count(config['rounds'], 'round')} "
        f"after one that does not count; {prompts}",
    ]
    return [printable(line) for line in lines]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("contender")
    columns: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("tokens/s", lambda row: spread_text(row.tokens_per_second, ".1f")),
        ("× generate", lambda row: spread_text(row.ratio_to_generate, ".2f")),
        ("× assisted", lambda row: spread_text(row.ratio_to_assisted, ".2f")),
        ("tokens/forward", lambda row: figure_text(row.tokens_per_forward, ".2f")),
        ("overhead", lambda row: spread_text(row.overhead, ".1%")),
        ("bare c", lambda row: spread_text(row.cost_coefficient, ".3f")),
        ("peak memory", lambda row: figure_text(row.peak_memory_mb, ",.0f", " MB")),
        ("× needed", lambda row: figure_text(_memory_ratio(row), ".2f")),
    )
    kept = [(title, show) for title, show in columns if any(show(row) != "–" for row in rows)]
    for title, _ in kept:
        table.add_column(title, justify="right")
    for row in rows:
        style = "" if row.is_ours else "dim"
        table.add_row(Text(row.title, style), *(Text(show(row), style) for _, show in kept))
    return table


def _memory_ratio(row: Row) -> float | None:
    taken, needed = row.peak_memory_mb, row.needed_memory_mb
    return taken / needed if taken is not None and needed else None


def _foot(report: Report) -> list[str]:
    lines = [_LEGEND]
    if any(row.peak_memory_mb is not None for row in report.rows):
        lines.append(
            "peak memory: of a process of its own, beyond what Python and the libraries take. needed: both models' "
            "weights, int8 copies included, and both caches."
        )
    if any(temperature > 0 for temperature in report.config["temperatures"]):
        lines.append(_RANDOM)
    for row in report.rows:
        lines += [f"{row.title}, temperature {row.temperature:g}: {note}." for note in row.notes]
    lines += [f"Not run: {absence.name}. {absence.reason}" for absence in report.absent]
    return [printable(line) for line in lines]
