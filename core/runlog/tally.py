"""Sums a run's steps into its summary."""

from __future__ import annotations

import math
from collections import Counter

from core.analysis.expectation import expected_accepted, expected_tokens
from core.types import FinishReason, Step, Summary, TokenKind


class Tally:
    """Counts and times of one run so far. Each figure is defined in `core.types.Summary`."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_plain = 0
        self.timed_blocks: Counter[int] = Counter()
        self.num_tokens = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted = 0
        self.num_tested = 0
        self.expected_accepted = 0.0
        self.accepted_per_position: list[int] = []
        self.decode_ms = 0.0
        self.draft_ms = 0.0
        self.scoring_ms = 0.0

    def add(self, step: Step) -> None:
        self.num_steps += 1
        self.num_tokens += len(step.emitted)
        self.decode_ms += step.total_ms
        if not step.num_draft_tokens:
            self.num_plain += 1
            return
        self.num_drafts += 1
        self.num_draft_tokens += step.num_draft_tokens
        self.num_accepted += step.num_accepted
        expected = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        # A step of a damaged log may lack its figures.
        self.expected_accepted += expected if math.isfinite(expected) else step.num_accepted
        self.num_tested += step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)
        if step.emitted_kinds[-1] is not TokenKind.ACCEPTED:
            # If the text ended within a block, its times cover more tokens than are counted.
            self.timed_blocks[step.num_draft_tokens] += 1
            self.draft_ms += step.draft_ms
            self.scoring_ms += step.verify_ms
        missing = step.num_draft_tokens - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position in range(step.num_accepted):
            self.accepted_per_position[position] += 1

    @property
    def tokens_per_second(self) -> float | None:
        return self.num_tokens / self.decode_ms * 1e3 if self.decode_ms else None

    @property
    def alpha(self) -> float | None:
        """Share of tested tokens that were accepted; tokens after a rejection are not tested."""
        return self.num_accepted / self.num_tested if self.num_tested else None

    @property
    def timed_blocks_tokens(self) -> int:
        """Tokens drafted in the blocks whose times count."""
        return sum(k * n for k, n in self.timed_blocks.items())

    def summary(
        self,
        reason: FinishReason,
        text: str,
        *,
        prefill_ms: float,
        target_step_ms: float | None,
        peak_memory_mb: float | None,
        error: str | None = None,
    ) -> Summary:
        """The run's result. `target_step_ms`, the time of a one-position forward, is the unit of c and v."""
        cost = predicted = None
        if self.timed_blocks and target_step_ms:
            cost = self.draft_ms / self.timed_blocks_tokens / target_step_ms
            if self.alpha is not None:
                # tau / (K c + v), summed over the actual blocks; a plain step is one token at the cost of one.
                expected = sum(n * expected_tokens(self.alpha, k) for k, n in self.timed_blocks.items())
                spent = (self.draft_ms + self.scoring_ms) / target_step_ms
                predicted = (self.num_plain + expected) / (self.num_plain + spent)
        return Summary(
            finish_reason=reason,
            text=text,
            num_tokens=self.num_tokens,
            num_steps=self.num_steps,
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted,
            num_accepted_tokens_per_pos=tuple(self.accepted_per_position),
            draft_acceptance_rate=self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else None,
            block_efficiency=self.num_tokens / self.num_steps if self.num_steps else None,
            cost_coefficient=cost,
            tokens_per_second=self.tokens_per_second,
            prefill_ms=prefill_ms,
            peak_memory_mb=peak_memory_mb,
            predicted_speedup=predicted,
            expected_acceptance_rate=self.expected_accepted / self.num_draft_tokens if self.num_draft_tokens else None,
            error=error,
            target_step_ms=target_step_ms,
        )
