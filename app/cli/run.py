"""`outrider run`: one prompt, from the command line to the text, with a log of how it came about."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.console import figure_text, make_engine
from app.cli.errors import Exit, OutputClosed, OutputError, say, stop_on_interrupt
from app.cli.parsing import EXIT_CODES
from app.cli.run_arguments import add_arguments, build_request
from app.cli.text import STYLES, Transcript, open_sink
from core.controls import RunControls
from core.errors import RunLogError
from core.machine import limit_spinning
from core.runlog.log import RunLogWriter
from core.text import percent_text
from core.types import (
    Coupling,
    Event,
    Finished,
    FinishReason,
    RunRequest,
    RunStarted,
    StageChanged,
    Step,
    Summary,
    TokenKind,
)

if TYPE_CHECKING:
    from core.session import Session


_LEGEND = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
_REASONS = {
    FinishReason.LENGTH: "the length asked for",
    FinishReason.EOS: "the model's end of text",
    FinishReason.STOP: "a stop text",
    FinishReason.CANCELLED: "your stop",
    FinishReason.ERROR: "an error",
}


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        """Fall silent; rich would end the process, although the run and its text are fine."""
        self.quiet = True


class Report:
    """Speaks on stderr, or holds its tongue where `quiet` or where there is no stderr."""

    def __init__(self, *, quiet: bool) -> None:
        quiet = quiet or sys.stderr is None  # Given no file, rich would write into the text.
        self._console = _Stderr(file=sys.stderr, highlight=False, markup=False, emoji=False, quiet=quiet)
        self._device = ""

    def stage(self, text: str) -> None:
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def started(self, event: RunStarted, *, legend: bool) -> None:
        config = event.config
        self._device = str(config.get("device"))
        draft = config.get("draft") or config.get("method")
        where = f"{config.get('device')} {config.get('dtype')}"
        self.stage(f"{config.get('target')}, drafted by {draft}, on {where}")
        if legend and self._console.is_terminal:
            line = Text()
            line.append("Tokens: ", "dim")
            for kind, name in _LEGEND.items():
                line.append(name, STYLES[kind])
                line.append("  ")
            line.rstrip()
            self._console.print(line, soft_wrap=True)

    def results(self, summary: Summary, request: RunRequest) -> None:
        """A table of the run's figures, each with how it is computed."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", overflow="fold")
        for name, value, meaning in _rows(summary, request, self._device):
            table.add_row(name, value, meaning)
        self._console.print(table)


def _rows(summary: Summary, request: RunRequest, device: str) -> list[tuple[str, str, str]]:
    steps = "step" if summary.num_steps == 1 else "steps"
    rows = [
        ("tokens", str(summary.num_tokens), f"in {summary.num_steps} {steps}; ended by {_end(summary, request)}"),
        ("tokens/s", figure_text(summary.tokens_per_second, ".1f"), "tokens / the steps' time, prefill apart"),
    ]
    if summary.baseline_tokens_per_second is not None:
        rows += [
            (
                "baseline",
                figure_text(summary.baseline_tokens_per_second, ".1f"),
                "tokens/s of plain decoding, run here",
            ),
            ("measured speedup", figure_text(summary.measured_speedup, ".2f", "×"), "tokens/s against the baseline"),
        ]
    else:
        meaning = (
            "the baseline did not finish" if request.baseline else "--baseline runs plain decoding too, and compares"
        )
        rows.append(("measured speedup", "–", meaning))
    memory = "on the device, in this run" if device.startswith("cuda") else "of this process so far"
    accepted = f"{summary.num_accepted_tokens} of {summary.num_draft_tokens} drafted tokens"
    if request.coupling is Coupling.GUMBEL and summary.expected_acceptance_rate is not None:
        accepted += f"; rejection would be {percent_text(summary.expected_acceptance_rate, 1)}"
    rows += [
        ("block efficiency", figure_text(summary.block_efficiency, ".2f"), "tokens per forward of the target"),
        ("acceptance", figure_text(summary.draft_acceptance_rate, ".1%"), accepted),
        ("predicted speedup", figure_text(summary.predicted_speedup, ".2f", "×"), "from acceptance and step times"),
        ("prefill", figure_text(summary.prefill_ms, ".1f", " ms"), "the prompt's forward"),
        ("peak memory", figure_text(summary.peak_memory_mb, ".0f", " MB"), memory),
    ]
    return rows


def _end(summary: Summary, request: RunRequest) -> str:
    if summary.finish_reason is FinishReason.LENGTH and summary.num_tokens < request.max_new_tokens:
        return "the end of the model's context"
    return _REASONS.get(summary.finish_reason, str(summary.finish_reason))


