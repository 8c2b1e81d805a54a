"""`outrider run`: run one prompt in the terminal, with an optional log of every step."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.console import NONE, figure_text, holds_other, make_engine, plain_console, printable, read_prompt
from app.cli.errors import Exit, OutputClosed, OutputError, UsageError, say, stop_on_interrupt
from app.cli.parsing import (
    SAMPLING,
    add_command,
    add_engine,
    add_method_options,
    add_models,
    add_settings,
    add_template,
    choose_models,
    common_fields,
    draft_length_or_plain,
    find_servers,
    method_options,
    option,
    refuse_for_engine,
    refuse_to_replace,
    sampling_of,
    switch,
)
from app.cli.text import STYLES, Sink, Transcript
from core.analysis.steadiness import absence_note, busy_note, interval_text
from core.controls import RunControls
from core.draft_length import request_fields
from core.drafters.registry import check_rule
from core.errors import RunLogError
from core.models.catalogue import usual_draft_length
from core.runlog.log import SCHEMA as RUN_SCHEMA
from core.runlog.log import RunLogWriter
from core.runlog.tally import Tally
from core.settings import LOSSY, SETTINGS, Coupling, LengthPolicy, RunRequest, is_lossy
from core.text import count_text, percent_text, server_text
from core.types import (
    BaselineStep,
    Event,
    Finished,
    FinishReason,
    RunStarted,
    StageChanged,
    Step,
    StepSource,
    Summary,
    TokenKind,
)

if TYPE_CHECKING:
    from core.engines.server import Server
    from core.engines.session import ServerSession
    from core.session import Session


def add_parser(commands: Any) -> None:
    """Register `run` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "run",
        execute,
        help="run a prompt in the terminal",
        description="Run a prompt with speculative decoding. The text goes to standard output, everything else to "
        "standard error. Without --target and --draft the embedded pair runs.",
        examples=(
            'outrider run "class Stack:" --baseline --log run.jsonl',
            'outrider run -m TARGET -md DRAFT -k 4 --temp 0 -n 64 -p "Why is the sky blue?"',
            "outrider run -m TARGET --method prompt-lookup --prompt-file notes.txt",
            'outrider run --engine http://127.0.0.1:8000 "Why is the sky blue?"',
        ),
    )
    models = add_models(parser)
    add_engine(models)
    sampling = parser.add_argument_group("sampling")
    option(
        sampling,
        "-k --k N|auto|adaptive",
        f"{SETTINGS['num_draft_tokens'].metadata['help']} 0 is plain decoding. auto chooses K before each step, "
        "0 included, from measured times; adaptive also ends a block where the draft is unsure (default: the K "
        "measured to be fastest for the pair, else auto; for trees auto; 4 without a draft model)",
        draft_length_or_plain,
    )
    add_settings(sampling, *SAMPLING, "seed", "coupling", "verification", "max_new_tokens")
    said = "stop before TEXT, which may be one special token; repeatable"
    option(sampling, "--stop TEXT", said, action="append", default=[])
    prompt = parser.add_argument_group("prompt")
    option(prompt, "words PROMPT", "the prompt, in place of --prompt", str, nargs="?")
    source = prompt.add_mutually_exclusive_group()
    option(source, "--prompt TEXT", "the prompt (default: standard input)")
    option(source, "--prompt-file FILE", "a file with the prompt, - for standard input; a final newline is dropped")
    add_template(prompt)
    output = parser.add_argument_group("output")
    add_settings(output, "baseline", "inspect")
    text = (
        "write the run log here, line by line during the run; - for standard output, in place of the text. An existing "
        "run log is kept, and the new one numbered"
    )
    option(output, "--log FILE.jsonl", text)
    switch(output, "--force", "let --log replace an existing file")
    switch(output, "--quiet", "print only the uncoloured text and errors")
    add_method_options(parser)


