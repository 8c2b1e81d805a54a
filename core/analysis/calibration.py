"""All that theory says of a run, and the one sentence that it comes to."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from core.analysis.diagnosis import LEAST_BLOCKS, StepSums, plain_step
from core.analysis.expectation import Z95, wilson
from core.analysis.theory import NUM_RESAMPLES, Array, SpeedupTheory, speedup_theory
from core.evidence import PositionEvidence
from core.text import percent_text
from core.types import Step, Summary, TokenKind

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class Reliability:
    """Tested tokens of one kind: of one position, or of one range of predicted acceptance.

    Attributes:
        title: what they have in common.
        num_tested: how many.
        predicted: mean of sum(min(p, q)) at their places.
        observed: share that was accepted.
        low, high: Wilson's 95 % interval of that share. Given the places, the tests are independent.
    """

    title: str
    num_tested: int
    predicted: float
    observed: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predicted against observed acceptance.

    Attributes:
        overall: all tested tokens.
        positions: by position in the block, from 1; those that were never tested left out.
        bins: by predicted acceptance, in tenths; empty ones left out.
        z: (accepted - sum of predictions) / square root of sum of a (1 - a): standard normal where tokens are
            accepted with the predicted chance, whatever the text; None where every prediction was 0 or 1.
    """

    overall: Reliability
    positions: tuple[Reliability, ...]
    bins: tuple[Reliability, ...]
    z: float | None

    @property
    def is_consistent(self) -> bool:
        """Whether the difference is one that chance makes in 95 of 100 runs."""
        if self.z is None:
            return abs(self.overall.predicted - self.overall.observed) < 1e-6
        return abs(self.z) <= Z95


def calibrate(steps: Sequence[Step]) -> Calibration | None:
    """Compare; None where nothing was tested, or the run has no predictions, as an old log may not.

    Only tested tokens count: given the text before it, a token drafted at a place is accepted with exactly
    sum(min(p, q)) under rejection sampling (Leviathan et al., 2211.17192, corollary 3.6). Under Gumbel coupling it is
    less, down to (1 - TV) / (1 + TV) (Daliri et al., 2408.07978).
    """
    rows = [row for step in steps for row in _tests(step)]
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    table = table[np.isfinite(table[:, 1])]
    if not len(table):
        return None
    positions, predicted, accepted = table.T
    spread = float((predicted * (1 - predicted)).sum())
    tenths = np.minimum((predicted * NUM_BINS + 1e-9).astype(np.int64), NUM_BINS - 1)
    return Calibration(
        overall=_reliability("all", predicted, accepted),
        positions=tuple(
            _reliability(f"{int(position) + 1}", predicted[positions == position], accepted[positions == position])
            for position in np.unique(positions)
        ),
        bins=tuple(
            _reliability(_range(int(tenth)), predicted[tenths == tenth], accepted[tenths == tenth])
            for tenth in np.unique(tenths)
        ),
        z=float((accepted - predicted).sum()) / math.sqrt(spread) if spread > 1e-9 else None,
    )


def _tests(step: Step) -> list[tuple[int, float, bool]]:
    """(position, predicted, accepted) of each tested token."""
    tested = step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)
    predictions = step.expected_acceptance[:tested]
    return [(position, value, position < step.num_accepted) for position, value in enumerate(predictions)]


def _reliability(title: str, predicted: np.ndarray, accepted: np.ndarray) -> Reliability:
    count, observed = len(accepted), float(accepted.mean())
    return Reliability(title, count, float(predicted.mean()), observed, *wilson(observed, count))


def _range(tenth: int) -> str:
    return f"{tenth / NUM_BINS:.1f}–{(tenth + 1) / NUM_BINS:.1f}"


LEAST_PLACES = 20
"""Places below which a correlation says nothing."""


class Predictor(StrEnum):
    """What may tell acceptance. p is the target's law, q the draft's."""

    KL_TARGET_DRAFT = "KL(p||q)"
    KL_DRAFT_TARGET = "KL(q||p)"
    TARGET_ENTROPY = "H(p)"
    DRAFT_ENTROPY = "H(q)"
    DRAFT_TOP = "max q"
    TOP_1 = "top-1 agreement"


