"""What contenders are called. A method's options stand behind its name: `prompt-lookup:max-ngram=5`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from core.drafters.methods import METHODS
from core.errors import SettingsError

GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO = "generate", "assisted", "flashspec", "flashspec-auto"
RIVALS = (GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO)
PLAIN, AUTO = "plain", "auto"

_WORDS = {"yes": True, "no": False}


def known_names() -> tuple[str, ...]:
    """Every contender without options, in the order of the table."""
    return (*RIVALS, PLAIN, *METHODS, AUTO)


def default_names() -> tuple[str, ...]:
    """Who takes part where nobody is named: each method at its defaults, and with each of its switches turned."""
    variants = [
        f"{name}:{item.name.replace('_', '-')}={'no' if item.default else 'yes'}"
        for name, method in METHODS.items()
        for item in fields(method.options)
        if isinstance(item.default, bool)
    ]
    names = list(known_names())
    for variant in variants:
        names.insert(names.index(variant.partition(":")[0]) + 1, variant)
    return tuple(names)


def split_name(name: str) -> tuple[str, dict[str, Any]]:
    """A contender's name without options, and the options.

    Raises:
        SettingsError: no such contender, or options that it does not know or can't have.
    """
    base, *parts = name.split(":")
    if base not in known_names():
        raise SettingsError(f"There is no contender {base!r}. Choose from: {', '.join(known_names())}.")
    if parts and base not in METHODS:
        raise SettingsError(f"The contender {base} has no options; leave out what stands behind the colon.")
    options = dict(_option(base, part) for part in parts)
    if options:
        METHODS[base].options(**options)  # Refuses values out of range.
    return base, options


def _option(base: str, part: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    defaults: dict[str, Any] = {item.name: item.default for item in fields(METHODS[base].options)}
    name = key.strip().replace("-", "_")
    if name not in defaults:
        known = ", ".join(item.replace("_", "-") for item in defaults) or "none"
        raise SettingsError(f"The method {base} has no option {key!r}. It has: {known}.")
    default = defaults[name]
    try:
        return name, _WORDS[text.lower()] if isinstance(default, bool) else type(default)(text)
    except (KeyError, ValueError, TypeError):
        kind = "yes or no" if isinstance(default, bool) else "a number"
        raise SettingsError(f"The option {key} of {base} is {kind}, not {text!r}.") from None
