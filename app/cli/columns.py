"""Prints records as tables on a terminal, as tab-separated lines in a pipe, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from app.cli.console import NONE, is_terminal, printable, printing
from app.cli.errors import write_output

_GAP = 2

Record = Mapping[str, Any]


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, or one line of a description.

    Attributes:
        key: key of the value in a record; None is shown as a dash, and in a pipe as an empty field.
        title: heading of the column.
        show: formats the value for a terminal; a pipe gets the exact value.
        is_number: whether it is right-aligned.
        rank: in a narrow terminal, columns of the highest rank are dropped first; those of rank 0 stay and wrap.
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    is_number: bool = False
    rank: int = 0

    def shown(self, record: Record) -> str:
        value = record.get(self.key)
        return NONE if value is None else "\n".join(map(printable, self.show(value).split("\n")))

    def exact(self, record: Record) -> list[str]:
        """The values for a pipe: none for None, several for a list."""
        value = record.get(self.key)
        values = value if isinstance(value, tuple | list) else [] if value is None else [value]
        return [printable(yes_or_no(item) if isinstance(item, bool) else str(item)) for item in values]


def write_rows(columns: Sequence[Column], records: Sequence[Record], *, as_json: bool) -> None:
    """Print one line per record."""
    lines = ("\t".join(",".join(column.exact(record)) for column in columns) for record in records)
    _write(list(records), lines, lambda width: _table(columns, records, width), as_json)


def write_fields(columns: Sequence[Column], record: Record, *, as_json: bool) -> None:
    """Print one line per value, after its name; leave out those that are None or empty."""

    def table(_width: int) -> Table:
        fields = Table(box=None, show_header=False, padding=(0, _GAP, 0, 0), pad_edge=False)
        fields.add_column(style="bold", no_wrap=True)
        fields.add_column(overflow="fold")
        for column in columns:
            if record.get(column.key) is not None and (text := column.shown(record)):
                fields.add_row(column.title, Text(text))
        return fields

    _write(record, (f"{column.key}\t{value}" for column in columns for value in column.exact(record)), table, as_json)


def _write(document: Any, lines: Any, table: Callable[[int], Table], as_json: bool) -> None:
    if as_json:
        write_output(json.dumps(document, indent=2) + "\n")
    elif is_terminal(sys.stdout):
        with printing() as show:
            drawn = table(show.width)
            if drawn.row_count:
                show(drawn)
    else:
        write_output("".join(f"{line}\n" for line in lines))


def _table(columns: Sequence[Column], records: Sequence[Record], width: int) -> Table:
    def needed(column: Column) -> int:
        texts = (column.title, *(column.shown(record) for record in records))
        return max(cell_len(line) for text in texts for line in text.split("\n")) + _GAP

    kept = [column for column in columns if any(record.get(column.key) is not None for record in records)]
    while sum(map(needed, kept)) - _GAP > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        side = "right" if column.is_number else "left"
        table.add_column(column.title, justify=side, overflow="fold", no_wrap=column.rank > 0)  # type: ignore[arg-type]
    for record in records:
        table.add_row(*(Text(column.shown(record)) for column in kept))
    return table
