"""Whether a run's acceptance was as predicted, and what predicts it."""

from __future__ import annotations

import contextlib
import math
import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from core.analysis.diagnosis import Array, plain_step
from core.analysis.expectation import wilson
from core.analysis.theory import SpeedupTheory, speedup_theory
from core.runlog.tally import Tally
from core.types import Step, Summary

NUM_BINS = 10
LEAST_POSITIONS = 20
"""Positions below which a correlation says nothing."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Tested tokens of one kind: predicted (mean of sum(min(p, q))) and observed acceptance, with its 95 % interval."""

    title: str
    num_tested: int
    predicted: float
    observed: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predicted against observed acceptance, overall, by position in the block, and by tenths of the prediction.

    z is (accepted - sum of predictions) / square root of sum of a (1 - a): standard normal where tokens are
    accepted with the predicted probability; None where every prediction was 0 or 1.
    """

    overall: Reliability
    positions: tuple[Reliability, ...]
    bins: tuple[Reliability, ...]
    z: float | None


def calibrate(steps: Sequence[Step]) -> Calibration | None:
    """Compare; None where nothing was tested, or the run has no predictions for single tests: an old log may not,
    typical acceptance and Gumbel-coupled trees have none, and block verification tests whole texts, whose tests depend
    on each other.

    Given the text before it, a tested token is accepted with probability sum(min(p, q)) under rejection sampling
    (Leviathan et al., 2211.17192, corollary 3.6); of a Gumbel-coupled chain with less, down to (1 - TV) / (1 + TV)
    (Daliri et al., 2408.07978).
    """
    if any(step.block or (step.parents and not step.uniforms) for step in steps):
        return None
    rows = [
        (step.depths[node], step.expected_acceptance[node], node in step.path)
        for step in steps
        for node in step.tested
        if node < len(step.expected_acceptance) and math.isfinite(step.expected_acceptance[node])
    ]
    if not rows:
        return None
    positions, predicted, accepted = np.array(rows, dtype=np.float64).T
    spread = float((predicted * (1 - predicted)).sum())
    tenths = np.minimum((predicted * NUM_BINS + 1e-9).astype(np.int64), NUM_BINS - 1)

    def reliability(title: str, chosen: np.ndarray) -> Reliability:
        count, observed = int(chosen.sum()), float(accepted[chosen].mean())
        return Reliability(title, count, float(predicted[chosen].mean()), observed, *wilson(observed, count))

    return Calibration(
        overall=reliability("all", np.ones(len(rows), dtype=bool)),
        positions=tuple(reliability(f"{int(at) + 1}", positions == at) for at in np.unique(positions)),
        bins=tuple(
            reliability(f"{tenth / NUM_BINS:.1f}–{(tenth + 1) / NUM_BINS:.1f}", tenths == tenth)
            for tenth in np.unique(tenths)
        ),
        z=float((accepted - predicted).sum()) / math.sqrt(spread) if spread > 1e-9 else None,
    )


class Predictor(StrEnum):
    """What may predict acceptance. p is the target's distribution, q the draft's."""

    KL_TARGET_DRAFT = "KL(p||q)"
    KL_DRAFT_TARGET = "KL(q||p)"
    TARGET_ENTROPY = "H(p)"
    DRAFT_ENTROPY = "H(q)"
    DRAFT_TOP = "max q"
    TOP_1 = "top-1 agreement"


@dataclass(frozen=True, slots=True)
class PredictorFit:
    """How well one predictor does: Spearman's rank correlation with 1 - TV, and with accepted (1) or rejected (0).

    Infinite values, where one distribution excludes what the other allows, rank highest and are left out of the mean. A
    correlation is None below `LEAST_POSITIONS`, or where one side never changes.
    """

    predictor: Predictor
    mean: float | None
    num_infinite: int
    with_overlap: float | None
    with_outcome: float | None
    num_positions: int
    num_outcomes: int


@dataclass(frozen=True, slots=True)
class PredictorStudy:
    """All predictors of a run, and the mass of the tokens that are not listed, the larger of the two distributions'."""

    fits: tuple[PredictorFit, ...]
    num_positions: int
    mean_tail: float
    most_tail: float


