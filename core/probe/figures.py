"""From laws compared place by place to what a block of any length would come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.probe.places import Places
from core.probe.types import Agreement, Costs
from core.theory.columns import SEED, Array, resampled
from core.theory.estimates import Curve, Estimate
from core.theory.speedup import KS, verify_over_k

LONGEST = len(KS) - 1
_LONGEST_BLOCK, _SHORTEST_BLOCK = 16, 4
"""Neighbouring places are alike, so that they are resampled together: as many as leave 16 blocks, within these."""

_LEAST_BLOCKS = 8
"""Fewer blocks would show too little of how texts differ, and promise too narrow an interval."""
_LEVEL = (2.5, 97.5)


def survivals(places: Places, *, is_own_text: bool) -> Array:
    """(m, 16) for a block that starts at each place: the chance that its first i tokens are accepted; NaN past the end.

    The tokens of a block stand behind drafted tokens, whereas the text is what it is. Two estimates:

    is_own_text: the text was drawn from the target's own law p. The chance that i tokens in a row are accepted is
    the sum over all rows x of the product of min(p(x_j), q(x_j)), which is the mean, over texts that are drawn from
    p, of the product of min(1, q / p): exact, whatever the draft. The last factor's own mean, sum(min(p, q)), stands
    in its place, which varies less.

    else: the product of sum(min(p, q)) along the text, the chain estimate. It takes the draft to be as good behind its
    own tokens as behind the text's.
    """
    count = len(places)
    earlier = places.kept if is_own_text else places.overlap
    table = np.full((count, LONGEST), np.nan)
    chain = np.ones(count)
    for index in range(min(LONGEST, count)):
        left = count - index
        table[:left, index] = chain[:left] * places.overlap[index:]
        chain[:left] *= earlier[index:]
    return table


def agreement(texts: Sequence[Places], *, is_own_text: bool, num_resamples: int = 500) -> Agreement:
    """Put the places of several texts together."""
    table = np.concatenate([survivals(places, is_own_text=is_own_text) for places in texts])
    overlap = np.concatenate([places.overlap for places in texts])
    blocks = _blocks(texts, table)
    survival = _survival(*(part.sum(0, keepdims=True) for part in blocks))
    drawn = _resampled_survival(blocks, num_resamples)
    first, tokens = Estimate(float(overlap.mean())), _tokens(survival)
    curve = Curve(tuple(tokens[0].tolist()))
    if drawn is not None:
        low, high = np.percentile(drawn[:, 0], _LEVEL)
        first = Estimate(first.value, float(low), float(high))
        bounds = np.percentile(_tokens(drawn), _LEVEL, axis=0)
        curve = Curve(curve.values, *(tuple(bound.tolist()) for bound in bounds))

    def mean(name: str) -> float:
        return float(np.concatenate([getattr(places, name) for places in texts]).mean())

    divergences = [np.concatenate([getattr(places, name) for places in texts])
                   for name in ("kl_target_draft", "kl_draft_target")]  # fmt: skip
    finite = [values[np.isfinite(values)] for values in divergences]
    return Agreement(
        num_places=len(overlap),
        acceptance=first,
        survival=tuple(survival[0].tolist()),
        tokens=curve,
        is_own_text=is_own_text,
        top_1=mean("same_top"),
        kl_target_draft=float(finite[0].mean()) if finite[0].size else None,
        kl_draft_target=float(finite[1].mean()) if finite[1].size else None,
        num_infinite=int(np.isinf(divergences[0]).sum()),
        target_entropy=mean("target_entropy"),
        draft_entropy=mean("draft_entropy"),
    )


def speedup(found: Agreement, costs: Costs) -> tuple[Curve, Curve]:
    """v(K+1), and tau(K) / (K c + v(K+1)) with the interval of tau, for K from 0 to 16."""
    lengths = [positions - 1 for positions, _ in costs.verify_ms]
    measured = np.array([[milliseconds / costs.target_step_ms for _, milliseconds in costs.verify_ms]])
    verify = verify_over_k(lengths, measured)[0]
    spent = KS * costs.cost + verify
    tokens = found.tokens
    parts = [
        tuple((np.array(part) / spent).tolist()) if part else () for part in (tokens.values, tokens.low, tokens.high)
    ]
    return Curve(tuple(verify.tolist())), Curve(*parts)


def _blocks(texts: Sequence[Places], table: Array) -> tuple[Array, Array]:
    """(b, 16) sums over each block of neighbouring starts, and how many starts are in them."""
    block = min(_LONGEST_BLOCK, max(_SHORTEST_BLOCK, len(table) // 16))
    starts: list[int] = []
    at = 0
    for places in texts:
        starts += range(at, at + len(places), block)
        at += len(places)
    is_there = ~np.isnan(table)
    filled = np.where(is_there, table, 0.0)
    return np.add.reduceat(filled, starts), np.add.reduceat(is_there.astype(np.float64), starts)


def _survival(sums: Array, counts: Array) -> Array:
    """(n, 16) shares, never rising; beyond the longest run of places, as if none were accepted."""
    shares = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    return np.minimum.accumulate(shares, 1)


def _resampled_survival(blocks: tuple[Array, Array], num_resamples: int) -> Array | None:
    sums, counts = blocks
    if len(sums) < _LEAST_BLOCKS or not num_resamples:
        return None
    rng = np.random.default_rng(SEED)
    pieces = [_survival(weights @ sums, weights @ counts) for weights in resampled(len(sums), rng, num_resamples)]
    return np.concatenate(pieces)


def _tokens(survival: Array) -> Array:
    """(n, 17) tau(K) of (n, 16)."""
    return 1.0 + np.concatenate((np.zeros((len(survival), 1)), survival.cumsum(1)), 1)
