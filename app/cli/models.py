"""`outrider models`: list, get, describe, remove and compare models."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from typing import Any

from app.cli.columns import Column, write_fields, write_rows, yes_or_no
from app.cli.console import Progress, is_terminal, printable
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, write_output
from app.cli.parsing import REF_HELP, add_command, add_pair, named_pair, option, positive_whole_number, switch
from app.setup.model_library import kind_text, parameters_text, progress_text
from core.controls import Cancelled, RunControls
from core.errors import OutriderError
from core.models import catalogue, fit
from core.models.catalogue import SUGGESTIONS, ModelEntry, resolve
from core.models.folder.details import ModelDetails, read_details
from core.models.remote import downloads, hub, removal
from core.models.remote.hub import DownloadProgress
from core.text import bytes_text

_thousands = "{:,}".format
_tokens = "{:,} tokens".format


# --- list and info ----------------------------------------------------------------------------------------------

_LOCAL = (
    Column("ref", "model"),
    Column("origin", "origin", rank=4),
    Column("format", "format", rank=6),
    Column("precision", "precision", rank=3),
    Column("parameters", "params", parameters_text, is_number=True, rank=1),
    Column("context", "context", _thousands, is_number=True, rank=2),
    Column("vocabulary", "vocab", _thousands, is_number=True, rank=5),
    Column("size_bytes", "size", bytes_text, is_number=True),
    Column("path", "path", rank=7),
)
_SUGGESTED = (
    Column("ref", "model"),
    Column("parameters", "params", parameters_text, is_number=True, rank=3),
    Column("download_bytes", "download", bytes_text, is_number=True, rank=1),
    Column("licence", "licence", rank=5),
    Column("gated", "gated", yes_or_no, rank=4),
    Column("here", "here", yes_or_no, rank=2),
    Column("drafts", "suitable drafts", lambda refs: "\n".join(ref.rpartition("/")[2] for ref in refs)),
)
_DETAILS = {
    "architecture": Column("architecture", "architecture"),
    "num_parameters": Column("parameters", "parameters", lambda count: f"{parameters_text(count)} ({count:,})"),
    "precision": Column("precision", "precision"),
    "weight_bytes": Column("weight_bytes", "weights as stored", bytes_text),
    "context_length": Column("context", "context", _tokens),
    "vocab_size": Column("vocabulary", "vocabulary", _tokens),
    "table_size": Column("embedding_rows", "embedding rows", _thousands),
    "draft_vocabulary_size": Column("draft_vocabulary", "drafts from", _tokens),
    "has_chat_template": Column("chat_template", "chat template", yes_or_no),
    "num_layers": Column("layers", "layers", _thousands),
    "hidden_size": Column("hidden_size", "hidden size", _thousands),
    "intermediate_size": Column("intermediate_size", "intermediate size", _thousands),
    "num_heads": Column("heads", "heads", _thousands),
    "num_kv_heads": Column("kv_heads", "key/value heads", _thousands),
    "head_dim": Column("head_dim", "head size", _thousands),
}
"""The attributes of ModelDetails that a record holds, and how each is shown."""
_ARCHITECTURE, *_SIZES = _DETAILS.values()
_FIELDS = (
    Column("ref", "model"),
    Column("title", "title"),
    Column("origin", "origin"),
    Column("path", "path"),
    Column("revision", "revision"),
    Column("format", "format"),
    Column("size_bytes", "size on disk", bytes_text),
    _ARCHITECTURE,
    Column("kind", "kind"),
    *_SIZES,
    Column("serves", "drafts for"),
    Column("drafts", "local drafts that fit", lambda drafts: ", ".join(drafts) if drafts else "none"),
)


def _record(entry: ModelEntry, details: ModelDetails | None) -> dict[str, Any]:
    """What is known of a model; the details are None if its files can't be read."""
    return {
        "ref": entry.ref,
        "title": entry.title,
        "origin": str(entry.origin),
        "format": str(entry.format),
        "kind": kind_text(entry, details).lower(),
        **{column.key: getattr(details, name, None) for name, column in _DETAILS.items()},
        "size_bytes": entry.size_bytes,
        "last_used": None,
        "path": str(entry.path),
        "revision": entry.revision,
        "serves": entry.serves,
    }


def list_models(args: argparse.Namespace) -> int:
    """Print the list, and return the exit code."""
    entries = catalogue.local_models()
    if args.suggested:
        write_rows(_SUGGESTED, _suggested_records({entry.ref for entry in entries}), as_json=args.json)
        return Exit.DONE
    records = []
    for entry in entries:
        try:
            records.append({**_record(entry, read_details(entry)), "problem": None})
        except OutriderError as error:
            records.append({**_record(entry, None), "problem": str(error)})
    if not records:
        say("There are no local models; `outrider models list --suggested` lists some to download.")
    write_rows(_LOCAL, records, as_json=args.json)
    for record in records:
        if record["problem"] is not None:
            say(f"{printable(record['ref'])}: {record['problem']}")
    # Stopped downloads are not models yet, but take up space. One may be finishing right now.
    with contextlib.suppress(OSError):
        for ref in hub.interrupted_refs():
            kept = bytes_text(hub.partial_bytes(ref))
            say(f"{printable(ref)}: {kept} of a partial download; `models get` resumes it, `models remove` deletes it.")
    return Exit.DONE