def add_parser(commands: Any) -> None:
    """Register `run` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "run",
        help="run a prompt in the terminal",
        description="Run a prompt with speculative decoding. The text goes to standard output, the rest to stderr.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Run, and return the exit code.

    Raises:
        OutriderError: bad input, before anything was printed.
    """
    request = build_request(args)
    log = _Log(RunLogWriter(args.log)) if args.log is not None else None
    try:
        limit_spinning()
        code = _Run(request, Report(quiet=args.quiet), log, styled=not args.quiet).go(make_engine())
    finally:
        log_is_whole = log is None or log.close()
    return code if log_is_whole or code != Exit.DONE else Exit.FAILED


def print_run(request: RunRequest, engine: Any, log_path: Path) -> None:
    """Run as `outrider run --log` does, but without a word on stderr: what the window is measured against.

    Args:
        request: its settings.
        engine: a session, or what runs requests as one does.
        log_path: where the log goes.

    Raises:
        OutriderError: the request can't be carried out, or the log not be written.
    """
    with RunLogWriter(log_path) as writer:
        _Run(request, Report(quiet=True), _Log(writer), styled=True).go(engine)


class _Log:
    """A log that may fail without taking the run with it: the failure is said once, and the run goes on."""

    def __init__(self, writer: RunLogWriter) -> None:
        self._writer = writer
        self._is_whole = True

    def write(self, event: Event) -> None:
        if self._is_whole:
            self._try(lambda: self._writer.write(event))

    def close(self) -> bool:
        """Whether everything was written."""
        self._try(self._writer.close)
        return self._is_whole

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except RunLogError as error:
            if self._is_whole:
                say(f"The log is incomplete: {error}")
            self._is_whole = False


class _Run:
    """One run: events in, text and figures out."""

    def __init__(self, request: RunRequest, report: Report, log: _Log | None, *, styled: bool) -> None:
        self._request = request
        self._report = report
        self._log = log
        self._controls = RunControls.from_request(request)
        sink, self._on_terminal = open_sink(styled=styled)
        self._styled = styled and self._on_terminal
        self._transcript: Transcript | None = Transcript(sink, request.stop)
        self._has_started = False
        self._has_steps = False
        self._code: Exit | None = None

    def go(self, engine: Session) -> int:
        # The first Ctrl-C lets the forward end and the summary be written. Before the run has started there is nothing
        # to save, and loading can't be asked to stop.
        interrupts = stop_on_interrupt(self._controls, can_wait=lambda: self._has_started)
        with interrupts, contextlib.closing(engine.run(self._request, self._controls)) as events:
            for event in events:
                if self._log is not None:
                    self._log.write(event)
                self._on_event(event)
        if self._code is None:
            say("The engine ended without a result.")
            return Exit.FAILED
        return self._code

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._has_started = True
            self._report.started(event, legend=self._styled)
        elif isinstance(event, Step):
            self._has_steps = True
            self._show(lambda transcript: transcript.add(event))
        elif isinstance(event, StageChanged):
            # The baseline's stage is said below the text, not at its end.
            if self._has_steps and self._on_terminal:
                self._show(Transcript.settle)
            self._report.stage(event.text)
        elif isinstance(event, Finished):
            self._on_finished(event)

    def _on_finished(self, event: Finished) -> None:
        summary = event.summary
        if self._code is None:
            codes = {FinishReason.ERROR: Exit.FAILED, FinishReason.CANCELLED: Exit.STOPPED}
            # A Ctrl-C that came during the baseline leaves the run itself whole; what was asked for is not.
            otherwise = Exit.STOPPED if self._controls.is_cancelled else Exit.DONE
            self._code = codes.get(summary.finish_reason, otherwise)
        self._show(lambda transcript: transcript.finish(summary.text))
        self._report.results(summary, self._request)
        if summary.error is not None:  # Also where the run is whole, but its baseline is not.
            say(summary.error)
        elif summary.finish_reason is FinishReason.ERROR:
            say("The run failed; the engine gave no reason.")

    def _show(self, action: Callable[[Transcript], None]) -> None:
        """Write text; if nobody can read it any more, end the run as if it was stopped, so that its log is whole."""
        if self._transcript is None:
            return
        try:
            action(self._transcript)
        except (OutputClosed, OutputError) as error:
            self._transcript = None
            self._controls.cancel()
            if isinstance(error, OutputError):
                say(str(error))
                self._code = Exit.FAILED
            elif self._code is None:
                self._code = Exit.STOPPED
