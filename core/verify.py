"""Modified rejection sampling: decides which drafted tokens are accepted, and draws the token that follows.

Leviathan et al. (arXiv 2211.17192), algorithm 1; Chen et al. (arXiv 2302.01318), algorithm 2. A drafted token x is
accepted with probability min(1, target_probs[x] / draft_probs[x]); the first rejected one is replaced by a draw from
the residual, max(0, target_probs - draft_probs) normalised; after a fully accepted block a bonus token is drawn from
the target. The emitted tokens follow the target's distribution exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from core.errors import DrafterError, GenerationError
from core.runners.timing import is_asynchronous
from core.sampling import draw, draw_uniforms, for_device, fractions
from core.types import TokenKind, Verification

SUM_TOLERANCE = 1e-2
"""How far a row's sum may be from 1: half-precision rounding passes; logits and unnormalised scores don't."""

_ROUNDING = 1e-5

_IMPOSSIBLE_DRAFT = "The drafter proposed a token that has probability 0 in its own distribution. Fix its code."


def verify(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
) -> Verification:
    """Test a drafted block against the target's distributions.

    Args:
        draft_tokens: (K,) integer ids, each drawn from its row of `draft_probs`. K may be 0.
        draft_probs: (K, V) distributions that the tokens were drawn from; None for a drafter without distributions,
            which counts as a one-hot at each token.
        target_probs: (K + 1, V) the target's distributions at the drafted positions and at the next one.
        generator: None makes a fresh, non-deterministically seeded one; the global generator is never touched.

    Returns:
        How many tokens are accepted, the token that follows them, and the draws that decided it.

    Raises:
        ValueError: shapes that don't fit, ids out of range, rows with NaN, negative entries or no mass, or a drafted
            token that has probability 0 in its own distribution.
    """
    _check(draft_tokens, draft_probs, target_probs)
    draft_tokens = draft_tokens.long()
    # Half precision rounds sums by up to the tolerance, which would shift the distribution of what is drawn.
    target_probs = _normalised(target_probs)
    draft_probs = None if draft_probs is None else _normalised(draft_probs)
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return verify_block(draft_tokens, draft_probs, target_probs, generator=generator)


def verify_block(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> Verification:
    """`verify` without its checks, for blocks made by the engine. Same arguments, same result.

    Raises:
        GenerationError: a model's logits held NaN.
        DrafterError: a drafted token has draft probability 0.
    """
    num_drafted = draft_tokens.shape[0]
    # Always one draw for each drafted token and one for the next token, so that a seed determines the result.
    uniforms = draw_uniforms(num_drafted + 1, generator)
    if is_asynchronous(target_probs.device):
        return _verified_on_device(draft_tokens, draft_probs, target_probs, uniforms)
    # For a few numbers, Python's floats (doubles) are faster than tensor operations.
    p = _probs_of(target_probs, draft_tokens)
    q = [1.0] * num_drafted if draft_probs is None else _probs_of(draft_probs, draft_tokens)
    u = uniforms.tolist()
    if any(map(math.isnan, (*q, *p))):
        check_finite(draft_probs, target_probs)
    if 0.0 in q:
        raise DrafterError(_IMPOSSIBLE_DRAFT)

    # No division, and a strict <: a token of target probability 0 is rejected even if u is 0.
    kept = [u[i] * q[i] < p[i] for i in range(num_drafted)]
    num_accepted = [*kept, False].index(False)
    if num_accepted == num_drafted:
        weights, kind = target_probs[-1], TokenKind.BONUS
    else:
        draft_row = None if draft_probs is None else draft_probs[num_accepted]
        weights = residual(target_probs[num_accepted], draft_row, draft_tokens[num_accepted])
        kind = TokenKind.CORRECTION
    return Verification(
        num_accepted=num_accepted,
        next_token=int(draw(weights, uniforms[-1])),
        next_kind=kind,
        acceptance_probs=tuple(min(1.0, a / b) for a, b in zip(p, q, strict=False)),
        uniforms=tuple(u[:num_drafted]),
        next_uniform=u[num_drafted],
    )


def _verified_on_device(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor
) -> Verification:
    """`verify_block` computed on the distributions' device, so that the host waits only once."""
    num_drafted = draft_tokens.shape[0]
    decisive = for_device(uniforms, target_probs.device)
    verdict = decide(draft_tokens, draft_probs, target_probs, decisive.to(target_probs.device)).tolist()
    num_accepted, next_token = int(verdict[0]), int(verdict[1])
    p, q = verdict[2 : 2 + num_drafted], verdict[2 + num_drafted : -1]
    if any(map(math.isnan, verdict)):
        check_finite(draft_probs, target_probs)
    if 0.0 in q:
        raise DrafterError(_IMPOSSIBLE_DRAFT)
    return Verification(
        num_accepted=num_accepted,
        next_token=next_token,
        next_kind=TokenKind.BONUS if num_accepted == num_drafted else TokenKind.CORRECTION,
        acceptance_probs=tuple(min(1.0, a / b) for a, b in zip(p, q, strict=True)),
        uniforms=tuple(fractions(decisive[:num_drafted]).tolist()),
        next_uniform=float(uniforms[num_drafted]),
    )


