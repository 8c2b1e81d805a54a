"""What a step costs here by the number of tokens it drafts, learnt from the steps of a run as they come."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterator

from core.types import MAX_DRAFT_TOKENS

_NUM_KEPT = 5
"""Latest steps of one K whose median counts, the lower one of two: what another process slowed down does not."""

_NUM_TRUSTED = 2
"""So many steps of one K, and its time is known; a single one may have met a slow moment."""

_SHORTEST_MS = 1e-6

_FIRST_SLOPE = 0.1
"""What a drafted token adds to a step, of a plain step's time, while nothing is known of it."""

LONG_GAP = 8
"""Behind a gap of this many tokens the draft's reading of them shows in the step's time, and is kept apart."""


class StepCosts:
    """T(K), a whole step's milliseconds: drafting, scoring K + 1 positions, sampling.

    Measured where it was measured; between two such K on the line through them; beyond the longest on a line that is
    as steep as the gentlest stretch before it: a step in the costs (a kernel that changes with the number of
    positions) is met once. T grows with K: where a longer block took less, the shorter one's time was a slow moment's.
    """

    def __init__(self, target_step_ms: float) -> None:
        """Args: target_step_ms: time of a one-position forward of the target, for what a plain step takes."""
        self._laps: dict[int, deque[float]] = {0: deque([max(target_step_ms, _SHORTEST_MS)], _NUM_KEPT)}
        self._catch_up_ms: deque[float] = deque(maxlen=_NUM_KEPT)
        self._tables: dict[bool, list[float]] = {}

    @property
    def plain_ms(self) -> float:
        """T(0), as plain steps took."""
        return statistics.median_low(self._laps[0])

    @property
    def longest(self) -> int:
        """The largest K that was measured."""
        return max(self._laps)

    def inferred(self) -> Iterator[tuple[int, float]]:
        """Each K between two that are known, and T(K) at its least: as steep as the gentlest stretch, from below."""
        stretches = [*itertools.pairwise(self._measured(_NUM_TRUSTED))]
        slope = min((_slope(left, right) for left, right in stretches), default=0.0)
        for left, right in stretches:
            for count in range(left[0] + 1, right[0]):
                yield count, left[1] + slope * (count - left[0])

    def step_ms(self, num_draft_tokens: int, *, hopeful: bool = False) -> float:
        """T(K), measured or inferred; hopeful: what was measured but once is inferred as well."""
        return self.table(hopeful=hopeful)[num_draft_tokens]

    def table(self, *, hopeful: bool = False) -> list[float]:
        """T(K) for each K from 0 to the longest block there is."""
        found = self._tables.get(hopeful)
        if found is None:
            found = self._tables[hopeful] = _filled(self._measured(_NUM_TRUSTED if hopeful else 1))
        return found

    def catch_up_ms(self, num_missed: int) -> float:
        """What the draft needs to read tokens that plain steps have added, beyond a step's own time."""
        return num_missed * statistics.median(self._catch_up_ms) if self._catch_up_ms else 0.0

    def record(self, num_draft_tokens: int, total_ms: float, num_missed: int) -> None:
        """Take in a step.

        Args:
            num_draft_tokens: K.
            total_ms: its time.
            num_missed: tokens that the text had gained since the draft last read it, by plain steps.
        """
        if num_draft_tokens and num_missed >= LONG_GAP and num_draft_tokens in self._laps:
            extra = total_ms - self.step_ms(num_draft_tokens)
            self._catch_up_ms.append(max(0.0, extra) / num_missed)
            return
        self._laps.setdefault(num_draft_tokens, deque(maxlen=_NUM_KEPT)).append(max(total_ms, _SHORTEST_MS))
        self._tables.clear()

    def _measured(self, least_laps: int) -> list[tuple[int, float]]:
        """(K, T(K)) by K, of the K that have so many laps; plain decoding always, whose first figure is a median."""
        least, curve = float("inf"), []
        for count in sorted(self._laps, reverse=True):
            laps = self._laps[count]
            if count == 0 or len(laps) >= least_laps:
                least = min(least, statistics.median_low(laps))
                curve.append((count, least))
        return curve[::-1]


def _filled(curve: list[tuple[int, float]]) -> list[float]:
    """The curve's times, with those between and behind its points."""
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
