"""What the engine asks of a model: score a few tokens, and forget the last few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

PREFILL_CHUNK = 512
"""Positions in one forward of the prefill: a stop takes effect within one of them."""


class ForwardOutput(NamedTuple):
    """Result of one forward over n tokens.

    Attributes:
        logits: (num_logits, V) in the model's dtype, for the last `num_logits` of the n tokens.
        hidden: (n, H) last hidden states, where they were asked for.
    """

    logits: Tensor
    hidden: Tensor | None


class Runner(Protocol):
    """A model with a key-value cache of its own, for one text at a time."""

    @property
    def length(self) -> int:
        """Positions in the cache."""
        ...

    @property
    def capacity(self) -> int:
        """Positions that the cache, and the model's context, have room for."""
        ...

    def forward(self, ids: Tensor, *, num_logits: int, with_hidden: bool = False) -> ForwardOutput:
        """Append `ids` (n,), n >= 1, and return the logits that follow the last `num_logits` of them."""
        ...

    def rewind(self, length: int) -> None:
        """Keep the first `length` positions, 0 <= length <= self.length; costs nothing.

        Raises:
            ValueError: there are fewer.
        """
        ...


def check_rewind(length: int, current: int) -> None:
    """Raise ValueError where a cache of `current` positions can't be cut to `length`."""
    if not 0 <= length <= current:
        raise ValueError(f"Can't rewind a cache of {current} positions to {length}.")


def prefill(runner: Runner, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
    """Extend a runner's cache to `ids`, of which it holds the first `runner.length` already."""
    while runner.length < len(ids):
        check_cancelled()
        chunk = ids[runner.length : runner.length + PREFILL_CHUNK]
        runner.forward(torch.tensor(chunk), num_logits=0)
