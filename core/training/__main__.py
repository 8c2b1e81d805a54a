"""Trains the embedded pair, stage by stage; see resources/models/README.md for the commands that made it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, EMBEDDED
from core.training.corpus import VOCAB_SIZE, WHEELS, collect, read_all, split
from core.training.data import load_held_out, load_stream, prepare, prepared_tokenizer
from core.training.distill import distill, distillation_stream, generate_rollouts, write_states
from core.training.evaluate import evaluate
from core.training.model import export, load_model, new_model
from core.training.train import LENGTHS, TrainSettings, pretrain

INIT_SEEDS = {"target": 1234, "draft": 4321}
FOLDERS = {"target": DEFAULT_TARGET, "draft": DEFAULT_DRAFT}

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
    is_target = args.model == "target"
    settings = TrainSettings(args.tokens, args.seconds, decay_from=0.45 if is_target else 0.8, seed=args.seed)
    model = new_model(args.model, len(prepared_tokenizer(data)), INIT_SEEDS[args.model] + args.seed)
    streams = load_stream(data, "train"), load_stream(data, "validation")
    lengths = LENGTHS if is_target else ((0.0, 512),)
    say(pretrain(model, *streams, settings, args.work / f"{args.model}.pt", say, lengths=lengths))


def run_rollouts(args: Args) -> None:
    target = load_model(args.work / "target.pt")
    training = load_stream(args.work / "data", "train")
    np.save(args.work / "rollouts.npy", generate_rollouts(target, training, args.count, seed=args.seed, log=say))


def run_states(args: Args) -> None:
    target = load_model(args.work / "target.pt")
    training, rollouts = load_stream(args.work / "data", "train"), load_stream(args.work, "rollouts")
    stream = distillation_stream(rollouts, training, args.corpus_blocks, args.seed)
    np.save(args.work / "distillation.npy", stream)
    write_states(target, stream, args.work / "states.npy", log=say)


def run_distill(args: Args) -> None:
    head = load_model(args.work / "target.pt").lm_head.weight
    draft = load_model(args.work / "draft.pt")
    states = np.load(args.work / "states.npy", mmap_mode="r")
    settings = TrainSettings(args.tokens, args.seconds, 50, 0.4, per_step=4, seed=args.seed, log_every=50)
    stream = load_stream(args.work, "distillation")
    say(distill(draft, head, stream, states, settings, args.work / "distilled.pt", say))


def run_export(args: Args) -> None:
    tokenizer = prepared_tokenizer(args.work / "data")
    for shape, checkpoint in (("target", "target.pt"), ("draft", "distilled.pt")):
        export(load_model(args.work / checkpoint), tokenizer, args.out / FOLDERS[shape])


def run_evaluate(args: Args) -> None:
    data = args.work / "data"
    target, draft = (load_model(args.out / FOLDERS[shape]) for shape in ("target", "draft"))
    tokenizer, stream = prepared_tokenizer(data), load_stream(data, "validation")
    say(json.dumps(evaluate(target, draft, tokenizer, load_held_out(data), stream, max_blocks=args.blocks), indent=1))


STAGES: dict[str, Callable[[Args], None]] = {
    "sources": run_sources,
    "prepare": run_prepare,
    "pretrain": run_pretrain,
    "rollouts": run_rollouts,
    "states": run_states,
    "distill": run_distill,
    "export": run_export,
    "evaluate": run_evaluate,
}


def parser() -> argparse.ArgumentParser:
    """The command line; each flag names the stage that reads it."""
    flags = argparse.ArgumentParser(prog="python -m core.training", description=__doc__)
    flags.add_argument("stage", choices=STAGES)
    flags.add_argument("model", nargs="?", default="target", choices=("target", "draft"), help="what to pretrain")
    flags.add_argument("--work", type=Path, default=Path("build/training"), help="folder for data and checkpoints")
    flags.add_argument("--out", type=Path, default=EMBEDDED, help="folder to write the pair to")
    flags.add_argument("--threads", type=int, default=2, help="processor threads")
    flags.add_argument("--seed", type=int, default=0, help="seed of data order, sampling and initialisation")
    flags.add_argument("--wheels", type=Path, default=Path("wheels"), help="prepare: folder of the pinned wheels")
    flags.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="prepare: size of the vocabulary")
    flags.add_argument("--tokens", type=int, help="pretrain, distill: stop after this many tokens")
    flags.add_argument("--seconds", type=float, help="pretrain, distill: or after this much wall clock time")
    flags.add_argument("--count", type=int, default=8192, help="rollouts: number of sequences of 512 tokens")
    flags.add_argument("--corpus-blocks", type=int, default=2048, help="states: blocks of 1024 corpus tokens to add")
    flags.add_argument("--blocks", type=int, help="evaluate: blocks of 1024 tokens for the perplexities (default: all)")
    return flags


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    STAGES[args.stage](args)


if __name__ == "__main__":
    main()
