"""View model of the run list: each kept run's texts in the table, and the sort keys of its columns."""

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
from core.runlog.log import number_of
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
    RunColumn.K: "Tokens drafted per step; auto: chosen before each step",
    RunColumn.TEMPERATURE: "The temperature at the start of the run",
    RunColumn.ACCEPTANCE: "Accepted / drafted tokens",
    RunColumn.SPEED: "Generated tokens per second, without the prefill",
    RunColumn.SPEEDUP: "Tokens per second / those of the baseline measured in the same run",
}
TEXT_COLUMNS = frozenset({RunColumn.NAME, RunColumn.WHEN, RunColumn.TARGET, RunColumn.DRAFT, RunColumn.STATE})


@dataclass(frozen=True)
class RunRow:
    """A run as a row. Its texts are made when the table first needs them."""

    run: KeptRun

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """One text per column; a dash if unknown."""
        run = self.run
        k, temperature, acceptance, speed, speedup = _values(run)
        return (
            run.title,
            when_text(run.started_at),
            short(run.config.get("target")),
            draft_text(run),
            UNKNOWN if k is None else str(k),
            UNKNOWN if number_of(temperature) is None else f"{temperature:g}",
            UNKNOWN if acceptance is None else percent_text(acceptance),
            UNKNOWN if speed is None else f"{speed:,.1f}",
            UNKNOWN if speedup is None else f"{speedup:.2f}×",
            str(run.state).capitalize(),
        )

    @cached_property
    def keys(self) -> tuple[Any, ...]:
        """One sort key per column; unknown values sort below known ones."""
        title, _, target, draft, *_, state = self.texts
        moment = self.run.started_at.timestamp() if self.run.started_at else 0.0
        numbers = (-math.inf if (number := number_of(value)) is None else number for value in _values(self.run))
        return (title.casefold(), moment, target.casefold(), draft.casefold(), *numbers, state)

    @cached_property
    def searchable(self) -> str:
        """The text that a search covers."""
        return searchable(self.run)

    @property
    def subtitle(self) -> str:
        """Details that distinguish runs of the same prompt, or why the run can't be read."""
        run, config = self.run, self.run.config
        if not run.is_readable:
            return run.problem
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

    @property
    def tooltip(self) -> str:
        """The exact start time and the beginning of the prompt, or why the run can't be read."""
        run = self.run
        if not run.is_readable:
            return run.problem
        prompt = run.config.get("prompt")
        text = prompt if isinstance(prompt, str) else ""
        beginning = text if len(text) <= MAX_TIP else f"{text[:MAX_TIP]}…"
        when = f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.started_at else ""
        note = "The log ends before the run did." if run.state is KeptState.CUT_OFF else ""
        return "\n".join(part for part in (when, note, beginning) if part)


def _values(run: KeptRun) -> tuple[Any, Any, float | None, float | None, float | None]:
    """K, temperature, acceptance, tokens per second and speedup, as far as known."""
    summary = run.summary or {}
    names = ("draft_acceptance_rate", "tokens_per_second", "measured_speedup")
    acceptance, speed, speedup = (number_of(summary.get(name)) for name in names)
    return shown_draft_length(run.config), run.config.get("temperature"), acceptance, speed, speedup


def when_text(moment: datetime | None, now: datetime | None = None) -> str:
    """A local time: today and yesterday by name, this year without the year."""
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
    """The draft model, or the method if it needs none."""
    if run.config.get("draft"):
        return short(run.config["draft"])
    name = run.config.get("method")
    method = METHODS.get(name) if isinstance(name, str) else None
    return method.title if method is not None else (name if isinstance(name, str) and name else UNKNOWN)
