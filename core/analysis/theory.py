"""Expected block efficiency and speedup over K from a run's own alpha, c and v(n), with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.analysis.diagnosis import LEAST_BLOCKS, LEAST_TIMED, PlainStep, StepSums, tokens_per_block
from core.analysis.expectation import Curve, Estimate
from core.types import MAX_DRAFT_TOKENS, Step, TokenKind

Array = NDArray[np.float64]

NUM_RESAMPLES = 500
SEED = 0
"""The same steps give the same intervals."""

_MOST_CELLS = 200_000
"""Resamples x steps that are held at once: 1.6 MB. A window's thread waits while NumPy works through them."""

COLUMNS = ("drafted", "accepted", "tested", "emitted", "draft_ms", "verify_ms", "total_ms")


@dataclass(frozen=True, slots=True)
class Columns:
    """One row a step.

    Attributes:
        table: (n, 7) in the order of `COLUMNS`. tested: the drafted tokens that were accepted or rejected; those
            behind a rejection are neither.
        is_timed: (n,) whether the step's scoring time is that of a whole block, which one that the text's end cut
            short is not.
    """

    table: Array
    is_timed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> Array:
        return self.table[:, COLUMNS.index(name)]

    def sums(self) -> dict[str, Array]:
        """Each column's sum, as an array of one."""
        return dict(zip(COLUMNS, self.table.sum(0, keepdims=True).T, strict=True))


class GrowingColumns:
    """The columns of a run that goes on: each step is read once."""

    def __init__(self) -> None:
        self._table = np.empty((256, len(COLUMNS)))
        self._is_timed = np.empty(256, dtype=np.bool_)
        self._count = 0

    def add(self, step: Step) -> None:
        """Take in a step."""
        if self._count == len(self._table):
            self._table = np.concatenate((self._table, np.empty_like(self._table)))
            self._is_timed = np.concatenate((self._is_timed, np.empty_like(self._is_timed)))
        self._table[self._count] = _row(step)
        self._is_timed[self._count] = step.num_draft_tokens > 0 and not _is_cut(step)
        self._count += 1

    def so_far(self) -> Columns:
        """All that was taken in."""
        return Columns(self._table[: self._count], self._is_timed[: self._count])


def columns(steps: Sequence[Step]) -> Columns:
    """Read steps."""
    rows = np.array([_row(step) for step in steps], dtype=np.float64).reshape(len(steps), len(COLUMNS))
    cut = [_is_cut(step) for step in steps]
    return Columns(rows, (rows[:, 0] > 0) & ~np.array(cut, dtype=np.bool_))


def _is_cut(step: Step) -> bool:
    return bool(step.emitted_kinds) and step.emitted_kinds[-1] is TokenKind.ACCEPTED


def _row(step: Step) -> tuple[float, ...]:
    tested = step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)
    times = step.draft_ms, step.verify_ms, step.total_ms
    return step.num_draft_tokens, step.num_accepted, tested, len(step.emitted), *times


