"""What the target says of texts that it reads, kept on disk so that training never runs the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from core.distill.texts import Part, Texts, save_part
from core.training.forward import hidden_states, logits_of, rope_for


@torch.no_grad()
def write_part(
    target: Any,
    texts: Texts,
    path: Path,
    *,
    rows_per_pass: int = 8,
    compiled: bool = True,
    check_cancelled: Callable[[], None] = lambda: None,
) -> None:
    """Run the target over texts, and keep both as a folder at `path`, whole or not at all."""
    forward, normalise = hidden_states, log_normaliser
    if compiled:
        forward, normalise = torch.compile(forward, dynamic=False), torch.compile(normalise, dynamic=False)
    rows, length = texts.ids.shape
    states = np.zeros((rows, length, target.config.hidden_size), dtype=np.float16)
    log_norms = np.zeros((rows, length), dtype=np.float32)
    cos, sin = rope_for(target, length)
    for start in range(0, rows, rows_per_pass):
        check_cancelled()
        # The last rows are read twice rather than a shorter batch compiled.
        at = slice(max(0, min(start, rows - rows_per_pass)), start + rows_per_pass)
        ids = torch.from_numpy(texts.ids[at].astype(np.int64))
        hidden = forward(target, ids, cos, sin)
        states[at] = hidden.half().numpy()
        for row, wanted in zip(range(rows)[at], hidden, strict=True):
            log_norms[row] = normalise(target, wanted).numpy()
    save_part(Part(texts, states, log_norms), path)


def log_normaliser(target: Any, states: torch.Tensor) -> torch.Tensor:
    """(n,) log of the softmax's denominator over the target's whole vocabulary, for final states (n, hidden)."""
    return logits_of(target, states).float().logsumexp(-1)


def target_log_probs(states: torch.Tensor, log_norms: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """(..., R) log-probabilities of the ids whose rows of the head (R, hidden) are given."""
    return functional.linear(states, head).float() - log_norms[..., None]


def frequent_ids(parts: Iterator[Texts], size: int, vocab_size: int, always: frozenset[int]) -> list[int]:
    """The `size` ids that come up most often in the texts, those of `always` among them, in ascending order."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for texts in parts:
        columns = np.arange(texts.ids.shape[1])
        counts += np.bincount(texts.ids[columns < texts.end[:, None]], minlength=vocab_size)[:vocab_size]
    counts[sorted(always)] = np.iinfo(np.int64).max
    return sorted(int(token) for token in np.argsort(-counts, kind="stable")[:size])
