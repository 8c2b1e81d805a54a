"""The Inspector's table: the figures of a position and how each is computed, for each way of testing."""

from __future__ import annotations

from collections.abc import Sequence

from app.run.inspector.places import evidence_at
from app.run.inspector.shares import known, number
from app.run.inspector.verdicts import Decider, chance_of, least_of, prob_in
from app.run.run_view import NamedValue
from core.evidence import PositionEvidence
from core.settings import TYPICAL_FLOOR, TYPICAL_SHARE
from core.types import Step

P_HELP = "The target's probability of the {} token, after temperature and filters."
OVERLAP_HELP = "The sum of min(p, q) over the whole vocabulary: "
TV_HELP = "TV is the total variation distance of the two distributions."
U_HELP = "From 0 to 1; the token is accepted if u·q < p. Drawn for every token, tested or not."
BLOCK_HELP = "Each prefix of the block passes as a whole if u < h; the longest prefix that passes is accepted."
Fact = tuple[str, float | None, str]


def drafted_facts(step: Step, slot: int, decider: Decider) -> list[NamedValue]:
    """The figures of a drafted token."""
    evidence = evidence_at(step, slot)
    if decider is Decider.ARGMAX:
        return _named(_raw_facts(step, slot, step.drafted[slot], "drafted"))
    rows: list[Fact] = [
        ("Target p", known(step.target_probs, slot), P_HELP.format("drafted")),
        ("Draft q", known(step.draft_probs, slot), "The draft's probability of the token that it drafted."),
    ]
    if decider is Decider.BLOCK:
        rows += _block_facts(step, slot)
    elif decider is Decider.DRAW:
        chance = "The probability that rejection sampling accepts this token."
        how = "the probability that a token drafted here is accepted, whichever it is."
        rows += [
            ("Acceptance probability, min(1, p/q)", known(step.acceptance_probs, slot), chance),
            ("Uniform draw u", known(step.uniforms, slot), U_HELP),
            (
                "Expected acceptance, 1 − TV",
                known(step.expected_acceptance, slot),
                f"{OVERLAP_HELP}{how} {TV_HELP}",
            ),
        ]
        if evidence is not None:
            how = "The sum of max(0, p − q) over the whole vocabulary: the probability of a rejection here, after "
            rows.append(("Residual mass, TV", evidence.residual_mass, f"{how}which the residual gives the next token."))
    elif decider is Decider.TYPICAL:
        how = f"The smaller of {TYPICAL_FLOOR:g} and {TYPICAL_SHARE:g} exp(−H), H being the target's entropy."
        rows.append(("Threshold for p", least_of(step, slot), how))
    elif not step.parents:
        how = "the average acceptance of rejection sampling, which no coupling exceeds; shared noise accepts less."
        title = "Upper bound of acceptance, 1 − TV"
        rows.append((title, known(step.expected_acceptance, slot), f"{OVERLAP_HELP}{how} {TV_HELP}"))
        if evidence is not None:
            how = "The sum of max(0, p − q). Under shared noise nothing is drawn from the residual."
            rows.append(("Distance of the distributions, TV", evidence.residual_mass, how))
    if evidence is not None and evidence.residual_probs is not None:
        how = "For the token drawn instead: its max(0, p − q), divided by the residual mass."
        drawn = prob_in(evidence.residual_probs, evidence, step.emitted[-1])
        rows.append(("Residual of the drawn token", drawn, how))
    return _named(rows) + _entropies(evidence)


def _block_facts(step: Step, slot: int) -> list[Fact]:
    before = known([test.weight for test in step.block], slot)
    expected = known(step.expected_acceptance, slot)
    mass = known([test.residual for test in step.block], slot)
    return [
        ("Weight before it, w", before, "min(1, w p / q), token by token: the target's weight in the residual."),
        ("Weight with it, min(1, w p/q)", known(step.acceptance_probs, slot),
            "The probability that the block is accepted at least up to this token."),
        ("Acceptance of this prefix, h", chance_of(step, slot), BLOCK_HELP),
        ("Uniform draw u", known(step.uniforms, slot), BLOCK_HELP),
        ("Expected acceptance, Σ min(w p, q)", expected,
            "The probability, before this token was drawn, that the block is accepted at least up to it."),
        ("Residual mass, Σ max(0, w p − q)", mass,
            "The mass of the residual that gives the next token if the accepted prefix ends before this one."),
    ]  # fmt: skip


def own_facts(step: Step, slot: int, decider: Decider) -> list[NamedValue]:
    """The figures of a token that the target drew by itself."""
    evidence = evidence_at(step, slot)
    if decider is Decider.ARGMAX:
        return _named(_raw_facts(step, slot, step.emitted[-1], "taken"))
    facts: list[Fact] = []
    if evidence is not None:
        drawn = prob_in(evidence.target_probs, evidence, step.emitted[-1])
        facts.append(("Target p", drawn, P_HELP.format("drawn")))
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
    return [NamedValue(title, number(value), how) for title, value, how in facts]


def _entropies(evidence: PositionEvidence | None) -> list[NamedValue]:
    how = "−Σ p ln p over the whole vocabulary: 0 if one token is certain."
    values = {} if evidence is None else {"target": evidence.target_entropy, "draft": evidence.draft_entropy}
    return [
        NamedValue(f"Entropy of the {model}", f"{value:.2f} nats", how)
        for model, value in values.items()
        if value is not None
    ]
