"""Kept runs as a person reads them: one row of texts, and keys to sort them by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cached_property
from typing import Any

from app.setup.model_library import UNKNOWN
from core.draft_shape import shown_draft_length
from core.drafters.registry import METHODS
from core.runlog.store import KeptRun, KeptState, searchable
from core.text import percent_text

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MAX_TIP = 400


class RunColumn(IntEnum):
    """The columns, from left to right."""

    NAME = 0
    WHEN = 1
    TARGET = 2
    DRAFT = 3
    K = 4
    TEMPERATURE = 5
    ACCEPTANCE = 6
    SPEED = 7
    SPEEDUP = 8
    STATE = 9


TITLES = ("Run", "When", "Target", "Draft or method", "K", "Temp.", "Accepted", "Tokens/s", "Speedup", "State")
HELP: dict[int, str] = {
    RunColumn.K: "Tokens drafted in a step; auto: chosen before each step",
    RunColumn.TEMPERATURE: "The temperature that the run began with",
    RunColumn.ACCEPTANCE: "Accepted / drafted tokens",
    RunColumn.SPEED: "Generated tokens per second, without the prefill",
    RunColumn.SPEEDUP: "Tokens per second against the baseline measured in the same run",
}
TEXT_COLUMNS = frozenset({RunColumn.NAME, RunColumn.WHEN, RunColumn.TARGET, RunColumn.DRAFT, RunColumn.STATE})


@dataclass(frozen=True)
class RunRow:
    """A run as the table shows it: a text and a key to sort by for each column.

    They are put together when they are asked for: of thousands of rows a table shows a few at a time.
    """

    run: KeptRun

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What is known of the run; dashes for what isn't."""
        run = self.run
        k, temperature, acceptance, speed, speedup = _figures(run)
        return (
            run.title,
            when_text(run.started_at),
            short(run.config.get("target")),
            draft_text(run),
            UNKNOWN if k is None else str(k),
            UNKNOWN if _number(temperature) is None else f"{temperature:g}",
            UNKNOWN if acceptance is None else percent_text(acceptance),
            UNKNOWN if speed is None else f"{speed:,.1f}",
            UNKNOWN if speedup is None else f"{speedup:.2f}×",
            str(run.state).capitalize(),
        )

    @cached_property
    def keys(self) -> tuple[Any, ...]:
        """What the columns are sorted by."""
        title, _, target, draft, *_, state = self.texts
        started_at = self.run.started_at
        moment = started_at.timestamp() if started_at else 0.0
        figures = (_key(figure) for figure in _figures(self.run))
        return (title.casefold(), moment, target.casefold(), draft.casefold(), *figures, state)

    @cached_property
    def subtitle(self) -> str:
        """What tells the run from others of its name."""
        return subtitle(self.run)

    @cached_property
    def tip(self) -> str:
        """More about the run."""
        return tooltip(self.run)

    @cached_property
    def searchable(self) -> str:
        """What words are looked for in."""
        return searchable(self.run)

    def make_whole(self) -> None:
        """Put all of it together, ahead of being asked."""
        _ = self.texts, self.keys, self.subtitle, self.tip, self.searchable


def _figures(run: KeptRun) -> tuple[Any, Any, float | None, float | None, float | None]:
    """K, temperature, acceptance, tokens per second and speedup, as far as they are known."""
    summary = run.summary or {}
    names = ("draft_acceptance_rate", "tokens_per_second", "measured_speedup")
    acceptance, speed, speedup = (_number(summary.get(name)) for name in names)
    return shown_draft_length(run.config), run.config.get("temperature"), acceptance, speed, speedup


def when_text(moment: datetime | None, now: datetime | None = None) -> str:
    """A moment in the reader's own time: today and yesterday by name, this year without the year."""
    if moment is None:
        return UNKNOWN
    now = (now or datetime.now().astimezone()).astimezone()
    local = moment.astimezone(now.tzinfo)
    clock = f"{local:%H:%M}"
    if local.date() == now.date():
        return f"Today {clock}"
    if local.date() == (now - timedelta(days=1)).date():
        return f"Yesterday {clock}"
    day = f"{local.day} {MONTHS[local.month - 1]}"
    return f"{day} {clock}" if local.year == now.year else f"{day} {local.year}"


def short(ref: object) -> str:
    """A model's reference without its owner or folder."""
    if not isinstance(ref, str) or not ref:
        return UNKNOWN
    return ref.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or ref


def draft_text(run: KeptRun) -> str:
    """The draft, or the method where that needs none."""
    if run.config.get("draft"):
        return short(run.config["draft"])
    name = run.config.get("method")
    method = METHODS.get(name) if isinstance(name, str) else None
    return method.title if method is not None else (name if isinstance(name, str) and name else UNKNOWN)


def subtitle(run: KeptRun) -> str:
    """What else tells runs of one prompt apart."""
    if not run.is_readable:
        return run.problem
    config = run.config
    parts = []
    if isinstance(config.get("seed"), int):
        parts.append(f"seed {config['seed']}")
    count = (run.summary or {}).get("num_tokens")
    if isinstance(count, int):
        parts.append(f"{count:,} tokens")
    elif run.num_steps is not None:
        parts.append(f"{run.num_steps:,} step{'' if run.num_steps == 1 else 's'}")
    parts += [part for part in (config.get("device"), config.get("dtype")) if isinstance(part, str)]
    if config.get("coupling") == "gumbel":
        parts.append("reproducible")
    return " · ".join(parts)


def tooltip(run: KeptRun) -> str:
    """When exactly, and how the prompt begins; or why there is nothing to show."""
    if not run.is_readable:
        return run.problem
    prompt = run.config.get("prompt")
    text = prompt if isinstance(prompt, str) else ""
    begins = text if len(text) <= MAX_TIP else f"{text[:MAX_TIP]}…"
    when = f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.started_at else ""
    note = "The log ends before the run did." if run.state is KeptState.CUT_OFF else ""
    return "\n".join(part for part in (when, note, begins) if part)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # A damaged log may hold a whole number beyond every float.
        return None


def _key(value: object) -> float:
    # What isn't known stands below what is.
    number = _number(value)
    return float("-inf") if number is None or math.isnan(number) else number
