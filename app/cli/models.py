"""`outrider models`: what is here, getting more, what a model is, removing one, and whether two can work together."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.console import Progress, printable
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, writing_output
from app.cli.parsing import REF_HELP, whole_number
from app.setup.model_library import bytes_text, count_text, progress_text
from core.controls import Cancelled, RunControls
from core.errors import OutriderError
from core.types import Device, DType

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry
    from core.models.details import ModelDetails
    from core.models.downloads import DownloadProgress
    from core.models.fit import PairVerdict


_GAP = 2

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, or one line of a description.

    Attributes:
        key: of the value in a record; None there is shown as a dash, and in a pipe as nothing.
        title: above the column.
        show: how a terminal shows the value; a pipe gets it exactly.
        is_number: set to the right.
        rank: where the terminal is too narrow, the highest go first; those of rank 0 stay, and are folded.
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    is_number: bool = False
    rank: int = 0

    def shown(self, record: Record) -> str:
        value = record.get(self.key)
        return "–" if value is None else "\n".join(map(printable, self.show(value).split("\n")))

    def exact(self, record: Record) -> list[str]:
        """The values for a pipe: none for None, several of a list."""
        value = record.get(self.key)
        values = value if isinstance(value, tuple | list) else [] if value is None else [value]
        return [printable(yes_or_no(item) if isinstance(item, bool) else str(item)) for item in values]


def write_rows(columns: Sequence[Column], records: Sequence[Record], *, as_json: bool = False) -> None:
    """One line a record.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    lines = ("\t".join(",".join(column.exact(record)) for column in columns) for record in records)
    _write(list(records), lines, lambda console: _table(columns, records, console.width), as_json)