def build_request(args: argparse.Namespace, server: Server | None = None) -> RunRequest:
    """The run that the arguments describe, here or on a server."""
    shared = common_fields(args, "max_new_tokens", "baseline", "inspect")
    shared |= {"prompt": "not read yet", "sampling": sampling_of(args), "stop": tuple(args.stop)}
    if server is not None:
        from core.engines.session import check_request

        refuse_for_engine(args)
        target = server.model(args.target or "")
        request = RunRequest(target, draft=None, num_draft_tokens=None, engine=server.address.url, **shared)
        check_request(request, server)
    else:
        method, target, draft = choose_models(args.method, args.target, args.draft)
        options = method_options(method, args)
        if args.inspect and args.log is None:
            raise UsageError("--inspect needs a log; name one with --log.")
        usual = LengthPolicy.AUTO if method.proposes_trees else usual_draft_length(draft)
        k = usual if args.k is None else args.k
        shared |= {"method": method.name, "method_options": options, **request_fields(k)}
        request = RunRequest(target, draft=None if k == 0 else draft, **shared)
        check_rule(request)
    if args.log is not None:
        heads = [heads] if isinstance(heads := request.method_options.get("heads"), str) else []
        refuse_to_replace("--log", args.log, (args.prompt_file, args.target, args.draft, *heads))
    # The prompt is read last: the user may have to type it.
    if args.words is not None and (args.prompt is not None or args.prompt_file is not None):
        raise UsageError("There are two prompts; give one, in quotes if it has several words.")
    prompt = args.prompt if args.words is None else args.words
    return replace(request, prompt=read_prompt(prompt, args.prompt_file, quiet=args.quiet))


def execute(args: argparse.Namespace) -> int:
    """Run, and return the exit code."""
    server = None
    if args.engine is not None:
        from core.engines.session import ServerSession  # Late: most runs need no HTTP.

        server, _ = find_servers(args)
    request = build_request(args, server)
    with contextlib.ExitStack() as stack:
        log = None if args.log is None else stack.enter_context(_open_log(args))
        make = make_engine if server is None else functools.partial(ServerSession, server)
        return _Run(request, log, make, quiet=args.quiet, shows_text=args.log != "-").go()


@contextlib.contextmanager
def _open_log(args: argparse.Namespace) -> Iterator[RunLogWriter]:
    """The log of --log, which replaces nothing without --force.

    Raises:
        UsageError: the file is no run log.
        RunLogError: it can't be written, or another run is writing it.
    """
    if args.log == "-":
        if sys.stdout is None:
            raise UsageError("There is no standard output for --log -; name a file.")
        # A copy, so that closing the log leaves standard output open.
        yield RunLogWriter("-", os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0))
        return
    path = Path(args.log)
    for number in itertools.count(2):
        if args.force or not path.is_file() or not path.stat().st_size:
            break
        if holds_other(path, RUN_SCHEMA):
            raise UsageError(f"{str(path)!r} exists and is not a run log; choose another name, or add --force.")
        kept, path = path, Path(args.log).with_stem(f"{Path(args.log).stem}-{number}")
        if not path.exists():
            say(f"{str(kept)!r} is kept; the log goes to {str(path)!r}.")
    yield RunLogWriter(path)


# --- The report -------------------------------------------------------------------------------------------------

_LEGEND = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
_ENDS = {
    FinishReason.LENGTH: "at the requested length",
    FinishReason.EOS: "at the model's end of text",
    FinishReason.STOP: "at a stop text",
    FinishReason.CANCELLED: "because you stopped it",
    FinishReason.ERROR: "with an error",
}


def _show_start(console: Console, config: Mapping[str, Any], *, legend: bool) -> None:
    """Print the models, and on a terminal the meaning of the colours."""
    target, k = config.get("target"), config.get("num_draft_tokens")
    if engine := config.get("engine"):
        drafts = {None: "", 0: ", plain decoding"}.get(k, f", drafting up to {count_text(k or 0, 'token')} per step")
        line = f"{target} on {server_text(engine)} at {engine['address']}{drafts}"
    else:
        drafted = "plain decoding" if k == 0 else f"drafted by {config.get('draft') or config.get('method')}"
        line = f"{target}, {drafted}, on {config.get('device')} in {config.get('dtype')}"
    console.print(Text(printable(line), style="dim"), soft_wrap=True)
    if is_lossy(config):
        console.print(LOSSY, soft_wrap=True)
    if legend and console.is_terminal:
        names = [("  ", (name, STYLES[kind])) for kind, name in _LEGEND.items()]
        console.print(
            Text.assemble(("Tokens:", "dim"), *(part for pair in names for part in pair), "  plain"), soft_wrap=True
        )


