"""What is said to a person in more than one place: of an error that ended some work, of a stretch of time."""

from __future__ import annotations

from core.errors import OutriderError


def sentence_of(error: Exception, what: str) -> str:
    """An error in one sentence: its own where it has one, else what could not be done, and the cause."""
    if isinstance(error, OutriderError):
        return str(error)
    if isinstance(error, OSError):
        return f"{what}: {str(error.strerror or error).rstrip('.') or type(error).__name__}."
    detail = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{what}: {type(error).__name__}{': ' + detail if detail else ''}."


def in_words(seconds: float) -> str:
    """A stretch of time as a person says it: 40 s, 5 min, 3 h 20 min."""
    if round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours < 24 else f"{hours:,} h"
