"""`outrider probe`: find which draft suits a target, and at which K, without running any."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli.console import check_out, figure_table, figure_text, make_engine, printing, read_prompt
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt
from app.cli.parsing import (
    REF_HELP,
    SAMPLING,
    Listing,
    add_command,
    add_settings,
    add_template,
    common_fields,
    names,
    option,
    positive_whole_number,
    sampling_of,
    switch,
    whole_number,
)
from core.analysis.probe import (
    DEFAULT_POSITIONS,
    SCHEMA,
    Agreement,
    Costs,
    DraftProbe,
    ProbeDone,
    ProbeRequest,
    ProbeText,
    Shape,
    drafts_here,
    probe_text,
    verdict,
)
from core.controls import RunControls
from core.errors import RunLogError
from core.experiments.prompt_suites import default_prompts
from core.files import write_atomically
from core.models.catalogue import DEFAULT_TARGET, resolve
from core.models.folder.details import read_details
from core.runlog.reading import read_run_log
from core.runlog.replay import request_from_config
from core.settings import user_default
from core.text import percent_text
from core.types import StageChanged

_LEGEND = (
    "acceptance: mean of Σ min(p, q) over the positions, with its 95 % interval; top-1: share of positions where both "
    "models have the same most likely token; KL: mean of Σ p ln(p / q), with p the target's distribution, where it is "
    "finite; c: a draft step / a target step; v(5): time to score 5 positions / one; predicted: τ(K) / (K c + v(K+1)) "
    "at the best K; its interval covers only the text."
)
_TREES = (
    "tree: the fastest shapes of --method draft-tree, one for each depth; K counts nodes. Candidates are drawn without "
    "replacement; at temperature 0 they are the draft's most likely tokens. predicted: tokens / (depth × a level's "
    "time + v(K+1)), no interval; an underestimate at temperature 0, as a drafted tree also follows the "
    "draft's confidence."
)
_MOST_SHAPES = 3
_OWN = "The text is the target's own, so block lengths are exactly those of drafting this text."
_CHAIN = (
    "The text was not written by the target at these settings: block lengths assume that the draft is as good after "
    "its own tokens. With --generate N the target writes a text first."
)


def add_parser(commands: Any) -> None:
    """Register `probe` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "probe",
        execute,
        help="rank drafts for a target in seconds, without drafting",
        description="Let a target and drafts read a text, compare their distributions at every position, time a few "
        "forwards, and recommend a draft and a K, or plain decoding. Nothing is drafted.",
        examples=(
            "outrider probe --target TARGET --draft DRAFT_A,DRAFT_B",
            "outrider probe --log run.jsonl --temperature 0",
        ),
    )
    models = parser.add_argument_group("models")
    option(models, "--target REF", f"{REF_HELP} (default: the log's, else {DEFAULT_TARGET})")
    said = "drafts to compare (default: all smaller local models with the same tokenizer)"
    option(models, "--draft REF,…", said, names, (), action=Listing)
    add_settings(models, "device", "dtype")
    text = parser.add_argument_group("text (default: three of the window's presets)")
    source = text.add_mutually_exclusive_group()
    option(source, "--text-file FILE", "a text to read without a chat template; - for standard input")
    option(source, "--prompt TEXT", "a prompt")
    option(source, "--prompt-file FILE", "a file with the prompt; - for standard input")
    option(source, "--log FILE", "a run log: its prompt, and the text that its target wrote")
    said = "first let the target write N tokens after each prompt; only these count"
    option(text, "--generate N", said, whole_number, 0)
    option(text, "--places N", "maximum number of positions to compare", positive_whole_number, DEFAULT_POSITIONS)
    add_template(text, system=None)
    usual = user_default("temperature")
    sampling = parser.add_argument_group(f"sampling (default: the log's, else temperature {usual:g} and no filters)")
    add_settings(sampling, *SAMPLING, **dict.fromkeys(SAMPLING))
    option(sampling, "--seed N", "random seed", whole_number, 0)
    output = parser.add_argument_group("output")
    option(output, "--json FILE", "write everything as JSON")
    switch(output, "--quiet", "no progress on standard error")


def build_request(args: argparse.Namespace) -> ProbeRequest:
    """The probe that the arguments describe."""
    target, shared = args.target, common_fields(args)
    texts: tuple[ProbeText, ...]
    if args.log is not None:
        log = read_run_log(args.log)
        for problem in log.problems:
            say(problem)
        target = target or log.run["config"].get("target")
        if not isinstance(target, str):
            raise RunLogError(f"The log {args.log!r} doesn't name its target; name it with --target.")
        run = request_from_config(log.run["config"])
        sampling = sampling_of(args, run.sampling)
        if args.generate:
            raise UsageError("--log already holds the target's own text, so leave out --generate or --log.")
        texts = (probe_text(log, target, sampling),)
        # As the run read its prompt, as far as this target can.
        if shared["chat"] is None and log.run["config"].get("chat") is False:
            shared["chat"] = False
        if shared["system"] is None and shared["chat"] is not False and read_details(resolve(target)).is_instruct:
            shared["system"] = run.system
    else:
        target = target or DEFAULT_TARGET
        sampling = sampling_of(args)
        texts = _texts(args, target)
    resolve(target)
    shared["system"] = shared["system"] or ""
    return ProbeRequest(
        target=target,
        drafts=args.draft or drafts_here(target),
        texts=texts,
        sampling=sampling,
        generate=args.generate,
        max_positions=args.places,
        **shared,
    )


