"""A run's key figures, each with its field in the log and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.export.page import UNKNOWN, escaped
from core.runlog.log import CONFIG_FIELDS, ENVIRONMENT_FIELDS, Record, RunLog
from core.runlog.replay import step_from_record
from core.runlog.tally import Tally
from core.text import spaced_percent
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


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a report may show.

    Attributes:
        title: in words.
        field: its name in the log, where it has one there; vLLM's where vLLM has it.
        meaning: how it is computed.
        read: what it is of a run; None where it is not known.
        form: how it is written.
    """

    title: str
    field: str
    meaning: str
    read: Callable[[RunData], float | None]
    form: str = "{:,.2f}"

    def text(self, run: RunData) -> str:
        """As it is shown."""
        value = self.read(run)
        return UNKNOWN if value is None else spaced_percent(self.form.format(value))


def _of(name: str) -> Callable[[RunData], float | None]:
    return lambda run: run.figure(name)


TWO_SPEEDUPS = (
    "The measured speedup is what the clock said: the run against the target alone. The predicted one is worked out "
    "from the run’s own acceptance and step times. Where they differ, the measured one counts."
)


def mean_acceptance_length(run: RunData) -> float | None:
    """As vLLM reckons it: 1 + accepted / drafts."""
    accepted, drafts = run.figure("num_accepted_tokens"), run.figure("num_drafts")
    return 1 + accepted / drafts if accepted is not None and drafts else None


FIGURES: tuple[Figure, ...] = (
    Figure(
        "Measured speedup",
        "measured_speedup",
        "Tokens per second of this run / those of the target alone, run right afterwards with the same sampling. "
        "Wall clock, never an estimate.",
        _of("measured_speedup"),
        "{:.2f}×",
    ),
    Figure(
        "Tokens per second",
        "tokens_per_second",
        "New tokens / the sum of the steps' times. The prefill of the prompt is not part of it.",
        _of("tokens_per_second"),
        "{:,.1f}",
    ),
    Figure(
        "Baseline, tokens per second",
        "baseline_tokens_per_second",
        "The target alone, one token a forward, in the same process.",
        _of("baseline_tokens_per_second"),
        "{:,.1f}",
    ),
    Figure(
        "Predicted speedup",
        "predicted_speedup",
        "tau / (K c + v), from this run's own alpha, c and verify cost. It stands beside the measured one.",
        _of("predicted_speedup"),
        "{:.2f}×",
    ),
    Figure(
        "Acceptance",
        "draft_acceptance_rate",
        "Accepted / drafted tokens. Tokens behind a rejected one count as drafted.",
        _of("draft_acceptance_rate"),
        "{:.1%}",
    ),
    Figure(
        "Alpha",
        "",
        "Accepted / tested tokens: the chance that a token which is tested is kept.",
        lambda run: run.alpha,
        "{:.1%}",
    ),
    Figure(
        "Block efficiency",
        "block_efficiency",
        "New tokens / forwards of the target, resampled and bonus tokens included. Plain decoding has 1.",
        _of("block_efficiency"),
    ),
    Figure(
        "Mean acceptance length",
        "mean_acceptance_length",
        "1 + accepted tokens / drafts: vLLM's figure, over the steps that drafted.",
        mean_acceptance_length,
    ),
    Figure(
        "Cost coefficient c",
        "cost_coefficient",
        "One draft step's time / one target step's time.",
        _of("cost_coefficient"),
        "{:.3f}",
    ),
    Figure("New tokens", "num_tokens", "Tokens that the run wrote.", _of("num_tokens"), "{:,.0f}"),
    Figure("Prefill, ms", "prefill_ms", "Time to read the prompt, in milliseconds.", _of("prefill_ms"), "{:,.1f}"),
    Figure("Peak memory, MB", "peak_memory_mb", "Of the device or the process.", _of("peak_memory_mb"), "{:,.0f}"),
)


def cards(run: RunData) -> str:
    """The figures that are known, each with what it means."""
    shown = [(figure, figure.text(run)) for figure in FIGURES]
    inside = "\n".join(
        f'<div class="card"><dt>{escaped(figure.title)}</dt><dd class="value">{escaped(text)}</dd>'
        f"<dd>{escaped(figure.meaning)}"
        + (f" <code>{escaped(figure.field)}</code>" if figure.field else "")
        + "</dd></div>"
        for figure, text in shown
        if text != UNKNOWN
    )
    return f'<dl class="figures">\n{inside}\n</dl>'


def verdict(run: RunData) -> str:
    """What the run says of its pair, in a sentence; only what was measured counts."""
    speedup = run.figure("measured_speedup")
    if speedup is None:
        return "The baseline did not run, so that this run does not say whether speculation pays here."
    if speedup < 1:
        return f"Don’t speculate here: this run was slower than the target alone, at {speedup:.2f}× its speed."
    return f"Speculation paid in this run: {speedup:.2f}× the speed of the target alone."


def note(runs: Sequence[RunData]) -> str:
    """What the two speedups are; empty where none of the runs has both."""
    both = ("measured_speedup", "predicted_speedup")
    if not any(all(run.figure(name) is not None for name in both) for run in runs):
        return ""
    return f'<p class="note">{escaped(TWO_SPEEDUPS)}</p>'


def rows(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """The figures of several runs, those left out that none of them has."""
    found = [(figure.title, [figure.text(run) for run in runs]) for figure in FIGURES]
    return [(title, cells) for title, cells in found if set(cells) != {UNKNOWN}]
