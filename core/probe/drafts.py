"""Which of the models that are here may draft for a target."""

from __future__ import annotations

from core.errors import ModelNotFoundError
from core.models.catalogue import ModelEntry, local_models, resolve
from core.models.compatibility import pair_problem
from core.models.suggestions import suggested_drafts

MOST = 8
"""Drafts that are probed where none are named."""


def drafts_here(target_ref: str) -> tuple[str, ...]:
    """References of drafts for a target: those made or suggested for it first, then the smallest.

    Reads tokenizer files, so not for the window's thread. A draft is smaller than its target and means the same text
    by the same ids.

    Raises:
        ModelNotFoundError, ModelUnreadableError: there is no such target.
        ModelNotFoundError: there is no draft here for it.
    """
    target = resolve(target_ref)
    suggested = suggested_drafts(target.ref)
    fitting = [entry for entry in local_models() if _may_draft(entry, target)]

    def order(entry: ModelEntry) -> tuple[bool, int, int]:
        place = suggested.index(entry.ref) if entry.ref in suggested else len(suggested)
        return entry.serves is None, place, entry.size_bytes

    found = tuple(entry.ref for entry in sorted(fitting, key=order))[:MOST]
    if not found:
        hint = f" Get one: `outrider models get {suggested[0]}`." if suggested else " Name one, or get one."
        raise ModelNotFoundError(f"There is no draft here for {target.title}.{hint}")
    return found


def _may_draft(entry: ModelEntry, target: ModelEntry) -> bool:
    is_smaller = entry.path != target.path and entry.size_bytes < target.size_bytes
    return is_smaller and pair_problem(entry.ref, target.ref) is None
