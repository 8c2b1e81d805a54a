"""Measures the embedded pair: perplexity, acceptance on the target's own continuations, and the time of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from core.sampling import probabilities
from core.settings import SamplingParams
from core.training.corpus import Document
from core.training.data import BLOCK, Tokens, block_count
from core.training.model import BatchDecoder, continuations
from core.training.train import overlap, validation_loss

TEMPERATURES = (0.0, 0.5, 0.8, 1.0)
PROMPTS, PROMPT_TOKENS, NEW_TOKENS, SEED = 96, 128, 128, 7
CONTEXT, REPEATS = 256, 60
"""The prompts of the acceptance, their tokens and the new ones; the cached tokens of a timed step, and its repeats."""


def held_out_prompts(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """(PROMPTS, PROMPT_TOKENS) ids: windows of held-out Python files that start at a line, a few from one file."""
    rng = np.random.default_rng(SEED)
    prompts: list[list[int]] = []
    sources = [each for each in documents if each.path.endswith(".py") and len(each.text) > 8 * PROMPT_TOKENS]
    while len(prompts) < PROMPTS:
        document = sources[len(prompts) % len(sources)]
        lines = document.text.splitlines(keepends=True)
        text = "".join(lines[int(rng.integers(0, max(1, len(lines) // 2))) :])
        ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) >= PROMPT_TOKENS:
            prompts.append(ids[:PROMPT_TOKENS])
    return torch.tensor(prompts)


@torch.no_grad()
def acceptance(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: Tensor,
    *,
    new_tokens: int,
    temperature: float,
    seed: int,
) -> dict[str, float]:
    """Mean sum(min(p, q)) over the target's own text, both at this temperature in float32; sd is between prompts."""
    generator = torch.Generator().manual_seed(seed)
    ids = continuations(target, prompts, new_tokens, torch.full((len(prompts),), temperature), generator, torch.float32)
    sampling, means = SamplingParams(temperature=temperature), list[float]()
    for row in ids.split(8):
        at = slice(prompts.shape[1] - 1, -1)
        p, q = (probabilities(model(row).logits[:, at], sampling) for model in (target, draft))
        means += overlap(p, q).mean(-1).tolist()
    return {
        "temperature": temperature,
        "positions": len(means) * new_tokens,
        "acceptance": float(np.mean(means)),
        "by_prompt_sd": float(np.std(means)),
    }


@torch.no_grad()
def step_ms(model: LlamaForCausalLM) -> float:
    """Median milliseconds of one cached single-token step at batch 1 in float32."""
    decoder = BatchDecoder(model, 1, CONTEXT + REPEATS, torch.float32)
    decoder(torch.zeros(1, CONTEXT, dtype=torch.long))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        decoder(torch.zeros(1, 1, dtype=torch.long))
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def evaluate(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[Document],
    stream: Tokens,
    *,
    max_blocks: int | None = None,
) -> dict[str, object]:
    """Every figure of the model card."""
    starts = held_out_prompts(documents, tokenizer)
    pair = {"target": target, "draft": draft}
    timings = {name: step_ms(model) for name, model in pair.items()}
    return {
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in pair.items()},
        "perplexity_tokens": min(block_count(stream), max_blocks or block_count(stream)) * BLOCK,
        "perplexity": {
            name: math.exp(validation_loss(model, stream, max_blocks, torch.float32)) for name, model in pair.items()
        },
        "acceptance": [
            acceptance(target, draft, starts, new_tokens=NEW_TOKENS, temperature=t, seed=SEED) for t in TEMPERATURES
        ],
        "step_ms": timings,
        "cost_coefficient": timings["draft"] / timings["target"],
        "threads": torch.get_num_threads(),
    }
