"""Distils the embedded draft from its target, on corpus text and on the target's own continuations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.training.data import BLOCK, Tokens, block_count, items_of_step, read_blocks
from core.training.model import ARITHMETIC, continuations, hidden_states, logits_of, rope_for
from core.training.train import Progress, Step, TrainSettings, kl_tv_loss, train, tv_weight

States = npt.NDArray[np.float16]

TEMPERATURES = (1.0, 1.0, 1.0, 0.8, 0.6)
"""Of a batch's rollouts, cycled by row."""


def generate_rollouts(
    target: LlamaForCausalLM,
    training: Tokens,
    count: int,
    *,
    seed: int,
    batch: int = 128,
    length: int = 512,
    max_prompt: int = 192,
    log: Callable[[str], None] = print,
) -> Tokens:
    """The target's continuations of training text: `count` rows of `length` tokens, prompt included, in one stream.

    Each batch has its own prompt length, 16 to max_prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    temperature = torch.tensor([TEMPERATURES[i % len(TEMPERATURES)] for i in range(batch)])
    rows: list[Tensor] = []
    while len(rows) * batch < count:
        prompt_length = int(rng.integers(16, max_prompt + 1))
        starts = rng.integers(0, len(training) - prompt_length, batch)
        prompts = torch.from_numpy(np.stack([training[s : s + prompt_length] for s in starts]).astype(np.int64))
        rows.append(continuations(target, prompts, length - prompt_length, temperature, generator))
        log(f"rollouts {len(rows) * batch} of {count}")
    flat = torch.cat(rows)[:count].flatten().numpy().astype(np.uint16)
    return np.concatenate([flat, np.zeros(1, dtype=np.uint16)])


def distillation_stream(rollouts: Tokens, training: Tokens, corpus_blocks: int, seed: int) -> Tokens:
    """One stream: the rollouts' whole blocks, then `corpus_blocks` of the training stream, drawn without repeats."""
    drawn = np.random.default_rng(seed).permutation(block_count(training))[:corpus_blocks]
    corpus = [training[b * BLOCK : (b + 1) * BLOCK] for b in drawn]
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
    """Write the target's final states at every position of the stream: float16 (blocks, BLOCK, hidden)."""
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


def distill(
    draft: LlamaForCausalLM,
    target_head: Tensor,
    stream: Tokens,
    states: States,
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Train the draft in place on the states that `write_states` made of the stream.

    target_head (vocabulary, hidden) turns the states into the target's logits.
    """

    def loss(ids: Tensor, wanted: Tensor, tv: Tensor) -> tuple[Tensor, Tensor]:
        log_p = functional.linear(wanted, head).float().log_softmax(-1)
        log_q = logits_of(draft, hidden_states(draft, ids, cos, sin)).float().log_softmax(-1)
        return kl_tv_loss(log_p, log_q, tv, torch.ones(ids.shape))

    loss_fn = torch.compile(loss, dynamic=False) if settings.compile else loss
    head = target_head.detach().to(ARITHMETIC)
    cos, sin = rope_for(draft, BLOCK)

    def compute(step: int, share: float) -> Step:
        blocks = items_of_step(len(states), settings.per_step, step, settings.seed)
        ids, _ = read_blocks(stream, blocks, BLOCK)
        wanted = torch.from_numpy(states[blocks]).to(ARITHMETIC)
        return *loss_fn(ids, wanted, tv_weight((0.3, 0.7), share)), ids.numel()

    return train(draft, compute, settings, checkpoint, log, reports="acceptance")
