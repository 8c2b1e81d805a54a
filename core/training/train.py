"""Pre-training with next-token cross-entropy: the target, and the draft before its distillation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaForCausalLM

from core.training.data import BLOCK, Tokens, block_count, blocks_of_step, read_blocks
from core.training.model import next_token_loss, rope_for


@dataclass(frozen=True)
class Budget:
    """Training ends after `tokens`, or `seconds` of wall clock over all resumed runs, whichever is first."""

    tokens: int | None = None
    seconds: float | None = None

    def progress(self, tokens: int, seconds: float) -> float:
        """Share of the budget that is used, 0 to 1."""
        shares = [used / limit for used, limit in ((tokens, self.tokens), (seconds, self.seconds)) if limit]
        if not shares:
            raise ValueError("a budget needs tokens, seconds or both")
        return min(1.0, max(shares))


@dataclass(frozen=True)
class Schedule:
    """Warm-up over `warmup_steps`, constant until `decay_from` of the budget, then linear to zero."""

    warmup_steps: int = 100
    decay_from: float = 0.45

    def scale(self, step: int, progress: float) -> float:
        return min(1.0, (step + 1) / self.warmup_steps) * min(1.0, (1.0 - progress) / (1.0 - self.decay_from))


@dataclass
class Optimizers:
    """Muon (Jordan et al. 2024) for the layers' matrices, AdamW for the embedding (also the head) and the norms."""

    model: LlamaForCausalLM
    matrix_lr: float = 3e-3
    embedding_lr: float = 3e-3
    clip: float = 1.0
    _all: list[Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and ".layers." in name]
        others = [p for name, p in named if not (p.ndim == 2 and ".layers." in name)]
        self._all = [
            Muon(matrices, lr=self.matrix_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, lr=self.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    def step(self, scale: float) -> float:
        """One update at `scale` times the base rates; returns the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for optimizer, lr in zip(self._all, (self.matrix_lr, self.embedding_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


@dataclass
class Progress:
    """Where a training run stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save_checkpoint(path: Path, model: LlamaForCausalLM, optimizers: Optimizers, progress: Progress) -> None:
    """Written beside, then renamed: a checkpoint is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    state = {
        "config": model.config.to_dict(),
        "model": model.state_dict(),
        "optimizers": optimizers.state_dict(),
        "progress": vars(progress),
    }
    torch.save(state, part)
    os.replace(part, path)


def load_checkpoint(path: Path, model: LlamaForCausalLM, optimizers: Optimizers | None = None) -> Progress:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    if optimizers is not None:
        optimizers.load_state_dict(state["optimizers"])
    return Progress(**state["progress"])


class Stopwatch:
    """Wall clock since the last lap, in seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        return elapsed


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
