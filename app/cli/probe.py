"""`outrider probe`: which draft suits a target, at which K, told without drafting a text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from app.cli.console import make_engine, open_console
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt, writing_output
from app.cli.models import REF_HELP, printable
from app.cli.parsing import add_count, add_place, add_template, number, whole_number
from app.cli.run_arguments import read_prompt, read_text_file
from core.analysis.probe import (
    DEFAULT_POSITIONS,
    SCHEMA,
    Agreement,
    Costs,
    DraftProbe,
    DraftProbed,
    ProbeDone,
    ProbeRequest,
    ProbeText,
    drafts_here,
    probe_text,
    sampling_of,
    verdict,
)
from core.controls import RunControls
from core.errors import RunLogError
from core.experiments.prompt_suites import default_prompts
from core.files import write_atomically
from core.machine import limit_spinning
from core.models.catalogue import DEFAULT_TARGET, resolve
from core.runlog.log import read_run_log
from core.text import percent_text
from core.types import Device, DType, SamplingParams, StageChanged

_LEGEND = (
    "acceptance: mean of Σ min(p, q) over the places, and its 95 % interval; top-1: share of places where both models "
    "have the same likeliest token; KL: mean of Σ p ln(p / q), p the target's law, where it is finite; c: a draft "
    "step / a step of the target; v(5): scoring 5 positions / scoring one; expected: τ(K) / (K c + v(K+1)) at the best "
    "K, its interval that of the text alone."
)
_OWN = "The text is the target's own, so that blocks are counted exactly as they would be drafted along it."
_CHAIN = (
    "The text was not written by the target at these settings: blocks are a product along it, which takes the draft "
    "to be as good behind its own tokens. --generate N has the target write a text first."
)


def write_probe(request: ProbeRequest, done: ProbeDone) -> None:
    """Print the ranking, what its figures mean, and what to do.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    if done.is_stopped and not done.probes:
        say("Stopped before a draft was probed.")
        return
    with writing_output():
        found = [probe for probe in done.probes if not probe.problem]
        places = found[0].agreement.num_places if found and found[0].agreement else 0
        console.print(Text(printable(f"{request.target}, {places:,} places, {_sampling(request)}")))
        if found:
            console.print()
            console.print(_table(found))
            console.print()
            is_own = all(probe.agreement is not None and probe.agreement.is_own_text for probe in found)
            for line in (*done.notes, _LEGEND, _OWN if is_own else _CHAIN):
                console.print(Text(printable(line), "dim"))
        for probe in done.probes:
            if probe.problem:
                console.print(Text(printable(f"{probe.draft}: {probe.problem}")))
        if done.is_stopped:
            console.print(Text("Stopped before all drafts were probed."))
        console.print(Text(printable(verdict(done.probes)), "bold"))
        sys.stdout.flush()


