"""`outrider models`: list, get, describe, remove and compare models."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.columns import Column, write_fields, write_rows, yes_or_no
from app.cli.console import Progress, printable
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, writing_output
from app.cli.parsing import REF_HELP, add_command, positive_whole_number
from app.setup.model_library import REMOVABLE, bytes_text, count_text, kind_text, progress_text
from core.controls import Cancelled, RunControls
from core.errors import OutriderError
from core.settings import Device, DType

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry
    from core.models.details import ModelDetails
    from core.models.downloads import DownloadProgress


def _thousands(count: int) -> str:
    return f"{count:,}"


def _tokens(count: int) -> str:
    return f"{count:,} tokens"


def _moment(seconds: float | None) -> str | None:
    """Seconds since the epoch as an ISO time in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _day(moment: str) -> str:
    """The day of an ISO time, in the local time zone."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d")


# --- list -------------------------------------------------------------------------------------------------------

_LOCAL = (
    Column("ref", "model"),
    Column("origin", "origin", rank=4),
    Column("format", "format", rank=6),
    Column("precision", "precision", rank=3),
    Column("parameters", "params", count_text, is_number=True, rank=1),
    Column("context", "context", _thousands, is_number=True, rank=2),
    Column("vocabulary", "vocab", _thousands, is_number=True, rank=5),
    Column("size_bytes", "size", bytes_text, is_number=True),
    Column("last_used", "last used", _day, rank=7),
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


def list_models(args: argparse.Namespace) -> int:
    """Print the list, and return the exit code.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    from core.models import hub
    from core.models.catalogue import local_models

    entries = local_models()
    if args.suggested:
        write_rows(_SUGGESTED, _suggested_records({entry.ref for entry in entries}), as_json=args.json)
        return Exit.DONE
    records = [_local_record(entry) for entry in entries]
    if not records:
        say("There are no models here; `outrider models list --suggested` names some that can be downloaded.")
    write_rows(_LOCAL, records, as_json=args.json)
    for record in records:
        if record["problem"] is not None:
            say(f"{printable(record['ref'])}: {record['problem']}")
    # Stopped downloads are not models yet, but take up space. One may be finishing right now.
    with contextlib.suppress(OSError):
        for ref in hub.interrupted_refs():
            kept = bytes_text(hub.partial_bytes(ref))
            say(f"{printable(ref)}: {kept} of a stopped download; `models get` resumes it, `models remove` deletes it.")
    return Exit.DONE


def _common_record(entry: ModelEntry, details: ModelDetails | None) -> dict[str, Any]:
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
        "last_used": _moment(entry.last_used),
        "path": str(entry.path),
        "revision": entry.revision,
        "serves": entry.serves,
    }


def _local_record(entry: ModelEntry) -> dict[str, Any]:
    from core.models.details import read_details

    details, problem = None, None
    try:
        details = read_details(entry)
    except OutriderError as error:
        problem = str(error)
    return {**_common_record(entry, details), "problem": problem}


def _suggested_records(here: set[str]) -> list[dict[str, Any]]:
    from core.models.suggestions import SUGGESTIONS

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


# --- get --------------------------------------------------------------------------------------------------------


class DownloadDisplay(Progress):
    """Progress of a download: a bar with bytes, rate and time left, or a line for each stage and file."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def update(self, progress: DownloadProgress) -> None:
        """Show the state of the download."""
        if self.is_terminal:
            figures = progress_text(progress) if progress.done_bytes else ""
            self.show_figures(printable(progress.stage), progress.done_bytes, progress.total_bytes, figures)
            return
        if progress.total_bytes:
            self._say_once("total", f"{bytes_text(progress.total_bytes)} in all")
        stage = f"{progress.stage.rstrip('…')} {progress.file}" if progress.file else progress.stage
        self._say_once(progress.file or progress.stage, printable(stage))

    def _say_once(self, key: str, line: str) -> None:
        if key not in self._said:
            self._said.add(key)
            say(line)


def get_model(args: argparse.Namespace) -> int:
    """Download, and return the exit code.

    Raises:
        OutriderError: there is no such model, no network, no space…
        OutputClosed, OutputError: standard output can't be written.
    """
    here = _already_here(args.ref)
    if here is not None and here.embedded:
        say(f"{here.ref} ships with Outrider.")
        return _print_path(here.path)
    from core.models.downloads import download

    controls, progress = RunControls(), DownloadDisplay()
    try:
        # The first Ctrl-C asks the download to stop, so that it can keep what was received.
        with stop_on_interrupt(controls), progress:
            entry = download(
                args.ref, on_progress=progress.update, check_cancelled=controls.check_cancelled, restart=args.restart
            )
    except Cancelled:
        say(_farewell(args.ref))
        return Exit.STOPPED
    if here is not None and here.path == entry.path and not args.restart:
        say(f"{entry.ref} is here already; --restart checks its files.")
    return _print_path(entry.path)


def _print_path(path: Path) -> Exit:
    if sys.stdout is not None:
        with writing_output():
            sys.stdout.write(f"{path}\n")
            sys.stdout.flush()
    return Exit.DONE


def _already_here(ref: str) -> ModelEntry | None:
    """A model that is complete, judging by its files' headers, with no unfinished download."""
    from core.models import hub
    from core.models.catalogue import resolve
    from core.models.details import read_details

    try:
        entry = resolve(ref)
        if not (entry.embedded or entry.origin in REMOVABLE) or hub.partial_bytes(ref):
            return None
        read_details(entry)
    except (OutriderError, OSError):
        return None
    return entry


