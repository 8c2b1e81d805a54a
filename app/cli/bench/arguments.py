"""The arguments of `outrider bench`, and the settings that they make."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

from app.cli.arguments import add_count, add_place
from app.cli.errors import UsageError
from app.cli.models.rendering import REF_HELP
from app.cli.parsing import echo, positive_whole_number, whole_number
from app.cli.run_arguments import embedded_drafter
from core.bench.names import known_names
from core.bench.types import BenchSettings
from core.errors import RunLogError
from core.files import explain_write_error
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.types import Device, DType

NEW_TOKENS, NEW_TOKENS_UI = 64, 256
"""With the window, where one stall weighs on a whole run, runs are longer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser every flag of a bench."""
    models = parser.add_argument_group("models")
    models.add_argument("--target", metavar="REF", help=f"the target: {REF_HELP} (default: {DEFAULT_TARGET})")
    models.add_argument("--draft", metavar="REF", help="the draft (default: the embedded one for the target)")
    models.add_argument(
        "--draft-layers",
        metavar="N",
        type=positive_whole_number("--draft-layers"),
        help="make the draft of the target's first N layers: poor acceptance, an honest cost",
    )
    add_place(models)

    contest = parser.add_argument_group("contest")
    contest.add_argument(
        "-k", "--k", metavar="N", type=whole_number("-k"), default=4, help="tokens to draft a step (default: 4)"
    )
    contest.add_argument(
        "--temperature",
        metavar="T,…",
        type=_numbers("--temperature"),
        default=(0.0, 1.0),
        help="one or several, each a contest of its own (default: 0,1)",
    )
    contest.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive_whole_number("--max-new-tokens"),
        help=f"that every run writes, ends of text or not (default: {NEW_TOKENS}; {NEW_TOKENS_UI} with --ui)",
    )
    add_count(contest, "--rounds", 5, "that count, after one that does not")
    contest.add_argument("--seed", metavar="N", type=whole_number("--seed"), default=0, help="default: 0")
    contest.add_argument(
        "--threads", metavar="N", type=positive_whole_number("--threads"), help="for everyone (default: one a core)"
    )
    contest.add_argument(
        "--prompts", metavar="FILE", help="one prompt a line, or JSON Lines with a text each (default: three presets)"
    )
    contest.add_argument(
        "--only",
        "--methods",
        dest="only",
        metavar="NAME,…",
        type=_names,
        default=(),
        help=f"contenders: {', '.join(known_names())}; a method's options stand behind it, as in "
        "prompt-lookup:max-ngram=5 (default: all that can run)",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--memory", action="store_true", help="also run each once in a process of its own for its peak")
    output.add_argument("--out", metavar="FILE.json", help="write all figures here, whole or not at all")
    output.add_argument(
        "--ui",
        action="store_true",
        help="instead, run the pair in the real window, offscreen, and without it; and look for stalls in all it opens",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(flag: str) -> Any:
    def parse(text: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in text.split(",") if part.strip())
        except ValueError:
            values = ()
        if not values:
            raise UsageError(f"{flag} must be numbers with commas between them, not {echo(text)}.")
        return tuple(dict.fromkeys(values))

    return parse


def build_settings(args: argparse.Namespace) -> BenchSettings:
    """The bench that the arguments ask for.

    Raises:
        SettingsError, UsageError: a value out of range, or arguments that don't go together.
    """
    if args.draft is not None and args.draft_layers is not None:
        raise UsageError("--draft names a draft and --draft-layers makes one; leave one of the two out.")
    draft = args.draft
    if draft is None and args.draft_layers is None:
        draft = DEFAULT_DRAFT if args.target in {None, DEFAULT_TARGET} else embedded_drafter(args.target)
    return BenchSettings(
        target=args.target or DEFAULT_TARGET,
        draft=draft,
        draft_layers=args.draft_layers,
        num_draft_tokens=args.k,
        temperatures=args.temperature,
        max_new_tokens=args.max_new_tokens or (NEW_TOKENS_UI if args.ui else NEW_TOKENS),
        rounds=args.rounds,
        seed=args.seed,
        device=Device(args.device),
        dtype=DType(args.dtype),
        threads=args.threads,
        only=args.only,
    )


def check_out(path: str) -> None:
    """Find out before minutes of measuring that a file can't be written.

    Raises:
        RunLogError: with the sentence that writing it would end in.
    """
    real = os.path.realpath(path)
    try:
        if os.path.isdir(real):
            raise IsADirectoryError(21, "Is a directory")
        if os.path.exists(real):
            with open(real, "ab"):
                return
        with tempfile.TemporaryFile(dir=os.path.dirname(real)):
            pass
    except OSError as error:
        raise RunLogError(explain_write_error(error, path)) from error
