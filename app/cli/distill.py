"""`outrider distill`: make a draft for a target of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from app.cli.errors import Exit, OutputError, say
from app.cli.parsing import positive_number, positive_whole_number
from core.files import explain_write_error


def add_parser(commands: Any) -> None:
    """Register `distill` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "distill",
        help="train a draft for a target",
        description=(
            "Train a small draft for any Llama-architecture target, on text that the target writes itself. The draft "
            "borrows the target's embedding and output head, so that only its layers are trained and stored. Stop "
            "with Ctrl-C at any time; the same command goes on from there."
        ),
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    parser.add_argument("target", metavar="TARGET", help="a catalogue name, a Hub id, a local folder or a .gguf file")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="where the draft is written")
    parser.add_argument(
        "--work", metavar="FOLDER", help="texts, states and checkpoints (default: FOLDER of --out with -work behind it)"
    )
    _whole(parser, "--layers", 2, "of the draft")
    _whole(parser, "--vocabulary", 8192, "ids that the draft proposes, the target's most frequent ones")
    _whole(parser, "--texts", 1920, "texts that the target writes")
    _whole(parser, "--length", 400, "tokens of a text at most, prompt and answer")
    _whole(parser, "--batch", 192, "texts that are written side by side")
    parser.add_argument(
        "--texts-from",
        metavar="FILE.npz",
        help="begin with texts written earlier: ids, answer_start, answer_temperature",
    )
    parser.add_argument(
        "--minutes", metavar="M", type=positive_number("--minutes"), default=60.0, help="of training (default: 60)"
    )
    _whole(parser, "--threads", 0, "processor threads (default: all)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of texts and training (default: 0)")


def _whole(parser: argparse.ArgumentParser, flag: str, default: int, text: str) -> None:
    note = "" if default == 0 else f" (default: {default})"
    parser.add_argument(
        flag, metavar="N", type=positive_whole_number(flag), default=default or None, help=f"{text}{note}"
    )


def execute(args: argparse.Namespace) -> int:
    """Distil, and return the exit code.

    Raises:
        OutriderError: the target can't be loaded or taught from, or a folder can't be written.
    """
    import torch

    from core.distill.pipeline import DistillSettings, check_destination, distill
    from core.distill.self_play import PlaySettings
    from core.distill.student import student_settings
    from core.models import load
    from core.training.train import Budget

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    out = Path(args.out)
    work = Path(args.work) if args.work is not None else out.with_name(f"{out.name}-work")
    settings = DistillSettings(
        num_texts=args.texts,
        num_layers=args.layers,
        vocabulary_size=args.vocabulary,
        training=student_settings(Budget(seconds=60 * args.minutes), seed=args.seed, compile=can_compile()),
        start_from=None if args.texts_from is None else Path(args.texts_from),
        play=PlaySettings(rows=args.batch, length=args.length),
        seed=args.seed,
    )
    check_destination(out)
    target = load(args.target, "cpu", "float32")
    try:
        figures = distill(target, settings, work, out, say)
    except OSError as error:
        raise OutputError(explain_write_error(error, error.filename or work)) from error
    for name, value in figures.items():
        say(f"held out, {name}: {value:.3f}")
    print(out)
    return Exit.DONE


def can_compile() -> bool:
    """Whether there is a C++ compiler, with which training is some times faster."""
    import shutil

    return any(shutil.which(name) for name in ("g++", "clang++", "cl"))
