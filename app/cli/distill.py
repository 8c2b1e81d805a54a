"""`outrider distill`: train a draft for your own target."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from app.cli.errors import Exit, OutputError, say
from app.cli.parsing import REF_HELP, add_command, add_count, add_settings, positive_number
from core.files import explain_write_error


def add_parser(commands: Any) -> None:
    """Register `distill` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "distill",
        execute,
        help="train a draft for a target",
        description="Train a small draft for any Llama-architecture target, on text that the target writes itself. The "
        "draft borrows the target's embedding and output head, so only its layers are trained and stored. You can "
        "stop with Ctrl-C at any time; the same command resumes.",
    )
    parser.add_argument("target", metavar="TARGET", help=REF_HELP)
    parser.add_argument("--out", metavar="FOLDER", required=True, help="folder to write the draft to")
    parser.add_argument(
        "--work", metavar="FOLDER", help="folder for texts and checkpoints (default: that of --out, with -work added)"
    )
    add_count(parser, "--layers", 2, "layers of the draft")
    add_count(parser, "--vocabulary", 8192, "ids that the draft proposes: the target's most frequent ones")
    add_count(parser, "--texts", 1920, "texts that the target writes")
    add_count(parser, "--length", 400, "maximum length of a text in tokens, prompt and answer")
    add_count(parser, "--batch", 192, "texts that are written at the same time")
    parser.add_argument(
        "--texts-from",
        metavar="FILE.npz",
        help="start with existing texts: arrays ids, answer_start and answer_temperature",
    )
    parser.add_argument(
        "--minutes", metavar="M", type=positive_number, default=60.0, help="time to train (default: 60)"
    )
    add_count(parser, "--threads", None, "processor threads (default: all)")
    add_settings(parser, "seed")


def execute(args: argparse.Namespace) -> int:
    """Distil, and return the exit code.

    Raises:
        OutriderError: the target can't be loaded or is of an unsupported kind, or a folder can't be written.
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
    """Whether there is a C++ compiler, which makes training several times faster."""
    return any(shutil.which(name) for name in ("g++", "clang++", "cl"))
