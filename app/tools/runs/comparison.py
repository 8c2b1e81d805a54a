"""Two or more kept runs held against each other: the settings that differ, the results, the settings that agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.setup.model_library import UNKNOWN
from core.draft_shape import shown_draft_length
from core.runlog.log import RunLog
from core.runlog.replay import events
from core.runlog.store import KeptRun
from core.text import spaced_percent
from core.types import Finished, FinishReason, Step, Summary

MAX_RUNS = 6
MAX_POINTS = 1000
LONGEST_SIGN = 16
"""A longer setting is no sign to tell runs of one name apart by."""
"""Points of a curve; a screen shows no more."""

Array = NDArray[np.float64]

SETTINGS = {
    "target": "Target",
    "draft": "Draft",
    "method": "Method",
    "num_draft_tokens": "K",
    "temperature": "Temperature",
    "top_k": "Top-k",
    "top_p": "Top-p",
    "min_p": "Min-p",
    "seed": "Seed",
    "coupling": "Coupling",
    "max_new_tokens": "New tokens, at most",
    "stop": "Stop texts",
    "chat": "Chat template",
    "prompt": "Prompt",
    "device": "Device",
    "dtype": "Number format",
    "revision": "Target's revision",
}
ENVIRONMENT = {
    "device_name": "Device's name",
    "threads": "Processor threads",
    "platform": "Platform",
    "torch": "torch",
    "transformers": "transformers",
    "python": "Python",
}
_LEFT_OUT = {"prompt_token_ids", "length_policy", "method_options", "requested_device", "requested_dtype", "baseline"}
ENDS = {
    FinishReason.LENGTH: "length reached",
    FinishReason.EOS: "the model ended its text",
    FinishReason.STOP: "met a stop text",
    FinishReason.CANCELLED: "stopped",
    FinishReason.ERROR: "failed",
}


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One setting or figure of all the runs. `best` are the runs with the best figure, where one is better."""

    title: str
    texts: tuple[str, ...]
    help: str = ""
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Curve:
    """One run along its steps. All of one length; acceptance is NaN where nothing has been drafted yet."""

    tokens: Array
    seconds: Array
    acceptance: Array


@dataclass(frozen=True, slots=True)
class Comparison:
    """What there is to show of several runs, in their order."""

    runs: tuple[KeptRun, ...]
    differing: tuple[ComparedRow, ...]
    results: tuple[ComparedRow, ...]
    agreeing: tuple[ComparedRow, ...]
    curves: tuple[Curve, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The runs' titles. Those that are alike are told apart by a setting that differs, or by their place."""
        titles = [run.title for run in self.runs]
        short = [row for row in self.differing if max(map(len, row.texts)) <= LONGEST_SIGN]
        names = []
        for place, title in enumerate(titles):
            alike = [index for index, other in enumerate(titles) if other == title]
            apart = (row for row in short if len({row.texts[index] for index in alike}) == len(alike))
            row = next(apart, None)
            sign = f"{row.title} {row.texts[place]}" if row is not None else f"no. {place + 1}"
            names.append(f"{title} · {sign}" if len(alike) > 1 else title)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A run's summary and steps."""

    summary: Summary
    steps: tuple[Step, ...]
    is_cut_off: bool

    def mean_ms(self, name: str) -> float | None:
        """Mean of one of the steps' times."""
        return sum(getattr(step, name) for step in self.steps) / len(self.steps) if self.steps else None


def compare(runs: Sequence[tuple[KeptRun, RunLog]]) -> Comparison:
    """Hold runs against each other. Reads every step; not for the window's thread."""
    outcomes = [_outcome(log) for _, log in runs]
    settings = [_settings(log, outcome) for (_, log), outcome in zip(runs, outcomes, strict=True)]
    titles = dict.fromkeys(title for own in settings for title in own)
    rows = [ComparedRow(title, tuple(own.get(title, UNKNOWN) for own in settings)) for title in titles]
    return Comparison(
        tuple(run for run, _ in runs),
        tuple(row for row in rows if len(set(row.texts)) > 1),
        tuple(_results(outcomes)),
        tuple(row for row in rows if len(set(row.texts)) == 1),
        tuple(curve(outcome.steps) for outcome in outcomes),
    )


def curve(steps: Sequence[Step]) -> Curve:
    """A run's curves, from their origin; thinned out where there are more steps than a screen has columns."""
    emitted = np.cumsum([0.0, *(len(step.emitted) for step in steps)])
    seconds = np.cumsum([0.0, *(step.total_ms / 1000 for step in steps)])
    drafted = np.cumsum([0.0, *(step.num_draft_tokens for step in steps)])
    accepted = np.cumsum([0.0, *(step.num_accepted for step in steps)])
    rate = np.divide(accepted, drafted, out=np.full_like(drafted, math.nan), where=drafted > 0)
    places = np.unique(np.linspace(0, len(steps), min(len(steps) + 1, MAX_POINTS)).round().astype(int))
    return Curve(emitted[places], seconds[places], rate[places])


def _outcome(log: RunLog) -> _Outcome:
    steps: list[Step] = []
    summary = None
    for event in events(log):
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Finished):
            summary = event.summary
    assert summary is not None, "a log's events end with Finished"
    return _Outcome(summary, tuple(steps), log.summary is None)


