"""The laws at a place as rows to be drawn: a token's probability under the draft, the target and the residual."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.view_models.places import Fate, fate_of
from core.evidence import PositionEvidence
from core.figures import percent_text, significant_text
from core.types import Step

UNKNOWN = "–"
OTHERS = "all others"
VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""A token's blanks are part of it, and must be seen where it stands alone."""

_MANY = re.compile(r"([␣↵⇥])\1{3,}")


@dataclass(frozen=True, slots=True)
class Share:
    """A token's probability under each law; None under a law that isn't shown.

    `token` None stands for all tokens that have no row of their own. `fate` is what became of it in this very place.
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
    if slot == step.num_accepted and slot < len(step.emitted) and token == step.emitted[slot]:
        return Fate.BONUS if slot == len(step.drafted) else Fate.RESAMPLED
    return None


def shorten(shares: Sequence[Share], count: int) -> tuple[Share, ...]:
    """The first rows and those where something happened; all the others are added up in the last row."""
    *rows, others = shares
    if len(rows) <= count:
        return tuple(shares)
    room = count - sum(row.fate is not None for row in rows)
    kept: list[Share] = []
    hidden = [others]
    for row in rows:
        if row.fate is not None or room > 0:
            kept.append(row)
            room -= row.fate is None
        else:
            hidden.append(row)
    return (*kept, _sum(hidden))


def _sum(shares: Sequence[Share]) -> Share:
    first = shares[0]
    return Share(
        token=None,
        text=OTHERS,
        target=math.fsum(share.target for share in shares),
        draft=None if first.draft is None else math.fsum(share.draft or 0.0 for share in shares),
        residual=None if first.residual is None else math.fsum(share.residual or 0.0 for share in shares),
    )


# --- Texts and figures ------------------------------------------------------------------------------------------


def show(text: str) -> str:
    """A token's text on one line, its blanks visible."""
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
