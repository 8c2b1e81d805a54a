"""`outrider models remove`: give a model's space back, after a question."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from app.cli.errors import Exit, UsageError, say
from app.cli.models.rendering import printable
from app.view_models.model_text import bytes_text


def add_parser(actions: Any) -> None:
    """Register `remove` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "remove",
        help="delete a model that was downloaded, after a question",
        description=(
            "Delete a model from the Hub cache, or one that Outrider keeps. Embedded models, folders and files of your "
            "own are never deleted."
        ),
        epilog="Exit codes: 0 removed, 1 it can't be deleted, 2 bad usage or no such model, 130 the answer was no.",
        allow_abbrev=False,
    )
    parser.add_argument("ref", metavar="REF", help="the name of a model as `outrider models list` shows it")
    parser.add_argument("--yes", action="store_true", help="don't ask; needed where there is no terminal")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Ask, remove, and return the exit code.

    Raises:
        OutriderError: there is no such model, or it may not be removed.
        UsageError: there is nobody to ask.
    """
    from core.models.downloads import plan_removal, remove

    plan = plan_removal(args.ref)
    name = printable(plan.entry.ref)
    if not args.yes and not _agreed(f"Remove {name}? This frees {bytes_text(plan.frees_bytes)}.", plan.note):
        say("Nothing was removed.")
        return Exit.STOPPED
    freed = remove(args.ref)
    say(f"Removed {name}; {bytes_text(freed)} are free again.")
    return Exit.DONE


def _agreed(question: str, note: str) -> bool:
    if sys.stdin is None or sys.stderr is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("There is no terminal to ask on; add --yes to remove the model without a question.")
    sys.stderr.write(" ".join(filter(None, (question, printable(note), "[y/N] "))))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