def _farewell(ref: str) -> str:
    """Say what a stopped download leaves on the disk: not every source can be resumed."""
    from core.models.downloads import plan_removal

    command = f"`outrider models get {shlex.quote(ref)}`"
    try:
        kept = plan_removal(ref).frees_bytes
    except OutriderError:
        kept = 0
    if not kept:
        return f"Stopped; nothing of it is kept. {command} starts again."
    return f"Stopped; {bytes_text(kept)} of it are kept. {command} resumes it."


# --- info -------------------------------------------------------------------------------------------------------

_FIELDS = (
    Column("ref", "model"),
    Column("title", "title"),
    Column("origin", "origin"),
    Column("path", "path"),
    Column("revision", "revision"),
    Column("last_used", "last used", _day),
    Column("format", "format"),
    Column("size_bytes", "size on disk", bytes_text),
    Column("architecture", "architecture"),
    Column("kind", "kind"),
    Column("parameters", "parameters", lambda count: f"{count_text(count)} ({count:,})"),
    Column("precision", "precision"),
    Column("weight_bytes", "weights as stored", bytes_text),
    Column("context", "context", _tokens),
    Column("vocabulary", "vocabulary", _tokens),
    Column("embedding_rows", "embedding rows", _thousands),
    Column("draft_vocabulary", "drafts from", _tokens),
    Column("chat_template", "chat template", yes_or_no),
    Column("layers", "layers", _thousands),
    Column("hidden_size", "hidden size", _thousands),
    Column("intermediate_size", "intermediate size", _thousands),
    Column("heads", "heads", _thousands),
    Column("kv_heads", "key/value heads", _thousands),
    Column("head_dim", "head size", _thousands),
    Column("serves", "drafts for"),
    Column("drafts", "drafts here that fit", lambda drafts: ", ".join(drafts) if drafts else "none"),
)


def describe_model(args: argparse.Namespace) -> int:
    """Print the description, and return the exit code.

    Raises:
        OutriderError: there is no such model, or its files can't be read.
        OutputClosed, OutputError: standard output can't be written.
    """
    from core.models.catalogue import resolve
    from core.models.details import read_details

    entry = resolve(args.ref)
    details = read_details(entry)
    record = {
        **_common_record(entry, details),
        "architecture": details.architecture,
        "kind": kind_text(entry, details).lower(),
        "weight_bytes": details.weight_bytes,
        "embedding_rows": details.table_size,
        "draft_vocabulary": details.draft_vocabulary_size,
        "chat_template": details.has_chat_template,
        "layers": details.num_layers,
        "hidden_size": details.hidden_size,
        "intermediate_size": details.intermediate_size,
        "heads": details.num_heads,
        "kv_heads": details.num_kv_heads,
        "head_dim": details.head_dim,
        "drafts": _fitting_drafts(entry, details),
    }
    write_fields(_FIELDS, record, as_json=args.json)
    return Exit.DONE


def _fitting_drafts(target: ModelEntry, details: ModelDetails) -> list[str]:
    """The smaller models on this computer that can draft for this one; a drafter can't be a target."""
    from core.models.catalogue import local_models
    from core.models.details import read_details
    from core.models.fit import pair_problem

    if target.serves is not None:
        return []
    fitting = []
    for entry in local_models():
        with contextlib.suppress(OutriderError):
            is_smaller = read_details(entry).num_parameters < details.num_parameters
            if is_smaller and pair_problem(entry.ref, target.ref) is None:
                fitting.append(entry.ref)
    return fitting


# --- remove -----------------------------------------------------------------------------------------------------


