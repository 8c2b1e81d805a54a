"""The Inspector's sentences: how each drafted token was decided, for each way of testing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum

from app.run.inspector.places import evidence_at, prob_in, siblings
from app.run.inspector.shares import known, number, short, show
from app.run.text.tokens import Fate, fate_of, is_corrected
from core.settings import Coupling
from core.types import Step, StepSource

ARGMAX_NOTE = "At temperature 0 the target's most likely token is taken. These are the probabilities at temperature 1."
LEFT_NOTE = "p is the token's probability in the residual that earlier, rejected candidates leave."
NUM_LEFT = 3
"""How many of the tokens that a rejection leaves are named."""


class Decider(StrEnum):
    """What decides whether a drafted token is accepted."""

    DRAW = "draw"
    """A draw for each token."""
    BLOCK = "block"
    """A draw for each prefix of the block."""
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
        return show(evidence.texts[evidence.ids.index(token)])
    return show(step.emitted_texts[-1])


class Words:
    """A step in words, as its `decider` has it; `typical` as for `least_of`."""

    def __init__(self, step: Step, decider: Decider, typical: tuple[float, float] | None = None) -> None:
        self._step, self._decider, self._limits = step, decider, typical

    def target_prob(self, slot: int) -> float | None:
        """p of a drafted token; at temperature 0 that at 1, if it is known."""
        evidence = evidence_at(self._step, slot)
        if evidence is not None and evidence.raw_probs is not None:
            return prob_in(evidence.raw_probs, evidence, self._step.drafted[slot])
        return None if self._decider is Decider.ARGMAX else known(self._step.target_probs, slot)

    def note(self, slot: int) -> str:
        """What the shown probabilities are."""
        evidence = evidence_at(self._step, slot)
        if self._decider is Decider.ARGMAX and evidence is not None and evidence.raw_probs is not None:
            return ARGMAX_NOTE
        is_left = self._decider is Decider.DRAW and slot not in siblings(self._step, slot)[:1]
        return LEFT_NOTE if is_left else ""

    # --- The verdict ---

    def verdict(self, slot: int) -> str:
        """What happened to a place's token, and why."""
        step, fate = self._step, fate_of(self._step, slot)
        if fate in {Fate.BONUS, Fate.PLAIN}:
            return self._bonus()
        if self._decider is Decider.TYPICAL and fate is not Fate.UNTESTED:
            return self._typical(slot, is_kept=fate is Fate.ACCEPTED)
        if self._decider is Decider.BLOCK:
            return self._in_block(slot)
        # Block verification tests whole texts; at temperature 0 that is the same as token by token.
        if fate is Fate.UNTESTED or (not step.parents and slot > step.num_accepted):
            return self._untested(slot)
        is_kept = fate is Fate.ACCEPTED
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
        if slot not in step.slots:
            return f"Rejected{test}. The next candidate was tested against the residual."
        return f"Rejected{test}. “{last_text(step)}” was drawn from the residual instead{self._draw()}."

    def _untested(self, slot: int) -> str:
        step = self._step
        if not step.parents:
            said = "Not tested: it follows the rejected token."
            return f"{said} Its distributions are those after the drafted text."
        if kept := [node for node in siblings(step, slot) if node in step.path]:
            return f"Not tested: an earlier candidate, “{show(step.drafted_texts[kept[0]])}”, was accepted."
        parent = step.parents[slot]
        return f"Never reached: “{show(step.drafted_texts[parent])}”, which it follows, was not accepted."

    def _chosen(self, slot: int) -> str:
        """The token that the target took where a candidate was rejected."""
        kept = [node for node in siblings(self._step, slot) if node in self._step.path and self._step.parents]
        return show(self._step.drafted_texts[kept[0]]) if kept else last_text(self._step)

    def _test(self, slot: int, is_kept: bool) -> str:
        """The inequality that decided, if its numbers are known."""
        step = self._step
        u, q, p = (known(values, slot) for values in (step.uniforms, step.draft_probs, step.target_probs))
        if u is None or q is None or p is None:
            return ""
        return f": u·q = {number(u * q)} {'<' if is_kept else '≥'} p = {number(p)}"

    def _in_block(self, slot: int) -> str:
        step, count = self._step, self._step.num_accepted
        if slot < count:
            if not self._passes(count - 1):
                return "Accepted: a longer prefix passed as a whole; the run's text ended within it."
            end = "here" if count == slot + 1 else f"“{show(step.drafted_texts[count - 1])}”"
            last = "" if count == len(step.drafted) else ", and none of the longer ones did"
            return f"Accepted: the prefix up to {end} passed as a whole{self._block_test(count - 1)}{last}."
        failed = f"Rejected: the prefix up to here failed as a whole{self._block_test(slot)}"
        if slot > count or not is_corrected(step):
            return f"{failed}."
        also = ", and so did each longer one" if count + 1 < len(step.drafted) else ""
        weight = number(step.block[count].weight)
        return (
            f"{failed}{also}. “{last_text(step)}” was drawn from the residual of the block, max(0, w p − q) with "
            f"w = {weight}{self._draw()}."
        )

    def _block_test(self, slot: int) -> str:
        u, chance = known(self._step.uniforms, slot), chance_of(self._step, slot)
        is_known = u is not None and chance is not None
        return f", u = {number(u)} {_sign(self._passes(slot))} h = {number(chance)}" if is_known else ""

    def _passes(self, slot: int) -> bool:
        """Whether the prefix that ends with this token passes its test."""
        u, chance = known(self._step.uniforms, slot), chance_of(self._step, slot)
        return u is not None and chance is not None and u < chance

    def _typical(self, slot: int, *, is_kept: bool) -> str:
        step, p = self._step, known(self._step.target_probs, slot)
        least = least_of(step, slot, self._limits)
        if p is None or least is None:
            said = "Accepted" if is_kept else "Not accepted"
        else:
            test = f"p = {number(p)} {'>' if p > least else '≤'} {number(least)}, the threshold here (lossy)"
            said = f"Accepted: {test}" if is_kept else f"Rejected: {test}"
            if not is_kept and p > least:
                said = f"Passes, but is not on the longest path: {test}"
        if slot in step.slots and not is_kept:
            return f"{said}. “{last_text(step)}” was drawn from the target's whole distribution{self._draw()}."
        return f"{said}."

    def _bonus(self) -> str:
        step = self._step
        how = ", under the noise of its position" if self._decider is Decider.NOISE else self._draw()
        drawn = f"one more was drawn from the target{how}"
        if self._decider is Decider.ARGMAX:
            drawn = "the target's most likely token after them was taken, too"
        if step.source in {StepSource.CHUNKS, StepSource.TEXT} and not step.drafted:
            return "The target drew this token; the server doesn't report whether any were drafted before it."
        if not step.drafted:
            if self._decider is Decider.ARGMAX:
                return "Nothing was drafted: the target's most likely token was taken."
            return f"Nothing was drafted: the token was drawn from the target{how}."
        if step.parents:
            tokens = "a single drafted token" if step.num_accepted == 1 else f"{step.num_accepted} drafted tokens"
            return f"A path of {tokens} was accepted to its end, so {drawn}."
        drafted = "The drafted token was" if len(step.drafted) == 1 else f"All {len(step.drafted)} drafted tokens were"
        return f"{drafted} accepted, so {drawn}."

    def _draw(self) -> str:
        u = self._step.next_uniform
        return "" if u is None else f", with a draw of {number(u)}"

    # --- The tests in order ---

    def tests(self, slot: int) -> Iterator[str]:
        """A line for each test: of a block's prefixes, or of a tree's candidates for one position."""
        step, nodes = self._step, siblings(self._step, slot)
        if self._decider is Decider.BLOCK and step.drafted:
            yield "Prefixes by their last token:"
            for node in range(len(step.drafted)):
                is_passed = self._passes(node)
                outcome = "accepted" if node + 1 == step.num_accepted else "passes"
                test = (
                    f"u {short(known(step.uniforms, node))} {_sign(is_passed)} h {short(chance_of(self._step, node))}"
                )
                yield f"{self._name(node, slot, node)}: {test}, {outcome if is_passed else 'fails'}"
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
        if (
            self._decider is Decider.TYPICAL
            and p is not None
            and (least := least_of(step, node, self._limits)) is not None
        ):
            is_passed = p > least
            word = outcome if fate is Fate.ACCEPTED else "passes" if is_passed else "rejected"
            return f"p {short(p)} {'>' if is_passed else '≤'} {short(least)}, {word}"
        if self._decider is not Decider.DRAW:
            is_unknown = self._decider is Decider.TYPICAL and fate is Fate.REJECTED  # An older log has no threshold.
            return f"p {short(p)}, {'not accepted' if is_unknown else outcome}"
        if fate is Fate.UNTESTED:
            return outcome
        u, chance = known(step.uniforms, node), known(step.acceptance_probs, node)
        return f"u {short(u)} {_sign(fate is Fate.ACCEPTED)} {short(chance)}, {outcome}"

    def _left(self, node: int, later: Sequence[int]) -> Iterator[str]:
        """p after a rejection: the most likely tokens of what is left."""
        evidence = evidence_at(self._step, later[0] if later else node)
        probs = None if evidence is None else evidence.target_probs if later else evidence.residual_probs
        if evidence is not None and probs is not None:
            best = sorted(range(len(probs)), key=lambda at: -probs[at])[:NUM_LEFT]
            yield "    p is now " + ", ".join(f"“{show(evidence.texts[at])}”\u00a0{short(probs[at])}" for at in best)
        elif later:
            text, p = show(self._step.drafted_texts[later[0]]), self.target_prob(later[0])
            yield f"    p is now “{text}” {short(p)}"


TEST_WORDS = {Fate.ACCEPTED: "accepted", Fate.REJECTED: "rejected", Fate.UNTESTED: "not tested"}


def chance_of(step: Step, slot: int) -> float | None:
    """h, the probability that the prefix ending with this token passes; None if unknown."""
    return known([test.acceptance for test in step.block], slot + 1)


def least_of(step: Step, slot: int, typical: tuple[float, float] | None) -> float | None:
    """The threshold of typical acceptance, of this floor and share, at a token; None if unknown."""
    evidence = evidence_at(step, slot)
    if evidence is None or typical is None:
        return None
    return min(typical[0], typical[1] * math.exp(-evidence.target_entropy))


def _sign(is_below: bool) -> str:
    return "<" if is_below else "≥"
