"""`outrider sweep`: measure over a grid which K, draft and temperature pay on this machine."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field
from enum import Enum
from pathlib import Path
from typing import Any

from rich.table import Table

from app.cli.console import NONE, Progress, check_out, figure_table, is_terminal, make_engine, printing, spread_text
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt
from app.cli.parsing import (
    OPTION,
    Listing,
    add_command,
    add_engine,
    add_models,
    add_settings,
    add_template,
    common_fields,
    default_draft,
    draft_lengths,
    flag_of,
    given_options,
    names,
    numbers,
    option,
    positive_whole_number,
    refuse_without_engine,
    switch,
    whole_numbers,
)
from app.cli.server_load import DEFAULT_CONCURRENCY, measure, prompts_of
from core.controls import RunControls
from core.draft_length import DraftLength
from core.drafters.registry import METHODS, get_method, split_options
from core.experiments.bench_plan import split_name
from core.experiments.prompt_suites import SUITES
from core.experiments.sweep import sweep
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
from core.experiments.sweep_results import SweepResults
from core.files import write_atomically
from core.models.catalogue import DEFAULT_TARGET
from core.settings import RunRequest, declared, user_default
from core.text import count_text, duration_text
from core.types import Event, StageChanged

DEFAULT_LENGTHS: tuple[DraftLength, ...] = (1, 2, 3, 4, 6, 8)
FEW_PROMPTS = 6
"""Number of prompts used by default; with fewer, the verdict is limited to these prompts."""


def add_parser(commands: Any) -> None:
    """Register `sweep` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "sweep",
        execute,
        help="measure a grid of K, temperatures, drafts and prompts",
        description="Run every K at every temperature with every draft, on several prompts, several times, in shuffled "
        "order and interleaved with plain decoding; print medians with quartiles, and which cell to use, if any. You "
        "can stop with Ctrl-C at any time; the same command resumes.",
        examples=(
            "outrider sweep --k 1-8,auto --temperature 0,0.5,1 --out sweep.jsonl",
            "outrider sweep -m TARGET -md DRAFT_A,DRAFT_B --prompts code,chat --out sweep.jsonl",
            "outrider sweep --engine localhost:8000 --baseline-engine localhost:8001 --concurrency 1,4,16",
        ),
    )
    models = add_models(parser, many=True)
    add_engine(models, "measure what speculation gains on this server as its load grows")
    text = "the same model on a server that doesn't draft, to measure the gain against"
    option(models, "--baseline-engine URL", text)
    grid = parser.add_argument_group("grid")
    shown = ",".join(map(str, DEFAULT_LENGTHS))
    text = f"tokens to draft: numbers, ranges, auto and adaptive, as in 1-8,auto (default: {shown})"
    option(grid, "-k --k N,…", text, draft_lengths, (), action=Listing)
    shown = ",".join(map(str, DEFAULT_CONCURRENCY))
    text = f"with --engine: concurrent requests (default: {shown})"
    option(grid, "--concurrency N,…", text, whole_numbers, (), action=Listing)
    usual = (user_default("temperature"),)
    option(grid, "--temperature T,…", "one or more temperatures", numbers, usual, action=Listing)
    text = (
        f"suites ({', '.join(SUITES)}) and files: one prompt per line, JSON Lines with a text or prompt each, or "
        f"Spec-Bench's question.jsonl (default: the first {FEW_PROMPTS} of code or chat)"
    )
    option(grid, "--prompts SUITE|FILE,…", text, names, (), nargs="+", action=Listing)
    text = "use the first N prompts of each suite or category (default: all)"
    option(grid, "--num-prompts N", text, positive_whole_number)
    option(grid, "--repeats N", "runs of each cell on each prompt", positive_whole_number, 3)
    option(grid, "--max-new-tokens N", "maximum length of a run's text", positive_whole_number, 64)
    sampling = parser.add_argument_group("sampling, the same for all runs")
    add_settings(sampling, "top_k", "top_p", "min_p", "seed", "coupling", "verification")
    add_template(sampling)
    output = parser.add_argument_group("output")
    text = (
        "file that each finished run is appended to; the same command resumes from it; with --engine optional, and "
        "replaced only with --restart"
    )
    option(output, "--out FILE.jsonl", text)
    switch(output, "--restart", "start over and replace --out")
    option(output, "--logs FOLDER", "keep the log of every run here")
    option(output, "--csv FILE", "also write the table here")
    switch(output, "--yes", "don't ask before a long sweep")
    for name, item in _listed_options().items():
        listed = "One or more values or ranges, as in 2-4,6"
        if isinstance(item.default, Enum):
            listed = f"One or more of {', '.join(map(str, type(item.default)))}"
        methods = " or ".join(method for method, found in METHODS.items() if name in declared(found.options))
        help_text = item.metadata["help"].rstrip(".")
        text = f"with {methods}: {help_text[:1].lower()}{help_text[1:]}. {listed} (default: {item.default})"
        with contextlib.suppress(argparse.ArgumentError):  # As in `add_method_options`.
            option(grid, f"{flag_of(name)} LIST", text, names, action=Listing, dest=OPTION + name)


