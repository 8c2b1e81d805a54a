"""Acceptance by draft position: how far into a block a draft is worth its time."""

from __future__ import annotations

from collections.abc import Sequence

from core.types import Step


class PositionCounts:
    """Counts by position in the block, from 0. Grows by `extend`.

    Attributes:
        drafted: blocks that reached this far.
        tested: those in which all tokens before were accepted, so that this one was tested.
        accepted: those in which this token was accepted.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.drafted: list[int] = []
        self.tested: list[int] = []
        self.accepted: list[int] = []

    def __len__(self) -> int:
        return len(self.drafted)

    def extend(self, steps: Sequence[Step]) -> None:
        """Count steps behind those that are counted."""
        for step in steps:
            drafted, accepted = step.num_draft_tokens, step.num_accepted
            for column in (self.drafted, self.tested, self.accepted):
                column.extend([0] * (drafted - len(column)))
            for position in range(drafted):
                self.drafted[position] += 1
            for position in range(accepted):
                self.tested[position] += 1
                self.accepted[position] += 1
            if accepted < drafted:
                # The first one that was not kept was tested; those behind it were discarded.
                self.tested[accepted] += 1
        self.num_steps += len(steps)

    def unconditional(self, position: int) -> float:
        """Accepted / drafted at a position."""
        return self.accepted[position] / self.drafted[position]

    def conditional(self, position: int) -> float | None:
        """Accepted / tested: given that all before were accepted. None where none was tested."""
        tested = self.tested[position]
        return self.accepted[position] / tested if tested else None
