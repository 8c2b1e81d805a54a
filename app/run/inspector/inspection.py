"""View model of the Inspector: describes a place of a block in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.run.inspector.places import draft_shares, evidence_at, num_places, prob_in
from app.run.inspector.shares import Share, known, number, shares_at, show
from app.run.inspector.verdicts import Decider, Words, chance_of, decider_of, last_text, least_of
from app.run.run_view import NamedValue
from app.run.text.tokens import Fate, Place, Span, block, depth_of, fate_of
from core.evidence import PositionEvidence
from core.settings import Coupling
from core.types import UNKNOWN_ID, Step

NOT_KEPT = "The distributions of this run were not kept."
NOT_REPORTED = "Distributions need the models on this machine; a server doesn't provide them."
NOT_YET = "The distributions of this step have not arrived yet."
LONGEST_NAME = 12
"""Most characters of a token in a figure's name."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything shown for one place; `shares` is empty if no evidence was kept.

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
    typical: tuple[float, float] | None = None,
    is_coming: bool = False,
) -> Inspection | None:
    """Describe a place; None if the run has no such place.

    Args:
        is_typical: whether the run's tokens are tested by typical acceptance.
        typical: floor and share of its threshold; None if unknown.
        is_coming: whether missing evidence may still arrive.
    """
    if not 0 <= place.step < len(steps) or not 0 <= place.slot < num_places(steps[place.step]):
        return None
    # Unpacked once: it is looked at for each node.
    step, slot = replace(steps[place.step], evidence=tuple(steps[place.step].evidence)), place.slot
    decider = decider_of(step, coupling, is_typical=is_typical)
    words = Words(step, decider, typical)
    is_drafted = slot < len(step.drafted)
    targets = [words.target_prob(node) for node in range(len(step.parents))]
    position = f"text position {step.position + depth_of(step, slot):,}"
    depth = f"depth {depth_of(step, slot) + 1}" if step.parents else ""
    why_none = NOT_REPORTED if step.source is not None else NOT_YET if is_coming else NOT_KEPT
    return Inspection(
        title=f"Step {place.step + 1} · {_place_name(step, slot)}",
        subtitle=" · ".join(filter(None, (position, depth, f"temperature\u00a0{step.temperature:g}"))),
        chips=tuple(span._replace(text=_chip_text(step, span)) for span in block(step, place.step)),
        verdict=words.verdict(slot),
        tests=tuple(words.tests(slot)),
        facts=tuple(_drafted_facts(step, slot, decider, typical) if is_drafted else _own_facts(step, slot, decider)),
        shares=() if (evidence := evidence_at(step, slot)) is None else shares_at(step, slot, evidence),
        note=words.note(slot) if evidence is not None else why_none,
        draft_shares=tuple(draft_shares(step)) if step.parents else (),
        target_shares=tuple(math.nan if value is None else value for value in targets),
    )


def _chip_text(step: Step, span: Span) -> str:
    is_added = span.fate in {Fate.BONUS, Fate.PLAIN, Fate.RESAMPLED}
    return last_text(step) if is_added else _drafted_text(step, span.slot)


def _drafted_text(step: Step, slot: int) -> str:
    """A drafted token, or "?" for one of which a server reports only that it was drafted."""
    text = step.drafted_texts[slot]
    return show(text) if text or step.drafted[slot] != UNKNOWN_ID else "?"


def _place_name(step: Step, slot: int) -> str:
    if not step.drafted:
        return "plain"
    if slot == len(step.drafted):
        return "bonus token"
    if step.parents:
        return f"node\u00a0{slot + 1}\u00a0of\u00a0{len(step.drafted)}"
    return f"draft token\u00a0{slot + 1}\u00a0of\u00a0{len(step.drafted)}"


# --- The table of figures, for each way of testing ---

P_HELP = "The target's probability of the {} token, after temperature and filters{}."
OVERLAP_HELP = "The sum of min(p, q) over the whole vocabulary: "
TV_HELP = "TV is the total variation distance of the two distributions."
U_HELP = "From 0 to 1; the token is accepted if u·q < p. Drawn for every token, tested or not."
BLOCK_HELP = "Each prefix of the block passes as a whole if u < h; the longest prefix that passes is accepted."
Fact = tuple[str, float | None, str]


def _drafted_facts(step: Step, slot: int, decider: Decider, typical: tuple[float, float] | None) -> list[NamedValue]:
    """The figures of a drafted token."""
    evidence = evidence_at(step, slot)
    if decider is Decider.ARGMAX:
        return _named(_raw_facts(step, slot, step.drafted[slot], "drafted"))
    # A rejected token's place also holds its replacement.
    text = _drafted_text(step, slot)
    shown = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    is_named = fate_of(step, slot) is Fate.REJECTED and step.drafted[slot] != UNKNOWN_ID
    of = f" of “{shown}”" if is_named else ""
    left = "; in a tree, of what earlier candidates leave" if step.parents and decider is Decider.DRAW else ""
    rows: list[Fact] = [
        (f"Target p{of}", known(step.target_probs, slot), P_HELP.format("drafted", left)),
        (f"Draft q{of}", known(step.draft_probs, slot), "The draft's probability of the token that it drafted."),
    ]
    if decider is Decider.BLOCK:
        rows += _block_facts(step, slot)
    elif decider is Decider.DRAW:
        rows += _draw_facts(step, slot, evidence)
    elif decider is Decider.TYPICAL:
        if typical is not None:
            how = "The smaller of {:g} and {:g} exp(−H), H being the target's entropy.".format(*typical)
            rows.append(("Threshold for p", least_of(step, slot, typical), how))
    elif not step.parents:
        rows += _noise_facts(step, slot, evidence)
    if evidence is not None and evidence.residual_probs is not None:
        how = "Of the token drawn instead: its share of the residual."
        drawn = prob_in(evidence.residual_probs, evidence, step.emitted[-1])
        rows.append(("Residual probability of the token drawn", drawn, how))
    return _named(rows) + _entropies(evidence)


