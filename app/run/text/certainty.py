"""How sure the target was of each token: its probability, surprise and entropy, and what else it might have written.

At temperature 0 these are of the distribution at temperature 1, since the other one is always certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter

from app.run.inspector.places import prob_in, target_probs, whole_evidence
from app.theme import ColorBy
from core.types import Step, TokenKind

HIGHEST_NATS = {ColorBy.ENTROPY: 4.0, ColorBy.SURPRISE: 6.0}
"""From here on the colour is the strongest."""


def alternatives(step: Step, slot: int, count: int) -> list[tuple[int, str, float]]:
    """The target's most likely tokens at a place, most likely first; empty if its evidence is not there.

    Each has its id, text and probability.
    """
    evidence = whole_evidence(step, slot)
    if evidence is None:
        return []
    listed = zip(evidence.ids, evidence.texts, target_probs(evidence), strict=True)
    likely = sorted(listed, key=itemgetter(2), reverse=True)
    return [(token, text, share) for token, text, share in likely[:count] if share > 0.0]


def doubt(step: Step, slot: int, by: ColorBy) -> float | None:
    """How strongly to colour the token that a step emitted at a place, from 0, certain, to 1; None if unknown."""
    value = MEASURES[by](step, slot)
    if value is None:
        return None
    return 1.0 - min(1.0, value) if by is ColorBy.PROBABILITY else min(1.0, value / HIGHEST_NATS[by])


def probability(step: Step, slot: int) -> float | None:
    """The target's probability of the token emitted at a place; None until it is known."""
    at = step.slots.index(slot)
    token, evidence = step.emitted[at], whole_evidence(step, slot)
    if evidence is not None:
        return prob_in(target_probs(evidence), evidence, token)
    # Without evidence only drafted tokens' are known; in a tree, earlier candidates took an unknown share.
    is_known = step.emitted_kinds[at] is TokenKind.ACCEPTED and step.temperature > 0 and not step.parents
    return step.target_probs[slot] if is_known and math.isfinite(step.target_probs[slot]) else None


def surprise(step: Step, slot: int) -> float | None:
    """-ln of `probability`, in nats."""
    found = probability(step, slot)
    return None if found is None else -math.log(max(found, 1e-30))


def entropy(step: Step, slot: int) -> float | None:
    """Of the target's distribution at a place, in nats; None until it is known."""
    evidence = whole_evidence(step, slot)
    if evidence is None:
        return None
    if evidence.raw_probs is None:
        return evidence.target_entropy
    # The log has no entropy at temperature 1. The rest counts as one token, so this is a little too low.
    parts = (*evidence.raw_probs, evidence.raw_tail or 0.0)
    return -math.fsum(part * math.log(part) for part in parts if part > 0.0)


MEASURES: dict[ColorBy, Callable[[Step, int], float | None]] = {
    ColorBy.PROBABILITY: probability,
    ColorBy.ENTROPY: entropy,
    ColorBy.SURPRISE: surprise,
}
