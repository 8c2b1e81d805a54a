"""`outrider export`: a run log as CSV, or as a clean JSONL without what was torn."""

from __future__ import annotations

import argparse
from typing import Any

from app.cli.errors import Exit, say
from core.trace import export_csv, export_jsonl, read_run_log


def add_parser(commands: Any) -> None:
    """Register `export` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "export",
        help="turn a run log into CSV or clean JSONL",
        description="Read a run log, cut off or whole, and write it in another form; the file is whole or not there.",
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    parser.add_argument("log", metavar="LOG", help="a run log that `outrider run --log` or the window wrote")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--csv", metavar="FILE", help="one row a step; lists are joined by spaces")
    form.add_argument("--jsonl", metavar="FILE", help="the log's whole lines")


def execute(args: argparse.Namespace) -> int:
    """Export, and return the exit code.

    Raises:
        RunLogError: the log can't be read, or the file can't be written.
    """
    log = read_run_log(args.log)
    for problem in log.problems:
        say(problem)
    if args.csv is not None:
        export_csv(args.csv, log)
    else:
        export_jsonl(args.jsonl, log)
    return Exit.DONE
