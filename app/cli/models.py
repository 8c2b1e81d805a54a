"""`outrider models`: the models that can be named without a path."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from app.cli.errors import Exit, say, writing_output
from core.models.catalogue import ModelEntry, embedded_models


def add_parser(commands: Any) -> None:
    """Register `models` with the subparsers of `outrider`."""
    parser = commands.add_parser("models", help="list the models that are here", allow_abbrev=False)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="one line a model",
        description="List the models that can be named without a path; in a pipe, tab-separated.",
        allow_abbrev=False,
    )
    listing.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the catalogue, and return the exit code.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    models = embedded_models()
    if not models:
        say("There are no embedded models here; name a folder or a .gguf file with --target.")
    rows = [(model.ref, str(model.format), _size(model), str(model.path)) for model in models]
    with writing_output():
        if sys.stdout.isatty():
            _print_table(rows)
        else:
            sys.stdout.writelines("\t".join(row) + "\n" for row in rows)
        sys.stdout.flush()
    return Exit.DONE


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("model", "format", "size", "path"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def _size(model: ModelEntry) -> str:
    return f"{model.size_bytes / 1e6:.1f} MB"
