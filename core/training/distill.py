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
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.training.data import BLOCK, Tokens, block_count, blocks_of_step, read_blocks
from core.training.model import hidden_states, logits_of, rope_for
from core.training.rollout import continuations
from core.training.train import Budget, Optimizers, Progress, Schedule, Stopwatch, load_checkpoint, save_checkpoint

States = npt.NDArray[np.float16]


@dataclass(frozen=True)
class DistillSettings:
    """TV's weight in the loss rises from 0 to 1 between the two shares of the budget in `tv_ramp`."""

    budget: Budget
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_steps=50, decay_from=0.4))
    matrix_lr: float = 3e-3
    embedding_lr: float = 3e-3
    tv_ramp: tuple[float, float] = (0.3, 0.7)
    blocks_per_step: int = 4
    seed: int = 0
    compile: bool = True
    checkpoint_seconds: float = 120.0
    log_every: int = 50


def overlap(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """sum(min(p, q)) over the last dimension: the probability that a drafted token is accepted."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def distillation_loss(
    draft: LlamaForCausalLM, ids: Tensor, states: Tensor, head: Tensor, tv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean over positions of (1 - tv) KL(p || q) + tv 2 TV(p, q), and of the acceptance 1 - TV.

    ids (batch, length); the target's p comes from its final states (batch, length, hidden) and its head
    (vocabulary, hidden); tv is a scalar tensor: no recompilation.
    """
    log_p = functional.linear(states, head).float().log_softmax(-1)
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


def distillation_stream(rollouts: Tokens, train: Tokens, corpus_blocks: int, seed: int) -> Tokens:
    """One stream: the rollouts' whole blocks, then `corpus_blocks` of the training stream, drawn without repeats."""
    drawn = np.random.default_rng(seed).permutation(block_count(train))[:corpus_blocks]
    corpus = [train[b * BLOCK : (b + 1) * BLOCK] for b in drawn]
    return np.concatenate([rollouts[: block_count(rollouts) * BLOCK], *corpus, np.zeros(1, dtype=np.uint16)])


@torch.no_grad()
def write_states(
    target: LlamaForCausalLM,
    stream: Tokens,
    path: Path,
    *,
    blocks_per_pass: int = 8,
    compiled: bool = True,
    log: Callable[[str], None] = print,
) -> None:
    """The target's final states at every position of the stream, float16 (blocks, BLOCK, hidden), computed once."""
    forward = torch.compile(hidden_states, dynamic=False) if compiled else hidden_states
    total = block_count(stream) // blocks_per_pass * blocks_per_pass
    shape = (total, BLOCK, target.config.hidden_size)
    states = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    cos, sin = rope_for(target, BLOCK)
    for start in range(0, total, blocks_per_pass):
        ids, _ = read_blocks(stream, range(start, start + blocks_per_pass), BLOCK)
        states[start : start + blocks_per_pass] = forward(target, ids, cos, sin).half().numpy()
        if start % (blocks_per_pass * 20) == 0:
            log(f"states {start} of {total} blocks")
    states.flush()


def tv_weight(ramp: tuple[float, float], progress: float) -> float:
    return min(1.0, max(0.0, (progress - ramp[0]) / (ramp[1] - ramp[0])))


def distill(
    draft: LlamaForCausalLM,
    target_head: Tensor,
    stream: Tokens,
    states: States,
    settings: DistillSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Trains the draft in place until the budget is used, going on from `checkpoint` if it exists.

    target_head (vocabulary, hidden) turns `states`, which write_states made of the stream, into the target's logits.
    """
    optimizers = Optimizers(draft, settings.matrix_lr, settings.embedding_lr)
    progress = load_checkpoint(checkpoint, draft, optimizers) if checkpoint.exists() else Progress()
    loss_fn = torch.compile(distillation_loss, dynamic=False) if settings.compile else distillation_loss
    head = target_head.detach().bfloat16()
    cos, sin = rope_for(draft, BLOCK)
    clock, since_save, recent = Stopwatch(), 0.0, []
    while (share := settings.budget.progress(progress.tokens, progress.seconds)) < 1.0:
        blocks = blocks_of_step(len(states), settings.blocks_per_step, progress.step, settings.seed)
        ids, _ = read_blocks(stream, blocks, BLOCK)
        wanted = torch.from_numpy(states[blocks]).bfloat16()
        tv = torch.tensor(tv_weight(settings.tv_ramp, share))
        loss, acceptance = loss_fn(draft, ids, wanted, head, tv, cos, sin)
        loss.backward()
        optimizers.step(settings.schedule.scale(progress.step, share))
        recent.append(float(acceptance))
        elapsed = clock.lap()
        progress.step += 1
        progress.tokens += ids.numel()
        progress.seconds += elapsed
        since_save += elapsed
        if progress.step % settings.log_every == 0:
            log(
                f"step {progress.step} tokens {progress.tokens / 1e6:.2f}M acceptance {sum(recent) / len(recent):.4f} "
                f"tv {float(tv):.2f} tokens/s {ids.numel() / elapsed:.0f} "
                f"seconds {progress.seconds:.0f} of budget {share:.3f}"
            )
            recent = []
        if since_save > settings.checkpoint_seconds:
            save_checkpoint(checkpoint, draft, optimizers, progress)
            since_save = 0.0
    save_checkpoint(checkpoint, draft, optimizers, progress)
    return progress
