"""How a drafted token was decided, in words and figures, for each way of testing: the Inspector's sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum

from app.run.places import evidence_at, siblings
from app.run.run_view import NamedValue
from app.run.shares import UNKNOWN, number, show
from app.run.tokens import Fate, fate_of, is_corrected
from core.evidence import PositionEvidence
from core.settings import TYPICAL_FLOOR, TYPICAL_SHARE, Coupling
from core.types import Step

ARGMAX_NOTE = "At temperature 0 the target's most likely token is taken; these are its probabilities at temperature 1."
LEFT_NOTE = "p is what the candidates rejected before it leave of the target's distribution."
NUM_LEFT = 3
"""Tokens named of what a rejection leaves."""


class Decider(StrEnum):
    """What decides whether a drafted token is accepted."""

    DRAW = "draw"
    """A draw for each token."""
    BLOCK = "block"
    """A draw for each text that begins the block."""
    NOISE = "noise"
    """The target's own draw, under shared noise."""
    TYPICAL = "typical"
    """Whether the target finds it likely enough."""
    ARGMAX = "argmax"
    """Whether it is the target's most likely token."""


def decider_of(step: Step, coupling: Coupling, *, is_typical: bool) -> Decider:
    """What decided in a step."""
    if step.temperature == 0:
        return Decider.ARGMAX
    if coupling is Coupling.GUMBEL:
        return Decider.NOISE
    if step.block:
        return Decider.BLOCK
    return Decider.TYPICAL if is_typical else Decider.DRAW


def last_text(step: Step) -> str:
    """The text of the token that the target added, without its neighbours if known."""
    evidence = evidence_at(step, step.slots[-1])
    token = step.emitted[-1]
    if evidence is not None and token in evidence.ids:
        return show(evidence.texts[list(evidence.ids).index(token)])
    return show(step.emitted_texts[-1])


P_HELP = "The target's probability of the {} token, after temperature and filters."
OVERLAP_HELP = "The sum of min(p, q) over the whole vocabulary: "
TV_HELP = "TV is the total variation distance of the two distributions."
U_HELP = "From 0 to 1; the token is accepted where u·q < p. Drawn for every token, tested or not."
Fact = tuple[str, float | None, str]


