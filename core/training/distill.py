"""Distils the draft from the target, on corpus text and on the target's own continuations.

What speculative sampling accepts at a position is the overlap sum(min(p, q)) = 1 - TV(p, q) (Leviathan et al. 2023,
theorem 3.5). Training starts with forward KL on the full distribution, whose gradient reaches every token, and moves to
TV itself (DistillSpec, Zhou et al. 2023, compares the two).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from core.training.data import Tokens, block_count, blocks_of_step, read_blocks
from core.training.forward import hidden_states, logits_of
from core.training.optim import Budget, Optimizers, Progress, Schedule, Stopwatch, load_checkpoint, save_checkpoint
from core.training.rollout import continuations
from core.training.train import length_at, rope_for


@dataclass(frozen=True)
class DistillSettings:
    """`rollout_share` of the steps read the target's own text, the others the corpus.

    TV's weight in the loss rises from 0 to 1 between the two shares of the budget in `tv_ramp`.
    """

    budget: Budget
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_steps=50, decay_from=0.4))
    matrix_lr: float = 3e-3
    embedding_lr: float = 3e-3
    rollout_share: float = 0.7
    tv_ramp: tuple[float, float] = (0.3, 0.7)
    lengths: tuple[tuple[float, int], ...] = ((0.0, 512), (0.85, 1024))
    blocks_per_step: int = 8
    seed: int = 0
    compile: bool = True
    checkpoint_seconds: float = 120.0
    log_every: int = 20


def overlap(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """sum(min(p, q)) over the last dimension: the probability that a drafted token is accepted."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def distillation_loss(
    draft: LlamaForCausalLM, ids: Tensor, target_logits: Tensor, tv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean over positions of (1 - tv) KL(p || q) + tv 2 TV(p, q), and of the acceptance 1 - TV.

    ids (batch, length); target_logits (batch, length, vocabulary); tv is a scalar tensor: no recompilation.
    """
    log_p = target_logits.float().log_softmax(-1)
    log_q = logits_of(draft, hidden_states(draft, ids, cos, sin)).float().log_softmax(-1)
    p = log_p.exp()
    divergence = (p * (log_p - log_q)).sum(-1).mean()
    acceptance = overlap(p, log_q.exp()).mean()
    return (1 - tv) * divergence + tv * 2 * (1 - acceptance), acceptance.detach()


def generate_rollouts(
    target: LlamaForCausalLM,
    train: Tokens,
    count: int,
    *,
    seed: int,
    batch: int = 128,
    length: int = 512,
    max_prompt: int = 192,
    temperatures: tuple[float, ...] = (1.0, 1.0, 1.0, 0.8, 0.6),
    log: Callable[[str], None] = print,
) -> Tokens:
    """The target's continuations of training text: `count` rows of `length` tokens, prompt included, in one stream.

    Each batch has its own prompt length, 16 to max_prompt; sequences take the temperatures in turn.
    """
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    temperature = torch.tensor([temperatures[i % len(temperatures)] for i in range(batch)])
    rows: list[Tensor] = []
    while len(rows) * batch < count:
        prompt_length = int(rng.integers(16, max_prompt + 1))
        starts = rng.integers(0, len(train) - prompt_length, batch)
        prompts = torch.from_numpy(np.stack([train[s : s + prompt_length] for s in starts]).astype(np.int64))
        rows.append(continuations(target, prompts, length - prompt_length, temperature, generator))
        log(f"rollouts {len(rows) * batch} of {count}")
    flat = torch.cat(rows)[:count].flatten().numpy().astype(np.uint16)
    return np.concatenate([flat, np.zeros(1, dtype=np.uint16)])


def tv_weight(ramp: tuple[float, float], progress: float) -> float:
    return min(1.0, max(0.0, (progress - ramp[0]) / (ramp[1] - ramp[0])))


def distill(
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    train: Tokens,
    rollouts: Tokens,
    settings: DistillSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Trains the draft in place until the budget is used, going on from `checkpoint` if it exists."""
    optimizers = Optimizers(draft, settings.matrix_lr, settings.embedding_lr)
    progress = load_checkpoint(checkpoint, draft, optimizers) if checkpoint.exists() else Progress()
    student, teacher = distillation_loss, hidden_states
    if settings.compile:
        student, teacher = torch.compile(student, dynamic=False), torch.compile(teacher, dynamic=False)
    target.requires_grad_(False)
    clock, since_save, recent = Stopwatch(), 0.0, []
    while (share := settings.budget.progress(progress.tokens, progress.seconds)) < 1.0:
        length = length_at(settings.lengths, share)
        own_text = np.random.default_rng([settings.seed, progress.step]).random() < settings.rollout_share
        stream = rollouts if own_text else train
        blocks = blocks_of_step(block_count(stream), settings.blocks_per_step, progress.step, settings.seed)
        ids, _ = read_blocks(stream, blocks, length)
        with torch.no_grad():
            target_logits = logits_of(target, teacher(target, ids, *rope_for(target, length)))
        tv = torch.tensor(tv_weight(settings.tv_ramp, share))
        loss, acceptance = student(draft, ids, target_logits, tv, *rope_for(draft, length))
        loss.backward()
        optimizers.step(settings.schedule.scale(progress.step, share))
        recent.append((own_text, float(acceptance)))
        elapsed = clock.lap()
        progress.step += 1
        progress.tokens += ids.numel()
        progress.seconds += elapsed
        since_save += elapsed
        if progress.step % settings.log_every == 0:
            own = [a for is_own, a in recent if is_own] or [float("nan")]
            corpus = [a for is_own, a in recent if not is_own] or [float("nan")]
            recent = []
            log(
                f"step {progress.step} tokens {progress.tokens / 1e6:.2f}M own text {sum(own) / len(own):.4f} "
                f"corpus {sum(corpus) / len(corpus):.4f} tv {float(tv):.2f} "
                f"tokens/s {ids.numel() / elapsed:.0f} seconds {progress.seconds:.0f} of budget {share:.3f}"
            )
        if since_save > settings.checkpoint_seconds:
            save_checkpoint(checkpoint, draft, optimizers, progress)
            since_save = 0.0
    save_checkpoint(checkpoint, draft, optimizers, progress)
    return progress
