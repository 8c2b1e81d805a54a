"""`outrider check`: test whether a pair, with these settings, gives exactly what its target alone would."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from app.cli.console import Progress, check_out, make_engine
from app.cli.errors import Exit, say, stop_on_interrupt, write_output
from app.cli.parsing import (
    SAMPLING,
    Listing,
    add_command,
    add_method_options,
    add_pair,
    add_settings,
    choose_models,
    common_fields,
    draft_length,
    method_options,
    named_pair,
    names,
    option,
    sampling_of,
    switch,
    whole_number,
)
from core.controls import RunControls
from core.draft_shape import request_fields
from core.drafters.registry import METHODS, check_rule
from core.experiments.check import (
    DEFAULT_SAMPLES,
    DEFAULT_TOKENS,
    CheckFinished,
    CheckProgress,
    CheckReport,
    CheckRequest,
    Verdict,
    report_json,
    report_text,
)
from core.experiments.prompt_suites import SUITES, find_prompts
from core.files import write_atomically
from core.runners.threads import limit_spinning
from core.settings import RunRequest
from core.types import StageChanged


def add_parser(commands: Any) -> None:
    """Register `check` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "check",
        execute,
        help="test whether a pair's output is exactly the target's",
        description="Compare greedy text with plain decoding, token by token, and sampled blocks with the target's "
        "exact distribution, by chi-squared tests. The report goes to standard output, everything else to standard "
        "error.",
        examples=(
            "outrider check",
            "outrider check --target TARGET --draft DRAFT --temperature 0.7 --samples 5000",
            "outrider check --target TARGET --method prompt-lookup --prompts code,mine.txt",
            "outrider check --method draft-tree -k 8 --depth 4 --rule independent",
        ),
        epilog="Exit codes: 0 exact, or exact up to near-ties; 1 not exact, or failed while running; 2 bad usage or "
        "input; 130 stopped.",
    )
    add_pair(parser, "default: the embedded one for this target, if any")
    text = f"how to draft: {', '.join(METHODS)}, or a drafter of your own, module:Class (default: draft-model)"
    option(parser, "--method NAME", text)
    option(parser, "-k --k N|auto|adaptive", "tokens to draft", draft_length, 4)
    add_settings(parser, *SAMPLING, "seed", "coupling", "verification")
    option(parser, "--samples N", "blocks to sample", whole_number, DEFAULT_SAMPLES)
    add_settings(parser, "max_new_tokens", max_new_tokens=DEFAULT_TOKENS)
    text = f"suites ({', '.join(SUITES)}) and files with one prompt per line (default: the presets)"
    option(parser, "--prompts NAME|FILE,…", text, names, (), action=Listing)
    switch(parser, "--transformers", "also compare with transformers' own generate")
    option(parser, "--json FILE", "also write the report here")
    add_method_options(parser)


def build_request(args: argparse.Namespace) -> CheckRequest:
    """The check that the arguments describe."""
    method, target, draft = choose_models(args.method, *named_pair(args))
    run = RunRequest(
        target=target,
        draft=draft,
        prompt="any",
        method=method.name,
        method_options=method_options(method, args),
        **request_fields(args.k),
        sampling=sampling_of(args),
        **common_fields(args),
    )
    check_rule(run)
    return CheckRequest(
        run=run,
        prompts=tuple(find_prompts(args.prompts)),
        num_samples=args.samples,
        num_tokens=args.max_new_tokens,
        with_transformers=args.transformers,
    )


def execute(args: argparse.Namespace) -> int:
    """Check, and return the exit code."""
    request = build_request(args)
    if args.json is not None:
        check_out(args.json)
    limit_spinning()
    controls = RunControls()
    with stop_on_interrupt(controls):
        report = _follow(open_check(request, controls))
    if report is None:
        say("Stopped.")
        return Exit.STOPPED
    write_output(report_text(report))
    if args.json is not None:
        write_atomically(args.json, report_json(report))
    return Exit.FAILED if report.verdict is Verdict.NOT_EXACT else Exit.DONE


def open_check(request: CheckRequest, controls: RunControls) -> Iterator[Any]:
    """The events of a check with the real engine."""
    engine = make_engine()
    from core.experiments.exactness import check

    return check(engine, request, controls)


def _follow(events: Iterator[Any]) -> CheckReport | None:
    """Show the progress, and return the report; None if the check was stopped."""
    with Progress() as progress:
        for event in events:
            if isinstance(event, CheckFinished):
                return event.report
            if isinstance(event, StageChanged):
                progress.show(event.text)
            elif isinstance(event, CheckProgress):
                progress.show_left(event.text, event.done, event.total)
    return None
