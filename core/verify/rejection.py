"""Modified rejection sampling, for chains and trees: accepts drafted tokens, and draws the token that follows.

One recursion for trees and chains. At a node, its children are tested in index order: child x, drawn from q given its
earlier siblings, is accepted with probability min(1, p(x) / q(x)); otherwise p becomes the residual, max(0, p - q)
normalised. If no child is accepted, the next token is drawn from what is left of p; after a leaf, that is the target's
own distribution. The emitted tokens follow the target's distribution exactly.

A chain, one child each, is modified rejection sampling (Leviathan et al., 2211.17192, algorithm 1; Chen et al.,
2302.01318, algorithm 2). Siblings that are drawn independently make it SpecInfer's rule (2305.09781); drawn without
replacement, Sequoia's (2402.12374); proposed without distributions, "sample and match" as in Medusa (2401.10774).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from core.errors import DrafterError
from core.runners.timing import sent
from core.sampling import draw, draw_uniforms
from core.types import TokenKind, Verification, is_chain
from core.verify.checks import IMPOSSIBLE_DRAFT, check_block, check_finite, check_parents, normalised


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
        ValueError: as in `verify`; also for parents that don't form a tree in order.
    """
    check_block(draft_tokens, draft_probs, target_probs)
    check_parents(parents, draft_tokens.shape[0])
    draft_tokens, order = draft_tokens.long(), parents.tolist()
    # Half precision rounds sums by up to the tolerance, which would shift the distribution of what is drawn.
    target_probs = normalised(target_probs)
    draft_probs = None if draft_probs is None else normalised(draft_probs)
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    # Always one draw for each node and one for the next token, so that a seed determines the result.
    uniforms = draw_uniforms(len(order) + 1, generator)
    outcome = verify_block(draft_tokens, order, draft_probs, target_probs, uniforms)
    rows = tested_rows(draft_tokens, order, draft_probs, target_probs)
    return replace(outcome, acceptance_probs=tuple(acceptance_of(draft_tokens, draft_probs, rows).tolist()))


def verify_block(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
) -> Verification:
    """`verify_tree` without its checks, for blocks made by the engine.

    `uniforms` (N + 1,) are the draws of the nodes, and that of the next token.

    Raises:
        GenerationError: a model's logits held NaN.
        DrafterError: a drafted token has draft probability 0.
    """
    p, q = probs_of_tokens(draft_tokens, parents, draft_probs, target_probs)
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
    return outcome_of(path, parents, int(draw(left, uniforms[-1])), u)


def outcome_of(path: Sequence[int], parents: Sequence[int], next_token: int, uniforms: Sequence[float]) -> Verification:
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


def probs_of_tokens(
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
        raise DrafterError(IMPOSSIBLE_DRAFT)
    return p[:count], q


def residual(target_row: Tensor, draft_row: Tensor | None, draft_token: Tensor) -> Tensor:
    """The residual, max(0, target - draft), normalised.

    Args:
        target_row: (V,) the target's distribution at the rejected position, or what earlier siblings have left of it.
        draft_row: (V,) the draft's distribution there; None for a one-hot at `draft_token`.
        draft_token: () id that was rejected.

    Returns:
        (V,) a distribution.
    """
    rows = target_row.unsqueeze(0)
    drafted = None if draft_row is None else draft_row.unsqueeze(0)
    return residuals(rows, drafted_rows(draft_token.view(1, 1), drafted, rows))[0]


def residuals(rows: Tensor, drafted: Tensor) -> Tensor:
    """Residuals (M, V); where nothing is left, which only rounding explains, the target's rows themselves."""
    left = (rows - drafted).clamp_(min=0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, rows)


def drafted_rows(tokens: Tensor, draft_probs: Tensor | None, rows: Tensor) -> Tensor:
    """(M, V) the draft's distributions of nodes with tokens (M, 1); infinite at the token instead of a one-hot."""
    return torch.zeros_like(rows).scatter_(1, tokens, torch.inf) if draft_probs is None else draft_probs


def tested_rows(
    draft_tokens: Tensor, parents: Sequence[int], draft_probs: Tensor | None, target_probs: Tensor
) -> Tensor:
    """(N, V) the distribution that each node is tested against: its parent's target row, or what the residuals of its
    earlier siblings leave of it. No value is read on the host."""
    if is_chain(parents):
        return target_probs[: len(parents)]
    ranks = _by_rank(parents)
    sizes = [len(nodes) for nodes, _ in ranks]
    listed = [[each for rank in ranks for each in rank[which]] for which in (0, 1)]
    places = sent(torch.tensor(listed), target_probs.device)
    rows = target_probs.new_empty(len(parents), target_probs.shape[1])
    for rank, (nodes, source) in enumerate(zip(places[0].split(sizes), places[1].split(sizes), strict=True)):
        if rank == 0:
            rows.index_copy_(0, nodes, target_probs.index_select(0, source))
            continue
        before, tokens = rows.index_select(0, source), draft_tokens.index_select(0, source).unsqueeze(1)
        drafted = None if draft_probs is None else draft_probs.index_select(0, source)
        left = residuals(before, drafted_rows(tokens, drafted, before))
        rows.index_copy_(0, nodes, left.to(rows.dtype))  # A drafter's rows may be float64.
    return rows


def _by_rank(parents: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """All first children, all second children, and so on; with each the row of its target, or its earlier sibling."""
    ranks: list[tuple[list[int], list[int]]] = []
    last: dict[int, tuple[int, int]] = {}
    for node, parent in enumerate(parents):
        rank, source = last.get(parent, (0, parent + 1))
        if rank == len(ranks):
            ranks.append(([], []))
        ranks[rank][0].append(node)
        ranks[rank][1].append(source)
        last[parent] = rank + 1, node
    return ranks


def acceptance_of(draft_tokens: Tensor, draft_probs: Tensor | None, rows: Tensor) -> Tensor:
    """(N,) the probability that each node is accepted if it is tested against its row (N, V): min(1, p / q)."""
    at = draft_tokens.unsqueeze(1)
    p = rows.gather(1, at).squeeze(1)
    return (p if draft_probs is None else p / draft_probs.gather(1, at).squeeze(1)).clamp(max=1.0)
