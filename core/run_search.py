"""Which kept runs have these words: in their name, prompt or models, or a setting such as K=4 or speedup>1.5."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from core.draft_length import shown_draft_length
from core.runs import KeptRun

_TERM = re.compile(r"([A-Za-z_-]+)(>=|<=|=|>|<)(\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: abs(a - b) <= 1e-9 * max(1.0, abs(b)),
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_ALIASES = {
    "k": "num_draft_tokens",
    "t": "temperature",
    "temp": "temperature",
    "n": "max_new_tokens",
    "tokens": "num_tokens",
    "steps": "num_steps",
    "acceptance": "draft_acceptance_rate",
    "speed": "tokens_per_second",
    "speedup": "measured_speedup",
    "c": "cost_coefficient",
    "efficiency": "block_efficiency",
}
_WORDS = ("target", "draft", "method", "device", "dtype", "coupling")


def matches(run: KeptRun, query: str, text: str | None = None) -> bool:
    """Whether a run has every word of the query; case doesn't matter. An empty query fits all.

    Args:
        run: to look at.
        query: words and settings, with spaces between.
        text: `searchable` of the run, where the caller has it at hand.
    """
    text = searchable(run) if text is None else text
    return all(_fits(run, text, word) for word in query.casefold().split())


def searchable(run: KeptRun) -> str:
    """What plain words are looked for in."""
    config = run.config
    parts = (run.name, run.id, config.get("prompt"), *(config.get(name) for name in _WORDS), str(run.state))
    return "\n".join(part for part in parts if isinstance(part, str)).casefold()


def _fits(run: KeptRun, text: str, word: str) -> bool:
    term = _TERM.fullmatch(word)
    if term is None:
        return word in text
    key, sign, wanted = term.groups()
    key = _ALIASES.get(key, key).replace("-", "_")
    if not _is_known(run, key):
        return word in text
    return _has(_value(run, key), sign, wanted)


def _is_known(run: KeptRun, key: str) -> bool:
    places = (_ALIASES.values(), run.config, run.summary or {}, _options(run))
    return key in {"state", "num_steps"} or any(key in place for place in places)


def _options(run: KeptRun) -> Mapping[str, Any]:
    options = run.config.get("method_options")
    return options if isinstance(options, dict) else {}


def _value(run: KeptRun, key: str) -> Any:
    if key == "state":
        return str(run.state)
    if key == "num_steps":
        return run.num_steps
    if key == "num_draft_tokens":
        return shown_draft_length(run.config)
    places = (run.config, run.summary or {}, _options(run))
    return next((place[key] for place in places if place.get(key) is not None), None)


def _has(value: Any, sign: str, wanted: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(wanted.removesuffix("%")) / (100 if wanted.endswith("%") else 1)
            return _COMPARE[sign](float(value), number)
        except (ValueError, OverflowError):
            return False
    return sign == "=" and value is not None and wanted in str(value).casefold()