@dataclass(frozen=True, slots=True)
class PredictorFit:
    """How well one predictor tells.

    Attributes:
        mean: over the places where it is finite; None where it is nowhere.
        num_infinite: places where it is infinite: one law excludes what the other may say, as filters make it.
        with_overlap: Spearman's rank correlation with 1 - TV, over all drafted places; infinite ones rank highest.
        with_outcome: the same with accepted (1) or rejected (0), over the tested places.
        num_places, num_outcomes: of how many. A correlation is None below `LEAST_PLACES`, or where one side never
            changes.
    """

    predictor: Predictor
    mean: float | None
    num_infinite: int
    with_overlap: float | None
    with_outcome: float | None
    num_places: int
    num_outcomes: int


@dataclass(frozen=True, slots=True)
class PredictorStudy:
    """All predictors of a run.

    Attributes:
        fits: one each.
        num_places: drafted places that have evidence.
        mean_tail, most_tail: mass of the tokens that are not listed, the larger of the two laws'.
        mean_gap, most_gap: how far the listed tokens alone leave 1 - TV open: the smaller of the two tails.
    """

    fits: tuple[PredictorFit, ...]
    num_places: int
    mean_tail: float
    most_tail: float
    mean_gap: float
    most_gap: float


def overlap_bounds(evidence: PositionEvidence) -> tuple[float, float]:
    """Between what the listed tokens leave 1 - TV: their sum of min(p, q), without and with the smaller tail.

    Raises:
        ValueError: nothing was drafted there.
    """
    if evidence.draft_probs is None or evidence.draft_tail is None:
        raise ValueError("nothing was drafted here")
    listed = sum(map(min, evidence.target_probs, evidence.draft_probs))
    return listed, listed + min(evidence.target_tail, evidence.draft_tail)


def kl_bound(listed: Array, other: Array, starts: np.ndarray, tail: Array, other_tail: Array) -> Array:
    """(n,) divergences of places whose listed tokens begin at `starts`, in nats: each a lower bound.

    The tokens that are not listed count as one, whose share is their sum: by the log-sum inequality that is never
    more than the true divergence, and just as much where nothing is left out. There is no upper bound: a token that
    is not listed may be impossible under the other law.
    """
    return np.add.reduceat(_terms(listed, other), starts) + _terms(tail, other_tail)


def _terms(ours: Array, theirs: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(ours > 0, ours * np.log(ours / theirs), 0.0)


def study_predictors(steps: Sequence[Step]) -> PredictorStudy | None:
    """Correlate; None where no step kept its evidence."""
    places = _Places()
    for step in steps:
        places.add(step)
    return places.study() if places.outcomes else None


class _Places:
    """The drafted places of a run, their lists laid behind each other."""

    def __init__(self) -> None:
        self._target, self._draft = array("f"), array("f")
        self._starts: list[int] = []
        self._figures: list[tuple[float, ...]] = []
        self.outcomes: list[float] = []
        """1 accepted, 0 rejected, NaN not tested."""

    def add(self, step: Step) -> None:
        tested = step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)
        for index, place in enumerate(step.evidence[: step.num_draft_tokens]):
            if place.draft_probs is None or place.residual_mass is None or not len(place):
                continue
            self._starts.append(len(self._target))
            self._target.extend(place.target_probs)
            self._draft.extend(place.draft_probs)
            self._figures.append(
                (
                    1.0 - place.residual_mass,
                    place.target_entropy,
                    place.draft_entropy or 0.0,
                    place.target_tail,
                    place.draft_tail or 0.0,
                )
            )
            self.outcomes.append(float(index < step.num_accepted) if index < tested else np.nan)

    def study(self) -> PredictorStudy:
        p, q = (np.array(values, dtype=np.float64) for values in (self._target, self._draft))
        starts = np.array(self._starts)
        overlap, target_entropy, draft_entropy, target_tail, draft_tail = np.array(self._figures).T
        values = {
            Predictor.KL_TARGET_DRAFT: kl_bound(p, q, starts, target_tail, draft_tail),
            Predictor.KL_DRAFT_TARGET: kl_bound(q, p, starts, draft_tail, target_tail),
            Predictor.TARGET_ENTROPY: target_entropy,
            Predictor.DRAFT_ENTROPY: draft_entropy,
            Predictor.DRAFT_TOP: np.maximum.reduceat(q, starts),
            Predictor.TOP_1: _same_top(p, q, starts),
        }
        outcomes = np.array(self.outcomes)
        tails = np.maximum(target_tail, draft_tail)
        gaps = np.minimum(target_tail, draft_tail)
        return PredictorStudy(
            fits=tuple(_fit(predictor, values[predictor], overlap, outcomes) for predictor in Predictor),
            num_places=len(outcomes),
            mean_tail=float(tails.mean()),
            most_tail=float(tails.max()),
            mean_gap=float(gaps.mean()),
            most_gap=float(gaps.max()),
        )