def _texts(args: argparse.Namespace, target: str) -> tuple[ProbeText, ...]:
    if args.text_file is not None:
        text = read_prompt(None, args.text_file, quiet=args.quiet)
        if not text.strip():
            raise UsageError(f"{args.text_file!r} contains no text; choose another file.")
        return (ProbeText("the text", prompt=text, is_raw=True),)
    if args.prompt is not None or args.prompt_file is not None:
        prompt = read_prompt(args.prompt, args.prompt_file, quiet=args.quiet)
        return (ProbeText("the prompt", prompt=prompt),)
    is_chat = args.chat is not False and bool(read_details(resolve(target)).is_instruct)
    return tuple(ProbeText(prompt.name, prompt=prompt.text) for prompt in default_prompts(is_chat=is_chat))


def execute(args: argparse.Namespace) -> int:
    """Probe, and return the exit code."""
    request = build_request(args)
    check_out(args.json, SCHEMA)
    engine = make_engine()
    from core.analysis.run_probe import probe

    controls, done = RunControls(), None
    with stop_on_interrupt(controls):
        for event in probe(engine, request, controls):
            if isinstance(event, ProbeDone):
                done = event
            elif not args.quiet:
                _report(event, request)
    assert done is not None, "a probe ends with ProbeDone"
    try:  # First: standard output may be closed, or its disk full.
        if args.json is not None and done.probes:
            record = json.dumps(to_record(request, done), indent=1, ensure_ascii=False)
            write_atomically(Path(args.json), f"{record}\n")
    finally:
        if done.is_stopped and not done.probes:
            say("Stopped before a draft was probed.")
        else:
            write_probe(request, done)
    return Exit.STOPPED if done.is_stopped else Exit.DONE


def _report(event: StageChanged | DraftProbe, request: ProbeRequest) -> None:
    if isinstance(event, StageChanged):
        say(event.text)
    elif not event.problem:
        say(f"{event.draft}: done in {event.seconds:.1f} s")
    elif len(request.drafts) > 1:  # A single draft's problem is the command's error, reported at the end.
        say(f"{event.draft}: {event.problem}")


def write_probe(request: ProbeRequest, done: ProbeDone) -> None:
    """Print the ranking, the meaning of its figures, and what to do."""
    found = [(probe, probe.agreement, probe.costs) for probe in done.probes if probe.agreement and probe.costs]
    num_positions = found[0][1].num_places if found else 0
    with printing() as show:
        show(f"{request.target}, {num_positions:,} positions, {request.sampling.text}")
        if found:
            show()
            show(figure_table(found, _COLUMNS))
            show()
            trees = [(probe, shape) for probe, _, _ in found for shape in probe.shapes[:_MOST_SHAPES]]
            if trees:
                show(figure_table(trees, _TREE_COLUMNS))
                show()
            is_own = all(agreement.is_own_text for _, agreement, _ in found)
            for line in (*done.notes, _LEGEND, *([_TREES] if trees else []), _OWN if is_own else _CHAIN):
                show(line, "dim")
        for probe in done.probes:
            if probe.problem:
                show(f"{probe.draft}: {probe.problem}")
        if done.is_stopped:
            show("Stopped before all drafts were probed.")
        show(verdict(done.probes), "bold")


Row = tuple[DraftProbe, Agreement, Costs]


def _acceptance(found: Agreement) -> str:
    first = found.acceptance
    text = percent_text(first.value, 1)
    if first.low is None or first.high is None:
        return text
    return f"{text} ({percent_text(first.low)}–{percent_text(first.high)})"


def _speedup(probe: DraftProbe) -> str:
    found = probe.speedup.at(probe.best_k)
    if not probe.best_k or found.low is None:
        return f"{found.value:.2f}×"
    return f"{found.value:.2f}× ({found.low:.2f}–{found.high:.2f})"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("draft", lambda row: row[0].draft),
    ("acceptance", lambda row: _acceptance(row[1])),
    ("top-1", lambda row: percent_text(row[1].top_1)),
    ("KL, nats", lambda row: figure_text(row[1].kl_target_draft, ".2f")),
    ("c", lambda row: f"{row[2].cost:.3f}"),
    ("v(5)", lambda row: f"{row[0].verify.values[4]:.2f}"),
    ("τ at best K", lambda row: f"{row[1].tokens.values[row[0].best_k]:.2f}"),
    ("best K", lambda row: str(row[0].best_k) if row[0].best_k else "none"),
    ("predicted", lambda row: _speedup(row[0])),
    ("seconds", lambda row: f"{row[0].seconds:.1f}"),
)
_TREE_COLUMNS: tuple[tuple[str, Callable[[tuple[DraftProbe, Shape]], str]], ...] = (
    ("draft", lambda row: row[0].draft),
    ("tree", lambda row: row[1].text),
    ("tokens/forward", lambda row: f"{row[1].tokens:.2f}"),
    ("predicted", lambda row: f"{row[1].speedup:.2f}×"),
)


def to_record(request: ProbeRequest, done: ProbeDone) -> dict[str, Any]:
    """A probe as a JSON object."""
    return {
        "schema": SCHEMA,
        "config": {
            "target": request.target,
            "drafts": list(request.drafts),
            "texts": [text.name for text in request.texts],
            **asdict(request.sampling),
            "generate": request.generate,
            "seed": request.seed,
            "system": request.system,
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
