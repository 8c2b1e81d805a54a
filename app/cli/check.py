"""`outrider check`: whether a pair, with these settings, gives exactly what its target alone would."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from app.cli.bench import check_out
from app.cli.console import make_engine
from app.cli.errors import Exit, say, stop_on_interrupt, writing_output
from app.cli.models import REF_HELP
from app.cli.parsing import draft_length, number, whole_number
from app.cli.run_arguments import choose_models
from core.controls import RunControls
from core.draft_shape import request_fields
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
from core.machine import limit_spinning
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.types import Coupling, Device, DType, RunRequest, SamplingParams, StageChanged

_SHOWN_EVERY_S = 2.0


def add_parser(commands: Any) -> None:
    """Register `check` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "check",
        help="test whether a pair's output is exactly the target's",
        description="Hold greedy text against plain decoding, token by token, and sampled blocks against the target's "
        "exact law by chi-squared. The report goes to standard output, the rest to stderr.",
        epilog="Exit codes: 0 exact, or up to near-ties; 1 not exact, or failed while running; 2 bad usage or input; "
        "130 stopped.",
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    parser.add_argument(
        "draft",
        metavar="DRAFT",
        nargs="?",
        help=f"{REF_HELP}; where one name is given, it is the target's (default: {DEFAULT_DRAFT})",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help=f"likewise (default: {DEFAULT_TARGET})")
    parser.add_argument(
        "--method", metavar="NAME", help="how to draft (default: draft-model; prompt-lookup if there is no draft)"
    )
    parser.add_argument("-k", "--k", metavar="N|auto|adaptive", type=draft_length("-k"), default=4, help="default: 4")
    _number(parser, "--temperature", 1.0, "of the sampled law; 0 checks greedy text alone")
    parser.add_argument("--top-k", metavar="N", type=whole_number("--top-k"), default=0, help="default: 0, off")
    _number(parser, "--top-p", 1.0, "1 is off")
    _number(parser, "--min-p", 0.0, "0 is off")
    _whole(parser, "--seed", 0, "of all draws: the same seed, the same verdict")
    parser.add_argument(
        "--coupling", choices=[*map(str, Coupling)], default=str(Coupling.REJECTION), help="default: rejection"
    )
    _whole(parser, "--samples", DEFAULT_SAMPLES, "blocks to draw")
    _whole(parser, "--max-new-tokens", DEFAULT_TOKENS, "of each greedy text")
    parser.add_argument(
        "--prompts",
        metavar="NAME|FILE",
        action="append",
        default=[],
        help=f"a suite ({', '.join(SUITES)}) or a file, one prompt a line; may be repeated (default: the presets)",
    )
    parser.add_argument("--transformers", action="store_true", help="also compare with transformers' own generate")
    parser.add_argument("--device", choices=[*map(str, Device)], default="auto", help="default: auto")
    parser.add_argument("--dtype", choices=[*map(str, DType)], default="auto", help="default: by device")
    parser.add_argument("--json", metavar="FILE", help="write the report here too, whole or not at all")


def _number(parser: Any, flag: str, default: float, text: str) -> None:
    said = f"{text} (default: {default:g})"
    parser.add_argument(flag, metavar="X", type=number(flag), default=default, help=said)


def _whole(parser: Any, flag: str, default: int, text: str) -> None:
    said = f"{text} (default: {default})"
    parser.add_argument(flag, metavar="N", type=whole_number(flag), default=default, help=said)


def build_request(args: argparse.Namespace) -> CheckRequest:
    """The check that the arguments ask for.

    Raises:
        SettingsError, UsageError, PromptError: a value out of range, arguments that don't go together, or no prompts.
    """
    draft, target = args.draft, args.target
    if draft is not None and target is None:
        # One name alone is the target's: that is what is checked, and its draft may come with Outrider.
        draft, target = None, draft
    method, target, draft = choose_models(args.method, target, draft)
    run = RunRequest(
        target=target,
        draft=draft,
        prompt="any",
        method=method.name,
        **request_fields(args.k),
        sampling=SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p),
        seed=args.seed,
        coupling=Coupling(args.coupling),
        device=Device(args.device),
        dtype=DType(args.dtype),
    )
    return CheckRequest(
        run=run,
        prompts=tuple(find_prompts(args.prompts)),
        num_samples=args.samples,
        num_tokens=args.max_new_tokens,
        with_transformers=args.transformers,
    )


def execute(args: argparse.Namespace) -> int:
    """Check, and return the exit code.

    Raises:
        OutriderError: bad input, or a failure while running.
    """
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
    with writing_output():
        sys.stdout.write(report_text(report))
        sys.stdout.flush()
    if args.json is not None:
        write_atomically(args.json, report_json(report))
    return Exit.FAILED if report.verdict is Verdict.NOT_EXACT else Exit.DONE


def open_check(request: CheckRequest, controls: RunControls) -> Iterator[Any]:
    """The real engine's events."""
    engine = make_engine()
    from core.experiments.checking import check

    return check(engine, request, controls)


def _follow(events: Iterator[Any]) -> CheckReport | None:
    """Say how far it is, and return what came of it."""
    told, text = 0.0, ""
    for event in events:
        if isinstance(event, CheckFinished):
            return event.report
        if isinstance(event, StageChanged):
            say(event.text)
        elif isinstance(event, CheckProgress) and (event.text != text or time.monotonic() - told > _SHOWN_EVERY_S):
            told, text = time.monotonic(), event.text
            say(f"{event.text}: {event.done:,} of {event.total:,}" if event.total > 0 else event.text)
    return None
