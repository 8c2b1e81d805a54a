"""`outrider sweep`: which K, draft and temperature pay on this machine, measured over a grid."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from app.cli.bench import Display, check_out, open_progress
from app.cli.console import figure_text, is_terminal, make_engine, open_console, spread_text
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, writing_output
from app.cli.models import REF_HELP, printable
from app.cli.parsing import EXIT_CODES, add_count, add_place, add_template, draft_lengths, echo, number, whole_number
from app.cli.run_arguments import embedded_drafter
from core.drafters.registry import METHODS, get_method
from core.experiments.bench import Spread, split_name
from core.experiments.prompt_suites import SUITES, Prompt, find_prompts, first_of_each
from core.experiments.sweep import Session, SweepControls, SweepResults, sweep
from core.experiments.sweep_plan import (
    ASK_ABOVE,
    CellResult,
    DrafterChoice,
    FileFailed,
    RunMeasured,
    SweepEvent,
    SweepFinished,
    SweepPlan,
    SweepStarted,
    Verdict,
    check_models,
)
from core.files import write_atomically
from core.machine import limit_spinning
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.text import duration_text
from core.types import Coupling, Device, DType, StageChanged


class SweepProgress:
    """The display of a sweep. What is said in between stands above it."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._display: Display | None = None
        self._tenth = -1
        self._stages: set[str] = set()

    def stage(self, text: str) -> None:
        """Something that a person waits for. Where models make room for each other, and load again and again, a line
        is said once."""
        if text and (self._is_terminal or text not in self._stages):
            self._stages.add(text)
            self._shown().stage(text)

    def advance(self, event: RunMeasured) -> None:
        """A run is over."""
        tenth = 10 * event.num_done // event.num_runs
        text = f"About {duration_text(event.seconds_left)} left" if event.num_done < event.num_runs else "Done"
        if self._is_terminal:
            self._shown().advance(text, event.num_done, event.num_runs)
        elif tenth > self._tenth:
            self._shown().stage(f"{event.num_done:,} of {event.num_runs:,} runs. {text}.")
        self._tenth = max(tenth, self._tenth)

    def say(self, sentence: str) -> None:
        """Print a sentence that stays."""
        self.close()
        say(sentence)

    def close(self) -> None:
        """Take the display away; the next progress brings it back."""
        display, self._display = self._display, None
        if display is not None:
            display.__exit__(None, None, None)

    def _shown(self) -> Display:
        if self._display is None:
            self._display = open_progress().__enter__()
        return self._display


_WIDE = 112
"""Columns from which every figure has its quartiles; below, the speedup alone, and c is left out."""
_LEGEND = (
    "Medians over prompts and repeats, quartiles in brackets. speedup: tokens/s against plain decoding of the same "
    "prompt and temperature, the run nearest in time. acceptance: accepted / drafted tokens. tokens/forward: of the "
    "target, the block efficiency. c: one draft step / one target step. * is the best cell of its temperature."
)


def write_results(results: SweepResults, verdicts: Sequence[Verdict]) -> None:
    """Print a table for each temperature, and what follows from it.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    plan = results.plan
    with writing_output():
        console.print(Text(printable(_head(plan))))
        for verdict in verdicts:
            cells = [result for result in results.all() if result.cell.temperature == verdict.temperature]
            for drafter in plan.drafters:
                console.print()
                console.print(Text(printable(f"Temperature {verdict.temperature:g}, {drafter.title}"), "bold"))
                own = [result for result in cells if result.cell.drafter in (None, drafter)]
                console.print(_table(own, verdict, is_wide=console.width >= _WIDE))
            if len(results.suites) > 1:
                console.print()
                console.print(_suites(results, cells))
        console.print()
        for verdict in verdicts:
            console.print(Text(printable(verdict.sentence)))
        console.print(Text(_LEGEND, "dim"))
        for line in _failures(results):
            console.print(Text(printable(line)))
        sys.stdout.flush()


def _head(plan: SweepPlan) -> str:
    prompts, repeats = len(plan.prompts), plan.repeats
    return (
        f"{plan.target}; {prompts} prompt{'' if prompts == 1 else 's'}, {repeats} repeat{'' if repeats == 1 else 's'}, "
        f"up to {plan.max_new_tokens} new tokens"
    )


def _table(cells: Sequence[CellResult], verdict: Verdict, *, is_wide: bool) -> Table:
    """The cells of one drafter at one temperature, the baseline above them."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    shown = spread_text if is_wide else _median
    columns: tuple[tuple[str, Callable[[CellResult], str]], ...] = (
        ("speedup", lambda result: spread_text(result.speedup, ".2f", "×")),
        ("tokens/s", lambda result: shown(result.tokens_per_second, ".1f")),
        ("acceptance", lambda result: shown(result.draft_acceptance_rate, ".0%")),
        ("tokens/forward", lambda result: shown(result.block_efficiency, ".2f")),
        *((("c", lambda result: shown(result.cost_coefficient, ".3f")),) if is_wide else ()),
        ("runs", _runs),
    )
    table.add_column("K", justify="right")
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right")
    best = verdict.best.cell if verdict.best is not None and verdict.speculates else None
    for result in cells:
        cell = result.cell
        style = "dim" if cell.is_baseline else "bold" if cell == best else ""
        table.add_row(
            Text("plain" if cell.is_baseline else str(cell.num_draft_tokens), style),
            Text("*" if cell == best else "", style),
            *(Text(show(result), style) for _, show in columns),
        )
    return table


