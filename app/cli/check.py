"""`outrider check`: test whether a pair, with these settings, gives exactly what its target alone would."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from app.cli.console import Progress, check_out, make_engine, prepare_libraries
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, write_output
from app.cli.parsing import (
    SAMPLING,
    Listing,
    add_command,
    add_engine,
    add_method_options,
    add_pair,
    add_settings,
    add_template,
    choose_models,
    common_fields,
    draft_length_or_plain,
    find_servers,
    method_options,
    named_pair,
    names,
    option,
    refuse_for_engine,
    refuse_without_engine,
    sampling_of,
    switch,
    whole_number,
)
from core.controls import RunControls
from core.draft_length import request_fields
from core.drafters.registry import check_rule
from core.experiments import check_plan as checks
from core.experiments import check_report
from core.experiments.prompt_suites import SUITES, find_prompts
from core.files import write_atomically
from core.settings import RunRequest
from core.types import StageChanged

DEFAULT_LENGTH = 4


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
            "outrider check --target TARGET --draft DRAFT --temperature 1 --samples 5000",
            "outrider check --target TARGET --method prompt-lookup --prompts code,mine.txt",
            "outrider check --method draft-tree -k 8 --depth 4 --rule independent",
            "outrider check --engine http://127.0.0.1:8000 --target TARGET --draft DRAFT",
        ),
        epilog="Exit codes: 0 exact, or exact up to near-ties; 1 not exact, a server that accepts too little, or "
        "failed while running; 2 bad usage or input; 130 stopped.",
    )
    add_pair(parser)
    engine = parser.add_argument_group("servers")
    text = "check this server against its --target, run here; with --draft, check its acceptance, too"
    add_engine(engine, text, "")
    text = "compare with the same model on a server that doesn't draft; --target is then its name on the servers"
    option(engine, "--baseline-engine URL", text)
    option(parser, "-k --k N|auto|adaptive", f"tokens to draft (default: {DEFAULT_LENGTH})", draft_length_or_plain)
    add_settings(parser, *SAMPLING, "seed", "coupling", "verification")
    option(parser, "--samples N", "blocks to sample", whole_number, checks.DEFAULT_SAMPLES)
    add_settings(parser, "max_new_tokens", max_new_tokens=checks.DEFAULT_TOKENS)
    text = f"suites ({', '.join(SUITES)}) and files with one prompt per line (default: the presets)"
    option(parser, "--prompts NAME|FILE,…", text, names, (), action=Listing)
    add_template(parser)
    switch(parser, "--transformers", "also compare with transformers' own generate")
    option(parser, "--json FILE", "also write the report here")
    add_method_options(parser)


def build_request(args: argparse.Namespace) -> checks.CheckRequest:
    """The check that the arguments describe."""
    method, target, draft = choose_models(args.method, *named_pair(args))
    run = RunRequest(
        target=target,
        draft=draft,
        prompt="any",
        method=method.name,
        method_options=method_options(method, args),
        **request_fields(DEFAULT_LENGTH if args.k is None else args.k),
        sampling=sampling_of(args),
        **common_fields(args),
    )
    check_rule(run)
    return checks.CheckRequest(
        run=run,
        prompts=tuple(find_prompts(args.prompts)),
        num_samples=args.samples,
        num_tokens=args.max_new_tokens,
        with_transformers=args.transformers,
    )


def execute(args: argparse.Namespace) -> int:
    """Check, and return the exit code."""
    request = None
    if args.engine is None:
        refuse_without_engine(args)
        request = build_request(args)
    prepare_libraries()
    words: Any = check_report
    if request is None:
        from core.experiments.servers import report as words
    check_out(args.json, words.SCHEMA)
    controls = RunControls()
    with stop_on_interrupt(controls):
        report = _follow(_server_check(args, controls) if request is None else open_check(request, controls))
    if report is None:
        say("Stopped.")
        return Exit.STOPPED
    try:  # First: standard output may be closed, or its disk full.
        if args.json is not None:
            write_atomically(args.json, words.report_json(report))
    finally:
        write_output(words.report_text(report))
    return Exit.DONE if report.is_right else Exit.FAILED


def _server_check(args: argparse.Namespace, controls: RunControls) -> Iterator[Any]:
    """The events of a check of a server, against its target here or a server without speculation."""
    target, draft = named_pair(args)
    if args.transformers:
        raise UsageError("--transformers is for checks on this machine; leave it out with --engine.")
    refuse_for_engine(args, ("draft", "device", "dtype"))
    if target is None and args.baseline_engine is None:
        raise UsageError(
            "Use --target to name the model that the server serves, which then runs here, or --baseline-engine to name "
            "a server that serves the same model without drafting."
        )
    if draft is not None and args.baseline_engine is not None:
        raise UsageError("--draft is checked with the target here; leave --draft or --baseline-engine out.")
    from core.engines.session import check_request  # Late: most checks need no HTTP.

    server, baseline = find_servers(args)
    settings: dict[str, Any] = {"prompt": "any", "sampling": sampling_of(args)}
    shared = common_fields(args)
    here = {name: shared.pop(name) for name in ("device", "dtype")}
    name, local = target or "", None
    if baseline is None:
        local = RunRequest(target=name, draft=draft, **here, **settings)
    # The server's only model may be known by another name here.
    name = server.counterpart(name) if baseline is None else server.model(name)
    run = RunRequest(target=name, draft=None, num_draft_tokens=None, engine=server.address.url, **settings, **shared)
    check_request(run, server := server.for_model(name))
    # The models' code is imported only when they are needed: torch takes seconds.
    from core.experiments.servers.check import ServerCheckRequest, check_server

    baseline = baseline and baseline.for_model(baseline.counterpart(name))
    request = ServerCheckRequest(
        server, local, baseline, run, tuple(find_prompts(args.prompts)), args.samples, args.max_new_tokens
    )
    say(server.text)
    return check_server(make_engine, request, controls)


def open_check(request: checks.CheckRequest, controls: RunControls) -> Iterator[Any]:
    """The events of a check with the real engine."""
    engine = make_engine()
    from core.experiments.check import check

    return check(engine, request, controls)


def _follow(events: Iterator[Any]) -> Any:
    """Show the progress, and return the report; None if the check was stopped."""
    report = None
    with Progress() as progress:
        for event in events:
            if isinstance(event, StageChanged):
                progress.show(event.text)
            elif isinstance(event, checks.CheckProgress):
                progress.show_left(event.title, event.done, event.total)
            else:
                report = event.report
    return report
