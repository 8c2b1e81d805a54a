"""`outrider bench`: how fast this engine is, beside the others, on this machine."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table
from rich.text import Text

from app.cli.console import Bar, Lines, figure_text, is_terminal, open_console, quiet_libraries, spread_text
from app.cli.errors import Exit, UsageError, say, writing_output
from app.cli.models import REF_HELP, printable
from app.cli.parsing import EXIT_CODES, add_count, add_place, echo, positive_whole_number, whole_number
from app.cli.run_arguments import embedded_drafter
from core.errors import RunLogError
from core.experiments.bench import BenchSettings, known_names
from core.files import explain_write_error, write_atomically
from core.machine import limit_spinning, num_processors
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.types import Device, DType

if TYPE_CHECKING:
    from core.experiments.benching import Report, Row


class Display(Protocol):
    """Shows a bench while it is entered."""

    def stage(self, text: str) -> None: ...

    def advance(self, text: str, done: int, total: int) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *details: object) -> None: ...


def open_progress() -> Display:
    """The display for this process's stderr."""
    return _Bar() if is_terminal(sys.stderr) else _Lines()


class _Lines(Lines):
    def __init__(self) -> None:
        self._last = ""

    def stage(self, text: str) -> None:
        if text != self._last:
            self._last = text
            say(text)

    def advance(self, text: str, done: int, total: int) -> None:
        self.stage(text)


class _Bar(Bar):
    """Drawn between two runs and never during one: a thread that draws would be timed along."""

    def __init__(self) -> None:
        from rich.progress import MofNCompleteColumn

        super().__init__(MofNCompleteColumn(), auto_refresh=False)

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text, refresh=True)

    def advance(self, text: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=text, completed=done, total=total, refresh=True)


_LEGEND = (
    "Medians over the rounds, quartiles in brackets; ratios are taken round by round. tokens/s: all new tokens / wall "
    "clock, reading the prompt included. tokens/forward: of the target. overhead: a step / (K draft forwards + one "
    "scoring forward, timed bare) − 1. bare c: a bare forward of the draft / one of the target, in turn."
)
_RANDOM = "Above temperature 0 each engine draws from a random stream of its own: texts differ, and laws should not."