def _suites(results: SweepResults, cells: Sequence[CellResult]) -> Table:
    """The median speedup of each cell by suite."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("speedup by suite", overflow="fold")
    for suite in results.suites:
        table.add_column(printable(suite or "–"), justify="right")
    for result in cells:
        if not result.cell.is_baseline:
            spreads = [results.result(result.cell, suite).speedup for suite in results.suites]
            figures = ["–" if spread is None else f"{spread.median:.2f}×" for spread in spreads]
            table.add_row(printable(result.cell.title), *figures)
    return table


def _runs(result: CellResult) -> str:
    measured, planned = result.num_measured, result.num_planned
    return str(measured) if measured == planned else f"{measured} of {planned}"


def _median(spread: Spread | None, form: str) -> str:
    return figure_text(None if spread is None else spread.median, form)


def _failures(results: SweepResults) -> list[str]:
    said = dict[str, list[CellResult]]()
    for result in results.all():
        for error in result.errors:
            said.setdefault(error, []).append(result)
    return [f"Failed in {_places(cells)}: {error}" for error, cells in said.items()]


def _places(cells: Sequence[CellResult]) -> str:
    first = f"{cells[0].cell.title} at temperature {cells[0].cell.temperature:g}"
    return first if len(cells) == 1 else f"{first} and {len(cells) - 1} more cell{'' if len(cells) == 2 else 's'}"


FEW_PROMPTS = 6
"""Taken where no prompts are named: of fewer, the answer's interval says that it speaks of these prompts alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser every flag of a sweep."""
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="REF", help=f"the target: {REF_HELP} (default: {DEFAULT_TARGET})")
    models.add_argument(
        "--draft",
        metavar="REF,…",
        action="append",
        default=[],
        help="one draft or several (default: the embedded one for the target)",
    )
    models.add_argument(
        "--method",
        metavar="NAME,…",
        action="append",
        default=[],
        help=f"how to draft, one way or several: {', '.join(METHODS)}; a method's options stand behind it, as in "
        "prompt-lookup:max-ngram=5 (default: draft-model; prompt-lookup if there is no draft)",
    )
    add_place(models)

    grid = parser.add_argument_group("grid")
    grid.add_argument(
        "-k",
        "--k",
        metavar="N,…",
        type=draft_lengths("--k"),
        default=(1, 2, 3, 4, 6, 8),
        help="tokens to draft a step: numbers, ranges, auto and adaptive, as in 1-8,auto (default: 1-4,6,8)",
    )
    grid.add_argument(
        "--temperature", metavar="T,…", type=_temperatures, default=(0.0,), help="one or several (default: 0)"
    )
    grid.add_argument(
        "--prompts",
        metavar="SUITE|FILE",
        nargs="+",
        action="extend",
        default=[],
        help=f"suites ({', '.join(SUITES)}) and files: one prompt a line, JSON Lines with a text or prompt each, or "
        f"Spec-Bench's question.jsonl (default: the first {FEW_PROMPTS} of code or chat)",
    )
    add_count(grid, "--num-prompts", None, "take the first N prompts of each suite or category (default: all)")
    add_count(grid, "--repeats", 3, "runs of each cell on each prompt")
    add_count(grid, "--max-new-tokens", 64, "longest text of a run")

    sampling = parser.add_argument_group("sampling, the same everywhere")
    sampling.add_argument(
        "--top-k", metavar="N", type=whole_number("--top-k"), default=0, help="keep the N likeliest (default: 0, off)"
    )
    sampling.add_argument("--top-p", metavar="P", type=number("--top-p"), default=1.0, help="default: 1, off")
    sampling.add_argument("--min-p", metavar="P", type=number("--min-p"), default=0.0, help="default: 0, off")
    sampling.add_argument(
        "--seed", metavar="N", type=whole_number("--seed"), default=0, help="of the order and the runs (default: 0)"
    )
    sampling.add_argument(
        "--coupling", choices=[*map(str, Coupling)], default=str(Coupling.REJECTION), help="default: rejection"
    )
    add_template(sampling)

    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        metavar="FILE.jsonl",
        required=True,
        help="every run is added here as it ends; the same command goes on with what is missing",
    )
    output.add_argument("--restart", action="store_true", help="begin the sweep in --out anew")
    output.add_argument("--logs", metavar="FOLDER", help="keep the log of every run here")
    output.add_argument("--csv", metavar="FILE", help="write the table here as well")
    output.add_argument("--yes", action="store_true", help="don't ask before a long sweep")


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        values = ()
    if not values:
        raise UsageError(f"--temperature must be numbers with commas between them, not {echo(text)}.")
    return tuple(dict.fromkeys(values))


