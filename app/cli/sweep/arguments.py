"""The arguments of `outrider sweep`, and the plan that they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from app.cli.arguments import add_count, add_place, add_template
from app.cli.bench.arguments import check_out
from app.cli.errors import UsageError
from app.cli.models.rendering import REF_HELP
from app.cli.parsing import draft_lengths, echo, number, whole_number
from app.cli.run_arguments import embedded_drafter
from core.bench.names import split_name
from core.drafters.methods import METHODS, get_method
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.prompt_suites import SUITES, Prompt, find_prompts, first_of_each
from core.sweep.plan import DrafterChoice, SweepPlan
from core.types import Coupling, Device, DType

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