# --- Settings ---------------------------------------------------------------------------------------------------


def _settings(log: RunLog, outcome: _Outcome) -> dict[str, str]:
    config, environment = log.run["config"], log.run.get("environment")
    if "num_draft_tokens" in config:
        config = {**config, "num_draft_tokens": shown_draft_length(config)}
    others = {name: name.replace("_", " ").capitalize() for name in config if name not in {*SETTINGS, *_LEFT_OUT}}
    found = {title: _setting(config.get(name)) for name, title in {**SETTINGS, **others}.items() if name in config}
    options = config.get("method_options")
    for name, value in (options if isinstance(options, Mapping) else {}).items():
        found[f"Option {str(name).replace('_', ' ')}"] = _setting(value)
    if "Temperature" in found and _was_moved(config.get("temperature"), outcome.steps):
        found["Temperature"] += ", moved during the run"
    found["Outrider"] = _setting(log.run.get("outrider_version"))
    if isinstance(environment, Mapping):
        found.update({title: _setting(environment.get(name)) for name, title in ENVIRONMENT.items()})
    return found


def _was_moved(temperature: object, steps: Sequence[Step]) -> bool:
    return any(step.temperature != temperature for step in steps if not math.isnan(step.temperature))


def _setting(value: Any) -> str:
    if value is None or value in ("", []):
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(str, value[:8])) + (f" … ({len(value)})" if len(value) > 8 else "")
    return str(value)


# --- Results ----------------------------------------------------------------------------------------------------


def _results(outcomes: Sequence[_Outcome]) -> list[ComparedRow]:
    figures: tuple[tuple[str, Callable[[_Outcome], float | None], str, str, int], ...] = (
        ("Tokens/s", lambda o: o.summary.tokens_per_second, "{:,.1f}", "Tokens over the sum of the steps' times.", 1),
        (
            "Speedup",
            lambda o: o.summary.measured_speedup,
            "{:.2f}×",
            "Measured: tokens per second against the baseline that ran behind the run.",
            1,
        ),
        ("Predicted speedup", lambda o: o.summary.predicted_speedup, "{:.2f}×", "tau / (K c + v), as measured.", 0),
        ("Baseline, tokens/s", lambda o: o.summary.baseline_tokens_per_second, "{:,.1f}", "The target alone.", 0),
        ("Accepted", lambda o: o.summary.draft_acceptance_rate, "{:.1%}", "Accepted / drafted tokens.", 1),
        ("Block efficiency", lambda o: o.summary.block_efficiency, "{:.2f}", "tau: tokens per target forward.", 1),
        ("c", lambda o: o.summary.cost_coefficient, "{:.3f}", "One draft step's time / one target step's time.", -1),
        ("Step, ms", lambda o: o.mean_ms("total_ms"), "{:.2f}", "Mean time of a step.", 0),
        ("  draft, ms", lambda o: o.mean_ms("draft_ms"), "{:.2f}", "Mean time a step spent on proposals.", 0),
        ("  verify, ms", lambda o: o.mean_ms("verify_ms"), "{:.2f}", "Mean time of the target's forward.", 0),
        ("  sample, ms", lambda o: o.mean_ms("sample_ms"), "{:.2f}", "Filters, verdict and next token.", 0),
        ("Prefill, ms", lambda o: o.summary.prefill_ms or None, "{:,.1f}", "Reading the prompt.", 0),
        ("Peak memory, MB", lambda o: o.summary.peak_memory_mb, "{:,.0f}", "On the device.", 0),
        ("Tokens", lambda o: o.summary.num_tokens, "{:,}", "Generated tokens.", 0),
        ("Steps", lambda o: o.summary.num_steps, "{:,}", "Draft-verify rounds.", 0),
    )
    rows = [_figure(outcomes, *figure) for figure in figures]
    ends = tuple("cut off" if outcome.is_cut_off else ENDS[outcome.summary.finish_reason] for outcome in outcomes)
    same = ["same" if outcome.summary.text == outcomes[0].summary.text else "differs" for outcome in outcomes[1:]]
    help_text = "Whether the text is that of the first run here, character for character."
    text = ComparedRow("Text", ("reference", *same), help_text)
    shown = [row for row in rows if set(row.texts) != {UNKNOWN}]
    return [*shown, ComparedRow("End", ends), text]


def _figure(
    outcomes: Sequence[_Outcome], title: str, take: Callable[[_Outcome], float | None], form: str, tip: str, better: int
) -> ComparedRow:
    values = [take(outcome) for outcome in outcomes]
    texts = tuple(UNKNOWN if value is None else spaced_percent(form.format(value)) for value in values)
    known = [value for value in values if value is not None]
    top = max(known, key=lambda value: value * better, default=0.0)
    best = frozenset(index for index, value in enumerate(values) if value is not None and _is_as_good(value, top))
    # A best among equals tells nothing.
    is_told = bool(better) and len(best) < len(known)
    return ComparedRow(title, texts, tip, best if is_told else frozenset())


def _is_as_good(value: float, best: float) -> bool:
    # What differs by less than a hundredth is no difference that one run each can show.
    return abs(value - best) <= 0.01 * abs(best)
