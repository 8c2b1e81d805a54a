"""Verification: decides which drafted tokens are accepted, and draws the token that follows.

One recursion for trees and chains. At a node, its children are tested in index order: child x, drawn from q given its
earlier siblings, is accepted with probability min(1, p(x) / q(x)); otherwise p becomes the residual, max(0, p - q)
normalised. If no child is accepted, the next token is drawn from what is left of p; behind a leaf that is the target's
own distribution. The emitted tokens follow the target's distribution exactly.

A chain, one child each, is modified rejection sampling (Leviathan et al., 2211.17192, algorithm 1; Chen et al.,
2302.01318, algorithm 2). Siblings that are drawn independently make it SpecInfer's rule (2305.09781); drawn without
replacement, Sequoia's (2402.12374); proposed without distributions, "sample and match" as in Medusa (2401.10774).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from core.errors import DrafterError, GenerationError
from core.runners.timing import is_asynchronous
from core.sampling import draw, draw_uniforms, for_device, fractions
from core.settings import TYPICAL_FLOOR, TYPICAL_SHARE, VerificationRule
from core.types import BlockTest, TokenKind, Verification, depths_of, is_chain

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
    """Test a drafted chain against the target's distributions.

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
    parents = torch.arange(-1, draft_tokens.numel() - 1)
    return verify_tree(draft_tokens, parents, draft_probs, target_probs, generator=generator)


def verify_tree(
    draft_tokens: Tensor,
    parents: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
) -> Verification:
    """Test a drafted tree against the target's distributions.

    Args:
        draft_tokens: (N,) integer ids; siblings are tested in index order, and may repeat. N may be 0.
        parents: (N,) integer index of each node's parent, lower than its own; -1 for a child of the last committed
            token.
        draft_probs: (N, V) the distribution that each node was drawn from, given its earlier siblings; None for
            one-hots.
        target_probs: (N + 1, V) the target's distributions: row 0 follows the last committed token, row i + 1 node i.
        generator: as in `verify`.

    Returns:
        The accepted path, the token that follows it, and the draws that decided it.

    Raises:
        ValueError: as in `verify`; also for parents that are no tree in order.
    """
    _check(draft_tokens, draft_probs, target_probs)
    _check_parents(parents, draft_tokens.shape[0])
    draft_tokens, order = draft_tokens.long(), parents.tolist()
    # Half precision rounds sums by up to the tolerance, which would shift the distribution of what is drawn.
    target_probs = _normalised(target_probs)
    draft_probs = None if draft_probs is None else _normalised(draft_probs)
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    outcome = verify_block(draft_tokens, order, draft_probs, target_probs, generator=generator)
    rows = tested_rows(draft_tokens, order, draft_probs, target_probs)
    return replace(outcome, acceptance_probs=tuple(acceptance_of(draft_tokens, draft_probs, rows).tolist()))


def verify_block(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
    rule: VerificationRule = VerificationRule.TOKEN,
) -> Verification:
    """`verify_tree` without its checks, for blocks made by the engine.

    `rule` TYPICAL is lossy. BLOCK applies to chains; trees are tested by the token rule.

    Raises:
        GenerationError: a model's logits held NaN.
        DrafterError: a drafted token has draft probability 0.
    """
    num_drafted = draft_tokens.shape[0]
    # Always one draw for each node and one for the next token, so that a seed determines the result.
    uniforms = draw_uniforms(num_drafted + 1, generator)
    if num_drafted and rule is VerificationRule.TYPICAL:
        return _verified_typically(draft_tokens, parents, target_probs, uniforms)
    if num_drafted and rule is VerificationRule.BLOCK and is_chain(parents):
        return _verified_as_block(draft_tokens, draft_probs, target_probs, uniforms)
    if is_asynchronous(target_probs.device):
        return _verified_on_device(draft_tokens, parents, draft_probs, target_probs, uniforms)
    p, q = _probs_of_tokens(draft_tokens, parents, draft_probs, target_probs)
    u = uniforms.tolist()
    at, left, has_tested = -1, target_probs[0], False
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent != at:
            continue
        chance = float(left[draft_tokens[node]]) if has_tested else p[node]
        # No division, and a strict <: a token of target probability 0 is rejected even if u is 0.
        if has_tested := not u[node] * q[node] < chance:
            left = residual(left, None if draft_probs is None else draft_probs[node], draft_tokens[node])
        else:
            path.append(node)
            at, left = node, target_probs[node + 1]
    return _outcome(path, parents, int(draw(left, uniforms[-1])), u)


