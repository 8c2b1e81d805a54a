"""What verification refuses: shapes, ids and rows that can't be tested, and the logits of broken models."""

from __future__ import annotations

import torch
from torch import Tensor

from core.errors import GenerationError

SUM_TOLERANCE = 1e-2
"""How far a row's sum may be from 1: half-precision rounding passes; logits and unnormalised scores don't."""

IMPOSSIBLE_DRAFT = "The drafter proposed a token that has probability 0 in its own distribution. Fix its code."

_ROUNDING = 1e-5


def check_finite(draft_probs: Tensor | None, target_probs: Tensor) -> None:
    """Raise GenerationError if a model's logits held NaN or nothing finite: softmax makes the whole row NaN.

    A draft's row may hold zeros at ids that it never proposes, so its sum is looked at.
    """
    if draft_probs is not None and not bool(draft_probs.sum(-1).isfinite().all()):
        raise GenerationError(
            "The draft's logits hold NaN. In half precision, try float32; otherwise choose another draft model."
        )
    if not bool(target_probs[:, 0].isfinite().all()):
        raise GenerationError(
            "The target's logits hold NaN. In half precision, try float32; otherwise choose another target model."
        )


def check_block(draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor) -> None:
    if target_probs.ndim != 2 or target_probs.shape[0] < 1 or target_probs.shape[1] < 1:
        raise ValueError(f"target_probs must have shape (N + 1, V), not {tuple(target_probs.shape)}.")
    num_drafted, vocab_size = target_probs.shape[0] - 1, target_probs.shape[1]
    if draft_tokens.shape != (num_drafted,):
        raise ValueError(
            f"draft_tokens must have shape ({num_drafted},) for {num_drafted + 1} target rows, "
            f"not {tuple(draft_tokens.shape)}."
        )
    is_integer = not (draft_tokens.is_floating_point() or draft_tokens.is_complex() or draft_tokens.dtype == torch.bool)
    if num_drafted and not is_integer:
        raise ValueError(f"draft_tokens must be integers, not {draft_tokens.dtype}.")
    if num_drafted and not bool(((draft_tokens >= 0) & (draft_tokens < vocab_size)).all()):
        raise ValueError(f"draft_tokens must be ids from 0 to {vocab_size - 1}.")
    _check_rows("target_probs", target_probs)
    if draft_probs is None:
        return
    if draft_probs.shape != (num_drafted, vocab_size):
        raise ValueError(f"draft_probs must have shape ({num_drafted}, {vocab_size}), not {tuple(draft_probs.shape)}.")
    _check_rows("draft_probs", draft_probs)
    rows = torch.arange(num_drafted, device=draft_probs.device)
    if not bool((draft_probs[rows, draft_tokens.long()] > 0).all()):
        raise ValueError("A drafted token has draft probability 0: it can't have been drawn from draft_probs.")


def check_parents(parents: Tensor, count: int) -> None:
    """Raise ValueError unless `parents` (count,) is a tree in order."""
    if parents.shape != (count,) or parents.is_floating_point():
        raise ValueError(f"parents must be ({count},) integers, not {tuple(parents.shape)} of {parents.dtype}.")
    if not all(-1 <= parent < node for node, parent in enumerate(parents.tolist())):
        raise ValueError("parents must be a tree in order: -1, or the index of an earlier node.")


def normalised(rows: Tensor) -> Tensor:
    """Rows (..., V) in float32 or wider, each divided by its sum if that is off 1 by half precision's rounding.

    A row whose sum is further off is no distribution, and stays as it is.
    """
    rows = rows if rows.dtype is torch.float64 else rows.float()
    sums = _sums(rows).unsqueeze(-1)
    error = (sums - 1).abs()
    return torch.where((error > _ROUNDING) & (error <= SUM_TOLERANCE), rows / sums.to(rows.dtype), rows)


def _sums(rows: Tensor) -> Tensor:
    return rows.double().sum(-1) if rows.device.type != "mps" else rows.float().sum(-1)


def _check_rows(name: str, rows: Tensor) -> None:
    if not rows.is_floating_point():
        raise ValueError(f"{name} must be floating point, not {rows.dtype}.")
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity.")
    if bool((rows < 0).any()):
        raise ValueError(f"{name} holds a negative entry.")
    if bool(((_sums(rows) - 1).abs() > SUM_TOLERANCE).any()):
        raise ValueError(f"{name} holds a row that does not sum to 1.")
