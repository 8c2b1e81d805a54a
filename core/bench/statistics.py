"""Medians with their spread, and comparisons of runs: pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and how far the values lie from it."""

    median: float
    quartiles: tuple[float, float]
    extremes: tuple[float, float]
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """Median, first and third quartile (interpolated between the values), least and greatest.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("No values, no median.")
    if len(values) == 1:
        low = high = values[0]
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), (low, high), (min(values), max(values)), tuple(values))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """What a median lies within, so often at least, whatever the values' distribution; all of them where few are there.

    Between two of the values in order: as many lie beyond as of that many coins show heads too rarely to be expected.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("No values, no median.")
    ordered, count = sorted(values), len(values)
    beyond, outcomes = 0, 1
    while 2 * outcomes <= (1.0 - confidence) * 2**count:
        beyond += 1
        outcomes += math.comb(count, beyond)
    return ordered[max(0, beyond - 1)], ordered[min(count - 1, count - beyond)]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round ours / theirs, so that what slows the machine down for a while weighs on both.

    Raises:
        ValueError: none, or not as many of the one as of the other.
    """
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def first_difference(ids: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token in which two texts differ, the end of the shorter one included; None if they don't."""
    pairs = zip_longest(ids, reference)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), None)


def order(count: int, turn: int) -> list[int]:
    """In which order `count` contenders run in their `turn`-th turn.

    Everyone starts equally often, and every other turn goes backwards, so that neither a machine that grows slower
    nor what the one before leaves in the caches favours anyone.
    """
    start = turn // 2 % count if count else 0
    forwards = [(start + index) % count for index in range(count)]
    return forwards[::-1] if turn % 2 else forwards