def resampled(count: int, rng: np.random.Generator, num_resamples: int = NUM_RESAMPLES) -> Iterator[Array]:
    """Bootstrap resamples (Efron, 1979) of `count` things: how often each one was drawn, (b, count) at a time.

    The resamples come in a few pieces, so that memory stays bounded however long a run is.
    """
    most = max(1, _MOST_CELLS // max(1, count))
    for first in range(0, num_resamples, most):
        size = min(most, num_resamples - first)
        drawn = rng.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        yield np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def weighted_medians(values: Array, weights: Array) -> Array:
    """(b,) medians of (n,) values that count as often as (b, n) whole weights say; NaN where none counts."""
    order = values.argsort(kind="stable")
    ordered, reached = values[order], weights[:, order].cumsum(1)
    half = reached[:, -1:] / 2
    # The value that reaches half, and the one that passes it: two where an even number is split between them.
    lower, upper = ordered[(reached >= half).argmax(1)], ordered[(reached > half).argmax(1)]
    return np.where(half[:, 0] > 0, (lower + upper) / 2, np.nan)


KS = np.arange(MAX_DRAFT_TOKENS + 1, dtype=np.float64)
"""Every K that is looked at; 0 is plain decoding."""

_LEVEL = (2.5, 97.5)
_MOST = 0.9
"""Share of the steps that must have one K for it to stand for the run."""


@dataclass(frozen=True, slots=True)
class SpeedupTheory:
    """What the formulas make of a run.

    Attributes:
        alpha: accepted / tested tokens.
        cost: c, one draft step's time / one plain forward's.
        verify: v(n) for n = K + 1, so that entry K is the cost of scoring a block of K.
        tokens: tau(K) = (1 - alpha^(K+1)) / (1 - alpha).
        leviathan: tau / (K c + 1).
        measured_verify: tau / (K c + v(K+1)).
        longest: the longest K whose v was measured; 0 if none was, and then v is 1. Beyond it v is a line drawn on.
        tokens_by_place: tau(K) from the shares of blocks that were kept so far, place by place, instead of alpha^i.
        usual_k: the commonest K of the run's blocks.
        ran_k: that K where nine of ten steps had it; else the mean over the steps, which is no whole number.
        ran_tokens, ran_speedup: what the run came to: tokens a step, and plain time / own time for its tokens.
        is_plain_measured: whether plain decoding ran too; else one forward, timed before, stands for a plain step.
        num_blocks, num_tested: blocks drafted, and tokens tested.
        share_best: share of the resamples whose best K by `measured_verify` is the same; None without resamples.
        share_wins: share of the resamples in which any K beats plain decoding.
    """

    alpha: Estimate
    cost: Estimate
    verify: Curve
    tokens: Curve
    leviathan: Curve
    measured_verify: Curve
    longest: int
    tokens_by_place: Curve
    usual_k: int
    ran_k: float
    ran_tokens: Estimate
    ran_speedup: Estimate
    is_plain_measured: bool
    num_blocks: int
    num_tested: int
    share_best: float | None = None
    share_wins: float | None = None

    @property
    def is_enough(self) -> bool:
        """Whether there are blocks enough to tell, some of one length timed."""
        return self.num_blocks >= LEAST_BLOCKS and self.longest > 0

    @property
    def best_k(self) -> int:
        """The K that pays most by the measured v; 0 says: don't speculate."""
        return self.measured_verify.best


def expected_tokens_over_k(alpha: Array) -> Array:
    """(b, 17) tau for (b,) alphas: 1 + alpha + … + alpha^K, which at 1 is K + 1."""
    return (alpha[:, None] ** KS).cumsum(1)


def speedup_over_k(alpha: Array, cost: Array, verify: Array) -> Array:
    """(b, 17) tau / (K c + v) for (b,) alphas and costs and (b, 17) verify costs."""
    return expected_tokens_over_k(alpha) / (KS * cost[:, None] + verify)


def verify_over_k(lengths: Sequence[int], costs: Array) -> Array:
    """(b, 17) v(K+1) from (b, m) costs measured at m lengths K, as `core.analysis.diagnosis.VerifyCurve` has it.

    Lines between what was measured, v(1) = 1 among it; beyond the longest as steep as from the first to it. More
    positions never cost less: where they seem to, a slow moment is to blame.
    """
    xs = np.array([0.0, *lengths])
    ys = np.maximum.accumulate(np.concatenate((np.ones((len(costs), 1)), costs), 1), 1)
    if len(xs) == 1:
        return np.ones((len(costs), len(KS)))
    right = np.clip(np.searchsorted(xs, KS), 1, len(xs) - 1)
    share = (KS - xs[right - 1]) / (xs[right] - xs[right - 1])
    table = ys[:, right - 1] + (ys[:, right] - ys[:, right - 1]) * share
    slope = (ys[:, -1:] - 1.0) / xs[-1]
    return np.where(xs[-1] < KS, ys[:, -1:] + slope * (KS - xs[-1]), table)


def speedup_theory(
    steps: Sequence[Step],
    plain: PlainStep | None,
    baseline_steps: Sequence[Step] = (),
    *,
    num_resamples: int = NUM_RESAMPLES,
    sums: StepSums | None = None,
    ours: Columns | None = None,
) -> SpeedupTheory | None:
    """Work out a run; None where nothing was tested, or where there is no plain step to hold it against.

    Args:
        steps: of the run.
        plain: as `core.analysis.diagnosis.plain_step` has it.
        baseline_steps: of plain decoding, resampled along where they stand behind `plain`.
        num_resamples: 0 for no intervals.
        sums, ours: of the same steps, where a caller adds them up as they come.
    """
    if plain is None or not plain.forward_ms > 0 or not plain.total_ms > 0:
        return None
    ours = columns(steps) if ours is None else ours
    totals = ours.sums()
    if not len(ours) or not totals["tested"][0] or not totals["total_ms"][0] > 0:
        return None
    reader = _Reader(ours, plain)
    point = reader.figures(totals, np.array([plain.forward_ms]), np.array([plain.total_ms]), reader.medians())
    drawn = _resamples(reader, baseline_steps, plain, num_resamples) if num_resamples and len(ours) > 1 else None
    if sums is None:
        sums = StepSums()
        for step in steps:
            sums.add(step)
    return _theory(reader, point, drawn, plain, sums)


class _Reader:
    """Turns sums over steps, the run's own or resampled ones, into figures: arrays with a row a resample."""

    def __init__(self, ours: Columns, plain: PlainStep) -> None:
        self.ours = ours
        self._plain = plain
        lengths, counts = np.unique(ours["drafted"][ours.is_timed], return_counts=True)
        self.lengths = [int(k) for k, count in zip(lengths, counts, strict=True) if count >= LEAST_TIMED]
        self._groups = [np.flatnonzero(ours.is_timed & (ours["drafted"] == k)) for k in self.lengths]
        self.usual_k = int(lengths[len(counts) - 1 - int(counts[::-1].argmax())]) if len(lengths) else 0

    def medians(self) -> Array:
        """(1, m) scoring times of the lengths that ran often enough."""
        times = self.ours["verify_ms"]
        return np.array([[np.median(times[group]) for group in self._groups]]).reshape(1, -1)

    def resampled_medians(self, weights: Array) -> Array:
        """(b, m) the same in resamples; the run's own where a resample has none of a length."""
        times = self.ours["verify_ms"]
        found = [weighted_medians(times[group], weights[:, group]) for group in self._groups]
        table = np.stack(found, 1) if found else np.empty((len(weights), 0))
        return np.where(np.isnan(table), self.medians(), table)

    def figures(self, sums: dict[str, Array], forward_ms: Array, plain_ms: Array, medians: Array) -> dict[str, Array]:
        """Every figure, (b,) or (b, 17)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = sums["accepted"] / sums["tested"]
            cost = sums["draft_ms"] / sums["drafted"] / forward_ms
            ran_speedup = sums["emitted"] * plain_ms / sums["total_ms"]
        verify = verify_over_k(self.lengths, medians / forward_ms[:, None])
        return {
            "alpha": alpha,
            "cost": cost,
            "verify": verify,
            "tokens": expected_tokens_over_k(alpha),
            "leviathan": speedup_over_k(alpha, cost, np.ones_like(verify)),
            "measured_verify": speedup_over_k(alpha, cost, verify),
            "emitted": sums["emitted"],
            "ran_speedup": ran_speedup,
        }


def _resamples(
    reader: _Reader, baseline_steps: Sequence[Step], plain: PlainStep, num_resamples: int
) -> dict[str, Array]:
    rng, count = np.random.default_rng(SEED), len(reader.ours)
    forward_ms, plain_ms = _resampled_plain(baseline_steps, plain, num_resamples)
    pieces: list[dict[str, Array]] = []
    done = 0
    for weights in resampled(count, rng, num_resamples):
        part = slice(done, done + len(weights))
        sums = dict(zip(reader.ours.sums(), (weights @ reader.ours.table).T, strict=True))
        medians = reader.resampled_medians(weights)
        pieces.append(reader.figures(sums, forward_ms[part], plain_ms[part], medians))
        done += len(weights)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _resampled_plain(baseline_steps: Sequence[Step], plain: PlainStep, num_resamples: int) -> tuple[Array, Array]:
    """(b,) the plain forward and the plain step in resamples of the baseline; as they are where it has no steps."""
    fixed = np.full(num_resamples, plain.forward_ms), np.full(num_resamples, plain.total_ms)
    if not plain.is_measured or len(baseline_steps) < 2:
        return fixed
    theirs = columns(baseline_steps)
    pieces = []
    for weights in resampled(len(theirs), np.random.default_rng(SEED + 1), num_resamples):
        sums = weights @ theirs.table
        pieces.append(sums[:, 5:7] / sums[:, 3:4])
    table = np.concatenate(pieces)
    # Scaled about the figure itself: an older log has no times of its plain forwards, and its unit is another's.
    forward, total = table[:, 0], table[:, 1]
    if not (forward.mean() > 0 and total.mean() > 0):
        return fixed
    return plain.forward_ms * forward / forward.mean(), plain.total_ms * total / total.mean()


def _theory(
    reader: _Reader,
    point: dict[str, Array],
    drawn: dict[str, Array] | None,
    plain: PlainStep,
    sums: StepSums,
) -> SpeedupTheory:
    count, drafted = len(reader.ours), reader.ours["drafted"]
    best = int(point["measured_verify"][0].argmax())
    share_best = share_wins = None
    if drawn is not None:
        bests = np.nan_to_num(drawn["measured_verify"], nan=-np.inf).argmax(1)
        share_best, share_wins = float((bests == best).mean()), float((bests > 0).mean())
    return SpeedupTheory(
        alpha=_estimate("alpha", point, drawn),
        cost=_estimate("cost", point, drawn),
        verify=_curve("verify", point, drawn),
        tokens=_curve("tokens", point, drawn),
        leviathan=_curve("leviathan", point, drawn),
        measured_verify=_curve("measured_verify", point, drawn),
        longest=max(reader.lengths, default=0),
        tokens_by_place=Curve(tuple(tokens_per_block(sums, k) for k in range(len(KS)))),
        usual_k=reader.usual_k,
        ran_k=reader.usual_k if (drafted == reader.usual_k).mean() >= _MOST else float(drafted.mean()),
        ran_tokens=_estimate("emitted", point, drawn, scale=1 / count),
        ran_speedup=_estimate("ran_speedup", point, drawn),
        is_plain_measured=plain.is_measured,
        num_blocks=int((reader.ours["drafted"] > 0).sum()),
        num_tested=int(reader.ours["tested"].sum()),
        share_best=share_best,
        share_wins=share_wins,
    )


def _estimate(name: str, point: dict[str, Array], drawn: dict[str, Array] | None, scale: float = 1.0) -> Estimate:
    value = scale * float(point[name][0])
    if drawn is None:
        return Estimate(value)
    low, high = scale * np.nanpercentile(drawn[name], _LEVEL)
    return Estimate(value, float(low), float(high))


def _curve(name: str, point: dict[str, Array], drawn: dict[str, Array] | None) -> Curve:
    values = tuple(point[name][0].tolist())
    if drawn is None:
        return Curve(values)
    low, high = np.nanpercentile(drawn[name], _LEVEL, axis=0)
    return Curve(values, tuple(low.tolist()), tuple(high.tolist()))
