"""`outrider distill`: train a draft, or Medusa heads, for your own target."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import Exit, OutputError, say, stop_on_interrupt, write_output
from app.cli.parsing import (
    REF_HELP,
    add_command,
    add_settings,
    option,
    positive_number,
    positive_whole_number,
    small_seed,
)
from core.analysis.steadiness import interval_text
from core.errors import OutOfMemoryError
from core.files import explain_write_error
from core.settings import MAX_DRAFT_TOKENS, Device

if TYPE_CHECKING:
    from core.experiments.bench_plan import Spread
    from core.models.language_model import LanguageModel

PROMPT = "Why is the sky blue?"


def add_parser(commands: Any) -> None:
    """Register `distill` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "distill",
        execute,
        help="train a draft or Medusa heads for a target",
        description="Train a small draft, or Medusa heads, for any Llama-architecture target, on text that the target "
        "writes itself. Both borrow the target's embedding and output head, so only their layers are trained and "
        "stored. It trains on CUDA if there is a GPU, else on the CPU. You can stop with Ctrl-C at any time; the same "
        "command resumes.",
        examples=(
            "outrider distill TARGET --out my-drafter --minutes 60",
            "outrider distill TARGET --kind medusa --out my-heads",
        ),
    )
    option(parser, "TARGET", f"the target: {REF_HELP}")
    option(parser, "--out FOLDER", "folder to write the result to", required=True)
    text = "draft, a model of a few layers, or medusa, heads on the target's states"
    option(parser, "--kind KIND", text, default="draft", choices=("draft", "medusa"))
    option(parser, "--work FOLDER", "folder for texts and checkpoints (default: that of --out, with -work added)")
    option(parser, "--layers N", "layers of the draft, or blocks of each head", positive_whole_number, 2)
    option(parser, "--heads N", "Medusa heads", positive_whole_number, 3)
    text = "how many ids to propose: the target's most frequent ones"
    option(parser, "--vocabulary N", text, positive_whole_number, 8192)
    option(parser, "--texts N", "texts that the target writes, in whole batches", positive_whole_number, 1920)
    option(parser, "--length N", "maximum length of a text in tokens, prompt and answer", positive_whole_number, 400)
    option(parser, "--batch N", "texts written in parallel", positive_whole_number, 192)
    option(parser, "--texts-from FILE.npz", "start with existing texts: ids, answer_start, answer_temperature")
    option(parser, "--minutes M", "time to train", positive_number, 60.0)
    add_settings(parser, "device")
    option(parser, "--threads N", "processor threads (default: all)", positive_whole_number)
    option(parser, "--seed N", "random seed", small_seed, 0)


