"""Counts over a run's steps: columns for the plots, tokens over time, acceptance by position, running sums."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.analysis.expectation import BlockSums
from core.runlog.tally import Tally
from core.types import Step

Array = NDArray[np.float64]


class Column(StrEnum):
    """The columns of a step, under their names in exported tables.

    NUM_DRAFTED counts a tree's nodes, DEPTH its tokens in a row; MEAN_DRAFTED: of the steps so far that drafted.
    Times in milliseconds; rates from 0 to 1, NaN if nothing was drafted. RATE_LOW and RATE_HIGH: the 95 % band around
    RUNNING_RATE, NaN before there are two blocks; all three are NaN where some drafts aren't known. PREDICTED_RATE:
    `Tally.predicted_rate`. TIMED_TOKENS: NaN in a step without a time, for means over several.
    RUNNING_MS_PER_TOKEN: time of all steps so far / their tokens.
    """

    NUM_DRAFTED = "drafted_tokens"
    NUM_ACCEPTED = "accepted_tokens"
    ACCEPTED_SHARE = "accepted_share"
    RUNNING_RATE = "running_rate"
    RATE_LOW = "running_rate_low_95"
    RATE_HIGH = "running_rate_high_95"
    PREDICTED_RATE = "predicted_rate"
    DRAFT_MS = "draft_ms"
    VERIFY_MS = "verify_ms"
    SAMPLE_MS = "sample_ms"
    TOTAL_MS = "total_ms"
    DEPTH = "drafted_depth"
    MEAN_DRAFTED = "drafted_tokens_per_block"
    TOKENS = "new_tokens"
    TIMED_TOKENS = "timed_tokens"
    RUNNING_MS_PER_TOKEN = "running_ms_per_token"


MOST_RANKS = 8
"""Candidates beyond these ranks are counted with the last."""


@dataclass(slots=True)
class RankCounts:
    """The candidates at one depth and rank: how many were drafted, tested and accepted."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0


class RunCounts:
    """Everything counted over the steps of a run, or of its baseline. `add` counts a step.

    Attributes:
        sums: the basis of the tiles and of the Speed page.
        columns: one value a step.
        timeline: tokens over time.
        ranks: by depth and rank among siblings, both from 0.
    """

    def __init__(self) -> None:
        self.sums = Tally()
        self.columns: dict[Column, list[Any]] = {column: [] for column in Column}
        self.timeline = Timeline()
        self.ranks: defaultdict[tuple[int, int], RankCounts] = defaultdict(RankCounts)
        self._blocks = BlockSums()

    def __len__(self) -> int:
        return self.sums.num_steps

    def add(self, step: Step) -> None:
        """Count a step."""
        sums, drafted, accepted = self.sums, step.num_draft_tokens, step.num_accepted
        sums.add(step)
        self._blocks.add(drafted, accepted)
        rate = sums.accepted / sums.drafted if sums.drafted and sums.knows_drafts else math.nan
        low, high = (self._blocks.interval() if sums.knows_drafts else None) or (math.nan, math.nan)
        values = (
            drafted,
            accepted,
            accepted / drafted if drafted else math.nan,
            rate,
            low,
            high,
            math.nan if sums.predicted_rate is None else sums.predicted_rate,
            step.draft_ms,
            step.verify_ms,
            step.sample_ms,
            step.total_ms,
            step.depth,
            sums.drafted / sums.num_blocks if sums.num_blocks else math.nan,
            len(step.emitted),
            len(step.emitted) if math.isfinite(step.total_ms) else math.nan,
            sums.total_ms / sums.timed_tokens if sums.timed_tokens else math.nan,
        )
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        self.timeline.add(step)
        self._count_ranks(step)

    def _count_ranks(self, step: Step) -> None:
        parents, tested, siblings = step.parents or range(-1, step.num_draft_tokens - 1), step.tested, Counter[int]()
        for node, (parent, depth) in enumerate(zip(parents, step.depths, strict=True)):
            counts = self.ranks[depth, min(siblings[parent], MOST_RANKS - 1)]
            siblings[parent] += 1
            counts.drafted += 1
            counts.tested += node in tested
            counts.accepted += node in step.path

    def table(self, *columns: Column) -> dict[str, list[Any]]:
        """Columns over all steps, after a column of step numbers, from 1 as in the plots."""
        return {"step": list(range(1, len(self) + 1)), **{column.value: self.columns[column] for column in columns}}

    def binned(self, column: Column, first: int, last: int, width: int) -> Array:
        """Means of a column over bins of `width` steps; the last bin may be shorter, and NaN steps are left out."""
        values = np.array(self.columns[column][first:last], dtype=np.float64)
        if width == 1 or values.size == 0:
            return values
        starts = np.arange(0, values.size, width)
        is_there = np.isfinite(values)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, values, 0.0), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


class Timeline:
    """Number of tokens generated over time; a step's tokens count when it ends.

    Attributes:
        ends_ms: when each step ended.
        counts: tokens written by then.
    """

    def __init__(self) -> None:
        self.ends_ms: list[float] = []
        self.counts: list[int] = []

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

    def up_to(self, num_tokens: int) -> Timeline:
        """The part up to the step that ended with this many tokens."""
        part, count = Timeline(), self.counts.index(num_tokens) + 1
        part.ends_ms, part.counts = self.ends_ms[:count], self.counts[:count]
        return part

    def steps_at(self, clock_ms: float) -> int:
        """How many steps had ended by then."""
        return bisect_right(self.ends_ms, clock_ms)

    def tokens_at(self, clock_ms: float) -> int:
        """How many tokens had been written by then."""
        steps = self.steps_at(clock_ms)
        return self.counts[steps - 1] if steps else 0
