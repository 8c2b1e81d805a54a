"""Whether what was predicted came true: 1 - TV at a place against the tokens that were accepted there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.analysis import Z95, wilson
from core.types import Step, TokenKind

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
