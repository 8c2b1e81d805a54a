"""`outrider models check`: whether a draft can work for a target, before either is loaded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from app.cli.errors import Exit, UsageError
from app.cli.models.rendering import REF_HELP, Column, thousands, write_fields, yes_or_no
from app.cli.parsing import whole_number
from app.view_models.model_text import bytes_text
from core.types import Device, DType

if TYPE_CHECKING:
    from core.models.compatibility import PairVerdict

_FIELDS = (
    Column("verdict", "verdict"),
    Column("warnings", "note", "\n".join),
    Column("weights_bytes", "weights", bytes_text),
    Column("cache_bytes", "caches", bytes_text),
    Column("working_bytes", "working memory", bytes_text),
    Column("total_bytes", "needed in all", bytes_text),
    Column("available_bytes", "free", bytes_text),
    Column("fits", "fits", yes_or_no),
    Column(
        "cost_coefficient", "expected cost", lambda cost: f"c ≈ {cost:.2f}, a draft step / a target step, by parameters"
    ),
)


def add_parser(actions: Any) -> None:
    """Register `check` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "check",
        help="whether a draft can work for a target, and what both will need",
        description=(
            "Compare two models that are here, from their files: vocabularies, memory for both and their caches, and "
            "the expected cost of a draft's step. Nothing is loaded. In a pipe: name, tab, value."
        ),
        epilog="Exit codes: 0 they can work together, 1 they can't, 2 bad usage or no such model.",
        allow_abbrev=False,
    )
    parser.add_argument("draft", metavar="DRAFT", help=f"the model that drafts: {REF_HELP}")
    parser.add_argument("target", metavar="TARGET", help="the model to sample from, named likewise")
    parser.add_argument("--device", choices=[*map(str, Device)], default="auto", help="where to run (default: auto)")
    parser.add_argument("--dtype", choices=[*map(str, DType)], default="auto", help="precision (default: by device)")
    parser.add_argument(
        "--context",
        metavar="N",
        type=whole_number("--context"),
        help="tokens that the caches shall hold (default: what the target takes, within reason)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the verdict, and return 0 if the pair can work, 1 if it can't.

    Raises:
        UsageError: the context is no length.
        OutriderError: there is no such model, or it is damaged.
        OutputClosed, OutputError: standard output can't be written.
    """
    if args.context is not None and args.context < 1:
        raise UsageError(f"--context must be at least 1, not {thousands(args.context)}.")
    from core.models.catalogue import resolve
    from core.models.compatibility import pair_verdict

    for ref in (args.draft, args.target):
        resolve(ref)  # A model that isn't here is a mistake in the command, not a verdict.
    verdict = pair_verdict(args.draft, args.target, device=args.device, dtype=args.dtype, context=args.context)
    write_fields(_FIELDS, _record(args.draft, args.target, verdict), as_json=args.json)
    return Exit.DONE if verdict.problem is None else Exit.FAILED


def _record(draft: str, target: str, verdict: PairVerdict) -> dict[str, Any]:
    memory = verdict.memory
    return {
        "draft": draft,
        "target": target,
        "can_work": verdict.problem is None,
        "verdict": verdict.problem or f"{draft} can draft for {target}.",
        "warnings": list(verdict.warnings),
        "weights_bytes": memory and memory.weights_bytes,
        "cache_bytes": memory and memory.cache_bytes,
        "working_bytes": memory and memory.working_bytes,
        "total_bytes": memory and memory.total_bytes,
        "available_bytes": memory and memory.available_bytes,
        "fits": memory and memory.fits,
        "cost_coefficient": verdict.cost_coefficient,
    }