def _sampling(request: ProbeRequest) -> str:
    sampling = request.sampling
    parts = [f"temperature {sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    return ", ".join(parts)


def _table(probes: list[DraftProbe]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("draft")
    columns: tuple[tuple[str, Callable[[DraftProbe, Agreement, Costs], str]], ...] = (
        ("acceptance", lambda probe, found, costs: _interval(found)),
        ("top-1", lambda probe, found, costs: percent_text(found.top_1)),
        (
            "KL, nats",
            lambda probe, found, costs: "–" if found.kl_target_draft is None else f"{found.kl_target_draft:.2f}",
        ),
        ("c", lambda probe, found, costs: f"{costs.cost:.3f}"),
        ("v(5)", lambda probe, found, costs: f"{probe.verify.values[4]:.2f}"),
        ("τ at best K", lambda probe, found, costs: f"{found.tokens.values[probe.best_k]:.2f}"),
        ("best K", lambda probe, found, costs: str(probe.best_k) if probe.best_k else "none"),
        ("expected", lambda probe, found, costs: _speedup(probe)),
        ("seconds", lambda probe, found, costs: f"{probe.seconds:.1f}"),
    )
    for title, _ in columns:
        table.add_column(title, justify="right")
    for probe in probes:
        assert probe.agreement is not None
        assert probe.costs is not None
        cells = [show(probe, probe.agreement, probe.costs) for _, show in columns]
        table.add_row(Text(printable(probe.draft)), *map(Text, cells))
    return table


def _interval(found: Agreement) -> str:
    first = found.acceptance
    text = percent_text(first.value, 1)
    if first.low is None or first.high is None:
        return text
    return f"{text} ({percent_text(first.low)}–{percent_text(first.high)})"


def _divergence(found: Agreement) -> str:
    return "–" if found.kl_target_draft is None else f"{found.kl_target_draft:.2f}"


def _speedup(probe: DraftProbe) -> str:
    found = probe.speedup.at(probe.best_k)
    if not probe.best_k or found.low is None:
        return f"{found.value:.2f}×"
    return f"{found.value:.2f}× ({found.low:.2f}–{found.high:.2f})"


def add_parser(commands: Any) -> None:
    """Register `probe` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "probe",
        help="rank drafts for a target in seconds, without drafting",
        description=(
            "Have a target and drafts read a text, compare what each would say at every place, time a few forwards, "
            "and say which draft to take at which K, or not to speculate. Nothing is drafted for it."
        ),
        epilog="Exit codes: 0 done, 1 failed, 2 bad usage or input, 130 stopped.",
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="REF", help=f"{REF_HELP} (default: {DEFAULT_TARGET}, or the log's)")
    models.add_argument(
        "--draft", metavar="A,B,C", help="drafts to compare (default: every smaller model here with the same tokenizer)"
    )
    add_place(models)
    text = parser.add_argument_group("text (default: three of the window's presets)")
    source = text.add_mutually_exclusive_group()
    source.add_argument("--text-file", metavar="FILE", help="a text that is read as it is, - for a pipe")
    source.add_argument("--prompt", metavar="TEXT", help="a prompt; a chat template is applied if there is one")
    source.add_argument("--prompt-file", metavar="FILE", help="a file with the prompt, - for a pipe")
    source.add_argument("--log", metavar="FILE", help="a run's log: its prompt, and the text that its target wrote")
    text.add_argument(
        "--generate",
        metavar="N",
        type=whole_number("--generate"),
        default=0,
        help="have the target write N tokens behind each prompt first, which alone count then (default: 0)",
    )
    add_count(text, "--places", DEFAULT_POSITIONS, "look at N places at most")
    add_template(text, raw_help="don't")
    sampling = parser.add_argument_group("sampling (default: as the log has it, else temperature 1 and no filters)")
    sampling.add_argument(
        "--temperature", metavar="T", type=number("--temperature"), help="0 picks the likeliest token"
    )
    sampling.add_argument("--top-k", metavar="N", type=whole_number("--top-k"), help="keep the N likeliest tokens")
    sampling.add_argument("--top-p", metavar="P", type=number("--top-p"), help="keep the likeliest that sum to P")
    sampling.add_argument("--min-p", metavar="P", type=number("--min-p"), help="drop those below P times the likeliest")
    sampling.add_argument(
        "--seed", metavar="N", type=whole_number("--seed"), default=0, help="of what --generate writes (default: 0)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write everything as JSON")
    output.add_argument("--quiet", action="store_true", help="no progress on standard error")


def execute(args: argparse.Namespace) -> int:
    """Probe, and return the exit code.

    Raises:
        OutriderError: bad input, before a model was loaded; or nothing could be probed.
    """
    request = build_request(args)
    if args.json is not None and Path(args.json).is_dir():
        raise UsageError(f"{args.json!r} is a folder; name a file to write.")
    limit_spinning()
    from core.analysis.probing import probe

    controls, done = RunControls(), None
    with stop_on_interrupt(controls):
        for event in probe(make_engine(), request, controls):
            if isinstance(event, ProbeDone):
                done = event
            elif not args.quiet and not _is_the_error(event, request):
                say(_told(event))
    assert done is not None, "a probe ends with ProbeDone"
    write_probe(request, done)
    if args.json is not None:
        write_atomically(Path(args.json), json.dumps(to_record(request, done), indent=1, ensure_ascii=False) + "\n")
    return Exit.STOPPED if done.is_stopped else Exit.DONE


def _is_the_error(event: StageChanged | DraftProbed, request: ProbeRequest) -> bool:
    """Whether this is why nothing can be probed, which is said once, at the end."""
    return isinstance(event, DraftProbed) and bool(event.probe.problem) and len(request.drafts) == 1


def _told(event: StageChanged | DraftProbed) -> str:
    if isinstance(event, StageChanged):
        return event.text
    found = event.probe
    return f"{found.draft}: {found.problem}" if found.problem else f"{found.draft}: done in {found.seconds:.1f} s"


def build_request(args: argparse.Namespace) -> ProbeRequest:
    """The probe that the arguments ask for.

    Raises:
        OutriderError: a value is out of range, a file can't be read, or there is no draft.
    """
    target, sampling = args.target, SamplingParams()
    texts: tuple[ProbeText, ...]
    if args.log is not None:
        log = read_run_log(args.log)
        for problem in log.problems:
            say(problem)
        target = target or log.run["config"].get("target")
        if not isinstance(target, str):
            raise RunLogError(f"The log {args.log!r} does not say which target wrote it; name it with --target.")
        sampling = _overridden(sampling_of(log), args)
        if args.generate:
            raise UsageError("--generate has no use beside --log, which holds the target's own text; leave one out.")
        texts = (probe_text(log, target, sampling),)
    else:
        target = target or DEFAULT_TARGET
        sampling = _overridden(sampling, args)
        texts = _texts(args, target)
    resolve(target)
    drafts = _drafts(args.draft) if args.draft is not None else drafts_here(target)
    return ProbeRequest(
        target=target,
        drafts=drafts,
        texts=texts,
        sampling=sampling,
        generate=args.generate,
        seed=args.seed,
        max_positions=args.places,
        chat=args.chat,
        device=Device(args.device),
        dtype=DType(args.dtype),
    )


def _overridden(sampling: SamplingParams, args: argparse.Namespace) -> SamplingParams:
    given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return replace(sampling, **{name: value for name, value in given.items() if value is not None})


def _texts(args: argparse.Namespace, target: str) -> tuple[ProbeText, ...]:
    if args.text_file is not None:
        text = read_text_file(args.text_file, quiet=args.quiet)
        return (ProbeText("the text", prompt=text, is_raw=True),)
    if args.prompt is not None or args.prompt_file is not None:
        prompt = read_prompt(args.prompt, args.prompt_file, quiet=args.quiet)
        return (ProbeText("the prompt", prompt=prompt),)
    is_chat = args.chat is not False and _is_instruct(target)
    return tuple(ProbeText(prompt.name, prompt=prompt.text) for prompt in default_prompts(is_chat=is_chat))


def _is_instruct(target: str) -> bool:
    from core.models.details import read_details

    return bool(read_details(resolve(target)).is_instruct)


def _drafts(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--draft names no model; write one or several, with commas between them.")
    return names


def to_record(request: ProbeRequest, done: ProbeDone) -> dict[str, Any]:
    """A probe ready for JSON."""
    return {
        "schema": SCHEMA,
        "config": {
            "target": request.target,
            "drafts": list(request.drafts),
            "texts": [text.name for text in request.texts],
            **asdict(request.sampling),
            "generate": request.generate,
            "seed": request.seed,
            "device": str(request.device),
            "dtype": str(request.dtype),
        },
        "is_stopped": done.is_stopped,
        "notes": list(done.notes),
        "drafts": [
            {**asdict(found), "best_num_draft_tokens": found.best_k, "expected_speedup": found.best_speedup}
            if not found.problem
            else {"draft": found.draft, "problem": found.problem}
            for found in done.probes
        ],
    }
