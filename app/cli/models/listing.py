"""`outrider models list`: what is here, or what is worth getting."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from app.cli.errors import Exit, say
from app.cli.models.rendering import (
    Column,
    day_text,
    moment,
    printable,
    thousands,
    write_rows,
    yes_or_no,
)
from app.view_models.model_text import bytes_text, count_text
from core.errors import OutriderError

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry

_LOCAL = (
    Column("ref", "model"),
    Column("origin", "origin", rank=4),
    Column("format", "format", rank=6),
    Column("precision", "precision", rank=3),
    Column("parameters", "params", count_text, is_number=True, rank=1),
    Column("context", "context", thousands, is_number=True, rank=2),
    Column("vocabulary", "vocab", thousands, is_number=True, rank=5),
    Column("size_bytes", "size", bytes_text, is_number=True),
    Column("last_used", "last used", day_text, rank=7),
    Column("path", "path", rank=8),
)
_SUGGESTED = (
    Column("ref", "model"),
    Column("parameters", "params", count_text, is_number=True, rank=3),
    Column("download_bytes", "download", bytes_text, is_number=True, rank=1),
    Column("licence", "licence", rank=5),
    Column("gated", "gated", yes_or_no, rank=4),
    Column("here", "here", yes_or_no, rank=2),
    Column("drafts", "drafts that suit it", lambda refs: "\n".join(ref.rpartition("/")[2] for ref in refs)),
)


def add_parser(actions: Any) -> None:
    """Register `list` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "list",
        help="what is here; with --suggested, what is worth getting",
        description=(
            "List the models that are here: embedded, kept by Outrider, and in the Hub cache. In a pipe the lines are "
            f"tab-separated, with exact values: {_names(_LOCAL)}; with --suggested: {_names(_SUGGESTED)}."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--suggested", action="store_true", help="a short catalogue of pairs that suit each other")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the list, and return the exit code.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    if args.suggested:
        write_rows(_SUGGESTED, _suggested_records(), as_json=args.json)
        return Exit.DONE
    from core.models.catalogue import local_models

    records = [_local_record(entry) for entry in local_models()]
    if not records:
        say("There are no models here; `outrider models list --suggested` names some that can be downloaded.")
    write_rows(_LOCAL, records, as_json=args.json)
    for record in records:
        if record["problem"] is not None:
            say(f"{printable(record['ref'])}: {record['problem']}")
    _say_interrupted()
    return Exit.DONE


def _say_interrupted() -> None:
    """Downloads that were stopped are no models yet, but take up space."""
    from core.models import hub

    with contextlib.suppress(OSError):  # One that goes on elsewhere may end at this moment.
        for ref in hub.interrupted_refs():
            kept = bytes_text(hub.partial_bytes(ref))
            say(f"{printable(ref)}: {kept} of a stopped download; `models get` resumes it, `models remove` ends it.")


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(column.key for column in columns)


def _local_record(entry: ModelEntry) -> dict[str, Any]:
    from core.models.details import read_details

    details, problem = None, None
    try:
        details = read_details(entry)
    except OutriderError as error:
        problem = str(error)
    return {
        "ref": entry.ref,
        "title": entry.title,
        "origin": str(entry.origin),
        "format": str(entry.format),
        "precision": details and details.precision,
        "parameters": details and details.num_parameters,
        "context": details and details.context_length,
        "vocabulary": details and details.vocab_size,
        "size_bytes": entry.size_bytes,
        "last_used": moment(entry.last_used),
        "path": str(entry.path),
        "revision": entry.revision,
        "serves": entry.serves,
        "problem": problem,
    }


def _suggested_records() -> list[dict[str, Any]]:
    from core.models.catalogue import local_models
    from core.models.suggestions import SUGGESTIONS

    here = {entry.ref for entry in local_models()}
    return [
        {
            "ref": suggestion.ref,
            "title": suggestion.title,
            "family": suggestion.family,
            "parameters": suggestion.num_parameters,
            "download_bytes": suggestion.download_bytes,
            "instruct": suggestion.is_instruct,
            "licence": suggestion.licence,
            "gated": suggestion.is_gated,
            "here": suggestion.ref in here,
            "drafts": suggestion.drafts,
        }
        for suggestion in SUGGESTIONS
    ]
