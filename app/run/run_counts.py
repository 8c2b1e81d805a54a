"""Counts over a run's steps: columns for the plots, tokens over time, acceptance by position, running sums."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from core.analysis.diagnosis import StepSums
from core.analysis.expectation import BlockSums, expected_accepted
from core.types import Step

Array = NDArray[np.float64]


class Column(IntEnum):
    """The columns of a step. Times in milliseconds; rates from 0 to 1, NaN if nothing was drafted.

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
    """Running sums over the steps. `predicted`: number of tokens that rejection sampling is expected to accept."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    predicted: float = 0.0
    total_ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens / the sum of the steps' total_ms, without the prefill."""
        return 1000.0 * self.tokens / self.total_ms if self.total_ms > 0 else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def predicted_acceptance_rate(self) -> float | None:
        """Expected accepted / drafted under rejection sampling, from sum(min(p, q)) at each drafted position."""
        return self.predicted / self.drafted if self.drafted else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens per target forward."""
        return self.tokens / self.steps if self.steps else None


class StepMetrics:
    """Append-only columns over the steps of a run."""

    def __init__(self, capacity: int = 256) -> None:
        self._buffer: Array = np.full((len(Column), capacity), np.nan)
        self.totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = True

    def __len__(self) -> int:
        return self.totals.steps

    def clear(self, *, is_rejection: bool = True) -> None:
        """Forget all steps. With another coupling, the predicted rate is still that of rejection sampling."""
        self.totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = is_rejection

    def append(self, step: Step) -> None:
        """Add a step."""
        index, drafted = self.totals.steps, step.num_draft_tokens
        if index == self._buffer.shape[1]:
            self._buffer = np.concatenate([self._buffer, np.full_like(self._buffer, np.nan)], axis=1)
        old = self.totals
        predicted_here = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        self.totals = Totals(
            steps=index + 1,
            tokens=old.tokens + len(step.emitted),
            drafted=old.drafted + drafted,
            accepted=old.accepted + step.num_accepted,
            # A step of a damaged log may lack its probabilities.
            predicted=old.predicted + (predicted_here if math.isfinite(predicted_here) else step.num_accepted),
            total_ms=old.total_ms + step.total_ms,
        )
        self._blocks.add(drafted, step.num_accepted)
        low, high = self._blocks.interval() or (math.nan, math.nan)
        rate, predicted = self.totals.draft_acceptance_rate, self.totals.predicted_acceptance_rate
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
        """A view of one column for steps first to last - 1."""
        return self._buffer[column, first : len(self) if last is None else min(last, len(self))]

    def table(self, columns: Mapping[str, Column]) -> dict[str, list[float | int]]:
        """Columns by name over all steps, after a column of step numbers; counts are whole numbers."""
        table: dict[str, list[float | int]] = {"step": list(range(len(self)))}
        for name, column in columns.items():
            values = self.column(column)
            is_count = column in {Column.NUM_DRAFTED, Column.NUM_ACCEPTED, Column.NUM_EMITTED}
            table[name] = (values.astype(np.int64) if is_count else values).tolist()
        return table

    def binned(self, column: Column, first: int, last: int, width: int) -> Array:
        """Means of a column over bins of `width` steps; the last bin may be shorter, and NaN steps are left out."""
        values = self.column(column, first, last)
        if width == 1 or values.size == 0:
            return values
        starts = np.arange(0, values.size, width)
        is_there = np.isfinite(values)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, values, 0.0), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


class PositionCounts:
    """Counts by position in the block, from 0.

    Attributes:
        drafted: blocks that reached this position.
        tested: those in which all tokens before were accepted, so that this one was tested.
        accepted: those in which this token was accepted.
    """

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.tested: list[int] = []
        self.accepted: list[int] = []

    def __len__(self) -> int:
        return len(self.drafted)

    def add(self, step: Step) -> None:
        """Count a step."""
        drafted, accepted = step.num_draft_tokens, step.num_accepted
        for column in (self.drafted, self.tested, self.accepted):
            column.extend([0] * (drafted - len(column)))
        for position in range(drafted):
            self.drafted[position] += 1
            # The first token that was not accepted was tested; those after it were discarded.
            self.tested[position] += position <= accepted
            self.accepted[position] += position < accepted

    def of_drafted(self, position: int) -> float:
        """Accepted / drafted at a position."""
        return self.accepted[position] / self.drafted[position]

    def of_tested(self, position: int) -> float | None:
        """Accepted / tested, given that all before were accepted; None if none was tested."""
        tested = self.tested[position]
        return self.accepted[position] / tested if tested else None


@dataclass(slots=True)
class Timeline:
    """Number of tokens that a run had written over time; a step's tokens count when it ends.

    Attributes:
        ends_ms: when each step ended.
        counts: tokens written by then.
    """

    ends_ms: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Add a step. In a damaged log its time may be missing, and counts as 0."""
        self.ends_ms.append(self.end_ms + (step.total_ms if 0.0 <= step.total_ms < math.inf else 0.0))
        self.counts.append(self.num_tokens + len(step.emitted))

    @property
    def end_ms(self) -> float:
        """When the last step ended; 0 before the first."""
        return self.ends_ms[-1] if self.ends_ms else 0.0

    @property
    def num_tokens(self) -> int:
        """All tokens so far."""
        return self.counts[-1] if self.counts else 0

    def steps_at(self, clock_ms: float) -> int:
        """How many steps had ended by then."""
        return bisect_right(self.ends_ms, clock_ms)

    def tokens_at(self, clock_ms: float) -> int:
        """How many tokens had been written by then."""
        steps = self.steps_at(clock_ms)
        return self.counts[steps - 1] if steps else 0


class RunCounts:
    """Everything counted over a run and its baseline. `read` counts each step once.

    Attributes:
        sums, baseline_sums: the basis of Why and Theory.
        positions: acceptance by position in the block.
        timeline, baseline_timeline: tokens over time.
    """

    def __init__(self) -> None:
        self.sums, self.baseline_sums = StepSums(), StepSums()
        self.positions = PositionCounts()
        self.timeline, self.baseline_timeline = Timeline(), Timeline()

    def read(self, steps: Sequence[Step], baseline_steps: Sequence[Step]) -> None:
        """Count the steps added since the last call."""
        for step in steps[self.sums.num_steps :]:
            self.sums.add(step)
            self.positions.add(step)
            self.timeline.add(step)
        for step in baseline_steps[self.baseline_sums.num_steps :]:
            self.baseline_sums.add(step)
            self.baseline_timeline.add(step)
