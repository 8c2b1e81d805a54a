"""Pre-training with next-token cross-entropy: the target, and the draft before its distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from core.training.data import BLOCK, Tokens, block_count, blocks_of_step, read_blocks
from core.training.forward import next_token_loss, rope_for
from core.training.optim import Budget, Optimizers, Progress, Schedule, Stopwatch, load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class TrainSettings:
    """`lengths` maps the share of the budget from which a sequence length is used to that length, in rising order."""

    budget: Budget
    schedule: Schedule = field(default_factory=Schedule)
    lengths: tuple[tuple[float, int], ...] = ((0.0, 256), (0.5, 512), (0.85, 1024))
    blocks_per_step: int = 8
    seed: int = 0
    compile: bool = True
    checkpoint_seconds: float = 120.0
    evaluate_every: int = 250
    log_every: int = 20


def length_at(lengths: tuple[tuple[float, int], ...], progress: float) -> int:
    return [length for start, length in lengths if start <= progress][-1]


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, stream: Tokens, max_blocks: int | None = None) -> float:
    """Mean nats per token over the stream's whole blocks (the first max_blocks of them), context up to BLOCK."""
    cos, sin = rope_for(model, BLOCK)
    total = min(block_count(stream), max_blocks or block_count(stream))
    losses = []
    for b in range(total):
        ids, targets = read_blocks(stream, [b], BLOCK)
        losses.append(float(next_token_loss(model, ids, targets, cos, sin)))
    return sum(losses) / len(losses)


def pretrain(
    model: LlamaForCausalLM,
    train: Tokens,
    validation: Tokens,
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Trains in place until the budget is used, from `checkpoint` if it exists; the last state is saved there."""
    optimizers = Optimizers(model)
    progress = load_checkpoint(checkpoint, model, optimizers) if checkpoint.exists() else Progress()
    loss_fn = torch.compile(next_token_loss, dynamic=False) if settings.compile else next_token_loss
    total = block_count(train)
    clock, since_save, recent = Stopwatch(), 0.0, []
    while (share := settings.budget.progress(progress.tokens, progress.seconds)) < 1.0:
        length = length_at(settings.lengths, share)
        blocks = blocks_of_step(total, settings.blocks_per_step, progress.step, settings.seed)
        ids, targets = read_blocks(train, blocks, length)
        loss = loss_fn(model, ids, targets, *rope_for(model, length))
        loss.backward()
        norm = optimizers.step(settings.schedule.scale(progress.step, share))
        recent.append(float(loss.detach()))
        elapsed = clock.lap()
        progress.step += 1
        progress.tokens += ids.numel()
        progress.seconds += elapsed
        since_save += elapsed
        if progress.step % settings.log_every == 0:
            mean = sum(recent) / len(recent)
            recent = []
            log(
                f"step {progress.step} tokens {progress.tokens / 1e6:.2f}M length {length} "
                f"loss {mean:.4f} norm {norm:.2f} tokens/s {ids.numel() / elapsed:.0f} "
                f"seconds {progress.seconds:.0f} of budget {share:.3f}"
            )
        if progress.step % settings.evaluate_every == 0:
            log(f"step {progress.step} validation {validation_loss(model, validation, 24):.4f}")
        if since_save > settings.checkpoint_seconds:
            save_checkpoint(checkpoint, model, optimizers, progress)
            since_save = 0.0
    save_checkpoint(checkpoint, model, optimizers, progress)
    return progress