def _outcome(path: Sequence[int], parents: Sequence[int], next_token: int, uniforms: Sequence[float]) -> Verification:
    """The result of testing: what was accepted, and what was drawn after it."""
    is_behind_leaf = (path[-1] if path else -1) not in parents
    return Verification(
        num_accepted=len(path),
        next_token=next_token,
        next_kind=TokenKind.BONUS if is_behind_leaf else TokenKind.CORRECTION,
        path=tuple(path),
        uniforms=tuple(uniforms[:-1]),
        next_uniform=uniforms[-1],
    )


def _probs_of_tokens(
    draft_tokens: Tensor, parents: Sequence[int], draft_probs: Tensor | None, target_probs: Tensor
) -> tuple[list[float], list[float]]:
    """Each node's probability under its parent's target row, and under its own draft row; checked.

    For a few numbers, Python's floats (doubles) are faster than tensor operations.
    """
    count = len(parents)
    rows = [*(parent + 1 for parent in parents), *range(count + 1)]
    # One look also at each row's first entry: a model's NaN makes its whole row NaN.
    (*p,) = target_probs[rows, functional.pad(draft_tokens, (0, count + 1))].tolist()
    q = [1.0] * count if draft_probs is None else draft_probs[range(count), draft_tokens].tolist()
    if any(map(math.isnan, (*q, *p))):
        check_finite(draft_probs, target_probs)
    if 0.0 in q:
        raise DrafterError(_IMPOSSIBLE_DRAFT)
    return p[:count], q


def _verified_on_device(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
) -> Verification:
    """`verify_block` computed on the distributions' device, so that the host waits only once."""
    num_drafted = draft_tokens.shape[0]
    decisive = for_device(uniforms, target_probs.device)
    verdict = decide(draft_tokens, parents, draft_probs, target_probs, decisive.to(target_probs.device)).tolist()
    q, total = verdict[num_drafted : 2 * num_drafted], verdict[-1]
    if any(map(math.isnan, (*q, total))):
        check_finite(draft_probs, target_probs)
    if 0.0 in q:
        raise DrafterError(_IMPOSSIBLE_DRAFT)
    path = [int(node) - 1 for node in verdict[:num_drafted] if node > 0]
    draws = [*fractions(decisive[:num_drafted]).tolist(), float(uniforms[num_drafted])]
    return _outcome(path, parents, int(verdict[-2]), draws)


