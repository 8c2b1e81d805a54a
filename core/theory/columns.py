"""A run's steps as columns of numbers, and resamples of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Step, TokenKind

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
