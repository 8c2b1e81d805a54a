"""The contract of a drafter: anything that proposes tokens for a target to verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from core.types import Draft, DraftContext, TargetFeature, Verification

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class DrafterSetup:
    """What a drafter is made with; every drafter is made as `Class(setup, options)`.

    Attributes:
        target: the model that will verify its proposals.
        draft: the draft model; None for methods that need none.
        capacity: the most positions that the text will have; None for as many as the models can have.
        check_cancelled: raises to abandon long work between two forwards.
    """

    target: LanguageModel
    draft: LanguageModel | None = None
    capacity: int | None = None
    check_cancelled: Callable[[], None] = lambda: None


@runtime_checkable
class Drafter(Protocol):
    """Proposes blocks of tokens for one text at a time.

    For exact output, `Draft.probs` must hold the distributions that the tokens were drawn from, and a token may be left
    out only because of tokens drawn before it.
    """

    @property
    def needs(self) -> frozenset[TargetFeature]:
        """What the target must return besides its logits."""
        ...

    def start(self, prompt: Tensor) -> None:
        """Forget everything, and read a new prompt (n,) of ids."""
        ...

    def propose(self, context: DraftContext) -> Draft:
        """Up to `context.num_draft_tokens` tokens that may follow `context.ids`; an empty draft is allowed."""
        ...

    def observe(self, outcome: Verification) -> None:
        """Process the verification of the last proposal."""
        ...


def chain(tokens: Tensor, probs: Tensor | None) -> Draft:
    """A draft in which each token follows the previous one: tokens (N,), probs (N, V) or None."""
    return Draft(tokens=tokens, parents=torch.arange(-1, tokens.shape[0] - 1), probs=probs)


def empty_draft() -> Draft:
    """No proposal, which makes the step a plain one."""
    return chain(torch.empty(0, dtype=torch.int64), None)