class Words:
    """A step in words, as its `decider` has it."""

    def __init__(self, step: Step, decider: Decider) -> None:
        self._step, self._decider = step, decider

    def is_raw(self, slot: int) -> bool:
        """Whether the evidence of a place holds the probabilities at temperature 1."""
        evidence = evidence_at(self._step, slot)
        return self._decider is Decider.ARGMAX and evidence is not None and evidence.raw_probs is not None

    def target_prob(self, slot: int) -> float | None:
        """p of a drafted token; at temperature 0 that at 1, if it is known."""
        evidence = evidence_at(self._step, slot)
        if evidence is not None and evidence.raw_probs is not None:
            return _prob_in(evidence.raw_probs, evidence, self._step.drafted[slot])
        return None if self._decider is Decider.ARGMAX else _at(self._step.target_probs, slot)

    def note(self, slot: int) -> str:
        """What the shown probabilities are."""
        if self.is_raw(slot):
            return ARGMAX_NOTE
        is_left = self._decider is Decider.DRAW and slot not in siblings(self._step, slot)[:1]
        return LEFT_NOTE if is_left else ""

    # --- The verdict ---

    def verdict(self, slot: int) -> str:
        """What happened to a place's token, and why."""
        step, fate = self._step, fate_of(self._step, slot)
        if fate is Fate.BONUS:
            return self._bonus()
        if self._decider is Decider.TYPICAL:
            return self._typical(slot, is_kept=fate is Fate.ACCEPTED)
        if fate is Fate.DISCARDED:
            return self._untested(slot)
        if self._decider is Decider.BLOCK:
            return self._in_block(slot)
        is_kept, is_last = fate is Fate.ACCEPTED, slot in step.slots
        if self._decider is Decider.NOISE:
            if is_kept:
                return "Accepted: under the shared noise, the target draws the same token."
            return f"Rejected: under the shared noise, the target draws “{self._chosen(slot)}”."
        if self._decider is Decider.ARGMAX:
            if is_kept:
                return "Accepted: it is the target's most likely token."
            return f"Rejected: the target's most likely token is “{self._chosen(slot)}”, which was taken."
        test = self._test(slot, is_kept)
        if is_kept:
            return f"Accepted{test}."
        if not is_last:
            return f"Rejected{test}. The next candidate was tested against what is left of the target's distribution."
        return f"Rejected{test}. “{last_text(step)}” was drawn from the residual instead{self._draw()}."

    def _untested(self, slot: int) -> str:
        step = self._step
        if not step.parents:
            said = "Discarded, untested: it follows the rejected token."
            return f"{said} Its distributions are those after the drafted text."
        if kept := [node for node in siblings(step, slot) if node in step.path]:
            return f"Not tested: “{show(step.drafted_texts[kept[0]])}” before it was accepted."
        parent = step.parents[slot]
        return f"Never reached: “{show(step.drafted_texts[parent])}”, which it follows, was not accepted."

    def _chosen(self, slot: int) -> str:
        """The token that the target took where a candidate was rejected."""
        kept = [node for node in siblings(self._step, slot) if node in self._step.path and self._step.parents]
        return show(self._step.drafted_texts[kept[0]]) if kept else last_text(self._step)

    def _test(self, slot: int, is_kept: bool) -> str:
        """The inequality that decided, if its numbers are known."""
        step = self._step
        u, q, p = (_at(values, slot) for values in (step.uniforms, step.draft_probs, step.target_probs))
        if u is None or q is None or p is None:
            return ""
        return f": u·q = {number(u * q)} {'<' if is_kept else '≥'} p = {number(p)}"

    def _in_block(self, slot: int) -> str:
        step, count = self._step, self._step.num_accepted
        if slot < count:
            if count > slot + 1:
                longer = f"the text up to “{show(step.drafted_texts[count - 1])}” passed as a whole"
            else:
                longer = "the text up to here passed as a whole"
            last = "" if count == len(step.drafted) else ", and no longer one did"
            return f"Accepted: {longer}{self._block_test(count - 1)}{last}."
        failed = f"Rejected: the text up to here failed as a whole{self._block_test(slot)}"
        if slot > count or not is_corrected(step):
            return f"{failed}."
        also = ", and so did each longer one" if count + 1 < len(step.drafted) else ""
        weight = number(step.block[count].weight)
        return (
            f"{failed}{also}. “{last_text(step)}” was drawn from the residual of the block, max(0, w p − q) with "
            f"w = {weight}{self._draw()}."
        )

    def _block_test(self, slot: int) -> str:
        u, chance = _at(self._step.uniforms, slot), self._chance(slot)
        return "" if u is None or chance is None else f", u = {number(u)} {_sign(u < chance)} h = {number(chance)}"

    def _chance(self, slot: int) -> float | None:
        """h, with which the text that ends with a token of the block is accepted."""
        return _at([test.acceptance for test in self._step.block], slot + 1)

    def _typical(self, slot: int, *, is_kept: bool) -> str:
        step, p, least = self._step, _at(self._step.target_probs, slot), self._least(slot)
        if p is None or least is None:
            said = "Accepted" if is_kept else "Not accepted"
        else:
            test = f"p = {number(p)} {'>' if p > least else '≤'} {number(least)}, the least that passes here (lossy)"
            said = f"Accepted: {test}" if is_kept else f"Rejected: {test}"
            if not is_kept and p > least:
                said = f"Passes, but is not on the longest path: {test}"
        if slot in step.slots and not is_kept:
            return f"{said}. “{last_text(step)}” was drawn from the target's whole distribution{self._draw()}."
        return f"{said}."

    def _least(self, slot: int) -> float | None:
        """The probability that typical acceptance asks for at a place."""
        evidence = evidence_at(self._step, slot)
        return None if evidence is None else min(TYPICAL_FLOOR, TYPICAL_SHARE * math.exp(-evidence.target_entropy))

    def _bonus(self) -> str:
        step = self._step
        how = ", under the noise of its position" if self._decider is Decider.NOISE else self._draw()
        drawn = f"one more was drawn from the target{how}"
        if self._decider is Decider.ARGMAX:
            drawn = "the target's most likely token after them was taken, too"
        if not step.drafted:
            if self._decider is Decider.ARGMAX:
                return "Nothing was drafted: the target's most likely token was taken."
            return f"Nothing was drafted: the token was drawn from the target{how}."
        if step.parents:
            return f"A path of {step.num_accepted} drafted tokens was accepted to its end, so {drawn}."
        drafted = "The drafted token was" if len(step.drafted) == 1 else f"All {len(step.drafted)} drafted tokens were"
        return f"{drafted} accepted, so {drawn}."

    def _draw(self) -> str:
        u = self._step.next_uniform
        return "" if u is None else f", with a draw of {number(u)}"

    # --- The tests in order ---

    def tests(self, slot: int) -> Iterator[str]:
        """A line for each test of a block's texts, or, at a place of a tree with several candidates, of these."""
        step, nodes = self._step, siblings(self._step, slot)
        if self._decider is Decider.BLOCK and step.drafted:
            yield "Texts by their last token:"
            for node in range(len(step.drafted)):
                u, chance = _at(step.uniforms, node), self._chance(node)
                is_passed = u is not None and chance is not None and u < chance
                outcome = "accepted" if node + 1 == step.num_accepted else "passes" if is_passed else "fails"
                yield f"{self._name(node, slot, node)}: u {_short(u)} {_sign(is_passed)} h {_short(chance)}, {outcome}"
            return
        if len(nodes) < 2 or (step.parents[nodes[0]] >= 0 and step.parents[nodes[0]] not in step.path):
            return
        yield "Candidates in the order of their tests:"
        for rank, node in enumerate(nodes):
            yield f"{self._name(node, slot, rank)}: {self._tested(node, fate_of(step, node))}"
            if fate_of(step, node) is Fate.REJECTED and self._decider is Decider.DRAW:
                yield from self._left(node, nodes[rank + 1 :])

    def _name(self, node: int, slot: int, rank: int) -> str:
        return f"{'▸ ' * (node == slot)}{rank + 1} “{show(self._step.drafted_texts[node])}”"

    def _tested(self, node: int, fate: Fate) -> str:
        """A candidate's test and its outcome."""
        step, p, outcome = self._step, self.target_prob(node), TEST_WORDS[fate]
        if self._decider is Decider.TYPICAL and p is not None and (least := self._least(node)) is not None:
            is_passed = p > least
            word = outcome if fate is Fate.ACCEPTED else "passes" if is_passed else "rejected"
            return f"p {_short(p)} {'>' if is_passed else '≤'} {_short(least)}, {word}"
        if self._decider is not Decider.DRAW:
            return f"p {_short(p)}, {outcome}"
        if fate is Fate.DISCARDED:
            return outcome
        u, chance = _at(step.uniforms, node), _at(step.acceptance_probs, node)
        return f"u {_short(u)} {_sign(fate is Fate.ACCEPTED)} {_short(chance)}, {outcome}"

    def _left(self, node: int, later: Sequence[int]) -> Iterator[str]:
        """p after a rejection: the most likely tokens of what is left."""
        evidence = evidence_at(self._step, later[0] if later else node)
        probs = None if evidence is None else evidence.target_probs if later else evidence.residual_probs
        if evidence is not None and probs is not None:
            best = sorted(range(len(probs)), key=lambda at: -probs[at])[:NUM_LEFT]
            yield "    p is now " + ", ".join(f"“{show(evidence.texts[at])}”\u00a0{_short(probs[at])}" for at in best)
        elif later:
            text, p = show(self._step.drafted_texts[later[0]]), self.target_prob(later[0])
            yield f"    p is now “{text}” {_short(p)}"

    # --- Facts ---

    def drafted_facts(self, slot: int) -> list[NamedValue]:
        """The figures of a drafted token."""
        step, evidence = self._step, evidence_at(self._step, slot)
        if self._decider is Decider.ARGMAX:
            return _named(self._raw_facts(slot, step.drafted[slot], "drafted"))
        rows: list[Fact] = [
            ("Target p", _at(step.target_probs, slot), P_HELP.format("drafted")),
            ("Draft q", _at(step.draft_probs, slot), "The draft's probability of the token that it drafted."),
        ]
        if self._decider is Decider.BLOCK:
            rows += self._block_facts(slot)
        elif self._decider is Decider.DRAW:
            chance = "The probability that rejection sampling accepts this token."
            how = "the probability that a token drafted here is accepted, whichever it is."
            rows += [
                ("Acceptance probability, min(1, p/q)", _at(step.acceptance_probs, slot), chance),
                ("Uniform draw u", _at(step.uniforms, slot), U_HELP),
                ("Expected acceptance, 1 − TV", _at(step.expected_acceptance, slot), f"{OVERLAP_HELP}{how} {TV_HELP}"),
            ]
            if evidence is not None:
                how = "The sum of max(0, p − q) over the whole vocabulary: the probability of a rejection here, after "
                rows.append(
                    ("Residual mass, TV", evidence.residual_mass, f"{how}which the next token is drawn from it.")
                )
        elif self._decider is Decider.TYPICAL:
            how = f"The smaller of {TYPICAL_FLOOR:g} and {TYPICAL_SHARE:g} exp(−H), H being the target's entropy."
            rows.append(("Least p that passes", self._least(slot), how))
        elif not step.parents:
            how = "the average acceptance of rejection sampling, which no coupling exceeds; shared noise accepts less."
            title = "Upper bound of acceptance, 1 − TV"
            rows.append((title, _at(step.expected_acceptance, slot), f"{OVERLAP_HELP}{how} {TV_HELP}"))
            if evidence is not None:
                how = "The sum of max(0, p − q). Under shared noise nothing is drawn from the residual."
                rows.append(("Distance of the distributions, TV", evidence.residual_mass, how))
        if evidence is not None and evidence.residual_probs is not None:
            how = "Of the token that was drawn instead: its part of the residual, divided by the residual's mass."
            drawn = _prob_in(evidence.residual_probs, evidence, step.emitted[-1])
            rows.append(("Residual of the drawn token", drawn, how))
        return _named(rows) + _entropies(evidence)

    def _block_facts(self, slot: int) -> list[Fact]:
        step, before = self._step, _at([test.weight for test in self._step.block], slot)
        expected = _at(step.expected_acceptance, slot)
        mass = None if before is None or expected is None else max(0.0, before - expected)
        return [
            ("Weight before it, w", before, "min(1, w p / q), token by token: the target's weight in the residual."),
            ("Weight with it, min(1, w p/q)", _at(step.acceptance_probs, slot),
                "The probability that the text up to here stays, by itself or within a longer one."),
            ("Acceptance of this text, h", self._chance(slot), BLOCK_HELP),
            ("Uniform draw u", _at(step.uniforms, slot), BLOCK_HELP),
            ("Expected acceptance, Σ min(w p, q)", expected,
                "The probability, before this token was drawn, that the text up to it stays."),
            ("Residual mass, Σ max(0, w p − q)", mass, "Drawn from if the accepted text ends before this token."),
        ]  # fmt: skip

    def own_facts(self, slot: int) -> list[NamedValue]:
        """The figures of a token that the target drew by itself."""
        step, evidence = self._step, evidence_at(self._step, slot)
        if self._decider is Decider.ARGMAX:
            return _named(self._raw_facts(slot, step.emitted[-1], "taken"))
        facts: list[Fact] = []
        if evidence is not None:
            drawn = _prob_in(evidence.target_probs, evidence, step.emitted[-1])
            facts.append(("Target p", drawn, P_HELP.format("drawn")))
        if step.next_uniform is not None:
            how = "From 0 to 1; the token is the first at which the target's probabilities, summed by id, exceed it."
            facts.append(("Uniform draw", step.next_uniform, how))
        return _named(facts) + _entropies(evidence)

    def _raw_facts(self, slot: int, token: int, what: str) -> list[Fact]:
        evidence = evidence_at(self._step, slot)
        if evidence is None or evidence.raw_probs is None:
            return []
        how = f"The target's probability of the {what} token, without temperature and filters."
        most = "The target's probability of its most likely token, which is taken at temperature 0."
        return [
            ("Target p at temperature 1", _prob_in(evidence.raw_probs, evidence, token), how),
            ("Largest p at temperature 1", max(evidence.raw_probs), most),
        ]


BLOCK_HELP = "Each text that begins the block is accepted as a whole where u < h; the longest one that passes stays."
TEST_WORDS = {Fate.ACCEPTED: "accepted", Fate.REJECTED: "rejected", Fate.DISCARDED: "not tested"}


def _short(value: float | None) -> str:
    """A probability for a line that holds several."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return "<0.001" if 0.0 < value < 0.0005 else f"{value:.3f}"


def _sign(is_below: bool) -> str:
    return "<" if is_below else "≥"


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


def _prob_in(probs: Sequence[float], evidence: PositionEvidence, token: int) -> float | None:
    return probs[list(evidence.ids).index(token)] if token in evidence.ids else None


def _at(values: Sequence[float], slot: int) -> float | None:
    value = values[slot] if slot < len(values) else None
    return None if value is None or math.isnan(value) else value
