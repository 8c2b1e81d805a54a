"""How long drafts are to be, as a setting: K itself, or the policy that chooses it as the run goes.

The one place that reads and writes it as text: `-k`, a sweep's list of lengths, and the K of a run log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import SettingsError
from core.types import MAX_DRAFT_TOKENS, LengthPolicy, RunRequest

DraftLength = int | LengthPolicy
"""K, or AUTO or ADAPTIVE; never FIXED, which K itself says."""

_CHOSEN = {str(policy): policy for policy in LengthPolicy if policy is not LengthPolicy.FIXED}


def parse_draft_length(text: str, name: str = "K") -> DraftLength:
    """A draft length as it is written: "4", "auto", "adaptive".

    Args:
        text: upper case and spaces around it don't matter.
        name: of the setting or flag, for the sentence.

    Raises:
        SettingsError: neither a policy nor a whole number from 1 to the longest block there is.
    """
    word = text.strip().lower()
    if word in _CHOSEN:
        return _CHOSEN[word]
    shown = repr(text if len(text) <= 60 else text[:60] + "…")
    try:
        length = int(word)
    except ValueError:
        raise SettingsError(f"{name} must be a whole number, auto or adaptive, not {shown}.") from None
    if not 1 <= length <= MAX_DRAFT_TOKENS:
        raise SettingsError(f"{name} must be a whole number from 1 to {MAX_DRAFT_TOKENS}, not {shown}.")
    return length


def parse_draft_lengths(text: str, name: str = "K") -> tuple[DraftLength, ...]:
    """Several lengths, such as "1-8,auto,adaptive": numbers, ranges with both ends, policies; each once, in order.

    Raises:
        SettingsError: as for a single one; an empty list; a range that runs backwards.
    """
    lengths: list[DraftLength] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = parse_draft_length(first, name), parse_draft_length(last if dash else first, name)
        if isinstance(begin, LengthPolicy) or isinstance(end, LengthPolicy):
            if dash:
                raise SettingsError(f"{name}: {part.strip()!r} is no range of numbers, such as 1-8.")
            lengths.append(begin)
            continue
        if end < begin:
            raise SettingsError(f"{name}: the range {part.strip()!r} runs backwards. Write {end}-{begin}.")
        lengths += range(begin, end + 1)
    return tuple(dict.fromkeys(lengths))


def request_fields(length: DraftLength) -> dict[str, Any]:
    """The fields of a `RunRequest` that a draft length sets: `RunRequest(..., **request_fields(length))`."""
    if isinstance(length, str):
        return {"num_draft_tokens": None, "length_policy": LengthPolicy(length)}
    return {"num_draft_tokens": length}


def length_of(request: RunRequest) -> DraftLength:
    """The draft length that a request asks for."""
    return request.length_policy if request.num_draft_tokens is None else request.num_draft_tokens


def config_fields(length: DraftLength) -> dict[str, Any]:
    """The same of a run log's `config`.

    `num_draft_tokens` says "auto" whichever policy chose, so that a reader from before there were two can go on.
    """
    if isinstance(length, str):
        return {"num_draft_tokens": str(LengthPolicy.AUTO), "length_policy": str(length)}
    return {"num_draft_tokens": length, "length_policy": str(LengthPolicy.FIXED)}


def shown_draft_length(config: Mapping[str, Any]) -> Any:
    """A log's K as it is shown and searched for: a number, "auto" or "adaptive"; None where the log has none."""
    length, policy = config.get("num_draft_tokens"), config.get("length_policy")
    return policy if length == str(LengthPolicy.AUTO) and policy in _CHOSEN else length