def _block_facts(step: Step, slot: int) -> list[Fact]:
    before = known([test.weight for test in step.block], slot)
    expected = known([test.weight - test.residual for test in step.block], slot)
    mass = known([test.residual for test in step.block], slot)
    return [
        ("Weight before it, w", before, "min(1, w p / q), token by token: the target's weight in the residual."),
        ("Weight with it, min(1, w p/q)", known(step.acceptance_probs, slot),
            "The probability that the block is accepted at least up to this token."),
        ("Acceptance of this prefix, h", chance_of(step, slot), BLOCK_HELP),
        ("Uniform draw u", known(step.uniforms, slot), BLOCK_HELP),
        ("Expected acceptance over all drafts, Σ min(w p, q)", expected,
            "The probability, before this token was drawn, that the block is accepted at least up to it."),
        ("Residual mass, Σ max(0, w p − q)", mass,
            "The mass of the residual that gives the next token if the accepted prefix ends before this one."),
    ]  # fmt: skip


def _overlap(step: Step, slot: int, evidence: PositionEvidence | None) -> float | None:
    """1 - TV, also behind an end-of-text token, where a step expects no acceptance."""
    mass = None if evidence is None else evidence.residual_mass
    return known(step.expected_acceptance, slot) if mass is None else 1.0 - mass


def _draw_facts(step: Step, slot: int, evidence: PositionEvidence | None) -> list[Fact]:
    chance = "The probability that rejection sampling accepts this token."
    how = f"{OVERLAP_HELP}the probability that a token drafted here is accepted, whichever it is. {TV_HELP}"
    facts: list[Fact] = [
        ("Acceptance probability, min(1,\u00a0p\u00a0/\u00a0q)", known(step.acceptance_probs, slot), chance),
        ("Uniform draw u", known(step.uniforms, slot), U_HELP),
        ("Expected acceptance over all drafts, 1 − TV", _overlap(step, slot, evidence), how),
    ]
    if evidence is not None:
        how = "The sum of max(0, p − q) over the whole vocabulary: the probability of a rejection here, after "
        how += "which the next token is drawn from the residual."
        facts.append(("Residual mass, TV", evidence.residual_mass, how))
    return facts


def _noise_facts(step: Step, slot: int, evidence: PositionEvidence | None) -> list[Fact]:
    most = "the average acceptance of rejection sampling, which no coupling exceeds; shared noise accepts less."
    bound = _overlap(step, slot, evidence)
    facts: list[Fact] = [("Upper bound of acceptance, 1 − TV", bound, f"{OVERLAP_HELP}{most} {TV_HELP}")]
    if evidence is not None:
        how = "The sum of max(0, p − q). Under shared noise nothing is drawn from the residual."
        facts.append(("Distance of the distributions, TV", evidence.residual_mass, how))
    return facts


def _own_facts(step: Step, slot: int, decider: Decider) -> list[NamedValue]:
    """The figures of a token that the target drew on its own."""
    evidence = evidence_at(step, slot)
    if decider is Decider.ARGMAX:
        return _named(_raw_facts(step, slot, step.emitted[-1], "taken"))
    facts: list[Fact] = []
    if evidence is not None:
        drawn = prob_in(evidence.target_probs, evidence, step.emitted[-1])
        facts.append(("Target p", drawn, P_HELP.format("drawn", "")))
    if step.next_uniform is not None:
        how = "From 0 to 1; the token is the first at which the target's probabilities, summed by id, exceed it."
        facts.append(("Uniform draw", step.next_uniform, how))
    return _named(facts) + _entropies(evidence)


def _raw_facts(step: Step, slot: int, token: int, what: str) -> list[Fact]:
    evidence = evidence_at(step, slot)
    if evidence is None or evidence.raw_probs is None:
        return []
    how = f"The target's probability of the {what} token, without temperature and filters."
    most = "The target's probability of its most likely token, which is taken at temperature 0."
    facts: list[Fact] = [
        ("Target p at temperature 1", prob_in(evidence.raw_probs, evidence, token), how),
        ("Largest p at temperature 1", max(evidence.raw_probs), most),
    ]
    if evidence.raw_draft_probs is not None:
        of_draft = "The draft's probability of the token, without temperature and filters."
        facts.append(("Draft q at temperature 1", prob_in(evidence.raw_draft_probs, evidence, token), of_draft))
    return facts


def _named(facts: Sequence[Fact]) -> list[NamedValue]:
    return [NamedValue(title, number(value), how=how) for title, value, how in facts]


def _entropies(evidence: PositionEvidence | None) -> list[NamedValue]:
    how = "−Σ p ln p over the whole vocabulary: 0 if one token is certain."
    values = {} if evidence is None else {"target": evidence.target_entropy, "draft": evidence.draft_entropy}
    return [
        NamedValue(f"Entropy of the {model}", f"{value:.2f} nats", how=how)
        for model, value in values.items()
        if value is not None
    ]
