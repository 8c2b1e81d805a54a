"""View model of the Inspector: describes a place of a block in words and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.run.run_view import NamedValue
from app.run.tokens import Fate, Place, Span, block, depth_of, fate_of
from core.evidence import PositionEvidence
from core.settings import Coupling
from core.text import percent_text, significant_text
from core.types import Step, TokenKind


def num_places(step: Step) -> int:
    """The drafted tokens' places, and one for a bonus token."""
    return len(step.drafted) + (step.emitted_kinds[-1:] == (TokenKind.BONUS,))


def next_slot(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The previous (-1) or next (+1) place, across steps; at either end of the run, the same place."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    slot, beyond = place.slot + by, place.step + by
    if 0 <= slot < num_places(steps[place.step]):
        return Place(place.step, slot)
    if not 0 <= beyond < len(steps):
        return place
    return Place(beyond, 0 if by > 0 else num_places(steps[beyond]) - 1)


def next_step(steps: Sequence[Step], place: Place | None, by: int) -> Place | None:
    """The same place of the previous (-1) or next (+1) step, or that step's last one if it is shorter."""
    if place is None or not 0 <= place.step < len(steps):
        return _first_or_last(steps, by)
    step = min(len(steps) - 1, max(0, place.step + by))
    return Place(step, min(place.slot, num_places(steps[step]) - 1))


def _first_or_last(steps: Sequence[Step], by: int) -> Place | None:
    if not steps:
        return None
    return Place(0, 0) if by > 0 else Place(len(steps) - 1, num_places(steps[-1]) - 1)


def evidence_at(step: Step, slot: int) -> PositionEvidence | None:
    """The evidence of a place, if it was kept."""
    return step.evidence[slot] if slot < len(step.evidence) else None


UNKNOWN = "–"
OTHERS = "all others"
VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Makes spaces visible, since they are part of a token."""

_MANY = re.compile(r"([␣↵⇥])\1{3,}")


@dataclass(frozen=True, slots=True)
class Share:
    """A token's probability under each distribution; None under one that isn't shown.

    Attributes:
        token: None stands for all tokens without their own row.
        fate: its fate at this place.
    """

    token: int | None
    text: str
    target: float
    draft: float | None
    residual: float | None
    fate: Fate | None = None


def shares_at(step: Step, slot: int, evidence: PositionEvidence) -> tuple[Share, ...]:
    """A row for each listed token, and one for all others."""
    draft, residual = evidence.draft_probs, evidence.residual_probs
    rows = [
        Share(
            token=token,
            text=show(evidence.texts[index]),
            target=evidence.target_probs[index],
            draft=None if draft is None else draft[index],
            residual=None if residual is None else residual[index],
            fate=_fate_here(step, slot, token),
        )
        for index, token in enumerate(evidence.ids)
    ]
    return (*rows, Share(None, OTHERS, evidence.target_tail, evidence.draft_tail, evidence.residual_tail))


def _fate_here(step: Step, slot: int, token: int) -> Fate | None:
    if slot < len(step.drafted) and token == step.drafted[slot]:
        return fate_of(step, slot)
    if step.num_accepted < len(step.emitted) and slot == step.slots[-1] and token == step.emitted[-1]:
        return Fate.BONUS if slot == len(step.drafted) else Fate.RESAMPLED
    return None


def shorten(shares: Sequence[Share], count: int) -> tuple[Share, ...]:
    """The first rows and those with a fate; the last row is the sum of all others."""
    *rows, others = shares
    room = count - sum(row.fate is not None for row in rows)
    if len(rows) <= count:
        return tuple(shares)
    kept: list[Share] = []
    hidden = [others]
    for row in rows:
        is_kept = row.fate is not None or room > 0
        (kept if is_kept else hidden).append(row)
        room -= is_kept and row.fate is None
    draft = None if others.draft is None else math.fsum(share.draft or 0.0 for share in hidden)
    residual = None if others.residual is None else math.fsum(share.residual or 0.0 for share in hidden)
    return (*kept, Share(None, OTHERS, math.fsum(share.target for share in hidden), draft, residual))


def show(text: str) -> str:
    """A token's text on one line, with visible spaces."""
    return _MANY.sub(lambda run: f"{run[1]}×{len(run[0])}", text.translate(VISIBLE)) or "∅"


def number(value: float | None) -> str:
    """A probability or a draw, to four digits."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:.4f}" if value >= 1e-3 or value == 0 else significant_text(value, 3)


def percent(value: float) -> str:
    """A probability as a bar's label."""
    if value >= 0.9995:
        return percent_text(1.0)
    if value == 0:
        return "0"
    return f"<{percent_text(1e-4, 2)}" if value < 1e-4 else percent_text(value, 1 if value >= 0.1 else 2)


def share_text(share: Share) -> str:
    """A row in words."""
    name = share.text if share.token is None else f"“{share.text}” (id {share.token})"
    parts = [f"target {number(share.target)}"]
    if share.draft is not None:
        parts.append(f"draft {number(share.draft)}")
    if share.residual is not None:
        parts.append(f"residual {number(share.residual)}")
    fate = f", {share.fate.value} here" if share.fate is not None else ""
    return f"{name}{fate}: {', '.join(parts)}"


NOT_KEPT = "The distributions of this run were not kept."
NOT_YET = "The distributions of this step have not arrived yet."


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is shown for one place; `shares` is empty if no evidence was kept.

    Attributes:
        chips: the whole block, with texts that make spaces visible.
    """

    title: str
    subtitle: str
    chips: tuple[Span, ...]
    verdict: str
    facts: tuple[NamedValue, ...]
    shares: tuple[Share, ...]
    note: str = ""


def inspect(
    steps: Sequence[Step], place: Place, coupling: Coupling = Coupling.REJECTION, *, is_coming: bool = False
) -> Inspection | None:
    """Describe a place; None if the run has no such place.

    Args:
        is_coming: whether missing evidence may still arrive.
    """
    if not 0 <= place.step < len(steps) or not 0 <= place.slot < num_places(steps[place.step]):
        return None
    step, slot = steps[place.step], place.slot
    evidence = evidence_at(step, slot)
    return Inspection(
        title=f"Step {place.step} · {_place_name(step, slot)}",
        subtitle=f"position {step.position + depth_of(step, slot):,} · temperature {step.temperature:g}",
        chips=_chips(step, place.step),
        verdict=_verdict(step, slot, coupling),
        facts=tuple(_drafted_facts(step, slot, coupling) if slot < len(step.drafted) else _own_facts(step, slot)),
        shares=shares_at(step, slot, evidence) if evidence is not None else (),
        note="" if evidence is not None else NOT_YET if is_coming else NOT_KEPT,
    )


def _chips(step: Step, number: int) -> tuple[Span, ...]:
    return tuple(
        span._replace(
            text=_last_text(step) if span.fate in {Fate.BONUS, Fate.RESAMPLED} else show(step.drafted_texts[span.slot])
        )
        for span in block(step, number)
    )


def _last_text(step: Step) -> str:
    """The text of the token that the target added, without its neighbours if known."""
    evidence = evidence_at(step, step.slots[-1])
    token = step.emitted[-1]
    if evidence is not None and token in evidence.ids:
        return show(evidence.texts[list(evidence.ids).index(token)])
    return show(step.emitted_texts[-1])


def _place_name(step: Step, slot: int) -> str:
    if not step.drafted:
        return "plain"
    if slot == len(step.drafted):
        return "bonus token"
    if step.parents:
        return f"node {slot + 1} of {len(step.drafted)}, candidate for token {depth_of(step, slot) + 1}"
    return f"draft {slot + 1} of {len(step.drafted)}"


def _verdict(step: Step, slot: int, coupling: Coupling) -> str:
    fate = fate_of(step, slot)
    if fate is Fate.BONUS:
        return _bonus_verdict(step, coupling)
    if fate is Fate.DISCARDED:
        if step.parents:
            return "Not tested: another candidate was accepted before it, or what it follows was rejected."
        return "Discarded, untested: it follows the rejected token. Its distributions are those after the drafted text."
    is_kept = fate is Fate.ACCEPTED
    if coupling is Coupling.GUMBEL:
        if is_kept:
            return "Accepted: under the shared noise, the target draws the same token."
        return f"Rejected: under the shared noise, the target draws “{_last_text(step)}”."
    test = _test(step, slot, is_kept)
    if is_kept:
        return f"Accepted{test}."
    if slot not in step.slots:
        return f"Rejected{test}. The next candidate was tested against what is left of the target's distribution."
    return f"Rejected{test}. “{_last_text(step)}” was drawn from the residual instead{_draw(step)}."


def _test(step: Step, slot: int, is_kept: bool) -> str:
    """The inequality that decided, if its numbers are known."""
    u, q, p = (_at(values, slot) for values in (step.uniforms, step.draft_probs, step.target_probs))
    if u is None or q is None or p is None:
        return ""
    return f": u·q = {number(u * q)} {'<' if is_kept else '≥'} p = {number(p)}"


def _bonus_verdict(step: Step, coupling: Coupling) -> str:
    how = ", under the noise of its position" if coupling is Coupling.GUMBEL else _draw(step)
    if not step.drafted:
        return f"Nothing was drafted: the token was drawn from the target{how}."
    if step.parents:
        path = f"A path of {step.num_accepted} drafted tokens was accepted to its end"
        return f"{path}, so one more was drawn from the target{how}."
    drafted = "The drafted token was" if len(step.drafted) == 1 else f"All {len(step.drafted)} drafted tokens were"
    return f"{drafted} accepted, so one more was drawn from the target{how}."


def _draw(step: Step) -> str:
    return "" if step.next_uniform is None else f", with a draw of {number(step.next_uniform)}"


P_HELP = "The target's probability of the {} token, after temperature and filters."
OVERLAP_HELP = {
    Coupling.REJECTION: "the probability that a token drafted here is accepted, whichever it is.",
    Coupling.GUMBEL: "the average acceptance of rejection sampling, which no coupling exceeds; shared noise accepts "
    "less.",
}
DISTANCE_HELP = {
    Coupling.REJECTION: ": the probability of a rejection here, after which the next token is drawn from the residual.",
    Coupling.GUMBEL: ". Under shared noise nothing is drawn from the residual.",
}


def _drafted_facts(step: Step, slot: int, coupling: Coupling) -> list[NamedValue]:
    evidence, is_rejection = evidence_at(step, slot), coupling is Coupling.REJECTION
    rows = [
        ("Target p", _at(step.target_probs, slot), P_HELP.format("drafted")),
        ("Draft q", _at(step.draft_probs, slot), "The draft's probability of the token that it drafted."),
    ]
    if is_rejection:
        chance = "The probability that rejection sampling accepts this token."
        how = "From 0 to 1; the token is accepted where u·q < p. Drawn for every token, tested or not."
        rows.append(("Acceptance probability, min(1, p/q)", _at(step.acceptance_probs, slot), chance))
        rows.append(("Uniform draw u", _at(step.uniforms, slot), how))
    title = "Expected acceptance, 1 − TV" if is_rejection else "Upper bound of acceptance, 1 − TV"
    how = f"The sum of min(p, q) over the whole vocabulary: {OVERLAP_HELP[coupling]} TV is the total variation "
    rows.append((title, _at(step.expected_acceptance, slot), f"{how}distance of the two distributions."))
    if evidence is not None:
        title = "Residual mass, TV" if is_rejection else "Distance of the distributions, TV"
        how = f"The sum of max(0, p − q) over the whole vocabulary{DISTANCE_HELP[coupling]}"
        rows.append((title, evidence.residual_mass, how))
        if evidence.residual_probs is not None:
            how = "max(0, p − q) of the token that was drawn instead, divided by the residual mass."
            drawn = _prob_in(evidence.residual_probs, evidence, step.emitted[-1])
            rows.append(("Residual of the drawn token", drawn, how))
    return [NamedValue(title, number(value), how) for title, value, how in rows] + _entropies(evidence)


def _own_facts(step: Step, slot: int) -> list[NamedValue]:
    """The facts about a token that the target drew by itself."""
    facts: list[NamedValue] = []
    if (evidence := evidence_at(step, slot)) is not None:
        drawn = _prob_in(evidence.target_probs, evidence, step.emitted[-1])
        facts.append(NamedValue("Target p", number(drawn), P_HELP.format("drawn")))
    if step.next_uniform is not None:
        how = "From 0 to 1; the token drawn is the first at which the target's probabilities, summed by id, exceed it."
        facts.append(NamedValue("Uniform draw", number(step.next_uniform), how))
    return facts + _entropies(evidence)


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