def _listed_options() -> dict[str, Field[Any]]:
    """The options of methods that may be swept: numbers and choices."""
    return {
        name: item
        for method in METHODS.values()
        for name, item in declared(method.options).items()
        if isinstance(item.default, int | Enum) and not isinstance(item.default, bool)
    }


def build_plan(args: argparse.Namespace) -> SweepPlan:
    """The sweep that the arguments describe."""
    target = args.target or DEFAULT_TARGET
    return SweepPlan(
        target=target,
        drafters=tuple(_drafters(target, args)),
        num_draft_tokens=args.k or DEFAULT_LENGTHS,
        temperatures=args.temperature,
        prompts=prompts_of(args, "code" if target == DEFAULT_TARGET else "chat", FEW_PROMPTS),
        **common_fields(args, "repeats", "max_new_tokens", "top_k", "top_p", "min_p"),
    )


def _with_options(methods: Sequence[str], args: argparse.Namespace) -> Iterator[str]:
    """Each method with every combination of the values given for its options, as in draft-tree:depth=2."""
    given = given_options(args)
    known = {method: declared(get_method(split_options(method)[0]).options) for method in methods}
    for name in given:
        if not any(name in options for options in known.values()):
            raise UsageError(
                f"There is no option {flag_of(name)} for {' and '.join(methods)}; choose a --method that has it."
            )
    for method, options in known.items():
        lists = [[f"{name}={value}" for value in _expanded(given[name])] for name in given if name in options]
        yield from (":".join((method, *chosen)) for chosen in itertools.product(*lists))


def _expanded(values: Iterable[str]) -> Iterator[str]:
    """The values, with ranges of whole numbers written out."""
    for value in values:
        first, _, last = value.partition("-")
        if first.isdecimal() and last.isdecimal() and len(value) < 8 and int(first) <= int(last):
            yield from map(str, range(int(first), int(last) + 1))
        else:
            yield value


def _drafters(target: str, args: argparse.Namespace) -> list[DrafterChoice]:
    default = default_draft(target)
    known = args.draft or ([] if default is None else [default])
    methods = list(_with_options(args.method or ["draft-model" if known else "prompt-lookup"], args))
    found = []
    for name in methods:
        needs_draft = get_method(split_options(name)[0]).needs_draft_model
        base, options = split_name(name)
        if needs_draft and not known:
            raise UsageError(f"The method {base} needs a draft model; name one with --draft.")
        found += [DrafterChoice(base, draft, options) for draft in (known if needs_draft else [None])]
    if args.draft and not any(choice.draft for choice in found):
        raise UsageError(f"{' and '.join(methods)} use no draft model; leave out --draft, or add draft-model.")
    return found


