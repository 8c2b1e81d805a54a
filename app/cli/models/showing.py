"""`outrider models info`: everything that a model's files say about it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from app.cli.errors import Exit
from app.cli.models.rendering import (
    REF_HELP,
    Column,
    day_text,
    moment,
    thousands,
    write_fields,
    yes_or_no,
)
from app.view_models.model_text import bytes_text, count_text
from core.errors import OutriderError

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry
    from core.models.details import ModelDetails

_FIELDS = (
    Column("ref", "model"),
    Column("title", "title"),
    Column("origin", "origin"),
    Column("path", "path"),
    Column("revision", "revision"),
    Column("last_used", "last used", day_text),
    Column("format", "format"),
    Column("size_bytes", "size on disk", bytes_text),
    Column("architecture", "architecture"),
    Column("kind", "kind"),
    Column("parameters", "parameters", lambda count: f"{count_text(count)} ({thousands(count)})"),
    Column("precision", "precision"),
    Column("weight_bytes", "weights as stored", bytes_text),
    Column("context", "context", lambda count: f"{thousands(count)} tokens"),
    Column("vocabulary", "vocabulary", lambda count: f"{thousands(count)} tokens"),
    Column("embedding_rows", "embedding rows", thousands),
    Column("draft_vocabulary", "drafts from", lambda count: f"{thousands(count)} tokens"),
    Column("chat_template", "chat template", yes_or_no),
    Column("layers", "layers", thousands),
    Column("hidden_size", "hidden size", thousands),
    Column("intermediate_size", "intermediate size", thousands),
    Column("heads", "heads", thousands),
    Column("kv_heads", "key/value heads", thousands),
    Column("head_dim", "head size", thousands),
    Column("serves", "drafts for"),
    Column("drafts", "drafts here that fit", lambda drafts: ", ".join(drafts) if drafts else "none"),
)


def add_parser(actions: Any) -> None:
    """Register `info` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "info",
        help="what a model is, and which drafts here fit it",
        description="Describe a model that is here, from its files; nothing is loaded. In a pipe: name, tab, value.",
        allow_abbrev=False,
    )
    parser.add_argument("ref", metavar="REF", help=REF_HELP)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the description, and return the exit code.

    Raises:
        OutriderError: there is no such model, or its files can't be read.
        OutputClosed, OutputError: standard output can't be written.
    """
    from core.models.catalogue import resolve
    from core.models.details import read_details

    entry = resolve(args.ref)
    details = read_details(entry)
    write_fields(_FIELDS, _record(entry, details), as_json=args.json)
    return Exit.DONE


def _record(entry: ModelEntry, details: ModelDetails) -> dict[str, Any]:
    return {
        "ref": entry.ref,
        "title": entry.title,
        "origin": str(entry.origin),
        "path": str(entry.path),
        "revision": entry.revision,
        "last_used": moment(entry.last_used),
        "format": str(entry.format),
        "size_bytes": entry.size_bytes,
        "architecture": details.architecture,
        "kind": _kind(entry, details),
        "parameters": details.num_parameters,
        "precision": details.precision,
        "weight_bytes": details.weight_bytes,
        "context": details.context_length,
        "vocabulary": details.vocab_size,
        "embedding_rows": details.table_size,
        "draft_vocabulary": details.draft_vocabulary_size,
        "chat_template": details.has_chat_template,
        "layers": details.num_layers,
        "hidden_size": details.hidden_size,
        "intermediate_size": details.intermediate_size,
        "heads": details.num_heads,
        "kv_heads": details.num_kv_heads,
        "head_dim": details.head_dim,
        "serves": entry.serves,
        "drafts": _fitting_drafts(entry, details),
    }


def _kind(entry: ModelEntry, details: ModelDetails) -> str:
    if entry.serves is not None:
        return "drafter"
    return "instruct" if details.is_instruct else "base"


def _fitting_drafts(target: ModelEntry, details: ModelDetails) -> list[str]:
    """The smaller models here that can draft for this one; a drafter itself is no target."""
    from core.models.catalogue import local_models
    from core.models.compatibility import pair_problem
    from core.models.details import read_details

    if target.serves is not None:
        return []
    fitting = []
    for entry in local_models():
        try:
            is_smaller = read_details(entry).num_parameters < details.num_parameters
        except OutriderError:
            continue
        if is_smaller and pair_problem(entry.ref, target.ref) is None:
            fitting.append(entry.ref)
    return fitting
