"""Expected block efficiency and speedup over K from a run's own alpha, c and v(n), with bootstrap intervals.

For trees, over shapes: what the first K nodes of the run's trees, no deeper than d, would have accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from core.analysis.diagnosis import (
    LEAST_TIMED,
    Array,
    PlainStep,
    tokens_per_block,
    verify_over_k,
)
from core.analysis.expectation import Curve, Estimate
from core.runlog.tally import COLUMNS, Tally
from core.settings import LONGEST_CHAIN
from core.types import depths_of

NUM_RESAMPLES = 500
SEED = 0
"""The same steps give the same intervals."""

INTERVAL = (2.5, 97.5)
"""Percentiles of the resamples that bound a 95 % interval."""

_MOST_CELLS = 200_000
"""Resamples x steps held at once: 1.6 MB."""

_MOST = 0.9
"""Share of the steps that must have one K for it to count as the run's K."""

_DRAFTED, _ACCEPTED, _TESTED, _EMITTED, _DRAFT_MS, _VERIFY_MS, _TOTAL_MS, _IS_TIMED, _LEVELS = range(len(COLUMNS))


def resampled(count: int, rng: np.random.Generator, num_resamples: int = NUM_RESAMPLES) -> Iterator[Array]:
    """Bootstrap resamples (Efron, 1979) of `count` items: how often each was drawn, (b, count) at a time.

    They come in chunks, so that memory stays bounded however long a run is.
    """
    most = max(1, _MOST_CELLS // max(1, count))
    for first in range(0, num_resamples, most):
        size = min(most, num_resamples - first)
        drawn = rng.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        yield np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def weighted_medians(values: Array, weights: Array) -> Array:
    """(b,) medians of (n,) values with (b, n) integer weights; NaN where all weights are 0."""
    order = values.argsort(kind="stable")
    ordered, reached = values[order], weights[:, order].cumsum(1)
    half = reached[:, -1:] / 2
    # The value that reaches half, and the one that passes it: two where an even number is split between them.
    lower, upper = ordered[(reached >= half).argmax(1)], ordered[(reached > half).argmax(1)]
    return np.where(half[:, 0] > 0, (lower + upper) / 2, np.nan)


# --- Shapes of trees --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShapeTheory:
    """What a smaller shape within a run's trees would have given. is_chain: the first candidates alone."""

    num_nodes: int
    depth: int
    tokens: float
    speedup: Estimate
    is_chain: bool = False

    @property
    def title(self) -> str:
        """Its name within a sentence."""
        return f"chain, K = {self.num_nodes}" if self.is_chain else f"tree, K = {self.num_nodes}, depth {self.depth}"


@dataclass(frozen=True, slots=True)
class TreeTheory:
    """What a run of trees shows about smaller ones.

    Attributes:
        depths: for each K from 0, the depth at which the first K nodes pay best.
        chain_tokens, chain_speedup: over K, of the chain of first candidates.
        shapes: the best K of each depth, and of the chain; the fastest first.
    """

    depths: tuple[int, ...]
    chain_tokens: Curve
    chain_speedup: Curve
    shapes: tuple[ShapeTheory, ...]


@lru_cache(maxsize=10_000)
def _in_shapes(parents: tuple[int, ...], path: tuple[int, ...], deepest: int, count: int) -> Array:
    """(2, deepest + 1, count) nodes accepted and levels drafted, if a tree had only its first 0, 1, 2… nodes within
    each depth; in the last row, of the chain of its first candidates.

    Nodes are drafted most promising first, so that these are what a drafter with this K and depth would draft; where it
    would have room for others, this is a lower bound.
    """
    depths, firsts, last = depths_of(parents), set[int](), -1
    for node, parent in enumerate(parents):
        if parent == last:
            firsts.add(node)
            last = node
    found = np.zeros((2, deepest + 1, count))
    for place in range(deepest + 1):
        is_chain, size = place == deepest, 0
        for node, depth in enumerate(depths):
            if size + 1 < count and (node in firsts if is_chain else depth <= place):
                size += 1
                found[0, place, size:] += node in path
                found[1, place, size:] = np.maximum(found[1, place, size:], depth + 1)
    return found


class _Shapes:
    """Of each step, what its block would have given in every shape: (n, shapes, ks). The last shape is the chain."""

    def __init__(self, sums: Tally, drafted: Array, accepted: Array, ks: Array) -> None:
        count, deepest = len(ks), int(max(max(depths_of(parents)) for parents, _ in sums.trees.values())) + 1
        found = np.zeros((2, len(drafted), deepest + 1, count))
        for step in np.flatnonzero(drafted):
            chain = tuple(range(-1, int(drafted[step]) - 1)), tuple(range(int(accepted[step])))
            found[:, step] = _in_shapes(*sums.trees.get(int(step), chain), deepest, count)
        self._is_drafted = (drafted[:, None] >= np.maximum(ks, 1)).astype(np.float64)
        self._sums = (found * self._is_drafted[:, None, :]).reshape(2, len(drafted), -1)
        self._shape = deepest + 1, count

    def means(self, weights: Array) -> tuple[Array, Array]:
        """(b, shapes, ks) tokens and levels a block, over those that drafted as many nodes."""
        with np.errstate(invalid="ignore"):
            blocks = (weights @ self._is_drafted)[:, None, :]
            accepted, levels = ((weights @ part).reshape(-1, *self._shape) / blocks for part in self._sums)
        return 1.0 + accepted, levels


@dataclass(frozen=True, slots=True)
class SpeedupTheory:
    """What the formulas predict for a run.

    Curves reach from K = 0 to 16, or to the run's K if that is larger; for trees, to its number of nodes, which are
    then K, with the depth that pays best. alpha, c: of a level.

    Attributes:
        verify: v(K+1), so that entry K is the cost of scoring a block of K; extrapolated beyond K = `longest`.
        tokens: tau(K) = (1 - alpha^(K+1)) / (1 - alpha).
        leviathan: tau / (K c + 1).
        measured_verify: tau / (K c + v(K+1)).
        tokens_by_position: tau(K) from the acceptance observed at each position, instead of alpha^i.
        ran_k: the most common K if nine of ten steps had it, else the mean over the steps.
        ran_tokens, ran_speedup: what the run achieved: tokens per step, and plain time / own time for its tokens.
        share_best, share_wins: shares of the resamples with the same best K, and in which any K beats plain decoding.
    """

    alpha: Estimate
    cost: Estimate
    verify: Curve
    tokens: Curve
    leviathan: Curve
    measured_verify: Curve
    longest: int
    tokens_by_position: Curve
    ran_k: float
    ran_tokens: Estimate
    ran_speedup: Estimate
    share_best: float | None = None
    share_wins: float | None = None
    trees: TreeTheory | None = None

    @property
    def best_k(self) -> int:
        """The best K by the measured v; 0 means: don't speculate."""
        return self.measured_verify.best


Figures = dict[str, Array]
"""Quantities by name: (b,) or (b, ks) for b resamples of the steps."""


class _Quantities:
    """A run's quantities, `own`, and those of resamples of its steps, `drawn`; empty if there are none."""

    def __init__(self, sums: Tally, plain: PlainStep, baseline: Tally | None, num_resamples: int) -> None:
        self.steps = sums.table()
        drafted, is_timed = self.steps[:, _DRAFTED], self.steps[:, _IS_TIMED] > 0
        # Of a short run, the lengths that ran as often as any: a single slow block decides nothing.
        least = min(LEAST_TIMED, max(map(len, sums.verify_by_length.values()), default=0))
        self.lengths = [k for k, times in sorted(sums.verify_by_length.items()) if len(times) >= least]
        # As in `Tally.level_ms`: c leaves out a block that was cut short.
        self.steps[~is_timed, _DRAFT_MS] = self.steps[~is_timed, _LEVELS] = 0.0
        self._groups = [np.flatnonzero(is_timed & (drafted == k)) for k in self.lengths]
        self.ks = np.arange(max(sums.usual_length, *self.lengths, 1 if sums.trees else LONGEST_CHAIN) + 1.0)
        self._shapes = _Shapes(sums, drafted, self.steps[:, _ACCEPTED], self.ks) if sums.trees else None
        self.places: list[int] = []
        """Of a run of trees, for each K the place of the depth that pays best in the run itself."""
        own = np.ones((1, len(self.steps))), np.array([plain.forward_ms]), np.array([plain.total_ms])
        self.own = self._figures(*own)
        is_long = num_resamples > 0 and len(self.steps) > 1
        self.drawn = self._resampled(plain, baseline, num_resamples) if is_long else {}

    def of(self, name: str, *at: int) -> Estimate:
        """A quantity, or a place of its array, with its interval."""
        bounds = np.nanpercentile([drawn[at] for drawn in self.drawn[name]], INTERVAL).tolist() if self.drawn else ()
        return Estimate(float(self.own[name][0][at]), *bounds)

    def curve(self, name: str) -> Curve:
        """A quantity over K, with its intervals."""
        bounds = np.nanpercentile(self.drawn[name], INTERVAL, axis=0).tolist() if self.drawn else ()
        return Curve(tuple(self.own[name][0].tolist()), *map(tuple, bounds))

    def _figures(self, weights: Array, forward_ms: Array, plain_ms: Array) -> Figures:
        """Each quantity for (b, n) weights of the steps."""
        totals = (weights @ self.steps).T
        verify = self._verify(weights, forward_ms)
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = totals[_ACCEPTED] / totals[_TESTED]
            cost = totals[_DRAFT_MS] / totals[_LEVELS] / forward_ms
            ran_speedup = totals[_EMITTED] * plain_ms / totals[_TOTAL_MS]
        found: Figures = {}
        if self._shapes is None:
            tokens = (alpha[:, None] ** self.ks).cumsum(1)  # 1 + alpha + … + alpha^K, which is K + 1 at alpha = 1.
            drafting = self.ks * cost[:, None]
        else:
            every, levels = self._shapes.means(weights)
            spent = levels * cost[:, None, None]
            speedups = every / (spent + verify[:, None, :])
            self.places = self.places or speedups[0, :-1].argmax(0).tolist()
            tokens, drafting = (part[:, self.places, np.arange(len(self.ks))] for part in (every, spent))
            found = {"every_tokens": every, "every_speedup": speedups, "levels": levels}
            found |= {"chain_tokens": every[:, -1], "chain_speedup": speedups[:, -1]}
        return found | {
            "alpha": alpha,
            "cost": cost,
            "verify": verify,
            "tokens": tokens,
            "leviathan": tokens / (drafting + 1.0),
            "measured_verify": tokens / (drafting + verify),
            "ran_tokens": totals[_EMITTED] / len(self.steps),
            "ran_speedup": ran_speedup,
        }

    def _verify(self, weights: Array, forward_ms: Array) -> Array:
        """(b, ks) v(K+1). A resample without any block of a length has the run's own time for it."""
        found = np.empty((len(weights), len(self._groups)))
        for place, group in enumerate(self._groups):
            times = self.steps[group, _VERIFY_MS]
            medians = weighted_medians(times, weights[:, group])
            found[:, place] = np.where(np.isnan(medians), np.median(times), medians)
        return verify_over_k(self.lengths, found / forward_ms[:, None], self.ks)

    def _resampled(self, plain: PlainStep, baseline: Tally | None, num_resamples: int) -> Figures:
        forward_ms, plain_ms = _resampled_plain(baseline, plain, num_resamples)
        pieces: list[Figures] = []
        done = 0
        for weights in resampled(len(self.steps), np.random.default_rng(SEED), num_resamples):
            part = slice(done, done + len(weights))
            pieces.append(self._figures(weights, forward_ms[part], plain_ms[part]))
            done += len(weights)
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def speedup_theory(
    sums: Tally, plain: PlainStep | None, baseline: Tally | None = None, *, num_resamples: int = NUM_RESAMPLES
) -> SpeedupTheory | None:
    """Analyse a run; None where no block was tested and timed, or there is no plain step to compare with.

    The baseline's steps are resampled too if `plain` was measured on them. Without resamples, no intervals.
    """
    if plain is None or not (plain.forward_ms > 0 and plain.total_ms > 0):
        return None
    if not (sums.tested and sums.timed_depths and sums.total_ms > 0):
        return None
    run = _Quantities(sums, plain, baseline, num_resamples)
    share_best = share_wins = None
    if run.drawn:
        bests = np.nan_to_num(run.drawn["measured_verify"], nan=-np.inf).argmax(1)
        share_best = float((bests == run.own["measured_verify"][0].argmax()).mean())
        share_wins = float((bests > 0).mean())
    usual, drafted = sums.usual_length, run.steps[:, _DRAFTED]
    return SpeedupTheory(
        alpha=run.of("alpha"),
        cost=run.of("cost"),
        verify=run.curve("verify"),
        tokens=run.curve("tokens"),
        leviathan=run.curve("leviathan"),
        measured_verify=run.curve("measured_verify"),
        ran_tokens=run.of("ran_tokens"),
        ran_speedup=run.of("ran_speedup"),
        longest=max(run.lengths, default=0),
        tokens_by_position=Curve(tuple(tokens_per_block(sums, k) for k in range(len(run.ks)))),
        ran_k=usual if (drafted == usual).mean() >= _MOST else float(drafted.mean()),
        share_best=share_best,
        share_wins=share_wins,
        trees=_tree_theory(run) if sums.trees else None,
    )


def _tree_theory(run: _Quantities) -> TreeTheory:
    levels, speedups = run.own["levels"][0], run.own["every_speedup"][0]
    shapes = []
    for place, deep in enumerate(levels):
        is_chain = place == len(levels) - 1
        # Few nodes don't reach a large depth, and make the same tree as a smaller one.
        is_own = np.isfinite(speedups[place]) & (run.ks > 0 if is_chain else deep > place + 0.5)
        if not is_own.any():
            continue
        k = int(np.where(is_own, speedups[place], -np.inf).argmax())
        tokens, speedup = float(run.own["every_tokens"][0, place, k]), run.of("every_speedup", place, k)
        shapes.append(ShapeTheory(k, k if is_chain else place + 1, tokens, speedup, is_chain))
    return TreeTheory(
        depths=tuple(place + 1 if k else 0 for k, place in enumerate(run.places)),
        chain_tokens=run.curve("chain_tokens"),
        chain_speedup=run.curve("chain_speedup"),
        shapes=tuple(sorted(shapes, key=lambda shape: (-shape.speedup.value, not shape.is_chain))),
    )


def _resampled_plain(baseline: Tally | None, plain: PlainStep, num_resamples: int) -> tuple[Array, Array]:
    """(b,) the plain forward and the plain step in resamples of the baseline; constant where it has no steps."""
    if plain.is_measured and baseline is not None and baseline.num_steps >= 2:
        steps = baseline.table()
        rng = np.random.default_rng(SEED + 1)
        sums = np.concatenate([weights @ steps for weights in resampled(len(steps), rng, num_resamples)])
        forward, total = (sums[:, column] / sums[:, _EMITTED] for column in (_VERIFY_MS, _TOTAL_MS))
        if forward.mean() > 0 and total.mean() > 0:
            # Scaled about the value itself: the forward times of an older log are in another unit.
            return plain.forward_ms * forward / forward.mean(), plain.total_ms * total / total.mean()
    return np.full(num_resamples, plain.forward_ms), np.full(num_resamples, plain.total_ms)