def build_plan(args: argparse.Namespace) -> SweepPlan:
    """The sweep that the arguments ask for.

    Raises:
        OutriderError: a value out of range, arguments that don't go together, or prompts that can't be read.
    """
    target = args.target or DEFAULT_TARGET
    return SweepPlan(
        target=target,
        drafters=tuple(_drafters(target, _split(args.draft), _split(args.method))),
        num_draft_tokens=args.k,
        temperatures=args.temperature,
        prompts=tuple(_prompts(target, _split(args.prompts), args.num_prompts)),
        repeats=args.repeats,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        coupling=Coupling(args.coupling),
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        chat=args.chat,
        device=Device(args.device),
        dtype=DType(args.dtype),
    )


def check_files(args: argparse.Namespace) -> None:
    """Find out before hours of measuring that a file can't be written.

    Raises:
        OutriderError: with the sentence that writing it would end in.
    """
    for flag, name in (("--out", args.out), ("--csv", args.csv), ("--logs", args.logs)):
        if name is not None and not name.strip():
            raise UsageError(f"{flag} names no {'folder' if flag == '--logs' else 'file'}; write one behind it.")
    if args.csv is None:
        return
    if os.path.realpath(args.csv) == os.path.realpath(args.out):
        raise UsageError("--csv and --out name the same file; name two.")
    check_out(args.csv)


def _split(texts: Iterable[str]) -> list[str]:
    """The parts between commas, each once; a file whose name holds a comma stays whole."""
    parts = (part for text in texts for part in ([text] if os.path.exists(text) else text.split(",")))
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _drafters(target: str, drafts: list[str], names: list[str]) -> Iterable[DrafterChoice]:
    own: list[str | None] = [*drafts]
    own = own or [DEFAULT_DRAFT if target == DEFAULT_TARGET else embedded_drafter(target)]
    known = [draft for draft in own if draft is not None]
    names = names or ["draft-model" if known else "prompt-lookup"]
    found = []
    for name in names:
        base = name.partition(":")[0]
        needs_draft = get_method(base).needs_draft_model
        options = split_name(name)[1]
        if needs_draft and not known:
            raise UsageError(f"The method {base} needs a draft model; name it with --draft.")
        found += [DrafterChoice(base, draft, options) for draft in (known if needs_draft else [None])]
    if drafts and not any(choice.draft for choice in found):
        raise UsageError(f"{' and '.join(names)} use no draft model; leave --draft out, or add draft-model.")
    return found


def _prompts(target: str, names: list[str], most: int | None) -> list[Prompt]:
    if names:
        prompts = find_prompts(names)
        return prompts if most is None else first_of_each(prompts, most)
    return first_of_each(find_prompts(["code" if target == DEFAULT_TARGET else "chat"]), most or FEW_PROMPTS)


def add_parser(commands: Any) -> None:
    """Register `sweep` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "sweep",
        help="measure a grid of K, temperatures, drafts and prompts",
        description=(
            "Run every K at every temperature with every draft, on several prompts and several times, plain decoding "
            "among them, in shuffled order; print medians with quartiles, and which cell to take, if any. Stop with "
            "Ctrl-C at any time; the same command goes on from there."
        ),
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code.

    Raises:
        OutriderError: bad input, or a target that can't be loaded.
    """
    plan = build_plan(args)
    check_files(args)
    check_models(plan)
    limit_spinning()
    return int(_Run(args, plan).go())


