"""The tokens listed at a place with their probabilities, and how the Inspector writes tokens and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.run.text.tokens import Fate, fate_of
from core.evidence import PositionEvidence
from core.text import percent_text, significant_text
from core.types import Step

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
    """A row for each listed token, and one for all others. At temperature 0 both models' at temperature 1."""
    target, draft, residual = evidence.target_probs, evidence.draft_probs, evidence.residual_probs
    tails = evidence.target_tail, evidence.draft_tail, evidence.residual_tail
    if evidence.raw_probs is not None and evidence.raw_tail is not None:
        target, draft, residual = evidence.raw_probs, evidence.raw_draft_probs, None
        tails = evidence.raw_tail, evidence.raw_draft_tail, None
    rows = [
        Share(
            token=token,
            text=show(evidence.texts[index]),
            target=target[index],
            draft=None if draft is None else draft[index],
            residual=None if residual is None else residual[index],
            fate=_fate_here(step, slot, token),
        )
        for index, token in enumerate(evidence.ids)
    ]
    return (*rows, Share(None, OTHERS, *tails))


def _fate_here(step: Step, slot: int, token: int) -> Fate | None:
    if slot < len(step.drafted) and token == step.drafted[slot]:
        return fate_of(step, slot)
    if step.num_accepted < len(step.emitted) and slot == step.slots[-1] and token == step.emitted[-1]:
        return fate_of(step, slot) if slot == len(step.drafted) else Fate.RESAMPLED
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
    """A probability or a draw, to four decimals, or to three significant digits where these are more."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:.4f}" if value >= 0.01 or value == 0 else significant_text(value, 3)


def short(value: float | None) -> str:
    """A probability for a line that holds several."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return "<0.001" if 0.0 < value < 0.0005 else f"{value:.3f}"


def known(values: Sequence[float], slot: int) -> float | None:
    """The figure of a place; None if the log lacks it."""
    value = values[slot] if slot < len(values) else None
    return None if value is None or math.isnan(value) else value


def percent(value: float) -> str:
    """A probability as a bar's label."""
    return "0" if value == 0 else percent_text(value, 1 if value >= 0.1 else 2)


def share_text(share: Share) -> str:
    """A row in words."""
    title = share.text if share.token is None else f"“{share.text}” (id {share.token})"
    values = {"target": share.target, "draft": share.draft, "residual": share.residual}
    parts = (f"{name} {number(value)}" for name, value in values.items() if value is not None)
    fate = f", {share.fate.value} here" if share.fate is not None else ""
    return f"{title}{fate}: {', '.join(parts)}"
