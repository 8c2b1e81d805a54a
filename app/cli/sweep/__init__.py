"""`outrider sweep`: which K, draft and temperature pay on this machine, measured over a grid."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.cli.arguments import EXIT_CODES
from app.cli.engine import make_engine
from app.cli.errors import Exit, UsageError, say
from app.cli.interrupts import stop_on_interrupt
from app.cli.sweep.arguments import add_arguments, build_plan, check_files
from app.cli.sweep.progress import SweepProgress
from app.cli.terminal import is_terminal
from app.sentences import in_words
from core.files import write_atomically
from core.sweep.checks import check_models
from core.sweep.controls import SweepControls
from core.sweep.plan import ASK_ABOVE, SweepPlan
from core.sweep.results import SweepResults
from core.sweep.runner import Session, sweep
from core.sweep.types import FileFailed, RunMeasured, SweepEvent, SweepFinished, SweepStarted
from core.threads import limit_spinning
from core.types import StageChanged


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
        say(f"{left:,} runs are left, which will take about {in_words(event.seconds_left)}. Go on? [y/N]")
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
        from app.cli.sweep.table import write_results
        from core.sweep.table import to_csv

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