class _Run:
    """One sitting: events in, progress and table out."""

    def __init__(self, args: argparse.Namespace, plan: SweepPlan) -> None:
        self._args = args
        self._plan = plan
        self._controls = SweepControls()
        self._results = SweepResults(plan)
        self._is_terminal = is_terminal(sys.stderr)
        self._progress = SweepProgress(is_terminal=self._is_terminal)
        self._must_ask = False
        self._is_measuring = False
        self._num_done = 0
        self._finished: SweepFinished | None = None
        self._said: set[str] = set()

    def go(self) -> Exit:
        args = self._args
        logs = None if args.logs is None else Path(args.logs)
        events = sweep(
            self._plan, _LateEngine(), out=Path(args.out), logs=logs, controls=self._controls, restart=args.restart
        )
        # The first Ctrl-C stops the run that goes and shows what there is. While models load, which can't be asked to
        # stop, there is nothing to lose.
        interrupts = stop_on_interrupt(self._controls, can_wait=lambda: self._is_measuring)
        try:
            with interrupts, contextlib.closing(events):
                for event in events:
                    if not self._take(event):
                        return self._stopped()
        except KeyboardInterrupt:
            return self._stopped()
        finally:
            self._progress.close()
        return self._end()

    def _take(self, event: SweepEvent) -> bool:
        """Show an event; whether to go on."""
        if isinstance(event, SweepStarted):
            self._start(event)
        elif isinstance(event, StageChanged):
            self._progress.stage(event.text)
        elif isinstance(event, FileFailed):
            self._progress.say(f"{event.sentence} The sweep goes on.")
        elif isinstance(event, RunMeasured):
            self._is_measuring = True
            self._num_done = event.num_done
            self._note(event)
            self._progress.advance(event)
            if self._must_ask:
                self._must_ask = False
                return self._ask(event)
        else:
            self._finished = event
        return True

    def _start(self, event: SweepStarted) -> None:
        self._num_done = event.num_done
        for problem in event.problems:
            self._progress.say(problem)
        for result in event.results:
            for measurement in result.measurements:
                self._results.add(measurement)
        left = event.num_runs - event.num_done
        if event.num_done:
            self._progress.say(f"{event.num_done:,} of {event.num_runs:,} runs are in {self._args.out!r} already.")
        if left > ASK_ABOVE and not self._args.yes:
            if not (self._is_terminal and is_terminal(sys.stdin)):
                raise UsageError(
                    f"This sweep has {left:,} runs left to do, more than {ASK_ABOVE}, and there is no terminal to ask "
                    "on; add --yes to start it all the same, or take fewer K, temperatures, prompts or repeats."
                )
            self._must_ask = True

    def _note(self, event: RunMeasured) -> None:
        measurement = event.measurement
        self._results.add(measurement)
        if measurement.error is not None and measurement.error not in self._said:
            self._said.add(measurement.error)
            cell = measurement.run.cell
            self._progress.say(f"{cell.title} at temperature {cell.temperature:g} failed: {measurement.error}")

    def _ask(self, event: RunMeasured) -> bool:
        """Whether a long sweep may go on, now that the first run has shown how long that takes."""
        self._progress.close()
        self._is_measuring = False
        left = event.num_runs - event.num_done
        say(f"{left:,} runs are left, which will take about {duration_text(event.seconds_left)}. Go on? [y/N]")
        answer = sys.stdin.readline().strip().lower()
        self._is_measuring = True
        return answer in {"y", "yes"}

    def _stopped(self) -> Exit:
        self._progress.close()
        again = "the same command without --restart" if self._args.restart else "the same command"
        done = f"Stopped after {self._num_done:,} of {self._plan.num_runs:,} runs"
        say(f"{done}; {again} goes on from there." if self._num_done else f"{done}.")
        return Exit.STOPPED

    def _end(self) -> Exit:
        from core.experiments.sweep import to_csv

        assert self._finished is not None, "a sweep ends with SweepFinished"
        if self._results.num_measured:
            write_results(self._results, self._finished.verdicts)
            if self._args.csv is not None:
                write_atomically(self._args.csv, to_csv(self._results))
        if unsaved := self._finished.num_unsaved:
            say(f"The last {unsaved:,} runs are not in {self._args.out!r}; the same command does them again.")
        if not self._finished.is_complete:
            return self._stopped()
        return Exit.DONE if self._results.num_measured and not unsaved else Exit.FAILED


class _LateEngine:
    """The engine, made when the first run needs it: torch takes seconds, and a bad file is told before."""

    def __init__(self) -> None:
        self._engine: Session | None = None

    def run(self, request: Any, controls: Any) -> Iterator[Any]:
        self._engine = self._engine or make_engine()
        return self._engine.run(request, controls)