def execute(args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code."""
    if args.engine is not None:
        return measure(args, FEW_PROMPTS, ("logs", "csv"))
    refuse_without_engine(args)
    if args.out in {None, "-"}:
        raise UsageError("A sweep needs --out FILE.jsonl, the file that each finished run is appended to.")
    plan = build_plan(args)
    if args.csv is not None and os.path.realpath(args.csv) == os.path.realpath(args.out):
        raise UsageError("--csv and --out name the same file; choose different ones.")
    from core.export.sweep_table import COUNTS

    check_out(args.csv, COUNTS)
    check_models(plan)
    return _Run(args, plan).go()


class _Run:
    """One call of the command: events in, progress and table out."""

    def __init__(self, args: argparse.Namespace, plan: SweepPlan) -> None:
        self._args = args
        self._controls = RunControls()
        self._results = SweepResults(plan)
        self._progress = Progress()
        self._num_done = 0
        self._must_ask = False
        self._can_wait = False

    def go(self) -> Exit:
        """Sweep until the end, Ctrl-C, or the answer no."""
        args, plan = self._args, self._results.plan
        logs = None if args.logs is None else Path(args.logs).absolute()
        engine = functools.cache(make_engine)  # Made at the first run: torch takes seconds, and bad files come first.

        def run(request: RunRequest, controls: RunControls) -> Iterator[Event]:
            return engine().run(request, controls)

        events = sweep(plan, run, out=Path(args.out), logs=logs, controls=self._controls, restart=args.restart)
        # The first Ctrl-C stops the current run and shows the results; loading a model can't be interrupted.
        interrupts = stop_on_interrupt(self._controls, can_wait=lambda: self._can_wait)
        finished = None
        try:
            with self._progress, interrupts, contextlib.closing(events):
                for event in events:
                    if isinstance(event, SweepFinished):
                        finished = event
                    elif not self._take(event):
                        break
        except KeyboardInterrupt:
            finished = None
        if finished is not None:
            self._write(finished)
        if finished is None or not finished.is_complete:
            done = f"Stopped after {self._num_done:,} of {plan.num_runs:,} runs"
            again = "the same command without --restart" if args.restart else "the same command"
            say(f"{done}; {again} resumes." if self._num_done else f"{done}.")
            return Exit.STOPPED
        is_any = any(not result.cell.is_baseline and result.num_measured for result in self._results.all())
        return Exit.DONE if is_any and not finished.num_unsaved else Exit.FAILED

    def _take(self, event: SweepEvent) -> bool:
        """Show an event, and return whether to continue."""
        if isinstance(event, SweepStarted):
            self._start(event)
        elif isinstance(event, FileFailed):
            self._progress.say(f"{event.sentence} The sweep continues.")
        elif isinstance(event, RunMeasured):
            return self._note(event)
        elif isinstance(event, StageChanged) and event.text:
            # Models that evict each other are loaded repeatedly: print each line once.
            show = self._progress.show if self._progress.is_terminal else self._progress.say_once
            show(event.text)
        return True

    def _start(self, event: SweepStarted) -> None:
        self._num_done = event.num_done
        for problem in event.problems:
            self._progress.say(problem)
        # The plan has the suites of a file that is continued.
        runs = [measurement for result in event.results for measurement in result.measurements]
        self._results = SweepResults(event.plan, runs)
        left = event.plan.num_runs - event.num_done
        if event.num_done:
            self._progress.say(f"{self._args.out!r} already has {event.num_done:,} of {event.plan.num_runs:,} runs.")
        if left > ASK_ABOVE and not self._args.yes:
            if not (self._progress.is_terminal and is_terminal(sys.stdin)):
                raise UsageError(
                    f"This sweep has {left:,} runs left, more than {ASK_ABOVE}, and there is no terminal on "
                    "which to confirm it. Add --yes to start it anyway, or use fewer values of K, prompts or repeats."
                )
            self._must_ask = True

    def _note(self, event: RunMeasured) -> bool:
        """Show a result. A long sweep continues only by permission, once the first run has shown its duration."""
        measurement = event.measurement
        self._num_done = event.num_done
        self._results.add(measurement)
        if measurement.error is not None:
            cell = measurement.run.cell
            failure = f"{cell.title} at temperature {cell.temperature:g} failed: {measurement.error}"
            self._progress.say_once(failure, key=measurement.error)
        num_runs, duration = self._results.plan.num_runs, duration_text(event.seconds_left)
        left = num_runs - event.num_done
        self._progress.show(
            "Runs", event.num_done, num_runs, f"about {duration} left" if event.seconds_left else "done"
        )
        self._can_wait = not self._must_ask
        if self._must_ask:
            self._progress.say(f"{left:,} runs are left, which will take about {duration}. Continue? [y/N]")
            if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
                return False
            self._must_ask, self._can_wait = False, True
        return True

    def _write(self, finished: SweepFinished) -> None:
        if self._results.num_measured:
            if self._args.csv is not None:  # First: standard output may be closed, or its disk full.
                from core.export.sweep_table import to_csv

                write_atomically(self._args.csv, to_csv(self._results))
            write_results(self._results, finished.verdicts)
        if finished.num_unsaved:
            say(f"The last {finished.num_unsaved:,} runs are not in {self._args.out!r}; the same command repeats them.")


# --- The results ------------------------------------------------------------------------------------------------

_LEGEND = (
    "Medians over prompts and repeats, quartiles in brackets. speedup: tokens/s relative to plain decoding of the same "
    "prompt and temperature, in the run nearest in time. acceptance: accepted / drafted tokens. tokens/forward: per "
    "forward of the target, the block efficiency. c: a draft step / a target step. "
    "* marks the cell with the highest median speedup at its temperature, ! an impossible speedup: the machine was "
    "busy."
)


def write_results(results: SweepResults, verdicts: Sequence[Verdict]) -> None:
    """Print a table and the verdict for each temperature; `busy_note` comes before the verdicts."""
    plan = results.plan
    with printing() as show:
        prompts, repeats = count_text(len(plan.prompts), "prompt"), count_text(plan.repeats, "repeat")
        show(f"{plan.target}; {prompts}, {repeats}, up to {plan.max_new_tokens} new tokens")
        for verdict in verdicts:
            cells = [result for result in results.all() if result.cell.temperature == verdict.temperature]
            for drafter in plan.drafters:
                show()
                show(f"Temperature {verdict.temperature:g}, {drafter.title}", "bold")
                own = [result for result in cells if result.cell.drafter in (None, drafter)]
                show(_table(own, verdict, is_wide=show.is_wide))
            if len(results.suites) > 1:
                show()
                own = [result for result in cells if not result.cell.is_baseline]
                show(_suites(results, own, is_wide=show.is_wide))
        show()
        for sentence in filter(None, (results.busy_note, *(verdict.sentence for verdict in verdicts))):
            show(sentence)
        show(_LEGEND, "dim")
        for line in _failures(results):
            show(line)


def _table(cells: Sequence[CellResult], verdict: Verdict, *, is_wide: bool) -> Table:
    """The cells of one drafter at one temperature, below the baseline."""
    ends = "quartiles" if is_wide else ""
    best = verdict.best.cell if verdict.best is not None and verdict.speculates else None
    columns: list[tuple[str, Callable[[CellResult], str]]] = [
        ("K", lambda result: "plain" if result.cell.is_baseline else str(result.cell.num_draft_tokens)),
        ("", lambda result: "*" if result.cell == best else "!" if result.problem else ""),
        ("speedup", lambda result: spread_text(result.speedup, ".2f", "×")),
        ("tokens/s", lambda result: spread_text(result.tokens_per_second, ".1f", ends=ends)),
        ("acceptance", lambda result: spread_text(result.draft_acceptance_rate, ".0%", ends=ends)),
        ("tokens/forward", lambda result: spread_text(result.block_efficiency, ".2f", ends=ends)),
        ("c", lambda result: spread_text(result.cost_coefficient, ".3f", ends=ends)),
        ("runs", _runs),
    ]
    if not is_wide:
        del columns[-2]
    return figure_table(
        cells, columns, lambda result: "dim" if result.cell.is_baseline else "bold" if result.cell == best else ""
    )


def _runs(result: CellResult) -> str:
    measured, planned = result.num_measured, result.num_planned
    return str(measured) if measured == planned else f"{measured} of {planned}"


def _suites(results: SweepResults, cells: Sequence[CellResult], *, is_wide: bool) -> Table:
    """The speedup of each cell by suite."""
    ends = "quartiles" if is_wide else ""

    def column(suite: str) -> Callable[[CellResult], str]:
        return lambda result: spread_text(results.result(result.cell, suite).speedup, ".2f", "×", ends=ends)

    suites = [(suite or NONE, column(suite)) for suite in results.suites]
    return figure_table(cells, [("speedup by suite", lambda result: result.cell.title), *suites])


def _failures(results: SweepResults) -> Iterator[str]:
    cells = dict[str, list[CellResult]]()
    for result in results.all():
        for error in result.errors:
            cells.setdefault(error, []).append(result)
    for error, failed in cells.items():
        first = f"{failed[0].cell.title} at temperature {failed[0].cell.temperature:g}"
        others = f" and {count_text(len(failed) - 1, 'more cell')}" if len(failed) > 1 else ""
        yield f"Failed in {first}{others}: {error}"