def _show_results(console: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    """Print figures with their meanings."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _rows(
    summary: Summary, request: RunRequest, config: Mapping[str, Any], *, has_plain_steps: bool
) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each figure."""
    end = _ENDS.get(summary.finish_reason, str(summary.finish_reason))
    if summary.finish_reason is FinishReason.LENGTH and summary.num_tokens < request.max_new_tokens:
        end = "at the server's own length limit" if request.engine else "at the end of the model's context"
    if request.engine:
        return _server_rows(summary, end)
    interval = interval_text(summary.measured_speedup_interval)
    between = f"; 95 % interval {interval}" if interval else ""
    if summary.baseline_tokens_per_second is not None:
        baseline = figure_text(summary.baseline_tokens_per_second, ".1f")
        measured = [
            ("baseline", baseline, "tokens/s of plain decoding, measured here"),
            (
                "measured speedup",
                figure_text(summary.measured_speedup, ".2f", "×"),
                f"tokens/s / the baseline's{between}",
            ),
        ]
    else:
        missing = "the baseline did not finish" if has_plain_steps else "the baseline did not run"
        why = missing if request.baseline else "add --baseline to compare with plain decoding"
        measured = [("measured speedup", NONE, why)]
    accepted = f"{summary.num_accepted_tokens} of {summary.num_draft_tokens} drafted tokens"
    if request.coupling is Coupling.GUMBEL and summary.expected_acceptance_rate is not None:
        accepted += f"; rejection sampling would reach {percent_text(summary.expected_acceptance_rate, 1)}"
    is_on_gpu = str(config.get("device")).startswith("cuda")
    memory = "on the device, in this run" if is_on_gpu else "of this process so far"
    return [
        ("tokens", str(summary.num_tokens), f"in {count_text(summary.num_steps, 'step')}; ended {end}"),
        ("tokens/s", figure_text(summary.tokens_per_second, ".1f"), "tokens / time of all steps, without the prefill"),
        *measured,
        ("block efficiency", figure_text(summary.block_efficiency, ".2f"), "tokens per forward of the target"),
        ("acceptance", figure_text(summary.draft_acceptance_rate, ".1%"), accepted),
        ("predicted speedup", figure_text(summary.predicted_speedup, ".2f", "×"), "from acceptance and step times"),
        ("prefill", figure_text(summary.prefill_ms, ".1f", " ms"), "time to read the prompt"),
        ("peak memory", figure_text(summary.peak_memory_mb, ".0f", " MB"), memory),
    ]


def _server_rows(summary: Summary, end: str) -> list[tuple[str, str, str]]:
    """The figures that a server reports, or that its stream shows."""
    is_known = summary.source is not StepSource.TEXT
    how = "; inferred" if summary.source is StepSource.CHUNKS else ""
    in_steps = f"in {count_text(summary.num_steps, 'step')}{how}; " if is_known else ""
    timed = "from the first token on, as they arrived here"
    if summary.tokens_per_second is None:
        timed = "too few steps to tell, or all arrived at once"
    rows = [
        ("tokens", str(summary.num_tokens), f"{in_steps}ended {end}"),
        ("tokens/s", figure_text(summary.tokens_per_second, ".1f"), timed),
    ]
    if is_known:
        rows.append(("block efficiency", figure_text(summary.block_efficiency, ".2f"), f"tokens per step{how}"))
    if summary.draft_acceptance_rate is not None:
        accepted = f"{summary.num_accepted_tokens} of {summary.num_draft_tokens} drafted tokens{how}"
        rows.append(("acceptance", figure_text(summary.draft_acceptance_rate, ".1%"), accepted))
    return [*rows, ("first token", figure_text(summary.prefill_ms, ".1f", " ms"), "after the request was sent")]


# --- The run ----------------------------------------------------------------------------------------------------


class _Run:
    """One run: events in, text, figures and log out."""

    def __init__(
        self,
        request: RunRequest,
        log: RunLogWriter | None,
        make: Callable[[], Session | ServerSession] = make_engine,
        *,
        quiet: bool,
        shows_text: bool = True,
    ) -> None:
        self._request = request
        self._make = make
        self._config: Mapping[str, Any] = {}
        self._log, self._log_is_output = log, not shows_text
        # Without a file, rich would write to standard output, into the text.
        self._console = plain_console(sys.stderr, quiet=quiet or sys.stderr is None)
        self._controls = RunControls.from_request(request)
        sink = Sink(sys.stdout, styled=not quiet)
        self._on_terminal = sink.is_terminal
        self._transcript: Transcript | None = Transcript(sink, request.stop) if shows_text else None
        self._ours, self._plain = Tally(), Tally()
        self._has_steps = self._log_failed = False
        self._code: Exit | None = None

    def go(self) -> Exit:
        # The first Ctrl-C lets the step finish and the summary be written; before the run there is nothing to keep.
        interrupts = stop_on_interrupt(self._controls, can_wait=lambda: bool(self._config))
        try:
            with interrupts, contextlib.closing(self._make().run(self._request, self._controls)) as events:
                for event in events:
                    self._write_log(event)
                    self._on_event(event)
        finally:
            self._write_log(None)
        if self._code is None:
            say("The engine ended without a result.")
            return Exit.FAILED
        return Exit.FAILED if self._log_failed and self._code == Exit.DONE else self._code

    def _write_log(self, event: Event | None) -> None:
        """Log an event, or close the log. A failure is reported once, and ends no run that also writes text."""
        try:
            if self._log is None:
                return
            if event is None:
                self._log.close()
            elif not self._log_failed:
                self._log.write(event)
        except RunLogError as error:
            # As if the text's reader had gone.
            if self._log_is_output and isinstance(error.__cause__, BrokenPipeError):
                self._controls.cancel()
                self._code = Exit.STOPPED if self._code is None else self._code
            elif not self._log_failed:
                say(f"The log is incomplete: {error}")
            self._log_failed = True

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._config = event.config
            _show_start(self._console, event.config, legend=self._on_terminal)
        elif isinstance(event, Step):
            self._has_steps = True
            self._ours.add(event)
            self._show(lambda transcript: transcript.add(event))
        elif isinstance(event, BaselineStep):
            self._plain.add(event.step)
        elif isinstance(event, StageChanged):
            # The baseline's stage goes on its own line below the text.
            if self._has_steps and self._on_terminal:
                self._show(Transcript.settle)
            self._console.print(Text(printable(event.text), style="dim"), soft_wrap=True)
        elif isinstance(event, Finished):
            self._on_finished(event.summary)

    def _on_finished(self, summary: Summary) -> None:
        if self._code is None:
            codes = {FinishReason.ERROR: Exit.FAILED, FinishReason.CANCELLED: Exit.STOPPED}
            # After a Ctrl-C during the baseline the run is complete, but its baseline is missing.
            otherwise = Exit.STOPPED if self._controls.is_cancelled else Exit.FAILED if summary.error else Exit.DONE
            self._code = codes.get(summary.finish_reason, otherwise)
        self._show(lambda transcript: transcript.finish(summary.text))
        rows = _rows(summary, self._request, self._config, has_plain_steps=self._plain.num_steps > 0)
        _show_results(self._console, rows)
        notes = [absence_note(self._ours, self._plain), busy_note(self._ours, self._plain, summary)]
        if self._request.engine:
            from core.engines.session import advice

            notes.append(advice(self._config, summary, self._ours.sources))
        for note in filter(None, notes):
            self._console.print(note, soft_wrap=True)
        if summary.error is not None:  # Also if only the baseline failed.
            say(summary.error)

    def _show(self, action: Callable[[Transcript], None]) -> None:
        """Write text; if its reader has gone, end the run as if stopped, so that its log is complete."""
        if self._transcript is None:
            return
        try:
            action(self._transcript)
        except (OutputClosed, OutputError) as error:
            self._transcript = None
            self._controls.cancel()
            if isinstance(error, OutputError):
                say(str(error))
            self._code = Exit.FAILED if isinstance(error, OutputError) else self._code or Exit.STOPPED
