"""Search among kept runs, by words and by settings."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from core.draft_length import shown_draft_length
from core.runlog.reading import mapping_of, text_of
from core.runlog.store import KeptRun
from core.settings import SETTINGS, is_lossy

TERM = re.compile(r"([\w-]+)(>=|<=|=|>|<)(\S+)")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: abs(a - b) <= 1e-9 * max(1.0, abs(b)),
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
ALIASES = {
    **{alias: name for name, item in SETTINGS.items() for alias in item.metadata.get("aliases", ())},
    "tags": "tag",
    "tokens": "num_tokens",
    "steps": "num_steps",
    "acceptance": "draft_acceptance_rate",
    "speed": "tokens_per_second",
    "speedup": "measured_speedup",
    "c": "cost_coefficient",
    "efficiency": "block_efficiency",
}
MARKS = {"was_busy": "busy", "was_stepped": "step by step"}
"""Words for what a summary says of a run."""
WORDS = ("prompt", "target", "draft", "method", "device", "dtype", "coupling", "verification")


def searchable(run: KeptRun) -> str:
    """The text in which plain words are searched."""
    parts = [run.name, run.note, run.tags, run.id, *(text_of(run.config.get(name)) for name in WORDS), str(run.state)]
    parts += ["lossy"] if is_lossy(run.config) else []
    parts += [text_of(value) for value in mapping_of(run.config.get("engine")).values()]
    parts += [word for name, word in MARKS.items() if (run.summary or {}).get(name) is True]
    return "\n".join(filter(None, parts)).casefold()


def matches(run: KeptRun, query: str, text: str | None = None) -> bool:
    """Whether a run matches every word and setting (`K=4`, `speedup>1.5`) of a query; case doesn't matter.

    Args:
        text: `searchable(run)`, if the caller has it already.
    """
    text = searchable(run) if text is None else text
    values = {
        **mapping_of(run.config.get("method_options")),
        **(run.summary or {}),
        **run.config,
        "num_draft_tokens": shown_draft_length(run.config),
        "num_steps": run.num_steps,
        "state": str(run.state),
        "tag": run.tags,
        "note": run.note,
    }
    return all(_fits(values, text, word) for word in query.casefold().split())


def _fits(values: Mapping[str, Any], text: str, word: str) -> bool:
    term = TERM.fullmatch(word)
    if term is None:
        return word in text
    key, sign, wanted = term.groups()
    key = ALIASES.get(key, key).replace("-", "_")
    if key not in values and key not in ALIASES.values():
        return word in text
    value = values.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(wanted.rstrip("%×x")) / (100 if wanted.endswith("%") else 1)
            return COMPARE[sign](float(value), number)
        except (ValueError, OverflowError):
            return False
    return sign == "=" and value is not None and wanted in str(value).casefold()