def _same_top(p: Array, q: Array, starts: np.ndarray) -> Array:
    """(n,) 1 where both laws have the same likeliest token, which is always among the listed."""
    sizes = np.diff(np.append(starts, len(p)))
    is_top = (p == np.repeat(np.maximum.reduceat(p, starts), sizes)) & (
        q == np.repeat(np.maximum.reduceat(q, starts), sizes)
    )
    return np.logical_or.reduceat(is_top, starts).astype(np.float64)


def _fit(predictor: Predictor, values: Array, overlap: Array, outcomes: Array) -> PredictorFit:
    finite, tested = np.isfinite(values), ~np.isnan(outcomes)
    return PredictorFit(
        predictor=predictor,
        mean=float(values[finite].mean()) if finite.any() else None,
        num_infinite=int((~finite).sum()),
        with_overlap=rank_correlation(values, overlap),
        with_outcome=rank_correlation(values[tested], outcomes[tested]),
        num_places=len(values),
        num_outcomes=int(tested.sum()),
    )


def rank_correlation(first: Array, second: Array) -> float | None:
    """Spearman's: Pearson's correlation of the ranks, those that tie sharing theirs."""
    if len(first) < LEAST_PLACES:
        return None
    a, b = _ranks(first), _ranks(second)
    spread = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / spread if spread > 0 else None


def _ranks(values: Array) -> Array:
    """Ranks less their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks - ranks.mean()


SURE = 0.95
"""Share of the resamples that must agree before something is said without a doubt."""


@dataclass(frozen=True, slots=True)
class Study:
    """Each part is None where the run lacks what it takes."""

    speedup: SpeedupTheory | None
    calibration: Calibration | None
    predictors: PredictorStudy | None
    num_steps: int


def study(
    steps: Sequence[Step],
    baseline_steps: Sequence[Step] = (),
    *,
    target_step_ms: float | None = None,
    summary: Summary | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> Study:
    """Work out a run, of which all steps are here. A second or less for 5,000 steps: not for the window's thread.

    Args:
        steps, baseline_steps: as they came.
        target_step_ms: `PrefillDone.target_step_ms`.
        summary: tells the baseline's speed where its steps are not at hand.
        num_resamples: for the intervals.
    """
    baseline = StepSums()
    for step in baseline_steps:
        baseline.add(step)
    plain = plain_step(baseline, target_step_ms, summary)
    return Study(
        speedup=speedup_theory(steps, plain, baseline_steps, num_resamples=num_resamples),
        calibration=calibrate(steps),
        predictors=study_predictors(steps),
        num_steps=len(steps),
    )


def verdict(theory: SpeedupTheory) -> str:
    """What to do, in one sentence."""
    if not theory.is_enough:
        return f"Too few blocks to tell: {theory.num_blocks} were drafted, {LEAST_BLOCKS} are needed."
    best = theory.best_k
    if not best:
        doubt = theory.share_wins
        sure = "" if doubt is None or doubt <= 1 - SURE else f" ({percent_text(1 - doubt)} sure)"
        return f"Don't speculate with this pair here{sure}: no K from 1 to 16 is predicted to win."
    found = theory.measured_verify.at(best)
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    drawn_on = "" if best <= theory.longest else f", on a v drawn on beyond K = {theory.longest}"
    said = f"K = {best} is predicted to pay most: {found.value:.2f}×{interval}{drawn_on}"
    if theory.share_wins is not None and theory.share_wins < SURE:
        return f"{said}; only {percent_text(theory.share_wins)} sure to beat plain decoding at all."
    return f"{said}."