def write_fields(columns: Sequence[Column], record: Record, *, as_json: bool = False) -> None:
    """One line a value, each after its name; what is None or empty is left out.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    lines = (f"{column.key}\t{value}" for column in columns for value in column.exact(record))
    _write(record, lines, lambda _: _fields(columns, record), as_json)


def _write(document: Any, lines: Any, table: Callable[[Console], Table], as_json: bool) -> None:
    if sys.stdout is None:
        return
    with writing_output():
        if as_json:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")
        elif sys.stdout.isatty():
            console = Console(highlight=False, markup=False, emoji=False)
            drawn = table(console)
            if drawn.row_count:
                console.print(drawn)
        else:
            sys.stdout.writelines(line + "\n" for line in lines)
        sys.stdout.flush()


def _table(columns: Sequence[Column], records: Sequence[Record], width: int) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    kept = _columns_that_fit(columns, records, width)
    for column in kept:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.rank > 0,
        )
    for record in records:
        table.add_row(*(Text(column.shown(record)) for column in kept))
    return table


def _columns_that_fit(columns: Sequence[Column], records: Sequence[Record], width: int) -> list[Column]:
    def needed(column: Column) -> int:
        texts = (column.title, *(column.shown(record) for record in records))
        return max(cell_len(line) for text in texts for line in text.split("\n")) + _GAP

    kept = [column for column in columns if any(record.get(column.key) is not None for record in records)]
    while sum(map(needed, kept)) - _GAP > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    return kept


def _fields(columns: Sequence[Column], record: Record) -> Table:
    table = Table(box=None, show_header=False, padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for column in columns:
        if record.get(column.key) is not None and (text := column.shown(record)):
            table.add_row(column.title, Text(text))
    return table


# --- Figures ----------------------------------------------------------------------------------------------------


def thousands(count: int) -> str:
    """A whole number with its thousands apart."""
    return f"{count:,}"


def moment(seconds: float | None) -> str | None:
    """Seconds since the epoch as an ISO time in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def day_text(moment: str) -> str:
    """The day of an ISO time, in the reader's own zone."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d")


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


class DownloadDisplay(Progress):
    """The progress of a download: a bar with bytes, rate and time left, or a line for each stage and file."""

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


_CHECKING_FIELDS = (
    Column("verdict", "verdict"),
    Column("warnings", "note", "\n".join),
    Column("weights_bytes", "weights", bytes_text),
    Column("cache_bytes", "caches", bytes_text),
    Column("working_bytes", "working memory", bytes_text),
    Column("total_bytes", "needed in all", bytes_text),
    Column("available_bytes", "free", bytes_text),
    Column("fits", "fits", yes_or_no),
    Column(
        "cost_coefficient", "expected cost", lambda cost: f"c ≈ {cost:.2f}, a draft step / a target step, by parameters"
    ),
)


def checking_add_parser(actions: Any) -> None:
    """Register `check` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "check",
        help="whether a draft can work for a target, and what both will need",
        description=(
            "Compare two models that are here, from their files: vocabularies, memory for both and their caches, and "
            "the expected cost of a draft's step. Nothing is loaded. In a pipe: name, tab, value."
        ),
        epilog="Exit codes: 0 they can work together, 1 they can't, 2 bad usage or no such model.",
        allow_abbrev=False,
    )
    parser.add_argument("draft", metavar="DRAFT", help=f"the model that drafts: {REF_HELP}")
    parser.add_argument("target", metavar="TARGET", help="the model to sample from, named likewise")
    parser.add_argument("--device", choices=[*map(str, Device)], default="auto", help="where to run (default: auto)")
    parser.add_argument("--dtype", choices=[*map(str, DType)], default="auto", help="precision (default: by device)")
    parser.add_argument(
        "--context",
        metavar="N",
        type=whole_number,
        help="tokens that the caches shall hold (default: what the target takes, within reason)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(execute=checking_execute)


def checking_execute(args: argparse.Namespace) -> int:
    """Print the verdict, and return 0 if the pair can work, 1 if it can't.

    Raises:
        UsageError: the context is no length.
        OutriderError: there is no such model, or it is damaged.
        OutputClosed, OutputError: standard output can't be written.
    """
    if args.context is not None and args.context < 1:
        raise UsageError(f"--context must be at least 1, not {thousands(args.context)}.")
    from core.models.catalogue import resolve
    from core.models.fit import pair_verdict

    for ref in (args.draft, args.target):
        resolve(ref)  # A model that isn't here is a mistake in the command, not a verdict.
    verdict = pair_verdict(args.draft, args.target, device=args.device, dtype=args.dtype, context=args.context)
    write_fields(_CHECKING_FIELDS, _checking_record(args.draft, args.target, verdict), as_json=args.json)
    return Exit.DONE if verdict.problem is None else Exit.FAILED


def _checking_record(draft: str, target: str, verdict: PairVerdict) -> dict[str, Any]:
    memory = verdict.memory
    return {
        "draft": draft,
        "target": target,
        "can_work": verdict.problem is None,
        "verdict": verdict.problem or f"{draft} can draft for {target}.",
        "warnings": list(verdict.warnings),
        "weights_bytes": memory and memory.weights_bytes,
        "cache_bytes": memory and memory.cache_bytes,
        "working_bytes": memory and memory.working_bytes,
        "total_bytes": memory and memory.total_bytes,
        "available_bytes": memory and memory.available_bytes,
        "fits": memory and memory.fits,
        "cost_coefficient": verdict.cost_coefficient,
    }


def getting_add_parser(actions: Any) -> None:
    """Register `get` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "get",
        help="download a model from the Hub",
        description=(
            "Download a model into the Hub cache, after a look at the space on the disk, and print its path. What came "
            "from the Hub before a Ctrl-C or a lost connection is kept, and the same command goes on from there."
        ),
        epilog=(
            "With HF_HUB_OFFLINE=1 in the environment nothing touches the network, and nothing is downloaded. "
            "Exit codes: 0 here, 1 the download failed, 2 bad usage or no such model, 130 stopped."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("ref", metavar="REF", help="a Hub id, such as those of `outrider models list --suggested`")
    parser.add_argument(
        "--restart", action="store_true", help="discard what came of it so far, check what is here, and begin anew"
    )
    parser.set_defaults(execute=getting_execute)


def getting_execute(args: argparse.Namespace) -> int:
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
        # The first Ctrl-C asks the download to stop, so that it can keep what came.
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
    """A model that is here whole, as far as its files' headers tell, with no download of it to finish."""
    from core.models import hub
    from core.models.catalogue import ModelOrigin, resolve
    from core.models.details import read_details

    try:
        entry = resolve(ref)
        is_ours = entry.origin in {ModelOrigin.EMBEDDED, ModelOrigin.HUB, ModelOrigin.KEPT}
        if not is_ours or hub.partial_bytes(ref):
            return None
        read_details(entry)
    except (OutriderError, OSError):
        return None
    return entry


def _farewell(ref: str) -> str:
    """What a stopped download leaves, looked up on the disk: not every source can be resumed."""
    from core.models.downloads import plan_removal

    command = f"`outrider models get {shlex.quote(ref)}`"
    try:
        kept = plan_removal(ref).frees_bytes
    except OutriderError:
        kept = 0
    if not kept:
        return f"Stopped; nothing of it is kept. {command} begins again."
    return f"Stopped; {bytes_text(kept)} of it are kept. {command} goes on from there."


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


def listing_add_parser(actions: Any) -> None:
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
    parser.set_defaults(execute=listing_execute)


def listing_execute(args: argparse.Namespace) -> int:
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


def removing_add_parser(actions: Any) -> None:
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
    parser.set_defaults(execute=removing_execute)


def removing_execute(args: argparse.Namespace) -> int:
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


def showing_add_parser(actions: Any) -> None:
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
    from core.models.details import read_details
    from core.models.fit import pair_problem

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


_ACTIONS = (listing_add_parser, getting_add_parser, showing_add_parser, removing_add_parser, checking_add_parser)


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
    for action in _ACTIONS:
        action(actions)
