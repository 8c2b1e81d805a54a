"""One round of drafting and testing: the block before its verdict, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.errors import DrafterError
from core.timing import StepClock
from core.types import Draft, SamplingParams, Verification


@dataclass(slots=True, eq=False)
class Block:
    """A draft before its verdict, with what it was drafted under."""

    wanted: int
    sampling: SamplingParams
    draft: Draft
    clock: StepClock


@dataclass(slots=True, eq=False)
class Round:
    """What one round of drafting and testing came to, still with its tensors."""

    draft: Draft
    target_probs: Tensor  # (K + 1, V)
    outcome: Verification
    temperature: float
    draft_ms: float
    verify_ms: float
    sample_ms: float
    total_ms: float


def check_draft(draft: Draft, most: int, vocab_size: int, name: str) -> None:
    """Refuse what can't be tested, before the caches see it.

    Args:
        most: how many tokens were asked for.
        name: of the drafter, for the sentence.

    Raises:
        DrafterError: too many tokens, a tree, an id that isn't there, or distributions of another shape.
    """
    tokens = draft.tokens.tolist()
    count = len(tokens)
    if not count:
        return
    if count > most:
        raise DrafterError(f"{name} proposed {count} tokens where {most} were asked for. Mend its code.")
    if draft.parents.tolist() != list(range(-1, count - 1)):
        raise DrafterError(f"{name} proposed a tree, and only chains can be tested yet. Mend its code.")
    if not all(0 <= token < vocab_size for token in tokens):
        raise DrafterError(f"{name} proposed an id outside 0 to {vocab_size - 1}. Mend its code.")
    if draft.probs is not None and tuple(draft.probs.shape) != (count, vocab_size):
        shape = tuple(draft.probs.shape)
        raise DrafterError(f"{name} gave distributions of shape {shape}, not {(count, vocab_size)}. Mend its code.")


@torch.inference_mode()
def figures(done: Round) -> dict[str, tuple[float, ...]]:
    """Per drafted position, for the log: p and q of the drafted id, min(1, p / q), and the sum of min(p, q)."""
    count = len(done.draft)
    if count == 0:
        return {"draft_probs": (), "target_probs": (), "acceptance_probs": (), "expected_acceptance": ()}
    tokens = done.draft.tokens.to(done.target_probs.device).unsqueeze(1)
    target_rows = done.target_probs[:count]
    p = target_rows.gather(1, tokens).squeeze(1)
    if done.draft.probs is None:
        q, overlap = torch.ones_like(p), p
    else:
        q = done.draft.probs.gather(1, tokens).squeeze(1)
        overlap = torch.minimum(target_rows, done.draft.probs).sum(-1)
    return {
        "draft_probs": tuple(q.tolist()),
        "target_probs": tuple(p.tolist()),
        "acceptance_probs": tuple((p / q).clamp(max=1.0).tolist()),
        "expected_acceptance": tuple(overlap.clamp(max=1.0).tolist()),
    }
