"""A sweep's verdict as the window says it: a word that the eye finds, and the sentence behind it."""

from __future__ import annotations

from typing import NamedTuple

from core.sweep.types import Verdict


class VerdictLine(NamedTuple):
    """A verdict in a word and a sentence; `pays` is None where that is open."""

    word: str
    sentence: str
    pays: bool | None


def verdict_line(verdict: Verdict) -> VerdictLine:
    """What a verdict comes to."""
    return VerdictLine(_word(verdict), verdict.sentence, _pays(verdict))


def _word(verdict: Verdict) -> str:
    if verdict.best is None:
        return "No answer"
    if not verdict.speculates:
        return "Don't speculate"
    return f"K = {verdict.best.cell.num_draft_tokens}"


def _pays(verdict: Verdict) -> bool | None:
    if verdict.best is None:
        return None
    # Few runs may lean one way by chance; not to speculate is the safe advice of the two.
    return (True if verdict.is_sure else None) if verdict.speculates else False