def kl_bound(listed: Array, other: Array, starts: np.ndarray, tail: Array, other_tail: Array) -> Array:
    """(n,) lower bounds of the divergences, in nats, at positions whose listed tokens begin at `starts`.

    The unlisted tokens count as one, with the sum of their probabilities (log-sum inequality). There is no upper
    bound, since an unlisted token may be impossible under the other distribution.
    """

    def terms(ours: Array, theirs: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(ours > 0, ours * np.log(ours / theirs), 0.0)

    return np.add.reduceat(terms(listed, other), starts) + terms(tail, other_tail)


def study_predictors(steps: Sequence[Step]) -> PredictorStudy | None:
    """Correlate each predictor with acceptance; None where no step kept its evidence."""
    # The lists of all drafted positions, concatenated.
    target, draft = array("f"), array("f")
    starts: list[int] = []
    scalars: list[tuple[float, ...]] = []
    for step in steps:
        tested, path = step.tested, step.path
        for index, item in enumerate(step.evidence[: step.num_draft_tokens]):
            if item.draft_probs is None or item.residual_mass is None or not len(item):
                continue
            starts.append(len(target))
            target.extend(item.target_probs)
            draft.extend(item.draft_probs)
            outcome = float(index in path) if index in tested else math.nan
            tails = item.target_tail, item.draft_tail or 0.0
            entropies = item.target_entropy, item.draft_entropy or 0.0
            scalars.append((1.0 - item.residual_mass, outcome, *entropies, *tails))
    if not starts:
        return None
    p, q = (np.array(values, dtype=np.float64) for values in (target, draft))
    at = np.array(starts)
    overlap, outcomes, target_entropy, draft_entropy, target_tail, draft_tail = np.array(scalars).T
    values = {
        Predictor.KL_TARGET_DRAFT: kl_bound(p, q, at, target_tail, draft_tail),
        Predictor.KL_DRAFT_TARGET: kl_bound(q, p, at, draft_tail, target_tail),
        Predictor.TARGET_ENTROPY: target_entropy,
        Predictor.DRAFT_ENTROPY: draft_entropy,
        Predictor.DRAFT_TOP: np.maximum.reduceat(q, at),
        Predictor.TOP_1: _same_top(p, q, at),
    }
    tails = np.maximum(target_tail, draft_tail)
    return PredictorStudy(
        fits=tuple(_fit(predictor, values[predictor], overlap, outcomes) for predictor in Predictor),
        num_positions=len(outcomes),
        mean_tail=float(tails.mean()),
        most_tail=float(tails.max()),
    )


def _same_top(p: Array, q: Array, starts: np.ndarray) -> Array:
    """(n,) 1 where both distributions have the same most likely token, which is always listed."""
    sizes = np.diff(np.append(starts, len(p)))
    tops = [values == np.repeat(np.maximum.reduceat(values, starts), sizes) for values in (p, q)]
    return np.logical_or.reduceat(tops[0] & tops[1], starts).astype(np.float64)


def _fit(predictor: Predictor, values: Array, overlap: Array, outcomes: Array) -> PredictorFit:
    finite, tested = np.isfinite(values), ~np.isnan(outcomes)
    return PredictorFit(
        predictor=predictor,
        mean=float(values[finite].mean()) if finite.any() else None,
        num_infinite=int((~finite).sum()),
        with_overlap=rank_correlation(values, overlap),
        with_outcome=rank_correlation(values[tested], outcomes[tested]),
        num_positions=len(values),
        num_outcomes=int(tested.sum()),
    )


def rank_correlation(first: Array, second: Array) -> float | None:
    """Spearman's: Pearson's correlation of the ranks, tied values share a rank."""
    if len(first) < LEAST_POSITIONS:
        return None
    ranks = []
    for values in (first, second):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum() - (counts - 1) / 2)[inverse].tolist())
    with contextlib.suppress(statistics.StatisticsError):  # One side never changes.
        return statistics.correlation(*ranks)
    return None


@dataclass(frozen=True, slots=True)
class Study:
    """The complete analysis of a run; a part is None if the run lacks the data for it."""

    speedup: SpeedupTheory | None
    calibration: Calibration | None
    predictors: PredictorStudy | None


def study(
    steps: Sequence[Step],
    baseline_steps: Sequence[Step] = (),
    *,
    target_step_ms: float | None = None,
    summary: Summary | None = None,
) -> Study:
    """Analyse a finished run: up to a second for 5,000 steps, so not for the window's thread.

    target_step_ms is `PrefillDone.target_step_ms`; the summary has the baseline's speed where its steps are missing.
    """
    baseline = Tally(baseline_steps)
    plain = plain_step(baseline, target_step_ms, summary)
    return Study(
        speedup=speedup_theory(Tally(steps), plain, baseline),
        calibration=calibrate(steps),
        predictors=study_predictors(steps),
    )
