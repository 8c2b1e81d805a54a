"""A sweep's figures on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from app.cli.errors import writing_output
from app.cli.figures import figure_text, spread_text
from app.cli.models.rendering import printable
from app.cli.terminal import open_console
from core.bench.statistics import Spread
from core.sweep.plan import SweepPlan
from core.sweep.results import SweepResults
from core.sweep.types import CellResult, Verdict

_WIDE = 112
"""Columns from which every figure has its quartiles; below, the speedup alone, and c is left out."""
_LEGEND = (
    "Medians over prompts and repeats, quartiles in brackets. speedup: tokens/s against plain decoding of the same "
    "prompt and temperature, the run nearest in time. acceptance: accepted / drafted tokens. tokens/forward: of the "
    "target, the block efficiency. c: one draft step / one target step. * is the best cell of its temperature."
)


def write_results(results: SweepResults, verdicts: Sequence[Verdict]) -> None:
    """Print a table for each temperature, and what follows from it.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    plan = results.plan
    with writing_output():
        console.print(Text(printable(_head(plan))))
        for verdict in verdicts:
            cells = [result for result in results.all() if result.cell.temperature == verdict.temperature]
            for drafter in plan.drafters:
                console.print()
                console.print(Text(printable(f"Temperature {verdict.temperature:g}, {drafter.title}"), "bold"))
                own = [result for result in cells if result.cell.drafter in (None, drafter)]
                console.print(_table(own, verdict, is_wide=console.width >= _WIDE))
            if len(results.suites) > 1:
                console.print()
                console.print(_suites(results, cells))
        console.print()
        for verdict in verdicts:
            console.print(Text(printable(verdict.sentence)))
        console.print(Text(_LEGEND, "dim"))
        for line in _failures(results):
            console.print(Text(printable(line)))
        sys.stdout.flush()


def _head(plan: SweepPlan) -> str:
    prompts, repeats = len(plan.prompts), plan.repeats
    return (
        f"{plan.target}; {prompts} prompt{'' if prompts == 1 else 's'}, {repeats} repeat{'' if repeats == 1 else 's'}, "
        f"up to {plan.max_new_tokens} new tokens"
    )


def _table(cells: Sequence[CellResult], verdict: Verdict, *, is_wide: bool) -> Table:
    """The cells of one drafter at one temperature, the baseline above them."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    shown = spread_text if is_wide else _median
    columns: tuple[tuple[str, Callable[[CellResult], str]], ...] = (
        ("speedup", lambda result: spread_text(result.speedup, ".2f", "×")),
        ("tokens/s", lambda result: shown(result.tokens_per_second, ".1f")),
        ("acceptance", lambda result: shown(result.draft_acceptance_rate, ".0%")),
        ("tokens/forward", lambda result: shown(result.block_efficiency, ".2f")),
        *((("c", lambda result: shown(result.cost_coefficient, ".3f")),) if is_wide else ()),
        ("runs", _runs),
    )
    table.add_column("K", justify="right")
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right")
    best = verdict.best.cell if verdict.best is not None and verdict.speculates else None
    for result in cells:
        cell = result.cell
        style = "dim" if cell.is_baseline else "bold" if cell == best else ""
        table.add_row(
            Text("plain" if cell.is_baseline else str(cell.num_draft_tokens), style),
            Text("*" if cell == best else "", style),
            *(Text(show(result), style) for _, show in columns),
        )
    return table


def _suites(results: SweepResults, cells: Sequence[CellResult]) -> Table:
    """The median speedup of each cell by suite."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("speedup by suite", overflow="fold")
    for suite in results.suites:
        table.add_column(printable(suite or "–"), justify="right")
    for result in cells:
        if not result.cell.is_baseline:
            spreads = [results.result(result.cell, suite).speedup for suite in results.suites]
            figures = ["–" if spread is None else f"{spread.median:.2f}×" for spread in spreads]
            table.add_row(printable(result.cell.title), *figures)
    return table


def _runs(result: CellResult) -> str:
    measured, planned = result.num_measured, result.num_planned
    return str(measured) if measured == planned else f"{measured} of {planned}"


def _median(spread: Spread | None, form: str) -> str:
    return figure_text(None if spread is None else spread.median, form)


def _failures(results: SweepResults) -> list[str]:
    said = dict[str, list[CellResult]]()
    for result in results.all():
        for error in result.errors:
            said.setdefault(error, []).append(result)
    return [f"Failed in {_places(cells)}: {error}" for error, cells in said.items()]


def _places(cells: Sequence[CellResult]) -> str:
    first = f"{cells[0].cell.title} at temperature {cells[0].cell.temperature:g}"
    return first if len(cells) == 1 else f"{first} and {len(cells) - 1} more cell{'' if len(cells) == 2 else 's'}"
