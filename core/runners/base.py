"""The interface between engine and model: score a few tokens, and rewind the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

PREFILL_CHUNK = 512
"""Positions in one forward of the prefill, within which a stop takes effect."""


class ForwardOutput(NamedTuple):
    """Result of one forward over n tokens.

    Attributes:
        logits: (num_logits, V) in the model's dtype, for the last `num_logits` of the n tokens.
        hidden: (n, H) last hidden states, if requested.
    """

    logits: Tensor
    hidden: Tensor | None


class Runner(Protocol):
    """A model with its own key-value cache, for one text at a time."""

    @property
    def length(self) -> int:
        """Positions in the cache."""
        ...

    @property
    def capacity(self) -> int:
        """Positions that the cache has room for, within the model's context."""
        ...

    def forward(self, ids: Tensor, *, num_logits: int, with_hidden: bool = False) -> ForwardOutput:
        """Append `ids` (n,), n >= 1, and return the logits that follow the last `num_logits` of them."""
        ...

    def rewind(self, length: int) -> None:
        """Keep the first `length` positions, 0 <= length <= self.length, at no cost.

        Raises:
            ValueError: there are fewer.
        """
        ...


def check_rewind(length: int, current: int) -> None:
    """Raise ValueError if a cache of `current` positions can't be cut to `length`."""
    if not 0 <= length <= current:
        raise ValueError(f"Can't rewind a cache of {current} positions to {length}.")


def prefill(runner: Runner, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
    """Extend a runner's cache to `ids`, whose first `runner.length` it already holds."""
    while runner.length < len(ids):
        check_cancelled()
        chunk = ids[runner.length : runner.length + PREFILL_CHUNK]
        runner.forward(torch.tensor(chunk), num_logits=0)
