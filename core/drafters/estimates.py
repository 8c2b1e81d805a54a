"""What a policy learns from a run's steps: their times by K, and how likely drafted tokens are accepted."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator

from core.settings import MAX_DRAFT_TOKENS

_NUM_KEPT = 5
"""Number of latest steps of one K whose lower median counts, so that brief slowdowns don't."""

_NUM_TRUSTED = 2
"""Steps of one K needed to trust its time; a single one may have been slowed down."""

_SHORTEST_MS = 1e-6

_FIRST_SLOPE = 0.1
"""Share of a plain step's time that a drafted token is assumed to add, before it is measured."""

LONG_GAP = 8
"""After this many plain tokens, the time in which the draft reads them is significant, and is recorded separately."""


class StepCosts:
    """Estimates T(K), a whole step's milliseconds: drafting, scoring K + 1 positions, sampling.

    T is interpolated linearly between measured K, and extrapolated with the smallest slope. It never falls with K: if
    a longer block took less, the shorter one was slowed down.
    """

    def __init__(self, target_step_ms: float | None = None) -> None:
        """Args: target_step_ms: time of a one-position forward of the target, the first estimate of a plain step."""
        first = [] if target_step_ms is None else [max(target_step_ms, _SHORTEST_MS)]
        self._laps: dict[int, deque[float]] = {0: deque(first, _NUM_KEPT)}
        self._catch_up_ms: deque[float] = deque(maxlen=_NUM_KEPT)
        self._tables: dict[bool, list[float]] = {}

    @property
    def is_known(self) -> bool:
        """Whether a plain step has been timed."""
        return bool(self._laps[0])

    @property
    def plain_ms(self) -> float:
        """T(0), once it is known."""
        return statistics.median_low(self._laps[0])

    @property
    def num_plain(self) -> int:
        """Plain steps timed, as far as they are kept."""
        return len(self._laps[0])

    @property
    def longest(self) -> int:
        """The largest measured K."""
        return max(self._laps)

    def inferred(self) -> Iterator[tuple[int, float]]:
        """Each K between two known ones, with a lower bound of T(K): the smaller neighbour plus the smallest slope."""
        stretches = [*itertools.pairwise(self._measured(_NUM_TRUSTED))]
        slope = min((_slope(left, right) for left, right in stretches), default=0.0)
        for left, right in stretches:
            for count in range(left[0] + 1, right[0]):
                yield count, left[1] + slope * (count - left[0])

    def table(self, *, hopeful: bool = False) -> list[float]:
        """T(K) for each K from 0 to the longest block; hopeful: a K measured only once is interpolated, too."""
        found = self._tables.get(hopeful)
        if found is None:
            found = self._tables[hopeful] = _filled(self._measured(_NUM_TRUSTED if hopeful else 1))
        return found

    def catch_up_ms(self, num_missed: int) -> float:
        """Time the draft needs to read tokens that plain steps have added."""
        return num_missed * statistics.median(self._catch_up_ms) if self._catch_up_ms else 0.0

    def record(self, num_draft_tokens: int, total_ms: float, num_missed: int) -> None:
        """Record a step; `num_missed` tokens were added by plain steps since the draft last read the text."""
        if num_draft_tokens and num_missed >= LONG_GAP and num_draft_tokens in self._laps:
            extra = total_ms - self.table()[num_draft_tokens]
            self._catch_up_ms.append(max(0.0, extra) / num_missed)
            return
        self._laps.setdefault(num_draft_tokens, deque(maxlen=_NUM_KEPT)).append(max(total_ms, _SHORTEST_MS))
        self._tables.clear()

    def _measured(self, least_laps: int) -> list[tuple[int, float]]:
        """(K, T(K)) in order, for each K with at least this many laps; K = 0 always."""
        least, curve = float("inf"), []
        for count in sorted(self._laps, reverse=True):
            laps = self._laps[count]
            if count == 0 or len(laps) >= least_laps:
                least = min(least, statistics.median_low(laps))
                curve.append((count, least))
        return curve[::-1]


def _filled(curve: list[tuple[int, float]]) -> list[float]:
    """T(K) for every K, from a curve of some of them."""
    if len(curve) == 1:
        return [curve[0][1] * (1.0 + _FIRST_SLOPE * count) for count in range(MAX_DRAFT_TOKENS + 1)]
    times = [curve[0][1]]
    for left, right in itertools.pairwise(curve):
        times += [left[1] + _slope(left, right) * (count - left[0]) for count in range(left[0] + 1, right[0] + 1)]
    last = curve[-1]
    slope = max(min(_slope(left, right) for left, right in itertools.pairwise(curve)), _slope(curve[0], last) / 2)
    if len(curve) == 2:
        slope = _slope(curve[0], last) / 2
    return times + [last[1] + slope * (count - last[0]) for count in range(last[0] + 1, MAX_DRAFT_TOKENS + 1)]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


# --- Acceptance -------------------------------------------------------------------------------------------------

_ONE_TEST = 1.0
"""The weight of the prior, so that the first real test doesn't decide alone."""

_MEMORY_OF_TESTS = 0.99
"""Factor by which each test decays earlier ones: about a hundred count."""

_PRIOR_CONFIDENCE, PRIOR_CHANCE, _PRIOR_WEIGHT = 0.5, 0.75, 2.0
"""A prior test: the draft's probability, the probability of acceptance, and its weight in real tests."""

_PRIOR_SLOPE, _SLOPE_WEIGHT = 0.4, 0.5
"""The prior slope of acceptance over confidence, and its weight."""


class Acceptance:
    """The share of tests passed, with decaying weights."""

    def __init__(self) -> None:
        self._passed = self._tested = 0.0

    def add(self, chances: tuple[float, ...]) -> None:
        self._passed += sum(chances)
        self._tested += len(chances)

    def fade(self, weight: float, least: float = 0.0) -> None:
        if self._tested * weight < least:
            return
        self._passed *= weight
        self._tested *= weight

    def mean(self, prior: float, weight: float = _ONE_TEST) -> float:
        return min((self._passed + weight * prior) / (self._tested + weight), 1.0)

    def optimistic(self, prior: float) -> float:
        """One standard error above the mean."""
        mean = self.mean(prior)
        return min(mean + math.sqrt(mean * (1.0 - mean) / (self._tested + _ONE_TEST)), 1.0)


class Calibration:
    """Predicts the probability of acceptance from the draft's probability of a token, by a line fitted to this run.

    Least squares with decaying weights, and a prior that a few tests outweigh.
    """

    def __init__(self) -> None:
        self._weight = _PRIOR_WEIGHT
        self._confidence, self._chance = _PRIOR_CONFIDENCE, PRIOR_CHANCE
        self._spread, self._together = _SLOPE_WEIGHT, _SLOPE_WEIGHT * _PRIOR_SLOPE

    def chance(self, confidence: float) -> float:
        """From 0 to 1."""
        slope = self._together / self._spread
        return min(max(self._chance + slope * (confidence - self._confidence), 0.0), 1.0)

    def add(self, confidence: float, chance: float) -> None:
        """Add a test: the draft's probability of a token, and its probability of acceptance."""
        self._weight = _MEMORY_OF_TESTS * self._weight + 1.0
        away, off = confidence - self._confidence, chance - self._chance
        self._confidence += away / self._weight
        self._chance += off / self._weight
        # Welford's update: deviations are from the moving mean.
        self._spread = _MEMORY_OF_TESTS * self._spread + away * (confidence - self._confidence)
        self._together = _MEMORY_OF_TESTS * self._together + away * (chance - self._chance)