def decide(draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Verify a block without reading any value on the host.

    Args:
        draft_tokens, draft_probs, target_probs: see `verify`.
        uniforms: (K + 1,) draws from `for_device`, the last one for the token after the accepted ones.

    Returns:
        (3 + 2 K,) float64, or float32 on devices without it (exact for ids up to 2^24): number of accepted tokens, next
        token, the probabilities of the drafted tokens under the target and under the draft, and the sum of what the
        next token was drawn from, which is NaN if the model's logits held NaN.
    """
    num_drafted = draft_tokens.shape[0]
    at = draft_tokens.unsqueeze(1)
    tests = fractions(uniforms[:num_drafted])
    p = target_probs[:num_drafted].gather(1, at).squeeze(1).to(tests.dtype)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, at).squeeze(1).to(tests.dtype)
    kept = tests * q < p
    # Indexing with a tensor () would read its value; selecting with a tensor (1,) does not.
    num_accepted = kept.long().cumprod(0).sum().view(1)
    target_row = target_probs.index_select(0, num_accepted)[0]
    # After a full block nothing is subtracted from the target's row: the bonus token is drawn from it.
    if draft_probs is None:
        taken = torch.zeros_like(target_probs)
        taken[:num_drafted].scatter_(1, at, torch.inf)
    else:
        taken = functional.pad(draft_probs, (0, 0, 0, 1))
    left = (target_row - taken.index_select(0, num_accepted)[0]).clamp_(min=0.0)
    weights = torch.where(left.sum() > 0, left, target_row)
    next_token = draw(weights, uniforms[num_drafted])
    total = weights.sum().view(1).to(p.dtype)
    return torch.cat((num_accepted.to(p.dtype), next_token.view(1).to(p.dtype), p, q, total))


def _probs_of(rows: Tensor, tokens: Tensor) -> list[float]:
    """Each row's probability of its token; the bonus row has no token, and returns id 0's."""
    surplus = rows.shape[0] - tokens.shape[0]
    ids = functional.pad(tokens, (0, surplus)) if surplus else tokens
    return rows.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()


def check_finite(draft_probs: Tensor | None, target_probs: Tensor) -> None:
    """Raise GenerationError if a model's logits held NaN or nothing finite: softmax makes the whole row NaN.

    A draft's row may hold zeros at ids that it never proposes, so its sum is looked at.
    """
    if draft_probs is not None and not bool(draft_probs.sum(-1).isfinite().all()):
        raise GenerationError("The draft's logits hold NaN. Choose float32, or another draft model.")
    if not bool(target_probs[:, 0].isfinite().all()):
        raise GenerationError("The target's logits hold NaN. Choose float32, or another target model.")


def residual(target_row: Tensor, draft_row: Tensor | None, draft_token: Tensor) -> Tensor:
    """The residual, max(0, target - draft), not normalised.

    Args:
        target_row: (V,) the target's distribution at the rejected position.
        draft_row: (V,) the draft's distribution there; None for a one-hot at `draft_token`.
        draft_token: () id that was rejected.

    Returns:
        (V,) weights with a positive sum.
    """
    if draft_row is None:
        left = target_row.clone()
        left[draft_token] = 0.0
    else:
        left = (target_row - draft_row).clamp_(min=0.0)
    # Equal rows reject nothing, so the residual is empty only if they are equal to within rounding.
    return left if float(left.sum()) > 0.0 else target_row


def verify_gumbel(draft_tokens: Tensor, target_tokens: Tensor) -> Verification:
    """Verify a Gumbel-coupled block: drafted tokens are accepted as long as the target draws the same ones.

    The target draws with the same Gumbel noise as the draft, keyed by position, so the text is identical to that of
    plain sampling.

    Args:
        draft_tokens: (K,) drafted ids.
        target_tokens: (K + 1,) ids that the target draws at these positions.
    """
    drafted, wanted = draft_tokens.tolist(), target_tokens.tolist()
    num_accepted = next((i for i, token in enumerate(drafted) if token != wanted[i]), len(drafted))
    return Verification(
        num_accepted=num_accepted,
        next_token=wanted[num_accepted],
        next_kind=TokenKind.BONUS if num_accepted == len(drafted) else TokenKind.CORRECTION,
        acceptance_probs=tuple(float(a == b) for a, b in zip(drafted, wanted, strict=False)),
    )


def _check(draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor) -> None:
    if target_probs.ndim != 2 or target_probs.shape[0] < 1 or target_probs.shape[1] < 1:
        raise ValueError(f"target_probs must have shape (K + 1, V), not {tuple(target_probs.shape)}.")
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


def _normalised(rows: Tensor) -> Tensor:
    """Rows (..., V) in float32 or wider, each divided by its sum unless that is 1 up to float32's rounding."""
    rows = rows if rows.dtype is torch.float64 else rows.float()
    sums = rows.sum(-1, keepdim=True)
    return torch.where((sums - 1).abs() > _ROUNDING, rows / sums, rows)


def _check_rows(name: str, rows: Tensor) -> None:
    if not rows.is_floating_point():
        raise ValueError(f"{name} must be floating point, not {rows.dtype}.")
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity.")
    if bool((rows < 0).any()):
        raise ValueError(f"{name} holds a negative entry.")
    sums = rows.double().sum(-1) if rows.device.type != "mps" else rows.float().sum(-1)
    if bool((sums <= 0).any()):
        raise ValueError(f"{name} holds a row that sums to 0.")
    if bool(((sums - 1).abs() > SUM_TOLERANCE).any()):
        raise ValueError(f"{name} holds a row that does not sum to 1.")
