"""The run's figures by step, in NumPy buffers that double when they are full, and the running totals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from core.analysis import BlockSums, expected_accepted
from core.types import Step

Array = NDArray[np.float64]


class Column(IntEnum):
    """What is kept of each step. Times in milliseconds; rates from 0 to 1, NaN where nothing was drafted.

    RATE_LOW and RATE_HIGH: the 95 % band around RUNNING_RATE, NaN before there are two blocks.
    """

    NUM_DRAFTED = 0
    NUM_ACCEPTED = 1
    ACCEPTED_SHARE = 2
    RUNNING_RATE = 3
    PREDICTED_RATE = 4
    DRAFT_MS = 5
    VERIFY_MS = 6
    SAMPLE_MS = 7
    TOTAL_MS = 8
    NUM_EMITTED = 9
    TEMPERATURE = 10
    RATE_LOW = 11
    RATE_HIGH = 12


@dataclass(frozen=True, slots=True)
class Totals:
    """Running sums over the steps. `predicted`: accepted tokens that rejection sampling lets expect."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    predicted: float = 0.0
    total_ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens over the sum of the steps' total_ms; the prefill is not part of it."""
        return 1000.0 * self.tokens / self.total_ms if self.total_ms > 0 else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def predicted_acceptance_rate(self) -> float | None:
        """Expected accepted / drafted by rejection sampling, from sum(min(p, q)) at each drafted position."""
        return self.predicted / self.drafted if self.drafted else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens per target forward."""
        return self.tokens / self.steps if self.steps else None


class StepMetrics:
    """Append-only columns over the steps of a run."""

    def __init__(self, capacity: int = 256) -> None:
        self._buffer: Array = np.full((len(Column), capacity), np.nan)
        self._totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = True

    def __len__(self) -> int:
        return self._totals.steps

    @property
    def totals(self) -> Totals:
        """The running sums."""
        return self._totals

    def clear(self, *, is_rejection: bool = True) -> None:
        """Forget all steps; the buffer stays.

        Args:
            is_rejection: whether the steps to come are tested by rejection sampling. Else what is predicted is not
                their own acceptance, but what it would be.
        """
        self._totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = is_rejection

    def append(self, step: Step) -> None:
        """Add a step."""
        index, drafted = self._totals.steps, step.num_draft_tokens
        if index == self._buffer.shape[1]:
            self._buffer = np.concatenate([self._buffer, np.full_like(self._buffer, np.nan)], axis=1)
        old = self._totals
        predicted_here = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        self._totals = Totals(
            steps=index + 1,
            tokens=old.tokens + len(step.emitted),
            drafted=old.drafted + drafted,
            accepted=old.accepted + step.num_accepted,
            # A step of a damaged log may lack its figures.
            predicted=old.predicted + (predicted_here if math.isfinite(predicted_here) else step.num_accepted),
            total_ms=old.total_ms + step.total_ms,
        )
        self._blocks.add(drafted, step.num_accepted)
        low, high = self._blocks.interval() or (math.nan, math.nan)
        rate, predicted = self._totals.draft_acceptance_rate, self._totals.predicted_acceptance_rate
        self._buffer[:, index] = (
            drafted,
            step.num_accepted,
            step.num_accepted / drafted if drafted else math.nan,
            math.nan if rate is None else rate,
            math.nan if predicted is None else predicted,
            step.draft_ms,
            step.verify_ms,
            step.sample_ms,
            step.total_ms,
            len(step.emitted),
            step.temperature,
            low,
            high,
        )

    def column(self, column: Column, first: int = 0, last: int | None = None) -> Array:
        """A view of one column for steps first to last - 1; no copy."""
        return self._buffer[column, first : len(self) if last is None else min(last, len(self))]

    def table(self, columns: Mapping[str, Column]) -> dict[str, list[float | int]]:
        """Columns by name over all steps, behind the steps' own numbers; what counts tokens is whole."""
        table: dict[str, list[float | int]] = {"step": list(range(len(self)))}
        for name, column in columns.items():
            values = self.column(column)
            is_count = column in {Column.NUM_DRAFTED, Column.NUM_ACCEPTED, Column.NUM_EMITTED}
            table[name] = (values.astype(np.int64) if is_count else values).tolist()
        return table

    def binned(self, column: Column, first: int, last: int, width: int) -> Array:
        """Means of a column over bins of `width` steps, the last one perhaps shorter; NaN steps are left out."""
        values = self.column(column, first, last)
        if width == 1 or values.size == 0:
            return values
        starts = np.arange(0, values.size, width)
        is_there = np.isfinite(values)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, values, 0.0), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
