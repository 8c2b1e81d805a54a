"""A sweep's grid as tables: heat maps, and every figure of every cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.bench.statistics import Spread
from core.figures import spaced_percent
from core.report.escaping import attribute, escaped
from core.report.page import UNKNOWN, figures_table
from core.sweep.types import CellResult

STRONGEST = 55
"""Percent of the colour in the cell that differs most: its text stays readable on it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value stands among all: `origin` has no colour, and what lies `reach` from it has the strongest."""

    origin: float
    reach: float

    def place(self, value: float) -> float:
        """From -1, the furthest below, to 1, the furthest above."""
        return (value - self.origin) / self.reach


def scale_of(values: Sequence[float], middle: float | None) -> Scale:
    """The scale of these values.

    Args:
        values: at least one.
        middle: the value that is neither good nor bad; None where only more or less counts.
    """
    origin = min(values) if middle is None else middle
    return Scale(origin, max(abs(value - origin) for value in values) or 1.0)


def heat_map(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Spread | None]]], form: str, scale: Scale
) -> str:
    """A table whose cells are the bluer the more they are; around a middle, what lies below it is orange.

    Args:
        title: whose grid it is.
        columns: the values of K.
        rows: a temperature, and its cells.
        form: how a value is written.
        scale: of the colours.
    """
    medians = {spread.median for _, row in rows for spread in row if spread is not None}
    # Where all are the same none stands out.
    best = max(medians) if len(medians) > 1 else None
    head = "".join(f'<th scope="col">K = {escaped(column)}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{escaped(name)}</th>'
        + "".join(_heat(spread, form, scale, best) for spread in row)
        + "</tr>"
        for name, row in rows
    )
    return (
        f'<div class="wide"><table class="heat" aria-label="{attribute(title)}">\n<caption><bdi>{escaped(title)}</bdi>'
        f"</caption>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _heat(spread: Spread | None, form: str, scale: Scale, best: float | None) -> str:
    if spread is None:
        return f'<td class="number">{UNKNOWN}</td>'
    share = scale.place(spread.median)
    color = "correction" if share < 0 else "accepted"
    style = f"background: color-mix(in srgb, var(--{color}) {abs(share) * STRONGEST:.0f}%, transparent)"
    text = spaced_percent(form.format(spread.median))
    low, high = (spaced_percent(form.format(bound)) for bound in spread.quartiles)
    tip = f"median of {len(spread.values)}, quartiles {low} to {high}"
    mark = " best" if spread.median == best else ""
    shown = f"<b>{text}</b>" if mark else text
    return f'<td class="number{mark}" style="{style}" title="{attribute(tip)}">{shown}</td>'


def cells_table(cells: Sequence[CellResult]) -> str:
    """A row a cell: medians, and the quartiles where there are several runs."""
    names = ("temperature", "speedup", "tokens/s", "acceptance", "block efficiency", "c", "runs", "errors")
    rows = [
        (
            cell.cell.title,
            (
                f"{cell.cell.temperature:g}",
                _spread(cell.speedup, "{:.2f}×"),
                _spread(cell.tokens_per_second, "{:,.1f}"),
                _spread(cell.draft_acceptance_rate, "{:.0%}"),
                _spread(cell.block_efficiency, "{:.2f}"),
                _spread(cell.cost_coefficient, "{:.3f}"),
                f"{cell.num_measured}\u00a0of\u00a0{cell.num_planned}",
                " ".join(cell.errors),
            ),
        )
        for cell in cells
    ]
    note = '<p class="note">Medians; in brackets the first and third quartiles.</p>'
    return note + figures_table(names, rows, "Every cell of the sweep")


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return UNKNOWN
    text = spaced_percent(form.format(spread.median))
    low, high = (spaced_percent(form.format(bound)) for bound in spread.quartiles)
    return text if len(spread.values) == 1 else f"{text} ({low}\u00a0to\u00a0{high})"