@stop_on_interrupt()
def execute(args: argparse.Namespace) -> int:
    """Distil, and return the exit code."""
    import torch

    from core.distill.pipeline import DistillSettings, Kind, check_destination, distill, expected_speedup
    from core.distill.self_play import PlaySettings
    from core.distill.student import check_target
    from core.export.engines.common import local_command
    from core.models import load
    from core.models.devices import is_out_of_memory
    from core.training.train import TrainSettings

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    out = Path(args.out)
    work = Path(f"{out}-work" if args.work is None else args.work)
    kind = Kind(args.kind)
    check_destination(out, work, kind)
    if args.device is Device.AUTO and not torch.cuda.is_available():
        args.device = Device.CPU  # Nothing has been trained on MPS yet.
    say(f"Loading {args.target}…")
    target = load(args.target, args.device, "float32")
    check_target(target.model)
    is_on_cpu = target.device.type == "cpu"
    # Heads are trained as they are; only the target's reading of given texts is compiled for them.
    compiles = is_on_cpu and (kind is Kind.DRAFT or args.texts_from is not None) and can_compile()
    if is_on_cpu and kind is Kind.DRAFT and not compiles:
        package = " (python3-dev)" if sys.platform == "linux" else ""
        say(f"Without a working C++ compiler and Python's header files{package}, training is several times slower.")
    settings = DistillSettings(
        num_texts=args.texts,
        num_layers=args.layers,
        vocabulary_size=args.vocabulary,
        training=TrainSettings(
            seconds=60 * args.minutes,
            warmup_steps=30,
            decay_from=0.5,
            learning_rate=1e-3 if kind is Kind.MEDUSA else 2e-3,
            per_step=8 if is_on_cpu else 32,  # Which a GPU reads nearly as fast as 8.
            seed=args.seed,
            compile=compiles,
        ),
        start_from=None if args.texts_from is None else Path(args.texts_from),
        play=PlaySettings(rows=args.batch, length=args.length),
        seed=args.seed,
        kind=kind,
        num_heads=args.heads,
    )
    try:
        figures = distill(target, settings, work, out, say)
    except OSError as error:
        raise OutputError(explain_write_error(error, error.filename or work)) from error
    except Exception as error:
        if is_on_cpu or not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"The memory of {target.device} ran out. Give a smaller --batch, or --device cpu."
        ) from error
    for name, value in figures.items():
        say(f"held out, {name}: {value:.3f}")
    next_command, temperature = ["outrider", "run", "--target", args.target], "1"
    if kind is Kind.MEDUSA:
        k, measured = measured_speedup(target, out, args.heads)
        speedup, between = measured.median, f" ({interval_text(measured.extremes)} in two rounds)"
        source = "measured speedup, here with one prompt in float32"
        next_command += ["--method", "medusa", "--heads", str(out)]
    else:
        name, between = "acceptance at 1" if "acceptance at 1" in figures else next(iter(figures)), ""
        temperature = name.rpartition(" ")[2]
        k, speedup = expected_speedup(target, load(str(out), target=target), figures[name])
        source = "predicted speedup, from the acceptance above and both models' times here in float32"
        next_command += ["--draft", str(out)]
    found = (
        f"{speedup:.2f}× the speed of plain decoding at K = {k}{between}"
        if k
        else "no speedup; train longer, or use fewer layers"
    )
    say(f"{source}: {found}")
    next_command += ["-k", str(k or "auto"), "--temperature", temperature]
    next_command += ["--device", str(args.device), "--dtype", "float32", "--baseline", "--prompt", PROMPT]
    say(f"next: {local_command(next_command).rstrip()}")
    write_output(f"{out}\n")
    return Exit.DONE


def measured_speedup(target: LanguageModel, heads: Path, num_heads: int) -> tuple[int, Spread]:
    """The best K for Medusa heads, a chain or a tree, 0 for none, and its speedup in two rounds of a bench."""
    from core.drafters.base import DrafterSetup
    from core.drafters.medusa import MedusaDrafter
    from core.drafters.registry import MedusaOptions
    from core.experiments.api import measure
    from core.experiments.bench_plan import spread

    drafter = MedusaDrafter(DrafterSetup(target), MedusaOptions(heads=str(heads)))
    found = {0: spread([1.0])}
    for k in (num_heads, min(4 * num_heads, MAX_DRAFT_TOKENS)):
        found[k] = measure(target, drafter, [PROMPT], num_draft_tokens=k, temperature=1.0, rounds=2).speedup
    best = max(found, key=lambda k: found[k].median)
    return best, found[best]


def can_compile() -> bool:
    """Whether torch can compile for the CPU here, which makes training several times faster."""
    import torch

    has_compiler = any(shutil.which(name) for name in ("g++", "clang++", "cl"))
    # Missing headers, the usual state of Debian, would be noticed only after a long attempt.
    if not has_compiler or not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return False
    try:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        # torch would load what a stopped linker left, which makes a library executable once it is complete.
        for library in Path(cache_dir()).glob("*/*.so"):
            if not os.access(library, os.X_OK):
                library.unlink()
        torch.compile(lambda x: x + 1)(torch.ones(2))
    except Exception:  # Of many kinds, such as a compiler too old for torch's headers.
        return False
    return True
