"""The draft length as a setting: a fixed K, or a policy that chooses it; as text, in requests and in logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from core.errors import SettingsError
from core.settings import MAX_DRAFT_TOKENS, LengthPolicy
from core.types import Step

DraftLength = int | LengthPolicy
"""K, AUTO or ADAPTIVE; never FIXED, which a number stands for."""

_CHOSEN = {str(policy): policy for policy in LengthPolicy if policy is not LengthPolicy.FIXED}


def check_draft_length(length: DraftLength | str) -> DraftLength:
    """The same length, if a step can have it; a policy may also be named by its text.

    Raises:
        SettingsError: it is neither a policy nor a whole number from 0 to the longest block.
    """
    if length == LengthPolicy.FIXED:
        raise SettingsError("A fixed draft length needs a K.")
    if isinstance(length, str):
        if length in _CHOSEN:
            return _CHOSEN[length]
    elif isinstance(length, Integral) and not isinstance(length, bool) and 0 <= length <= MAX_DRAFT_TOKENS:
        return int(length)
    raise SettingsError(f"K must be a whole number from 0 to {MAX_DRAFT_TOKENS}, auto or adaptive, not {length!r}.")


def parse_draft_length(text: str, name: str = "K", *, least: int = 1) -> DraftLength:
    """Parse a draft length: "4", "auto", "adaptive".

    Args:
        text: case and surrounding spaces don't matter.
        name: of the setting or flag, for the error message.
        least: 0 where plain decoding can be chosen, too.

    Raises:
        SettingsError: it is neither a policy nor a whole number from `least` to the longest block.
    """
    word = text.strip().lower()
    if word in _CHOSEN:
        return _CHOSEN[word]
    shown = repr(text if len(text) <= 60 else text[:60] + "…")
    try:
        length = int(word)
    except ValueError:
        raise SettingsError(f"{name} must be a whole number, auto or adaptive, not {shown}.") from None
    if not least <= length <= MAX_DRAFT_TOKENS:
        raise SettingsError(f"{name} must be a whole number from {least} to {MAX_DRAFT_TOKENS}, not {shown}.")
    return length


def parse_draft_lengths(text: str, name: str = "K") -> tuple[DraftLength, ...]:
    """Parse several lengths, such as "1-8,auto,adaptive": numbers, inclusive ranges, policies; each once, in order.

    Raises:
        SettingsError: as for a single one; an empty list; a reversed range.
    """
    lengths: list[DraftLength] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = parse_draft_length(first, name), parse_draft_length(last if dash else first, name)
        if isinstance(begin, LengthPolicy) or isinstance(end, LengthPolicy):
            if dash:
                raise SettingsError(f"{name}: {part.strip()!r} is not a range of numbers, such as 1-8.")
            lengths.append(begin)
            continue
        if end < begin:
            raise SettingsError(f"{name}: the range {part.strip()!r} runs backwards. Write {end}-{begin}.")
        lengths += range(begin, end + 1)
    return tuple(dict.fromkeys(lengths))


def request_fields(length: DraftLength) -> dict[str, Any]:
    """The fields of a `RunRequest` that a draft length sets: `RunRequest(..., **request_fields(length))`."""
    if isinstance(length, LengthPolicy):
        return {"num_draft_tokens": None, "length_policy": length}
    return {"num_draft_tokens": length}


def config_fields(length: DraftLength) -> dict[str, Any]:
    """The fields of a run log's `config`; `num_draft_tokens` is "auto" for either policy, as older readers expect."""
    if isinstance(length, LengthPolicy):
        return {"num_draft_tokens": str(LengthPolicy.AUTO), "length_policy": str(length)}
    return {"num_draft_tokens": length, "length_policy": str(LengthPolicy.FIXED)}


def shown_draft_length(config: Mapping[str, Any]) -> Any:
    """A log's K as shown and searched for: a number, "auto" or "adaptive"; None if the log has none."""
    length, policy = config.get("num_draft_tokens"), config.get("length_policy")
    return policy if length == str(LengthPolicy.AUTO) and policy in _CHOSEN else length


def lengths_of(steps: Iterable[Step]) -> set[DraftLength]:
    """K, or the policy that chose it, in force in a run's steps: several if it was changed, none in older logs.

    A K that was changed before the first step is another one than requested, and yet the only one.
    """
    return {step.draft_length for step in steps if step.draft_length is not None}