def decide(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Verify a tree without reading any value on the host. Siblings are tested one rank after another, for all parents.

    Args:
        draft_tokens, parents, draft_probs, target_probs: see `verify_tree`.
        uniforms: (N + 1,) draws from `for_device`, the last one for the token after the accepted ones.

    Returns:
        (2 N + 2,) float64, or float32 on devices without it (exact for ids up to 2^24): the accepted path as node + 1,
        filled up with 0; the nodes' draft probabilities; the next token; the sum of what it was drawn from, which is
        NaN if the model's logits held NaN.
    """
    device, count = target_probs.device, len(parents)
    ranks = _by_rank(parents)
    at, tests = draft_tokens.unsqueeze(1), fractions(uniforms[:count])
    q = torch.ones_like(tests) if draft_probs is None else draft_probs.gather(1, at).squeeze(1).to(tests.dtype)
    # What is left of the target's row behind each node; the last rank's residuals are only computed where needed.
    left = target_probs.clone() if len(ranks) > 1 else target_probs
    last_child = torch.full((count + 1,), count, device=device)
    tested = []
    for rank, siblings in enumerate(ranks):
        nodes = torch.tensor(siblings, device=device)
        behind = torch.tensor([parents[node] + 1 for node in siblings], device=device)
        rows, tokens = left.index_select(0, behind), at.index_select(0, nodes)
        chances = rows.gather(1, tokens).squeeze(1).to(tests.dtype)
        tested.append((nodes, behind, tests.index_select(0, nodes) * q.index_select(0, nodes) < chances))
        if rank + 1 < len(ranks):
            left.index_copy_(0, behind, _left(rows, _drafted_rows(tokens, draft_probs, rows, nodes)))
        else:
            last_child.index_copy_(0, behind, nodes)
    # The first accepted child behind each node, as its index + 1.
    child = torch.zeros(count + 1, dtype=torch.int64, device=device)
    for nodes, behind, is_kept in reversed(tested):
        child.index_copy_(0, behind, torch.where(is_kept, nodes + 1, child.index_select(0, behind)))
    if is_chain(parents):
        path = child[:count] * (child[:count] > 0).long().cumprod(0)
        # Indexing with a tensor () would read its value; selecting with a tensor (1,) does not.
        end = (path > 0).sum().view(1)
    else:
        path, end = torch.zeros_like(child[:count]), torch.zeros_like(child[:1])
        for depth in range(max(depths_of(parents)) + 1):
            path[depth : depth + 1] = child.index_select(0, end)
            end = torch.maximum(end, path[depth : depth + 1])
    # Behind a leaf nothing is subtracted from the target's row: the bonus token is drawn from it.
    drafted = functional.pad(_drafted_rows(at, draft_probs, target_probs[:count]), (0, 0, 0, 1))
    last = last_child.index_select(0, end)
    weights = _left(left.index_select(0, end), drafted.index_select(0, last))[0]
    next_token = draw(weights, uniforms[count])
    return torch.cat((path.to(q.dtype), q, next_token.view(1).to(q.dtype), weights.sum().view(1).to(q.dtype)))


def _by_rank(parents: Sequence[int]) -> list[list[int]]:
    """All first children, all second children, and so on."""
    seen: Counter[int] = Counter()
    ranks: list[list[int]] = []
    for node, parent in enumerate(parents):
        if seen[parent] == len(ranks):
            ranks.append([])
        ranks[seen[parent]].append(node)
        seen[parent] += 1
    return ranks


def _drafted_rows(tokens: Tensor, draft_probs: Tensor | None, rows: Tensor, nodes: Tensor | None = None) -> Tensor:
    """(M, V) the draft's distributions of nodes with tokens (M, 1); infinite at the token instead of a one-hot."""
    if draft_probs is None:
        return torch.zeros_like(rows).scatter_(1, tokens, torch.inf)
    return draft_probs if nodes is None else draft_probs.index_select(0, nodes)


def _left(rows: Tensor, drafted: Tensor) -> Tensor:
    """Residuals (M, V), normalised; where nothing is left, which only rounding explains, the rows themselves."""
    left = (rows - drafted).clamp_(min=0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, rows)


def residual(target_row: Tensor, draft_row: Tensor | None, draft_token: Tensor) -> Tensor:
    """The residual, max(0, target - draft), normalised.

    Args:
        target_row: (V,) the target's distribution at the rejected position, or what earlier siblings have left of it.
        draft_row: (V,) the draft's distribution there; None for a one-hot at `draft_token`.
        draft_token: () id that was rejected.

    Returns:
        (V,) a distribution.
    """
    row = target_row.unsqueeze(0)
    return _left(
        row, _drafted_rows(draft_token.view(1, 1), None if draft_row is None else draft_row.unsqueeze(0), row)
    )[0]


def tested_rows(
    draft_tokens: Tensor, parents: Sequence[int], draft_probs: Tensor | None, target_probs: Tensor
) -> Tensor:
    """(N, V) the distribution that each node is tested against: its parent's target row, or what the residuals of its
    earlier siblings leave of it."""
    rows = target_probs[[parent + 1 for parent in parents]]
    previous: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if (earlier := previous.get(parent)) is not None:
            draft_row = None if draft_probs is None else draft_probs[earlier]
            rows[node] = residual(rows[earlier], draft_row, draft_tokens[earlier])
        previous[parent] = node
    return rows


def acceptance_of(draft_tokens: Tensor, draft_probs: Tensor | None, rows: Tensor) -> Tensor:
    """(N,) the probability that each node is accepted if it is tested against its row (N, V): min(1, p / q)."""
    at = draft_tokens.unsqueeze(1)
    p = rows.gather(1, at).squeeze(1)
    return (p if draft_probs is None else p / draft_probs.gather(1, at).squeeze(1)).clamp(max=1.0)


# --- Other rules ------------------------------------------------------------------------------------------------


def _verified_as_block(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor
) -> Verification:
    """Block verification (Sun et al., 2403.10444, algorithm 2): a text of i tokens is accepted as a whole.

    With w_0 = 1 and w_i = min(1, w_(i-1) p_i / q_i) it is accepted with probability h_i = s_i / (s_i + 1 - w_i), where
    s_i is the sum of max(0, w_i p - q) over the vocabulary; the full chain with w_K. The longest accepted text stays.
    """
    count = draft_tokens.shape[0]
    parents = range(-1, count - 1)
    p, q = _probs_of_tokens(draft_tokens, parents, draft_probs, target_probs)
    weights = [1.0]
    for own, drafted in zip(p, q, strict=True):
        weights.append(min(1.0, weights[-1] * own / drafted))
    drafted_rows = functional.one_hot(draft_tokens, target_probs.shape[1]) if draft_probs is None else draft_probs
    scale = torch.tensor(weights[:count], dtype=target_probs.dtype, device=target_probs.device).unsqueeze(1)
    left = (scale * target_probs[:count] - drafted_rows).clamp_(min=0.0)
    sums = left.sum(-1).tolist()
    chances = [0.0] + [sums[i] / rest if (rest := sums[i] + 1.0 - weights[i]) > 0.0 else 1.0 for i in range(1, count)]
    chances.append(weights[count])
    u = uniforms.tolist()
    accepted = max((i for i in range(1, count + 1) if u[i - 1] < chances[i]), default=0)
    row = target_probs[count] if accepted == count else left[accepted]
    if accepted < count and not sums[accepted] > 0.0:
        row = target_probs[accepted]
    outcome = _outcome(range(accepted), parents, int(draw(row, uniforms[-1])), u)
    return replace(outcome, block=tuple(map(BlockTest, weights, chances, [*sums, 0.0])))


def _verified_typically(
    draft_tokens: Tensor, parents: Sequence[int], target_probs: Tensor, uniforms: Tensor
) -> Verification:
    """Typical acceptance (Cai et al., 2401.10774, section 2.3.1), which is lossy: a node passes if the target gives it
    more than min(epsilon, delta exp(-entropy)); the longest path of nodes that pass stays."""
    check_finite(None, target_probs)
    entropy = torch.special.entr(target_probs).sum(-1)
    floors = (TYPICAL_SHARE * torch.exp(-entropy)).clamp(max=TYPICAL_FLOOR).tolist()
    rows = [parent + 1 for parent in parents]
    p = target_probs[rows, draft_tokens].tolist()
    paths: list[tuple[int, ...]] = [()]
    reached: dict[int, tuple[int, ...]] = {-1: ()}
    for node, parent in enumerate(parents):
        if parent in reached and p[node] > floors[parent + 1]:
            reached[node] = (*reached[parent], node)
            paths.append(reached[node])
    path = max(paths, key=len)
    next_token = int(draw(target_probs[path[-1] + 1 if path else 0], uniforms[-1]))
    # Only the next token is drawn: no draw decides what passes.
    return _outcome(path, parents, next_token, uniforms.tolist()[-1:])


def verify_gumbel(draft_tokens: Tensor, parents: Sequence[int], target_tokens: Tensor) -> Verification:
    """Verify a Gumbel-coupled block: drafted tokens are accepted where the target draws the same ones.

    The target draws with the same Gumbel noise as the draft, keyed by position, so the text is identical to that of
    plain sampling.

    Args:
        draft_tokens: (N,) drafted ids.
        parents: of each node, as in `verify_tree`.
        target_tokens: (N + 1,) ids that the target draws after the last committed token and after each node.
    """
    drafted, wanted = draft_tokens.tolist(), target_tokens.tolist()
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1) and drafted[node] == wanted[parent + 1]:
            path.append(node)
    outcome = _outcome(path, parents, wanted[path[-1] + 1 if path else 0], (0.0,))
    chances = tuple(float(drafted[node] == wanted[parent + 1]) for node, parent in enumerate(parents))
    return replace(outcome, acceptance_probs=chances, next_uniform=None)


# --- Checks -----------------------------------------------------------------------------------------------------


def check_finite(draft_probs: Tensor | None, target_probs: Tensor) -> None:
    """Raise GenerationError if a model's logits held NaN or nothing finite: softmax makes the whole row NaN.

    A draft's row may hold zeros at ids that it never proposes, so its sum is looked at.
    """
    if draft_probs is not None and not bool(draft_probs.sum(-1).isfinite().all()):
        raise GenerationError("The draft's logits hold NaN. Choose float32, or another draft model.")
    if not bool(target_probs[:, 0].isfinite().all()):
        raise GenerationError("The target's logits hold NaN. Choose float32, or another target model.")


def _check(draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor) -> None:
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


def _check_parents(parents: Tensor, count: int) -> None:
    """Raise ValueError unless `parents` (count,) is a tree in order."""
    if parents.shape != (count,) or parents.is_floating_point():
        raise ValueError(f"parents must be ({count},) integers, not {tuple(parents.shape)} of {parents.dtype}.")
    if not all(-1 <= parent < node for node, parent in enumerate(parents.tolist())):
        raise ValueError("parents must be a tree in order: -1, or the index of an earlier node.")


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
