"""One real step as a picture shows it: what was drafted, how each token was tested, and what followed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.theme import RESOURCES
from core.replay import step_from_record
from core.types import Step, TokenKind

MOST_SLOTS = 5
"""Drafted tokens that a picture has room for; what lies behind is said in a word."""
EXAMPLE = RESOURCES / "help" / "example_step.json"
VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", " ": "·"})


class Verdict(StrEnum):
    """What became of a drafted token. On screen as it stands."""

    KEPT = "kept"
    REJECTED = "rejected"
    UNTESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Slot:
    """A drafted token with its test. `uniform` is None where the coupling draws none."""

    text: str
    draft_prob: float
    target_prob: float
    acceptance: float
    uniform: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StepPicture:
    """A step.

    Attributes:
        caption: where it is from.
        num_hidden: drafted tokens beyond the picture's room.
        next_text, next_kind: the token that followed; None where the text ended within the block.
    """

    caption: str
    slots: tuple[Slot, ...]
    num_hidden: int
    next_text: str | None
    next_kind: TokenKind

    @property
    def words(self) -> str:
        """The picture for who can't see it."""
        said = [f"{slot.text!r} {slot.verdict.value}" for slot in self.slots]
        if self.next_text is not None:
            kind = "resampled" if self.next_kind is TokenKind.CORRECTION else "bonus"
            said.append(f"then {self.next_text!r}, {kind}")
        return f"{self.caption}: {', '.join(said)}."


def picture_of(steps: Sequence[Step]) -> StepPicture:
    """The latest step that shows most; a recorded one where there is none."""
    shown = next((step for step in reversed(steps) if _shows_all(step)), None)
    shown = shown or next((step for step in reversed(steps) if _is_whole(step)), None)
    if shown is None:
        return example()
    return _picture(shown, f"Step {shown.index} of this run")


def example() -> StepPicture:
    """A step of the embedded pair, recorded."""
    step = step_from_record(json.loads(EXAMPLE.read_text("utf-8"))["step"])
    if step is None:
        raise ValueError(f"{EXAMPLE} holds no step.")
    return _picture(step, "A step of the pair that ships with Outrider")


def _is_whole(step: Step) -> bool:
    figures = (*step.draft_probs, *step.target_probs, *step.acceptance_probs)
    return bool(step.drafted) and len(figures) == 3 * len(step.drafted) and all(map(math.isfinite, figures))


def _shows_all(step: Step) -> bool:
    """Whether it has a kept, a rejected and a resampled token, and fits."""
    is_resampled = bool(step.emitted_kinds) and step.emitted_kinds[-1] is TokenKind.CORRECTION
    return is_resampled and step.num_accepted > 0 and len(step.drafted) <= MOST_SLOTS and _is_whole(step)


def _picture(step: Step, caption: str) -> StepPicture:
    is_rejected = TokenKind.CORRECTION in step.emitted_kinds
    slots = tuple(
        Slot(
            text=step.drafted_texts[place].translate(VISIBLE),
            draft_prob=step.draft_probs[place],
            target_prob=step.target_probs[place],
            acceptance=step.acceptance_probs[place],
            uniform=step.uniforms[place] if step.uniforms else None,
            verdict=_verdict(place, step.num_accepted, is_rejected=is_rejected),
        )
        for place in range(min(len(step.drafted), MOST_SLOTS))
    )
    has_next = bool(step.emitted_kinds) and step.emitted_kinds[-1] is not TokenKind.ACCEPTED
    return StepPicture(
        caption=caption,
        slots=slots,
        num_hidden=len(step.drafted) - len(slots),
        next_text=step.emitted_texts[-1].translate(VISIBLE) if has_next else None,
        next_kind=step.emitted_kinds[-1] if step.emitted_kinds else TokenKind.BONUS,
    )


def _verdict(place: int, num_accepted: int, *, is_rejected: bool) -> Verdict:
    if place < num_accepted:
        return Verdict.KEPT
    return Verdict.REJECTED if is_rejected and place == num_accepted else Verdict.UNTESTED