def remove_model(args: argparse.Namespace) -> int:
    """Ask, remove, and return the exit code.

    Raises:
        OutriderError: there is no such model, or it may not be removed.
        UsageError: there is no terminal to ask on.
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
        raise UsageError("There is no terminal to ask on; add --yes to remove the model without asking.")
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
    Column("total_bytes", "needed in all", bytes_text),
    Column("available_bytes", "free", bytes_text),
    Column("fits", "fits", yes_or_no),
    Column("cost_coefficient", "expected cost", lambda c: f"c ≈ {c:.2f}, a draft step / a target step, by parameters"),
)


def check_models(args: argparse.Namespace) -> int:
    """Print the verdict, and return 0 if the pair can work, 1 if it can't.

    Raises:
        OutriderError: there is no such model, or it is damaged.
        OutputClosed, OutputError: standard output can't be written.
    """
    from core.models.catalogue import resolve
    from core.models.fit import pair_verdict

    for ref in (args.draft, args.target):
        resolve(ref)  # A missing model is an error in the command, not a verdict.
    verdict = pair_verdict(args.draft, args.target, device=args.device, dtype=args.dtype, context=args.context)
    parts = ("weights_bytes", "cache_bytes", "working_bytes", "total_bytes", "available_bytes", "fits")
    record = {
        "draft": args.draft,
        "target": args.target,
        "can_work": verdict.problem is None,
        "verdict": verdict.problem or f"{args.draft} can draft for {args.target}.",
        "warnings": list(verdict.warnings),
        **{part: getattr(verdict.memory, part, None) for part in parts},
        "cost_coefficient": verdict.cost_coefficient,
    }
    write_fields(_VERDICT, record, as_json=args.json)
    return Exit.DONE if verdict.problem is None else Exit.FAILED


# --- Parsers ----------------------------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    """Register `models` and its actions with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "models",
        help="list, get, describe, remove and compare models",
        description="Models: what is here, getting more, and whether two can work together.",
        epilog="With HF_HUB_OFFLINE=1 in the environment nothing touches the network; only `get` ever does.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    local, suggested = (", ".join(column.key for column in columns) for columns in (_LOCAL, _SUGGESTED))
    lister = add_command(
        actions,
        "list",
        list_models,
        help="what is here; with --suggested, what is worth getting",
        description="List the models that are here: embedded, kept by Outrider, and in the Hub cache. In a pipe the "
        f"lines are tab-separated, with exact values: {local}; with --suggested: {suggested}.",
    )
    lister.add_argument("--suggested", action="store_true", help="a short catalogue of pairs that suit each other")
    lister.add_argument("--json", action="store_true", help="print a JSON array")
    getter = add_command(
        actions,
        "get",
        get_model,
        help="download a model from the Hub",
        description="Download a model into the Hub cache, after a check of the free space, and print its path. What "
        "was received before a Ctrl-C or a lost connection is kept, and the same command resumes it.",
        epilog="With HF_HUB_OFFLINE=1 in the environment nothing touches the network, and nothing is downloaded. "
        "Exit codes: 0 here, 1 the download failed, 2 bad usage or no such model, 130 stopped.",
    )
    getter.add_argument("ref", metavar="REF", help="a Hub id, such as those of `outrider models list --suggested`")
    restart_help = "discard what was received so far, check what is here, and start again"
    getter.add_argument("--restart", action="store_true", help=restart_help)
    describer = add_command(
        actions,
        "info",
        describe_model,
        help="what a model is, and which drafts here fit it",
        description="Describe a model that is here, from its files; nothing is loaded. In a pipe: name, tab, value.",
    )
    describer.add_argument("ref", metavar="REF", help=REF_HELP)
    describer.add_argument("--json", action="store_true", help="print a JSON object")
    remover = add_command(
        actions,
        "remove",
        remove_model,
        help="delete a downloaded model, after asking",
        description="Delete a model from the Hub cache, or one that Outrider keeps. Embedded models, folders and files "
        "of your own are never deleted.",
        epilog="Exit codes: 0 removed, 1 it can't be deleted, 2 bad usage or no such model, 130 the answer was no.",
    )
    remover.add_argument("ref", metavar="REF", help="the name of a model as `outrider models list` shows it")
    remover.add_argument("--yes", action="store_true", help="don't ask; needed where there is no terminal")
    checker = add_command(
        actions,
        "check",
        check_models,
        help="whether a draft can work for a target, and what both will need",
        description="Compare two models that are here, from their files: vocabularies, memory for both and their "
        "caches, and the expected cost of a draft's step. Nothing is loaded. In a pipe: name, tab, value.",
        epilog="Exit codes: 0 they can work together, 1 they can't, 2 bad usage or no such model.",
    )
    checker.add_argument("draft", metavar="DRAFT", help=f"the model that drafts: {REF_HELP}")
    checker.add_argument("target", metavar="TARGET", help="the model to sample from, named likewise")
    checker.add_argument("--device", choices=[*map(str, Device)], default="auto", help="where to run (default: auto)")
    checker.add_argument("--dtype", choices=[*map(str, DType)], default="auto", help="precision (default: by device)")
    context_help = "tokens that the caches hold (default: what the target takes, within reason)"
    checker.add_argument("--context", metavar="N", type=positive_whole_number, help=context_help)
    checker.add_argument("--json", action="store_true", help="print a JSON object")
