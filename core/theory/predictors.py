"""Cheaper figures than 1 - TV, and how well each tells acceptance: from the laws that a run kept.

Evidence lists up to 64 tokens of a place and keeps the rest as one sum. Entropies and 1 - TV were worked out over the
whole vocabulary and are exact; the divergences are not: see `kl_bound`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from core.evidence import PositionEvidence
from core.theory.columns import Array
from core.types import Step, TokenKind

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
