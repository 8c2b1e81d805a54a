"""View model of the Inspector: describes a place of a block in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.run.inspector.facts import drafted_facts, own_facts
from app.run.inspector.places import draft_shares, evidence_at, num_places
from app.run.inspector.shares import Share, shares_at, show
from app.run.inspector.verdicts import Words, decider_of, last_text
from app.run.run_view import NamedValue
from app.run.text.tokens import Fate, Place, Span, block, depth_of
from core.settings import Coupling
from core.types import Step

NOT_KEPT = "The distributions of this run were not kept."
NOT_TOLD = "Distributions need the models on this machine; a server doesn't give them to the Inspector."
NOT_YET = "The distributions of this step have not arrived yet."


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is shown for one place; `shares` is empty if no evidence was kept.

    Attributes:
        chips: the whole block, with texts that make spaces visible.
        tests: a line for each test of the place's candidates in a tree, or of the block's prefixes, in order.
        draft_shares: of a tree, the draft's probability of each node; else empty.
        target_shares: likewise the target's p, at temperature 1 if greedy; NaN where unknown.
    """

    title: str
    subtitle: str
    chips: tuple[Span, ...]
    verdict: str
    tests: tuple[str, ...]
    facts: tuple[NamedValue, ...]
    shares: tuple[Share, ...]
    note: str = ""
    draft_shares: tuple[float, ...] = ()
    target_shares: tuple[float, ...] = ()


def inspect(
    steps: Sequence[Step],
    place: Place,
    coupling: Coupling = Coupling.REJECTION,
    *,
    is_typical: bool = False,
    is_coming: bool = False,
) -> Inspection | None:
    """Describe a place; None if the run has no such place.

    Args:
        is_typical: whether the run's tokens are tested by typical acceptance.
        is_coming: whether missing evidence may still arrive.
    """
    if not 0 <= place.step < len(steps) or not 0 <= place.slot < num_places(steps[place.step]):
        return None
    # Unpacked once: it is looked at for each node.
    step, slot = replace(steps[place.step], evidence=tuple(steps[place.step].evidence)), place.slot
    decider = decider_of(step, coupling, is_typical=is_typical)
    words = Words(step, decider)
    is_drafted = slot < len(step.drafted)
    return Inspection(
        title=f"Step {place.step + 1} · {_place_name(step, slot)}",
        subtitle=" · ".join(
            (
                f"position {step.position + depth_of(step, slot):,}",
                *((f"depth {depth_of(step, slot) + 1}",) if step.parents else ()),
                f"temperature {step.temperature:g}",
            )
        ),
        chips=_chips(step, place.step),
        verdict=words.verdict(slot),
        tests=tuple(words.tests(slot)),
        facts=tuple(drafted_facts(step, slot, decider) if is_drafted else own_facts(step, slot, decider)),
        shares=() if (evidence := evidence_at(step, slot)) is None else shares_at(step, slot, evidence),
        note=words.note(slot) if evidence is not None else _why_none(step, is_coming=is_coming),
        draft_shares=tuple(draft_shares(step)) if step.parents else (),
        target_shares=tuple(_or_nan(words.target_prob(node)) for node in range(len(step.parents))),
    )


def _why_none(step: Step, *, is_coming: bool) -> str:
    if step.source is not None:
        return NOT_TOLD
    return NOT_YET if is_coming else NOT_KEPT


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _chips(step: Step, number: int) -> tuple[Span, ...]:
    return tuple(
        span._replace(
            text=last_text(step)
            if span.fate in {Fate.BONUS, Fate.PLAIN, Fate.RESAMPLED}
            else show(step.drafted_texts[span.slot])
        )
        for span in block(step, number)
    )


def _place_name(step: Step, slot: int) -> str:
    if not step.drafted:
        return "plain"
    if slot == len(step.drafted):
        return "bonus token"
    if step.parents:
        return f"node {slot + 1} of {len(step.drafted)}"
    return f"draft {slot + 1} of {len(step.drafted)}"
