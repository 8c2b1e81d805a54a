"""Counts a run's steps: for its summary, and for what is computed from its steps later."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.analysis.expectation import expected_of, expected_tokens
from core.types import FinishReason, Step, StepSource, Summary, TokenKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS = ("drafted", "accepted", "tested", "emitted", "draft_ms", "verify_ms", "total_ms", "is_timed", "levels")
"""Columns of `Tally.table`. tested: accepted or rejected, not those after a rejection. is_timed: 1 if the scoring
time is that of a full block, 0 if the end of the text cut the block short. levels: tokens in a row; of a chain all."""


def num_tested(step: Step) -> int:
    """Positions at which drafted tokens were tested; those after a rejection are not. In a tree, one for each depth."""
    return step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)


class PositionCounts:
    """Counts by position in the block, from 0.

    Attributes:
        drafted: blocks that reached this position.
        tested: those in which a token was tested here: one at each position before was accepted, and the text went on.
        accepted: those in which one was accepted.
    """

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.tested: list[int] = []
        self.accepted: list[int] = []

    def __len__(self) -> int:
        return len(self.drafted)

    def add(self, step: Step) -> None:
        """Count a step."""
        drafted, accepted, tested = step.depth, step.num_accepted, num_tested(step)
        for column in (self.drafted, self.tested, self.accepted):
            column.extend([0] * (drafted - len(column)))
        for position in range(drafted):
            self.drafted[position] += 1
            self.tested[position] += position < tested
            self.accepted[position] += position < accepted

    def of_drafted(self, position: int) -> float:
        """Accepted / drafted at a position."""
        return self.accepted[position] / self.drafted[position]

    def of_tested(self, position: int) -> float | None:
        """Accepted / tested, given that all earlier ones were accepted; None if none was tested."""
        tested = self.tested[position]
        return self.accepted[position] / tested if tested else None


class Tally:
    """The steps of a growing run, read once each: one row a step, and running sums.

    A block is a step that drafted. The scoring times by K and timed_draft_ms leave out a block cut short by the end of
    the text, whose times cover more tokens than are counted. levels: tokens in a row that were drafted; a tree is
    drafted level by level. trees: parents and accepted path of each block that branches, by its step.

    Attributes:
        sources: of a server's steps, how their counts are known.
        knows_drafts: whether all steps that drafted are known. A server's stream may show only those that accepted a
            token, and a rate over these would leave out the rejections.
        prefill_ms: time to read the prompt, which whoever runs the steps sets.
        target_step_ms: the time of a one-position forward, the unit of c and v without a baseline, likewise.
    """

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.sources: set[StepSource | None] = set()
        self.knows_drafts = True
        self.prefill_ms = 0.0
        self.target_step_ms: float | None = None
        self._texts: list[str] = []
        self._rows: list[tuple[float, ...]] = []
        self.num_blocks = 0
        self.tokens = self.block_tokens = self.timed_tokens = 0
        self.drafted = self.accepted = self.tested = self.levels = 0
        self.trees: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._expected, self._num_foreseen = 0.0, 0
        self.absent_ms = 0.0
        self.draft_ms = self.verify_ms = self.total_ms = self.block_ms = self.timed_draft_ms = 0.0
        self.positions = PositionCounts()
        self.verify_by_length: defaultdict[int, list[float]] = defaultdict(list)
        self.timed_depths: Counter[int] = Counter()
        self.tests_by_temperature: dict[float, tuple[int, int]] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        """Count a step."""
        count, accepted = step.num_draft_tokens, step.num_accepted
        tested = num_tested(step)
        is_timed = count > 0 and not (step.emitted_kinds and step.emitted_kinds[-1] is TokenKind.ACCEPTED)
        times = step.draft_ms, step.verify_ms, step.total_ms
        levels = step.depth
        if step.parents:
            self.trees[len(self._rows)] = step.parents, step.accepted_path
        self.sources.add(step.source)
        self.knows_drafts = self.knows_drafts and not step.may_hide_draft
        self._texts.append(step.emitted_text)
        self._rows.append((count, accepted, tested, len(step.emitted), *times, is_timed, levels))
        self.tokens += len(step.emitted)
        self.absent_ms += step.absent_ms
        self.draft_ms += step.draft_ms
        self.verify_ms += step.verify_ms
        if math.isfinite(step.total_ms):  # A server's first token has no time of its own: its prefill has it.
            self.total_ms += step.total_ms
            self.timed_tokens += len(step.emitted)
        if not count:
            return
        self.num_blocks += 1
        self.block_tokens += len(step.emitted)
        self.block_ms += step.total_ms
        self.drafted += count
        self.accepted += accepted
        self.tested += tested
        self.levels += levels
        if math.isfinite(expected := expected_of(step)):  # An old log may lack the probabilities.
            self._expected += expected
            self._num_foreseen += count
        before = self.tests_by_temperature.get(step.temperature, (0, 0))
        self.tests_by_temperature[step.temperature] = (before[0] + tested, before[1] + accepted)
        self.positions.add(step)
        if is_timed:
            self.verify_by_length[count].append(step.verify_ms)
            self.timed_depths[levels] += 1
            self.timed_draft_ms += step.draft_ms

    def positions_of(self, summary: Summary | None) -> PositionCounts:
        """Counts by position: the summary's where a server reported all, but its steps show only some drafts; none
        where it didn't."""
        shows_all = self.knows_drafts or (
            # Older logs count the drafts that are shown, but have no rate then.
            summary is not None
            and summary.draft_acceptance_rate is not None
            and summary.num_draft_tokens == self.drafted
        )
        shown = self.positions if shows_all else PositionCounts()
        if summary is None or summary.source is None or summary.num_drafts <= self.num_blocks:
            return shown
        drafts, accepted = summary.num_drafts, summary.num_accepted_tokens_per_pos
        whole = drafts * len(accepted), sum(accepted)
        falls = [drafts, *accepted, 0]
        # A log may be a stranger's, and blocks may differ in length.
        is_consistent = whole == (summary.num_draft_tokens, summary.num_accepted_tokens)
        if not is_consistent or falls != sorted(falls, reverse=True):
            return shown
        found = PositionCounts()
        found.drafted, found.tested, found.accepted = [drafts] * len(accepted), falls[:-2], list(accepted)
        return found

    @property
    def is_tree(self) -> bool:
        """Whether any block was a tree."""
        return bool(self.trees)

    @property
    def num_steps(self) -> int:
        """Steps counted so far."""
        return len(self._rows)

    @property
    def alpha(self) -> float | None:
        """Share of tested tokens that were accepted; tokens after a rejection are not tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def predicted_rate(self) -> float | None:
        """Accepted / drafted as expected of the run's way of testing, or, under Gumbel coupling, of rejection
        sampling; None if unknown, as under typical acceptance."""
        return self._expected / self._num_foreseen if self._num_foreseen else None

    @property
    def usual_depth(self) -> int:
        """The most common number of tokens in a row, the largest of several; 0 where nothing was drafted."""
        return max(self.timed_depths, key=lambda depth: (self.timed_depths[depth], depth), default=0)

    @property
    def usual_length(self) -> int:
        """The most common K, the longest of several; 0 where nothing was drafted."""
        return max(self.verify_by_length, key=lambda k: (len(self.verify_by_length[k]), k), default=0)

    def table(self) -> NDArray[np.float64]:
        """(n, 9) one row a step, in the order of `COLUMNS`."""
        import numpy as np  # Late: the command line reads logs without it.

        return np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))

    @property
    def level_ms(self) -> float | None:
        """Mean time to draft one level, of a chain one token, over blocks that weren't cut short; None without any."""
        levels = sum(depth * blocks for depth, blocks in self.timed_depths.items())
        return self.timed_draft_ms / levels if levels else None

    def forecast(self, forward_ms: float | None) -> tuple[float | None, float | None]:
        """The cost coefficient c and the predicted speedup, in units of a plain forward of the target."""
        if self.level_ms is None or not forward_ms:
            return None, None
        cost = self.level_ms / forward_ms
        if self.alpha is None:
            return cost, None
        # A tree is drafted level by level, and accepted like a chain whose alpha is that of a level.
        # tau / (K c + v), summed over the actual blocks; a plain step is one token at the cost of one.
        num_plain = self.num_steps - self.num_blocks
        expected = sum(n * expected_tokens(self.alpha, k) for k, n in self.timed_depths.items())
        spent = (self.timed_draft_ms + sum(map(sum, self.verify_by_length.values()))) / forward_ms
        # A damaged log may lack its times.
        return cost, (num_plain + expected) / (num_plain + spent) if spent > 0 else None

    def summary(
        self,
        reason: FinishReason,
        text: str | None = None,
        *,
        peak_memory_mb: float | None = None,
        error: str | None = None,
    ) -> Summary:
        """The run's result. Its text is that of the steps, unless another is given."""
        cost, predicted = self.forecast(self.target_step_ms)
        drafts, drafted = (self.num_blocks, self.drafted) if self.knows_drafts else (0, 0)
        return Summary(
            finish_reason=reason,
            text="".join(self._texts) if text is None else text,
            num_tokens=self.tokens,
            num_steps=self.num_steps,
            num_drafts=drafts,
            num_draft_tokens=drafted,
            num_accepted_tokens=self.accepted,
            num_accepted_tokens_per_pos=tuple(self.positions.accepted),
            draft_acceptance_rate=self.accepted / drafted if drafted else None,
            block_efficiency=self.tokens / self.num_steps if self.num_steps else None,
            cost_coefficient=cost,
            tokens_per_second=self.timed_tokens / self.total_ms * 1e3 if self.total_ms else None,
            prefill_ms=self.prefill_ms,
            peak_memory_mb=peak_memory_mb,
            predicted_speedup=predicted,
            expected_acceptance_rate=self.predicted_rate,
            error=error,
            target_step_ms=self.target_step_ms,
        )
