"""The places of a run's blocks: how many there are, what became of the token at each, and which is next to which."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from app.view_models.selection import Place
from core.evidence import PositionEvidence
from core.types import Step, TokenKind


class Fate(StrEnum):
    """What became of a token of a block, in the words of the screen."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    RESAMPLED = "resampled"
    BONUS = "bonus"


def num_places(step: Step) -> int:
    """The drafted tokens' places, and one for a bonus token."""
    return len(step.drafted) + (step.emitted_kinds[-1:] == (TokenKind.BONUS,))


def next_slot(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The place before (-1) or behind (+1), across steps; at either end of the run, the same place."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    slot = place.slot + by
    if 0 <= slot < num_places(steps[place.step]):
        return Place(place.step, slot)
    beyond = place.step + by
    if not 0 <= beyond < len(steps):
        return place
    return Place(beyond, 0 if by > 0 else num_places(steps[beyond]) - 1)


def next_step(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The same place of the step before (-1) or behind (+1), or that step's last one if it is shorter."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    step = min(len(steps) - 1, max(0, place.step + by))
    return Place(step, min(place.slot, num_places(steps[step]) - 1))


def _first_or_last(steps: Sequence[Step], by: int) -> Place | None:
    if not steps:
        return None
    step = 0 if by > 0 else len(steps) - 1
    return Place(step, 0 if by > 0 else num_places(steps[step]) - 1)


def fate_of(step: Step, slot: int) -> Fate:
    """What became of the token that stands, or stood, at a place."""
    if slot >= len(step.drafted):
        return Fate.BONUS
    if slot < step.num_accepted:
        return Fate.ACCEPTED
    return Fate.REJECTED if slot == step.num_accepted and is_corrected(step) else Fate.DISCARDED


def is_corrected(step: Step) -> bool:
    """Whether a token was rejected and another drawn in its place."""
    return step.emitted_kinds[-1:] == (TokenKind.CORRECTION,)


def evidence_at(step: Step, slot: int) -> PositionEvidence | None:
    """What was kept of a place, if anything was."""
    return step.evidence[slot] if slot < len(step.evidence) else None
