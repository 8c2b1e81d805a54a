"""Predicts, before any tree is drafted, the tokens per forward of a shape from both distributions.

A shape is what K, depth, branching and rule make of a tree: nodes, each with a number of earlier siblings, its rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from core.analysis.diagnosis import Array
from core.analysis.probe import Shape
from core.drafters.registry import TreeRule
from core.drafters.tree_shape import grow
from core.settings import LONGEST_CHAIN

NUM_RANKS = 4
"""Most siblings considered; a fifth hardly ever pays off."""
DEEPEST = 8


def sibling_acceptance(
    target_probs: Tensor, draft_probs: Tensor, rule: TreeRule, count: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """For each rank, (n, V) the probabilities that a token is drafted as that sibling, tested and accepted.

    They follow `core.verify.rejection`, without a draft. The earlier, rejected siblings are sampled, which is
    unbiased at each position, and exact where the rule doesn't depend on them (independent, best).

    Args:
        target_probs: (n, V), or of the V ids that the draft proposes.
        draft_probs: (n, V), after temperature and filters; those that rank the tokens where the rule takes the best.
    """
    # Not normalised: `left` is what is left of the target times `reach`, the probability that a sibling is tested.
    left, remaining = target_probs, draft_probs
    reach = torch.ones_like(draft_probs[:, :1])
    for rank in range(count):
        if rule == TreeRule.BEST or (rule == TreeRule.TOP and rank):
            row = torch.zeros_like(remaining).scatter_(1, remaining.argmax(-1, keepdim=True), 1.0)
        else:
            row = remaining / remaining.sum(-1, keepdim=True).clamp(min=1e-30)
        accepted = torch.minimum(left, reach * row)
        yield accepted
        if rule != TreeRule.INDEPENDENT:
            # The largest of rates over exponential noise is a draw in proportion to the rates.
            noise = torch.empty_like(row).exponential_(generator=generator)
            rejected = ((reach * row - accepted) / noise).argmax(-1, keepdim=True)
            remaining = remaining.scatter(1, rejected, 0.0)
        left = left - accepted
        reach = (reach - accepted.sum(-1, keepdim=True)).clamp(min=0.0)


def over_draft_ids(
    target_probs: Tensor, draft_probs: Tensor, draft_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of (n, V) target_probs that the draft knows, its own (n, R), and these ids (R,), on one device."""
    device, count = target_probs.device, draft_probs.shape[1]
    ids = torch.arange(count, device=device) if draft_ids is None else draft_ids.to(device)
    return target_probs[:, :count] if draft_ids is None else target_probs[:, ids], draft_probs.to(device), ids


def compare_siblings(
    target_probs: Tensor,
    draft_probs: Tensor,
    tokens: Tensor,
    draft_ids: Tensor | None,
    rule: TreeRule,
    generator: torch.Generator,
) -> tuple[Array, Array]:
    """(n, ranks) how likely each candidate of a tree is accepted, and the same given that the text's token follows."""
    shared, draft_probs, ids = over_draft_ids(target_probs, draft_probs, draft_ids)
    tokens = tokens.to(ids.device).unsqueeze(1)
    is_token, p = ids == tokens, target_probs.gather(1, tokens).squeeze(1)
    found = [
        (accepted.sum(-1), torch.where(is_token, accepted, 0.0).sum(-1) / p.clamp(min=1e-30))
        for accepted in sibling_acceptance(shared, draft_probs, rule, NUM_RANKS, generator)
    ]
    sums, kept = (torch.stack(part, 1).clamp(max=1.0).cpu().double().numpy() for part in zip(*found, strict=True))
    return sums, kept


class PathAcceptance:
    """The probability that a path of a tree is accepted, from the acceptance of siblings along texts.

    A path is named by its ranks: (0, 2) is the third child of the first. Over texts drawn from the target's p, its
    probability is exactly the mean, over all starts, of the product of A(x) / p(x) of the text's tokens x, where A(x)
    is `sibling_acceptance` at the path's rank; the last factor is replaced by its mean, the sum of A. On other texts
    it is the product of these sums, which assumes that the draft is as good after its own tokens.
    """

    def __init__(self, texts: Sequence[tuple[Array, Array]], *, is_own_text: bool) -> None:
        """Args: texts: of each, (m, ranks) the sums of A at its positions, and A / p of its tokens."""
        self._sums = np.concatenate([sums for sums, _ in texts])
        self._kept = np.concatenate([kept for _, kept in texts]) if is_own_text else self._sums
        self._left = np.concatenate([np.arange(len(sums), 0, -1) for sums, _ in texts])
        self._chains: dict[tuple[int, ...], Array] = {(): np.ones(len(self._left))}
        self._known: dict[tuple[int, ...], float] = {(): 1.0}

    @property
    def rates(self) -> list[float]:
        """The acceptance of a node with 0, 1, 2… rejected siblings, if it is tested; it never rises, as in `grow`."""
        sums = self._sums.mean(0)
        tested = np.maximum(1.0 - np.concatenate(([0.0], sums.cumsum()[:-1])), 1e-9)
        return [float(rate) for rate in np.minimum.accumulate(np.minimum(sums / tested, 1.0))]

    def of(self, path: tuple[int, ...]) -> float:
        """The probability that all of it is accepted; 0 where no text is as long."""
        if path not in self._known:
            reached = self.reached(path)
            whole = reached[~np.isnan(reached)]
            self._known[path] = min(float(whole.mean()) if whole.size else 0.0, self.of(path[:-1]))
        return self._known[path]

    def reached(self, path: tuple[int, ...]) -> Array:
        """(m,) the same for a tree at each start; NaN where its text ends earlier. `of` is the mean of these."""
        depth = len(path) - 1
        count = max(0, len(self._left) - depth)
        product = self._chain(path[:-1])[:count] * self._sums[depth:, path[-1]]
        found = np.full(len(self._left), np.nan)
        found[:count] = np.where(self._left[:count] > depth, product, np.nan)
        return found

    def _chain(self, path: tuple[int, ...]) -> Array:
        """(m,) for a tree at each start: the product along the text; meaningless where it leaves its text."""
        if path not in self._chains:
            chain, depth = self._chain(path[:-1]).copy(), len(path) - 1
            chain[: max(0, len(chain) - depth)] *= self._kept[depth:, path[-1]]
            self._chains[path] = chain
        return self._chains[path]


def best_shapes(acceptance: PathAcceptance, level: float, verify: Sequence[float]) -> tuple[Shape, ...]:
    """The fastest shape of each depth, the fastest first; chains are left out.

    Args:
        level: time of drafting one level / a plain forward.
        verify: v(K+1) for K from 0 on.
    """
    rates = acceptance.rates
    best: dict[int, Shape] = {}
    for limit in range(1, DEEPEST + 1):
        for branching in range(2, len(rates) + 1):
            tokens, depth, width = 1.0, 0, 0
            paths: list[tuple[int, ...]] = []
            for count, node in enumerate(grow(rates, LONGEST_CHAIN, limit, branching), start=1):
                paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.rank))
                tokens += acceptance.of(paths[-1])
                depth, width = max(depth, len(paths[-1])), max(width, node.rank + 1)
                found = Shape(count, depth, width, tokens, tokens / (depth * level + verify[count]))
                if width > 1 and (depth not in best or found.speedup > best[depth].speedup):
                    best[depth] = found
    return tuple(sorted(best.values(), key=lambda shape: -shape.speedup))
