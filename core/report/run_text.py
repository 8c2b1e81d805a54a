"""The text of a run, each token with the line and colour of its kind, and a word on where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator

from core.figures import significant_text
from core.report.escaping import attribute, escaped
from core.report.run_data import RunData, text_of
from core.types import Coupling, Step, TokenKind

CLASSES = {TokenKind.ACCEPTED: "a", TokenKind.CORRECTION: "r", TokenKind.BONUS: "b"}
TITLES = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
MEANINGS = {
    TokenKind.ACCEPTED: "drafted, tested and kept: the draft’s work",
    TokenKind.CORRECTION: "a draft was rejected here, and this drawn in its place",
    TokenKind.BONUS: "the target’s own: behind a whole block, or with no draft",
}
LINES = {TokenKind.ACCEPTED: "solid line", TokenKind.CORRECTION: "wavy line", TokenKind.BONUS: "dotted line"}


def legend() -> str:
    """What the lines and colours mean."""
    keys = "".join(
        f'<span><span class="{CLASSES[kind]}">{TITLES[kind]}</span> <span class="note">{LINES[kind]}: '
        f"{MEANINGS[kind]}</span></span>\n"
        for kind in TokenKind
    )
    return (
        f'<p class="legend">{keys}</p>\n<p class="note">Hold the pointer over a token for its step, the '
        "probabilities p of the target and q of the draft, and the number u that it was tested with: a token is kept "
        "where u is below p / q.</p>"
    )


def coloured_text(run: RunData) -> str:
    """The prompt, muted, and the run's tokens."""
    config = run.config
    gap = "\n\n" if config.get("chat") else ""
    before = text_of(config.get("prompt")) + gap
    before += text_of(config.get("continuation_text")) + text_of(config.get("forced_text"))
    is_rejection = config.get("coupling") != Coupling.GUMBEL
    tokens = "".join(part for step in run.steps for part in _tokens(step, is_rejection))
    prompt = f'<span class="p" title="prompt">{escaped(before)}</span>' if before else ""
    return f'<div class="text" dir="auto" lang="">{prompt}{tokens}</div>'


def _tokens(step: Step, is_rejection: bool) -> Iterator[str]:
    for slot, (kind, text) in enumerate(zip(step.emitted_kinds, step.emitted_texts, strict=False)):
        if text:
            tip = attribute(_tip(step, slot, kind, is_rejection))
            yield f'<span class="{CLASSES[kind]}" title="{tip}">{escaped(text)}</span>'


def _tip(step: Step, slot: int, kind: TokenKind, is_rejection: bool) -> str:
    parts = [f"{TITLES[kind]}, step {step.index}"]
    if slot < len(step.drafted) and kind is not TokenKind.BONUS:
        if kind is TokenKind.CORRECTION:
            parts.append(f"in place of “{step.drafted_texts[slot]}”, which had")
        parts += _numbers(step, slot, is_rejection)
    elif step.next_uniform is not None:
        parts.append(f"u {significant_text(step.next_uniform, 3)}")
    return " · ".join(parts)


def _numbers(step: Step, slot: int, is_rejection: bool) -> list[str]:
    named = [("p", step.target_probs[slot]), ("q", step.draft_probs[slot])]
    if is_rejection and slot < len(step.uniforms):
        named.append(("u", step.uniforms[slot]))
    return [f"{name} {significant_text(value, 3)}" for name, value in named if math.isfinite(value)]
