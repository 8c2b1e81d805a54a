"""The contract of a drafter: anything that proposes tokens for a target to verify."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from core.controls import Cancelled
from core.errors import DrafterError, OutriderError, SettingsError, first_line, ran_out_of_memory
from core.types import Draft, DraftContext, Feature, Verification, depths_of
from core.verify.checks import SUM_TOLERANCE

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
    def needs(self) -> frozenset[Feature]:
        """What the target must return besides its logits: final states, and those that enter chosen layers."""
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


def check_branches(model: LanguageModel) -> None:
    """Raise SettingsError for a model that can't read trees, before a text is begun that can't be continued."""
    if not model.can_branch:
        raise SettingsError(
            f"{model.ref} can't read several candidates for one position. Choose a method that drafts chains."
        )


# --- Drafters of others ------------------------------------------------------------------------------------------


def is_own(drafter: object) -> bool:
    """Whether a drafter is one of Outrider's own."""
    return type(drafter).__module__.startswith("core.drafters.")


@contextlib.contextmanager
def blaming(drafter: object) -> Iterator[None]:
    """Report what a drafter of somebody else raises, even an exit, as a bug in its code, not as the model's failure.

    Raises:
        DrafterError: names the drafter and the cause.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if is_own(drafter) or isinstance(error, OutriderError | Cancelled) or ran_out_of_memory(error):
            raise
        cause = type(error).__name__
        if str(error).strip():
            cause += f": {first_line(error)}"
        raise DrafterError(f"{type(drafter).__name__} failed ({cause}). Fix its code.") from error


# --- Checks of what was proposed ---------------------------------------------------------------------------------


def check_types(draft: object, name: str) -> None:
    """Raise DrafterError for what isn't a draft of tensors, on which the loop would fail as if the model had."""
    if not isinstance(draft, Draft):
        raise DrafterError(f"{name} returned {type(draft).__name__}, not a Draft. Fix its code.")
    for what, ids in (("tokens", draft.tokens), ("parents", draft.parents)):
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
            raise DrafterError(f"{name} proposed {what} that aren't an int64 tensor of shape (N,). Fix its code.")
    if draft.probs is not None and not (isinstance(draft.probs, Tensor) and draft.probs.is_floating_point()):
        raise DrafterError(f"{name} returned distributions that aren't a tensor of floats. Fix its code.")


def check_draft(draft: Draft, tokens: Sequence[int], most: int, max_depth: int, vocab_size: int, name: str) -> None:
    """Raise DrafterError for a draft that can't be verified: more than `most` tokens, or `max_depth` in a row, parents
    that don't form a tree, an id out of range, or rows of the wrong shape. `tokens` are its ids, on the host."""
    parents, count = draft.parents.tolist(), len(tokens)
    if len(parents) != count or not all(-1 <= parent < node for node, parent in enumerate(parents)):
        raise DrafterError(
            f"{name} proposed parents that don't form a tree: each must be -1 or an earlier node. Fix its code."
        )
    if not count:
        return
    if count > most:
        raise DrafterError(f"{name} proposed {count} tokens where {most} were requested. Fix its code.")
    if (depth := max(depths_of(parents)) + 1) > max_depth:
        raise DrafterError(f"{name} proposed {depth} tokens in a row where {max_depth} were requested. Fix its code.")
    if not all(0 <= token < vocab_size for token in tokens):
        raise DrafterError(f"{name} proposed an id outside 0 to {vocab_size - 1}. Fix its code.")
    if draft.probs is not None and tuple(draft.probs.shape) != (count, vocab_size):
        shape = tuple(draft.probs.shape)
        raise DrafterError(f"{name} returned distributions of shape {shape}, not {(count, vocab_size)}. Fix its code.")


def check_distributions(probs: Tensor, name: str) -> None:
    """Raise DrafterError for rows (N, V) that aren't distributions: they would silently change the output's."""
    if not bool((probs >= 0).all()) or not bool(((probs.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        raise DrafterError(
            f"{name} returned rows that aren't distributions: each must be non-negative and sum to 1. Fix its code."
        )
