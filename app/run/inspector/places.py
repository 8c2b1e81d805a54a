"""Places of a run, and how the Inspector's keys move between them: along a block, between candidates, between steps."""

from __future__ import annotations

from collections.abc import Sequence

from app.run.text.tokens import Place, depth_of
from core.evidence import PositionEvidence, Probs
from core.types import Step, TokenKind


def num_places(step: Step) -> int:
    """The drafted tokens' places, and one for a bonus token."""
    return len(step.drafted) + (step.emitted_kinds[-1:] == (TokenKind.BONUS,))


def evidence_at(step: Step, slot: int) -> PositionEvidence | None:
    """The evidence of a place, if it was kept."""
    return step.evidence[slot] if slot < len(step.evidence) else None


def whole_evidence(step: Step, slot: int) -> PositionEvidence | None:
    """A place's evidence with the whole distribution: in a tree that of the first candidate for its position."""
    return evidence_at(step, siblings(step, slot)[0])


def target_probs(evidence: PositionEvidence) -> Probs:
    """The target's probabilities of the listed tokens; at temperature 0 those at temperature 1."""
    return evidence.target_probs if evidence.raw_probs is None else evidence.raw_probs


def prob_in(probs: Sequence[float], evidence: PositionEvidence, token: int) -> float | None:
    """A listed token's probability; None if it isn't listed."""
    return probs[evidence.ids.index(token)] if token in evidence.ids else None


# --- Candidates ---


def siblings(step: Step, slot: int) -> list[int]:
    """The candidates for one position in a tree, in the order of their tests; in a chain, the token alone."""
    if not step.parents or slot >= len(step.drafted):
        return [slot]
    return [node for node, parent in enumerate(step.parents) if parent == step.parents[slot]]


def draft_shares(step: Step) -> list[float]:
    """The draft's probability of each drafted token before any of its siblings was drawn, if the evidence holds it; at
    temperature 0 those at 1."""
    shares, places = list(step.draft_probs), tuple(step.evidence)
    for first in {siblings(step, node)[0] for node in range(len(step.drafted))} if step.parents else ():
        if first >= len(places):
            continue
        probs = places[first].raw_draft_probs
        # A token that is proposed without a distribution counts as a one-hot, which says nothing about its siblings.
        if probs is None and step.draft_probs[first] < 1.0:
            probs = places[first].draft_probs
        if probs is not None:
            known = dict(zip(places[first].ids, probs, strict=True))
            for node in siblings(step, first):
                shares[node] = known.get(step.drafted[node], 0.0)
    return shares


def in_order(step: Step, nodes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """Siblings in the order shown: by the draft's probability, or, without evidence, in the order of their tests."""
    # A bonus token stands alone, and has no share.
    return sorted(nodes, key=lambda node: -shares[node]) if step.evidence and len(nodes) > 1 else list(nodes)


# --- Keys ---


def next_slot(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The previous (-1) or next (+1) place in depth, across steps; at either end of the run, the same place."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    slot, beyond = _along(steps[place.step], place.slot, by), place.step + by
    if slot is not None:
        return Place(place.step, slot)
    return Place(beyond, _end(steps[beyond], by)) if 0 <= beyond < len(steps) else place


def next_candidate(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The candidate above (-1) or below (+1) in a tree; where there is none, as in a chain, `next_step`."""
    if place is not None and 0 <= place.step < len(steps):
        step = steps[place.step]
        nodes = in_order(step, siblings(step, place.slot), draft_shares(step))
        at = nodes.index(place.slot) + by
        if 0 <= at < len(nodes):
            return Place(place.step, nodes[at])
    return next_step(steps, place, by)


def next_step(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The place of the same depth in the previous (-1) or next (+1) step, or that step's last one if it is shorter."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    step = min(len(steps) - 1, max(0, place.step + by))
    depth, slots = depth_of(steps[place.step], place.slot), steps[step].slots
    if step == place.step:
        return place
    if steps[step].parents:
        return Place(step, slots[min(depth, len(slots) - 1)])
    return Place(step, min(depth, num_places(steps[step]) - 1))


def _along(step: Step, slot: int, by: int) -> int | None:
    """The previous or next place in a block; None beyond its ends."""
    bonus = len(step.drafted)
    if not step.parents:
        return slot + by if 0 <= slot + by < num_places(step) else None
    if by < 0:
        before = (step.path or (-1,))[-1] if slot == bonus else step.parents[slot]
        return before if before >= 0 else None
    children = [node for node, parent in enumerate(step.parents) if parent == slot]
    if children:
        return _likeliest(step, children)
    return bonus if slot + 1 < num_places(step) and slot in step.path else None


def _likeliest(step: Step, nodes: Sequence[int]) -> int:
    """The accepted sibling, or the first one."""
    return next((node for node in nodes if node in step.path), in_order(step, nodes, draft_shares(step))[0])


def _end(step: Step, by: int) -> int:
    """A block's first place, or, going back, its last: in a tree that of the newest token."""
    if not step.parents:
        return 0 if by > 0 else num_places(step) - 1
    return _likeliest(step, siblings(step, 0)) if by > 0 else step.slots[-1]


def _first_or_last(steps: Sequence[Step], by: int) -> Place | None:
    if not steps:
        return None
    return Place(0, _end(steps[0], by)) if by > 0 else Place(len(steps) - 1, _end(steps[-1], by))
