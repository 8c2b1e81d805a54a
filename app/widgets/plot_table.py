"""What a plot shows, as columns of figures: what its CSV file holds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

Table = Mapping[str, Iterable[float | int | str | None]]
"""Columns by name, in order. A name ends in its unit, as in total_ms, where the figures have one."""


def tip(rows: Sequence[tuple[str, str]]) -> str:
    """A place's figures as a tooltip's rich text; the first row is its title."""
    row = "<tr><td>{}&nbsp;&nbsp;</td><td align='right'>{}</td></tr>"
    cells = "".join(row.format(escape(name), escape(value)) for name, value in rows[1:])
    return f"<b>{escape(rows[0][0])}</b><table>{cells}</table>"


def to_csv(table: Table) -> str:
    """The table under a row of names; an empty cell where there is no figure."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table)
    writer.writerows([_cell(value) for value in row] for row in zip(*table.values(), strict=True))
    return text.getvalue()


def _cell(value: float | int | str | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    # Six digits say all that was measured, and no more.
    return f"{value:.6g}" if isinstance(value, float) else str(value)