def write_report(report: Report) -> None:
    """Print a table for each temperature, what the figures mean, and what was different.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    with writing_output():
        for line in _head(report):
            console.print(Text(line))
        for temperature in report.config["temperatures"]:
            table = [row for row in report.rows if row.temperature == temperature]
            if table:
                console.print()
                console.print(Text(f"Temperature {temperature:g}", "bold"))
                console.print(_table(table))
        console.print()
        for line in _foot(report):
            console.print(Text(line))
        sys.stdout.flush()


def _head(report: Report) -> list[str]:
    config, place = report.config, report.environment
    draft = config["draft"] or "no draft model"
    prompts = ", ".join(f"{item['name']} ({item['num_tokens']} tokens)" for item in config["prompts"])
    flashspec = f", flashspec {place['flashspec']}" if place["flashspec"] else ""
    lines = [
        f"{config['target']}, drafted by {draft}, K = {config['num_draft_tokens']}",
        f"{place['device_name']} ({config['device']}), {config['dtype']}, {_count(place['threads'], 'thread')}",
        f"Python {place['python']}, torch {place['torch']}, transformers {place['transformers']}{flashspec}",
        f"{_count(config['max_new_tokens'], 'new token')}, {_count(config['rounds'], 'round')} "
        f"after one that does not count; {prompts}",
    ]
    return [printable(line) for line in lines]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("contender")
    columns: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("tokens/s", lambda row: spread_text(row.tokens_per_second, ".1f")),
        ("× generate", lambda row: spread_text(row.ratio_to_generate, ".2f")),
        ("× assisted", lambda row: spread_text(row.ratio_to_assisted, ".2f")),
        ("tokens/forward", lambda row: figure_text(row.tokens_per_forward, ".2f")),
        ("overhead", lambda row: spread_text(row.overhead, ".1%")),
        ("bare c", lambda row: spread_text(row.cost_coefficient, ".3f")),
        ("peak memory", lambda row: figure_text(row.peak_memory_mb, ",.0f", " MB")),
        ("× needed", lambda row: figure_text(_memory_ratio(row), ".2f")),
    )
    kept = [(title, show) for title, show in columns if any(show(row) != "–" for row in rows)]
    for title, _ in kept:
        table.add_column(title, justify="right")
    for row in rows:
        style = "" if row.is_ours else "dim"
        table.add_row(Text(row.title, style), *(Text(show(row), style) for _, show in kept))
    return table


def _memory_ratio(row: Row) -> float | None:
    taken, needed = row.peak_memory_mb, row.needed_memory_mb
    return taken / needed if taken is not None and needed else None


def _foot(report: Report) -> list[str]:
    lines = [_LEGEND]
    if any(row.peak_memory_mb is not None for row in report.rows):
        lines.append(
            "peak memory: of a process of its own, beyond what Python and the libraries take. needed: both models' "
            "weights, int8 copies included, and both caches."
        )
    if any(temperature > 0 for temperature in report.config["temperatures"]):
        lines.append(_RANDOM)
    for row in report.rows:
        lines += [f"{row.title}, temperature {row.temperature:g}: {note}." for note in row.notes]
    lines += [f"Not run: {absence.name}. {absence.reason}" for absence in report.absent]
    return [printable(line) for line in lines]


NEW_TOKENS = 64
"""With the window, where one stall weighs on a whole run, runs are longer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser every flag of a bench."""
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="REF", help=f"the target: {REF_HELP} (default: {DEFAULT_TARGET})")
    models.add_argument("--draft", metavar="REF", help="the draft (default: the embedded one for the target)")
    models.add_argument(
        "--draft-layers",
        metavar="N",
        type=positive_whole_number("--draft-layers"),
        help="make the draft of the target's first N layers: poor acceptance, an honest cost",
    )
    add_place(models)

    contest = parser.add_argument_group("contest")
    contest.add_argument(
        "-k", "--k", metavar="N", type=whole_number("-k"), default=4, help="tokens to draft a step (default: 4)"
    )
    contest.add_argument(
        "--temperature",
        metavar="T,…",
        type=_numbers("--temperature"),
        default=(0.0, 1.0),
        help="one or several, each a contest of its own (default: 0,1)",
    )
    contest.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive_whole_number("--max-new-tokens"),
        help=f"that every run writes, ends of text or not (default: {NEW_TOKENS})",
    )
    add_count(contest, "--rounds", 5, "that count, after one that does not")
    contest.add_argument("--seed", metavar="N", type=whole_number("--seed"), default=0, help="default: 0")
    contest.add_argument(
        "--threads", metavar="N", type=positive_whole_number("--threads"), help="for everyone (default: one a core)"
    )
    contest.add_argument(
        "--prompts", metavar="FILE", help="one prompt a line, or JSON Lines with a text each (default: three presets)"
    )
    contest.add_argument(
        "--only",
        "--methods",
        dest="only",
        metavar="NAME,…",
        type=_names,
        default=(),
        help=f"contenders: {', '.join(known_names())}; a method's options stand behind it, as in "
        "prompt-lookup:max-ngram=5 (default: all that can run)",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--memory", action="store_true", help="also run each once in a process of its own for its peak")
    output.add_argument("--out", metavar="FILE.json", help="write all figures here, whole or not at all")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(flag: str) -> Any:
    def parse(text: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in text.split(",") if part.strip())
        except ValueError:
            values = ()
        if not values:
            raise UsageError(f"{flag} must be numbers with commas between them, not {echo(text)}.")
        return tuple(dict.fromkeys(values))

    return parse


def build_settings(args: argparse.Namespace) -> BenchSettings:
    """The bench that the arguments ask for.

    Raises:
        SettingsError, UsageError: a value out of range, or arguments that don't go together.
    """
    if args.draft is not None and args.draft_layers is not None:
        raise UsageError("--draft names a draft and --draft-layers makes one; leave one of the two out.")
    draft = args.draft
    if draft is None and args.draft_layers is None:
        draft = DEFAULT_DRAFT if args.target in {None, DEFAULT_TARGET} else embedded_drafter(args.target)
    return BenchSettings(
        target=args.target or DEFAULT_TARGET,
        draft=draft,
        draft_layers=args.draft_layers,
        num_draft_tokens=args.k,
        temperatures=args.temperature,
        max_new_tokens=args.max_new_tokens or NEW_TOKENS,
        rounds=args.rounds,
        seed=args.seed,
        device=Device(args.device),
        dtype=DType(args.dtype),
        threads=args.threads,
        only=args.only,
    )


def check_out(path: str) -> None:
    """Find out before minutes of measuring that a file can't be written.

    Raises:
        RunLogError: with the sentence that writing it would end in.
    """
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            raise IsADirectoryError(21, "Is a directory")
        if os.path.exists(real):
            with open(real, "ab"):
                return
        with tempfile.TemporaryFile(dir=os.path.dirname(real)):
            pass
    except OSError as error:
        raise RunLogError(explain_write_error(error, path)) from error


def add_parser(commands: Any) -> None:
    """Register `bench` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "bench",
        help="compare this engine's speed with others'",
        description=(
            "Run this engine, transformers and, where it is installed, flashspec in turn on the same prompts, seeds, "
            "precision, K and number of tokens, and print medians and ratios with their spread. With no flags, on "
            "the embedded pair."
        ),
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code.

    Raises:
        OutriderError: bad input, or our own engine can't run it.
    """
    settings = build_settings(args)
    if args.out is not None:
        check_out(args.out)
    limit_spinning()
    quiet_libraries()
    from core.experiments.benching import to_json

    report = run_bench(settings, prompts_file=args.prompts, measures_memory=args.memory)
    if args.out is not None:
        write_atomically(args.out, to_json(report))
    write_report(report)
    return Exit.DONE


def run_bench(settings: BenchSettings, *, prompts_file: str | None, measures_memory: bool) -> Report:
    """Load, measure, and put the figures together.

    Raises:
        OutriderError: as `execute`.
    """
    from pathlib import Path

    from core.experiments.bench import Memory, memory_of
    from core.experiments.benching import (
        Report,
        config_of,
        encode_prompts,
        environment_of,
        line_up,
        load_pair,
        margin_of,
        measure,
        now,
        rows,
        with_memory,
    )
    from core.experiments.prompt_suites import default_prompts, read_prompts

    started_at = now()
    asked = None if prompts_file is None else read_prompts(Path(prompts_file))
    with open_progress() as progress:
        pair = load_pair(settings, progress.stage)
        settings = with_threads(settings)
        is_chat = bool(getattr(pair.target.tokenizer, "chat_template", None))
        prompts = encode_prompts(pair.target, asked or default_prompts(is_chat=is_chat))
        contenders, absent = line_up(pair, settings)
        table = []
        for comparison in measure(pair, contenders, prompts, settings, progress.advance):
            margin = margin_of(pair, prompts, comparison.reference) if comparison.reference else None
            table += rows(comparison, prompts, settings, margin)
            absent += [absence for absence in comparison.failed if absence not in absent]
        if measures_memory:
            taken: dict[str, Memory | None] = {}
            for name in dict.fromkeys(row.name for row in table):
                progress.stage(f"Measuring the memory of {name}")
                taken[name] = memory_of(name, settings, prompts[0].ids)
            table = [with_memory(row, taken[row.name]) for row in table]
    return Report(started_at, config_of(settings, pair, prompts), environment_of(pair, settings), table, absent)


def with_threads(settings: BenchSettings) -> BenchSettings:
    """The number of threads that everyone gets: the one asked for, else the environment's, else one a core."""
    import torch

    if settings.threads is not None:
        return settings
    return replace(settings, threads=torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else num_processors())
