"""What a thread says to a person of an error that ended its work."""

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
