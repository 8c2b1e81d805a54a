"""The contract of a drafter: anything that proposes tokens for a target to test."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from core.types import Draft, DraftContext, TargetFeature, Verification


@runtime_checkable
class Drafter(Protocol):
    """Proposes blocks of tokens for one text at a time.

    The distribution in `Draft.probs` must be the one that the tokens were drawn from, and a token may be left out only
    on account of tokens drawn before it: exactness rests on both.
    """

    @property
    def needs(self) -> frozenset[TargetFeature]:
        """What the target must return beside its logits."""
        ...

    def start(self, prompt: Tensor) -> None:
        """Forget everything, and take in a new prompt (n,) of ids."""
        ...

    def propose(self, context: DraftContext) -> Draft:
        """Up to `context.num_draft_tokens` tokens that may follow `context.ids`; an empty draft is allowed."""
        ...

    def observe(self, outcome: Verification) -> None:
        """Learn what became of the last proposal."""
        ...


def chain(tokens: Tensor, probs: Tensor | None) -> Draft:
    """A draft in which each token follows the one before it: tokens (N,), probs (N, V) or None."""
    return Draft(tokens=tokens, parents=torch.arange(-1, tokens.shape[0] - 1), probs=probs)


def empty_draft() -> Draft:
    """No proposal: the step becomes one of plain decoding."""
    return chain(torch.empty(0, dtype=torch.int64), None)
