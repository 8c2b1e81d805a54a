"""What the target says of every position of its texts, kept on disk so that training never runs the target.

Kept are the target's final states and the logarithm of its softmax's denominator over the whole vocabulary: with the
head's rows of any ids, they give the exact probabilities of those ids.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from core.distill.self_play import Texts
from core.errors import ModelUnreadableError
from core.training.forward import hidden_states, logits_of, rope_for


@dataclass(frozen=True, slots=True)
class Part:
    """Texts with what the target says of them.

    Attributes:
        texts: rows of ids.
        states: (rows, length, hidden) float16, the target's final normed states.
        log_norms: (rows, length) float32, log of the sum of exp(logits).
    """

    texts: Texts
    states: npt.NDArray[np.float16]
    log_norms: npt.NDArray[np.float32]


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
    scratch = path.with_name(f".{path.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    arrays = {"states": states, "log_norms": log_norms, "ids": texts.ids, "answer_start": texts.answer_start}
    try:
        for name, array in (arrays | {"end": texts.end, "temperature": texts.temperature}).items():
            np.save(scratch / f"{name}.npy", array)
        os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def log_normaliser(target: Any, states: torch.Tensor) -> torch.Tensor:
    """(n,) log of the softmax's denominator over the target's whole vocabulary, for final states (n, hidden)."""
    return logits_of(target, states).float().logsumexp(-1)


def read_part(path: Path) -> Part:
    """A folder of `write_part`; the states stay on disk until they are read.

    Raises:
        ModelUnreadableError: it is damaged.
    """
    names = ("ids", "answer_start", "end", "temperature", "log_norms")
    try:
        ids, answer_start, end, temperature, log_norms = (np.load(path / f"{name}.npy") for name in names)
        states = np.load(path / "states.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ModelUnreadableError(f"The texts in {str(path)!r} are damaged. Delete that folder.") from error
    return Part(Texts(ids, answer_start, end, temperature), states, log_norms)


def parts_in(folder: Path) -> list[Path]:
    """The parts written so far, oldest first."""
    return sorted(folder.glob("part-*"))


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
