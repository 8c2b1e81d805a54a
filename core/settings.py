"""Declares each setting once: its default, range, label and help, as the metadata of a dataclass field.

The run settings are the fields of `RunRequest` and `SamplingParams` in `core.types`, those of a drafting method the
fields of its options. Form, command-line flag, settings file and validation are all made from them.
"""

from __future__ import annotations

import math
from dataclasses import Field, field, fields
from enum import Enum
from typing import Any

from core.errors import SettingsError

MAX_SEED = 2**63 - 1


def setting(default: Any, *, label: str, help: str, **more: Any) -> Any:
    """A field that declares a setting.

    Args:
        default: its value where none is given; its type is the setting's.
        label: its name in the window and in sentences.
        help: sentences for the tooltip and `--help`.
        more: min, max, step: of a number. above: it must be greater than min, not equal. off: the number that
            switches it off. subject: its name at the beginning of a sentence, if not the label. is_optional: it may be
            None. titles: the name of each member of an enumeration. aliases: its other names in the search for runs.
            window_default, window_max: where the window's differ. metavar: of its flag.
    """
    return field(default=default, metadata={"label": label, "help": help, **more})


def declared(kind: type) -> dict[str, Field[Any]]:
    """The settings that a dataclass declares, by name."""
    return {item.name: item for item in fields(kind) if "label" in item.metadata}


def check(settings: Any) -> None:
    """Check each declared setting of a dataclass instance.

    Raises:
        SettingsError: one is out of range, with a sentence that names the range.
    """
    for name, item in declared(type(settings)).items():
        value = getattr(settings, name)
        if not is_valid(item, value):
            subject = item.metadata.get("subject", item.metadata["label"])
            raise SettingsError(f"{subject} must be {_range(item)}, not {value!r}.")


def is_valid(item: Field[Any], value: Any, *, in_window: bool = False) -> bool:
    """Whether a setting may have a value.

    Args:
        in_window: whether the window's range counts, where it is smaller.
    """
    default, rules = item.default, item.metadata
    if value is None:
        return default is None or bool(rules.get("is_optional"))
    if isinstance(default, Enum):
        return value in list(type(default))
    if not isinstance(default, int | float) or isinstance(default, bool):
        return default is None or isinstance(value, type(default))
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else int | float):
        return False
    high = rules.get("window_max") if in_window else None
    low, high = rules.get("min", -math.inf), rules.get("max", math.inf) if high is None else high
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # A whole number beyond every float.
        return False
    return is_finite and low <= value <= high and not (rules.get("above") and value == low)


def _range(item: Field[Any]) -> str:
    rules = item.metadata
    if isinstance(item.default, Enum):
        return f"one of {', '.join(map(str, type(item.default)))}"
    if not isinstance(item.default, int | float) or isinstance(item.default, bool):
        return "on or off" if isinstance(item.default, bool) else "text"
    noun = "a whole number" if isinstance(item.default, int) else "a number"
    low, high = (_bound(item, key) for key in ("min", "max"))
    if not high:
        return f"{noun}, {low} or more"
    return f"{noun} above {low} and up to {high}" if rules.get("above") else f"{noun} from {low} to {high}"


def _bound(item: Field[Any], key: str) -> str:
    bound = item.metadata.get(key)
    if bound is None:
        return ""
    text = "2^63 - 1" if bound == MAX_SEED else f"{bound:g}"
    return f"{text} (off)" if bound == item.metadata.get("off") else text
