"""What a report says of a run, taken from its log: whatever the log lacks or holds in a wrong form is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.records import CONFIG_FIELDS, ENVIRONMENT_FIELDS, Record
from core.replay import step_from_record
from core.tally import Tally
from core.trace import RunLog
from core.types import FinishReason, Step, Summary

LONG = frozenset({"prompt", "prompt_token_ids", "continuation_token_ids", "continuation_text", "forced_text"})
"""Settings that the text shows, or that nobody reads in a table."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, ready to be written up.

    Attributes:
        log: what it was read from.
        steps: those that could be rebuilt.
        added_up: the summary that the steps themselves come to.
        baseline_ms, baseline_tokens: of each plain step, where the baseline ran.
        problems: sentences about what the log lacks.
    """

    log: RunLog
    steps: tuple[Step, ...]
    added_up: Summary
    alpha: float | None
    baseline_ms: tuple[float, ...]
    baseline_tokens: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        config = self.log.run.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def run_id(self) -> str:
        return text_of(self.log.run.get("id"))

    @property
    def version(self) -> str:
        return text_of(self.log.run.get("outrider_version"))

    def setting(self, name: str) -> str:
        """A setting in words; empty where there is none."""
        return shown(self.config.get(name))

    def figure(self, name: str) -> float | None:
        """A figure of the summary, or what the steps come to where the log ends before it."""
        if self.log.summary is not None:
            return number_of(self.log.summary.get(name))
        return number_of(getattr(self.added_up, name, None))

    @property
    def pair(self) -> str:
        """The two models, in a line."""
        target, draft = self.setting("target") or "unknown target", self.setting("draft")
        return f"{target} with {draft}" if draft else f"{target}, {self.setting('method') or 'no draft'}"

    @property
    def settings(self) -> dict[str, str]:
        """Everything that was chosen, in the log's order, long texts left out."""
        config = self.config
        names = [name for name in (*CONFIG_FIELDS, *config) if name in config and name not in LONG]
        return {name: shown(config[name]) for name in dict.fromkeys(names)}

    @property
    def environment(self) -> dict[str, str]:
        """Where it ran."""
        found = self.log.run.get("environment")
        values = found if isinstance(found, dict) else {}
        names = [name for name in (*ENVIRONMENT_FIELDS, *values) if name in values and name != "process"]
        return {name: shown(values[name]) for name in dict.fromkeys(names)}


def run_data(log: RunLog) -> RunData:
    """Rebuild what a report needs; a step that no run could have written is left out and counted."""
    steps, tally = [], Tally()
    for record in log.steps:
        step = step_from_record(record)
        if step is not None:
            steps.append(step)
            tally.add(step)
    problems = list(log.problems)
    if lost := len(log.steps) - len(steps):
        problems.append(f"{lost:,} of its {len(log.steps):,} steps are damaged and were left out.")
    if not steps:
        problems.append("The log holds no step, so that there is no text and nothing to plot.")
    added_up = tally.summary(
        FinishReason.CANCELLED,
        "".join(step.emitted_text for step in steps),
        prefill_ms=0.0,
        target_step_ms=None,
        peak_memory_mb=None,
    )
    plain = [record for record in log.baseline_steps if number_of(record.get("total_ms")) is not None]
    return RunData(
        log=log,
        steps=tuple(steps),
        added_up=added_up,
        alpha=tally.alpha,
        baseline_ms=tuple(number_of(record["total_ms"]) or 0.0 for record in plain),
        baseline_tokens=tuple(_count(record) for record in plain),
        problems=tuple(problems),
    )


def _count(record: Record) -> int:
    emitted = record.get("emitted")
    return len(emitted) if isinstance(emitted, list) else 1


def number_of(value: Any) -> float | None:
    """A finite number; None for everything else."""
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return None
    return float(value) if is_number else None


def text_of(value: Any) -> str:
    """A text; empty for everything else."""
    return value if isinstance(value, str) else ""


def moment_of(value: Any) -> str:
    """A moment as it is read, to the minute; what is no moment stays as it is."""
    text = text_of(value)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def shown(value: Any) -> str:
    """A setting in words."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(repr(item) if isinstance(item, str) else shown(item) for item in value)
    return str(value)