def _suggested_records(here: set[str]) -> list[dict[str, Any]]:
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


def describe_model(args: argparse.Namespace) -> int:
    """Print the description, and return the exit code."""
    entry = resolve(args.ref)
    details = read_details(entry)
    record = {**_record(entry, details), "drafts": [draft.ref for draft in fit.fitting_drafts(entry)]}
    write_fields(_FIELDS, record, as_json=args.json)
    return Exit.DONE


# --- get --------------------------------------------------------------------------------------------------------


class DownloadDisplay(Progress):
    """Progress of a download: a bar with bytes, rate and time left, or a line for each stage and file."""

    has_received = False

    def update(self, progress: DownloadProgress) -> None:
        """Show the state of the download."""
        self.has_received = self.has_received or bool(progress.file)
        stage = printable(progress.stage)
        if self.is_terminal:
            figures = progress_text(progress) if progress.done_bytes and progress.is_receiving else ""
            self.show_figures(stage, progress.done_bytes, progress.total_bytes, figures)
            return
        if progress.total_bytes:
            self.say_once(f"{bytes_text(progress.total_bytes)} in total")
        text = f"{stage.rstrip('…')} {printable(progress.file)}" if progress.file else stage
        self.say_once(text, key=progress.file)


def get_model(args: argparse.Namespace) -> int:
    """Download, and return the exit code."""
    controls, progress = RunControls(), DownloadDisplay()
    try:
        if args.ref in catalogue.EMBEDDED_TITLES:
            entry = resolve(args.ref)
            say(f"{entry.ref} ships with Outrider.")
        else:
            # The first Ctrl-C asks the download to stop, so that it can keep what was received.
            # Before that there is nothing to keep, and the Hub may take long to answer.
            with stop_on_interrupt(controls, can_wait=lambda: progress.has_received), progress:
                check = controls.check_cancelled
                entry = downloads.download(
                    args.ref, on_progress=progress.update, check_cancelled=check, restart=args.restart
                )
            if not progress.has_received:
                say(f"{entry.ref} is already downloaded; --restart checks its files.")
    except (Cancelled, KeyboardInterrupt):
        say(_farewell(args.ref))
        return Exit.STOPPED
    write_output(f"{entry.path}\n")
    return Exit.DONE


def _farewell(ref: str) -> str:
    """Say what a stopped download leaves on the disk: not every source can be resumed."""
    command = f"`outrider models get {shlex.quote(ref)}`"
    is_whole, kept = catalogue.source_kind(ref) == "hub", hub.partial_bytes(ref)
    if is_whole and not kept:
        return f"Stopped; {ref} is here as before. {command} starts again."
    if not is_whole:
        with contextlib.suppress(OutriderError):
            kept = removal.plan_removal(ref).frees_bytes
    if not kept:
        return f"Stopped; nothing was kept. {command} starts again."
    return f"Stopped; {bytes_text(kept)} was kept. {command} resumes it."


# --- remove -----------------------------------------------------------------------------------------------------


def remove_model(args: argparse.Namespace) -> int:
    """Ask, remove, and return the exit code."""
    plan = removal.plan_removal(args.ref)
    name = printable(plan.entry.ref)
    if not args.yes and not _agreed(f"Remove {name}? This frees {bytes_text(plan.frees_bytes)}.", plan.note):
        say("Nothing was removed.")
        return Exit.STOPPED
    freed = removal.remove(args.ref)
    say(f"Removed {name}; {bytes_text(freed)} is free again.")
    return Exit.DONE


def _agreed(question: str, note: str) -> bool:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError("There is no terminal for the confirmation; add --yes to remove the model without it.")
    sys.stderr.write(" ".join(filter(None, (question, printable(note), "[y/N] "))))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


# --- check ------------------------------------------------------------------------------------------------------

_VERDICT = (
    Column("verdict", "verdict"),
    Column("warnings", "note", "\n".join),
    Column("weights_bytes", "weights", bytes_text),
    Column("cache_bytes", "caches", bytes_text),
    Column("working_bytes", "working memory", bytes_text),
    Column("total_bytes", "needed in total", bytes_text),
    Column("available_bytes", "free", bytes_text),
    Column("fits", "fits", yes_or_no),
    Column("cost_coefficient", "expected cost", lambda c: f"c ≈ {c:.2f}, a draft step / a target step, by parameters"),
)


def check_models(args: argparse.Namespace) -> int:
    """Print the verdict, and return 0 if the pair can work, 1 if it can't."""
    target, draft = named_pair(args)
    if target is None or draft is None:
        raise UsageError("Name both models with --target and --draft; see outrider models check --help.")
    # A missing model is an error in the command, not a verdict.
    known = [_known_model(ref) for ref in (draft, target)]
    verdict = fit.pair_verdict(*known, device=args.device, dtype=args.dtype, context=args.context)
    parts = ("weights_bytes", "cache_bytes", "working_bytes", "total_bytes", "available_bytes", "fits")
    record = {
        "draft": draft,
        "target": target,
        "can_work": verdict.problem is None,
        "verdict": verdict.problem or f"{draft} can draft for {target}.",
        "warnings": list(verdict.warnings),
        **{part: getattr(verdict.memory, part, None) for part in parts},
        "cost_coefficient": verdict.cost_coefficient,
    }
    write_fields(_VERDICT, record, as_json=args.json)
    return Exit.DONE if verdict.problem is None else Exit.FAILED


def _known_model(ref: str) -> str | ModelEntry:
    """The model of this name, or, if it is not downloaded, what the Hub says about it."""
    try:
        resolve(ref)
    except OutriderError:
        if hub.is_offline() or not hub.is_hub_id(ref) or "/" not in ref or os.path.exists(ref):
            raise
        with stop_on_interrupt(RunControls(), can_wait=lambda: False), DownloadDisplay() as progress:
            return downloads.preview(ref, on_progress=progress.update)
    return ref


# --- Parsers ----------------------------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    """Register `models` and its actions with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "models",
        help="list, get, describe, remove and compare models",
        description="List, download and remove models, and check whether two can work together.",
        examples=("outrider models list --suggested", "outrider models get HuggingFaceTB/SmolLM2-135M-Instruct"),
        epilog="Only `get` and `check` use the network, and with HF_HUB_OFFLINE=1 in the environment neither does.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    local, suggested = (", ".join(column.key for column in columns) for columns in (_LOCAL, _SUGGESTED))
    action = add_command(
        actions,
        "list",
        list_models,
        examples=("outrider models list --suggested",),
        help="list local models; with --suggested, models worth downloading",
        description="List the local models: embedded, kept by Outrider, and in the Hub cache. In a pipe the "
        f"lines are tab-separated, with exact values: {local}; with --suggested: {suggested}.",
    )
    switch(action, "--suggested", "list matching pairs on the Hub")
    switch(action, "--json", "print a JSON array")
    action = add_command(
        actions,
        "get",
        get_model,
        examples=("outrider models get HuggingFaceTB/SmolLM2-135M-Instruct",),
        help="download a model from the Hub",
        description="Download a model into the Hub cache, after checking the free space, and print its path. What "
        "was received before a Ctrl-C or a lost connection is kept, and the same command resumes it.",
        epilog="With HF_HUB_OFFLINE=1 in the environment nothing is downloaded. "
        "Exit codes: 0 downloaded, 1 the download failed, 2 bad usage or no such model, 130 stopped.",
    )
    option(action, "REF", "a Hub id, such as those of `outrider models list --suggested`")
    switch(action, "--restart", "discard a partial download, check the local files, and start again")
    action = add_command(
        actions,
        "info",
        describe_model,
        examples=("outrider models info outrider-code-target",),
        help="describe a model, and list the local drafts that fit it",
        description="Describe a local model, from its files; nothing is loaded. In a pipe: name, tab, value.",
    )
    option(action, "REF", REF_HELP)
    switch(action, "--json", "print a JSON object")
    action = add_command(
        actions,
        "remove",
        remove_model,
        examples=("outrider models remove HuggingFaceTB/SmolLM2-135M-Instruct",),
        help="delete a downloaded model, after confirmation",
        description="Delete a model from the Hub cache, or one that Outrider keeps. Embedded models, folders and files "
        "of your own are never deleted.",
        epilog="Exit codes: 0 removed, 1 it can't be deleted, 2 bad usage or no such model, 130 declined.",
    )
    option(action, "REF", "the name of a model as `outrider models list` shows it")
    switch(action, "--yes", "don't ask for confirmation; required without a terminal")
    action = add_command(
        actions,
        "check",
        check_models,
        examples=("outrider models check --target TARGET --draft DRAFT",),
        help="check whether a draft works with a target, and what both need",
        description="Compare two models by their files: their vocabularies, the memory for both and their caches, and "
        "the expected cost of a draft step. Nothing is loaded. If a model is not downloaded, its configuration and "
        "tokenizer are fetched from the Hub, and memory and cost are estimates. In a pipe: name, tab, value.",
        epilog="Exit codes: 0 they can work together, 1 they can't, 2 bad usage or no such model.",
    )
    add_pair(action, method=False, has_defaults=False)
    text = "capacity of the caches in tokens (default: the target's context, up to a sensible limit)"
    option(action, "--context N", text, positive_whole_number)
    switch(action, "--json", "print a JSON object")
