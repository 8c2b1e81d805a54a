"""A run's data for reports and comparisons: its settings in words, and its figures with their meanings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from core.analysis.run_counts import Column, RunCounts
from core.analysis.steadiness import STEPWISE, absence_note, busy_note, covers_one, interval_text, speedup_interval
from core.draft_length import shown_draft_length
from core.export.templates import UNKNOWN
from core.runlog.log import CONFIG_FIELDS, ENVIRONMENT_FIELDS
from core.runlog.reading import RunLog, mapping_of, number_of, text_of
from core.runlog.replay import damage_note, events
from core.runlog.store import moment_of
from core.settings import VerificationRule
from core.text import percent_text, server_text, spaced_percent
from core.types import BaselineStep, Finished, FinishReason, Step, StepSource, Summary

SOURCES = frozenset({"target_source", "draft_source"})
"""Where models came from, which older logs don't say."""
LEFT_OUT = frozenset({
    "prompt", "prompt_token_ids", "continuation_token_ids", "continuation_text", "forced_text", "length_policy",
    "requested_chat",
})  # fmt: skip
"""Settings that tables leave out, or show in other words; K's row names the policies in force."""
_ROOT = r"(?:/|\\\\|[A-Za-z]:[\\/])"
_QUOTED = re.compile(rf"""(["'])({_ROOT}.*?)\1""")
_BARE = re.compile(rf"""(?<![\w/\\.~"']){_ROOT}[^\s"',/\\]+[/\\][^\s"',]*""")
"""An absolute path of several parts in a sentence, without quotes."""
ENDS = {
    FinishReason.LENGTH: "length reached",
    FinishReason.EOS: "the model ended its text",
    FinishReason.STOP: "stop text found",
    FinishReason.CANCELLED: "stopped",
    FinishReason.ERROR: "failed",
}


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, prepared for a report.

    Attributes:
        config: the log's settings, as in `without_paths`.
        steps: the steps that could be rebuilt.
        counts, baseline: what these and the baseline's steps add up to.
        summary: the log's, or as computed from the steps if it has none.
        problems: one sentence for each thing missing from the log.
        was_busy: whether the machine was busy during the run or its baseline.
    """

    log: RunLog
    config: Mapping[str, Any]
    steps: tuple[Step, ...]
    counts: RunCounts
    baseline: RunCounts
    summary: Summary
    problems: tuple[str, ...]
    was_busy: bool

    @property
    def draft_length(self) -> str:
        """K, or the policy that chose it: all values in their order if it was changed."""
        lengths = [step.draft_length for step in self.steps if step.draft_length is not None]
        return _in_order(lengths or [shown_draft_length(self.config)])

    @property
    def temperature(self) -> str:
        """The temperature: all values in their order if it was changed."""
        recorded = [step.temperature for step in self.steps if not math.isnan(step.temperature)]
        return _in_order(recorded or [self.config.get("temperature")])

    @property
    def run_id(self) -> str:
        """The run's id."""
        return text_of(self.log.run.get("id"))

    @property
    def version(self) -> str:
        """The version of Outrider that wrote the log."""
        return text_of(self.log.run.get("outrider_version"))

    @property
    def end(self) -> str:
        """How the run ended."""
        return "no end in its log" if self.log.summary is None else ENDS[self.summary.finish_reason]

    @property
    def pair(self) -> str:
        """The two models; of a run on a server its one, and the server."""
        if engine := mapping_of(self.config.get("engine")):
            return f"{self.setting('target')} on {server_text(engine)}"
        target, draft = self.setting("target") or "unknown target", self.setting("draft")
        return f"{target} with {draft}" if draft else f"{target}, {self.setting('method') or 'no draft'}"

    def setting(self, name: str) -> str:
        """A setting in words; empty if there is none."""
        return shown(self.config.get(name))

    def figure(self, name: str) -> float | None:
        """A figure of the summary."""
        return number_of(getattr(self.summary, name))

    def mean_ms(self, name: str) -> float | None:
        """The mean of one of the steps' times; None if it isn't reported, or too little of it to show a speed."""
        if self.summary.source is not None and self.summary.tokens_per_second is None:
            return None
        values = [value for value in self.counts.columns[Column(name)] if math.isfinite(value)]
        return sum(values) / len(values) if values else None

    @property
    def alpha(self) -> float | None:
        """Accepted / tested; None where a server counts drafts that its steps don't show, as these are the rejected."""
        sums, drafted = self.counts.sums, self.summary.num_draft_tokens
        # Where it reported every step, a draft that the text's end cut is all that may differ.
        is_reported = {step.source for step in self.steps} <= {None, StepSource.SERVER}
        # Older logs count the drafts that are shown, but have no rate then.
        is_whole = drafted == sums.drafted and self.summary.draft_acceptance_rate is not None
        return sums.alpha if is_reported or is_whole else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the measured speedup; None if there is none."""
        return speedup_interval(self.counts.sums, self.baseline.sums)

    @property
    def baseline_problem(self) -> str:
        """What the baseline lacks for a speedup, after "The baseline"."""
        if self.summary.has_baseline:
            return "is too short to measure"
        return "did not finish" if len(self.baseline) else "did not run"

    @property
    def is_short(self) -> bool:
        """Whether there is no interval because there are too few steps; the oldest logs hold no plain ones at all."""
        return self.interval is None and self.baseline.sums.num_steps > 0

    @property
    def settings(self) -> dict[str, str]:
        """All settings but those left out, in the log's order, with K and the temperature as in force for the steps."""
        in_force = {"num_draft_tokens": self.draft_length, "temperature": self.temperature}
        found = _in_words(self.config, CONFIG_FIELDS, LEFT_OUT)
        return {name: in_force.get(name, text) for name, text in found.items()}

    @property
    def written(self) -> str:
        """What a branch begins with: the text kept of the run before, and what was forced; empty for other runs."""
        return text_of(self.config.get("continuation_text")) + text_of(self.config.get("forced_text"))

    @property
    def compared(self) -> dict[str, str]:
        """The settings that tell runs apart, with their prompts, and what branches begin with."""
        found = {name: text for name, text in self.settings.items() if name not in SOURCES}
        if not self.config.get("engine"):
            found["verification"] = self.setting("verification") or VerificationRule.TOKEN.value  # Older logs.
        found["prompt"] = self.setting("prompt")
        if self.summary.was_stepped:
            found["pace"] = "step by step"
        return found | {"begins_with": self.written} if self.written else found

    @property
    def environment(self) -> dict[str, str]:
        """The machine and versions of the run."""
        return _in_words(mapping_of(self.log.run.get("environment")), ENVIRONMENT_FIELDS, {"process"})


def run_data(log: RunLog, names: Mapping[str, str] | None = None) -> RunData:
    """Rebuild a report's data, with names as in `without_paths`. Invalid steps are left out and counted."""
    steps: list[Step] = []
    counts, baseline = RunCounts(), RunCounts()
    for event in events(log):
        if isinstance(event, Step):
            steps.append(event)
            counts.add(event)
        elif isinstance(event, BaselineStep):
            baseline.add(event.step)
        elif isinstance(event, Finished):
            summary = event.summary
    problems = [*log.problems, *filter(None, [damage_note(log)])]
    sources = {step.source for step in steps}
    if {StepSource.SERVER, StepSource.TEXT} <= sources:
        problems.append("The server didn't report the counts of some steps, so only their text is shown.")
    elif StepSource.TEXT in sources:
        problems.append("The server reported nothing about drafting, so only the text is shown.")
    elif StepSource.CHUNKS in sources:
        problems.append("Steps are inferred from the server's stream where it didn't report their counts.")
    busy = busy_note(counts.sums, baseline.sums, summary)
    problems += filter(None, (absence_note(counts.sums, baseline.sums), busy))
    if not steps:
        problems.append("The log holds no steps, so there is no text and nothing to plot.")
    config = without_paths(log.run["config"], names)
    return RunData(log, config, tuple(steps), counts, baseline, summary, tuple(problems), bool(busy))


def differences(
    tables: Sequence[Mapping[str, str]],
) -> tuple[list[tuple[str, list[str]]], list[tuple[str, list[str]]]]:
    """The rows that differ between tables, and those that agree: a name and one text per table."""
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, [table.get(name, "") for table in tables]) for name in names]
    return [row for row in rows if len(set(row[1])) > 1], [row for row in rows if len(set(row[1])) == 1]


def where_differing(texts: Sequence[str], before: int) -> list[str]:
    """Texts cut for a table, from this many characters before they differ."""
    shortest = min(map(len, texts))
    alike = next((at for at in range(shortest) if len({text[at] for text in texts}) > 1), shortest)
    start = max(0, alike - before)
    return [cut(f"…{text[start:]}" if start else text) for text in texts]


def cut(text: str, length: int = 200) -> str:
    """The beginning of a long text."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def named(ref: Any) -> Any:
    """A model's reference; of an absolute path only the last part, since the rest is the user's own business."""
    paths = [kind(ref) for kind in (PurePosixPath, PureWindowsPath)] if isinstance(ref, str) else []
    return next((path.name for path in paths if path.is_absolute() and path.name), ref)


def without_folders(sentence: str) -> str:
    """A sentence for others to read, with paths as in `named`."""
    sentence = _QUOTED.sub(lambda found: f"{found[1]}{named(found[2])}{found[1]}", sentence)
    return _BARE.sub(lambda found: str(named(found[0])), sentence)


def numbered(refs: Iterable[Any]) -> dict[str, str]:
    """The name of each reference, as in `named`; different ones that would share a name are numbered."""
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    for ref in refs:
        if isinstance(ref, str) and ref not in names:
            place = str(PureWindowsPath(ref))  # Of either kind of slash, and without the last one.
            if place not in known:
                name, number = str(named(ref)), 1
                while name in known.values():
                    number += 1
                    name = f"{named(ref)} ({number})"
                known[place] = name
            names[ref] = known[place]
    return names


def references(config: Mapping[str, Any]) -> list[Any]:
    """A run's models, and the values of its method's options."""
    return [config.get("target"), config.get("draft"), *mapping_of(config.get("method_options")).values()]


def without_paths(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A run's settings for others to read, with its `references` by these names, or else as in `named`."""

    def called(value: Any) -> Any:
        return (names or {}).get(value, named(value)) if isinstance(value, str) else value

    models = {name: called(config[name]) for name in ("target", "draft") if name in config}
    if isinstance(options := config.get("method_options"), Mapping):
        models["method_options"] = {name: called(value) for name, value in options.items()}
    return {**config, **models}


def minute_text(value: Any) -> str:
    """A time to the minute; any other text is unchanged."""
    moment = moment_of(text_of(value))
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else text_of(value)


def shown(value: Any) -> str:
    """A setting in words."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(repr(item) if isinstance(item, str) else shown(item) for item in value)
    return str(value)


def _in_order(values: Iterable[Any]) -> str:
    """The values that a setting had at the steps, and from which on."""
    found: list[str] = []
    step = 1
    for value, steps in groupby(values):
        text = f"{value:g}" if isinstance(value, float) else shown(value)
        found.append(f"{text} from step {step:,}" if found else text)
        step += sum(1 for _ in steps)
    first, *others = found
    return f"{first}, then {', '.join(others)}" if others else first


def _in_words(values: Mapping[str, Any], order: Sequence[str], left_out: frozenset[str] | set[str]) -> dict[str, str]:
    names = [name for name in dict.fromkeys((*order, *values)) if name in values and name not in left_out]
    return {name: shown(values[name]) for name in names}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    Attributes:
        title: its name in words.
        field: its name in the log, if it has one.
        meaning: how it is computed.
        read: returns its value for a run; None if unknown.
        form: its format.
        better: 1 if more is better, -1 if less is, 0 if neither.
        is_timed: whether a busy machine changes it.
        differs_in_trees: whether it counts other things in a tree than in a chain.
    """

    title: str
    field: str
    meaning: str
    read: Callable[[RunData], float | None]
    form: str = "{:,.2f}"
    better: int = 0
    is_timed: bool = False
    differs_in_trees: bool = False

    def text(self, run: RunData) -> str:
        """The figure as it is shown."""
        return self.format(self.read(run))

    def format(self, value: float | None) -> str:
        """A value of the figure, or of a mean of several runs."""
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return percent_text(value, 1) if self.form == "{:.1%}" else spaced_percent(self.form.format(value))


def _logged(title: str, field: str, meaning: str, form: str = "{:,.2f}", better: int = 0, **more: bool) -> Figure:
    return Figure(title, field, meaning, lambda run: run.figure(field), form, better, **more)


def _mean(title: str, field: str, meaning: str) -> Figure:
    return Figure(title, "", meaning, lambda run: run.mean_ms(field))


def mean_acceptance_length(run: RunData) -> float | None:
    """vLLM's figure: 1 + accepted / drafts."""
    names = ("num_accepted_tokens", "num_drafts", "draft_acceptance_rate")
    accepted, drafts, rate = map(run.figure, names)
    return 1 + accepted / drafts if accepted is not None and drafts and rate is not None else None


FIGURES: tuple[Figure, ...] = (
    _logged(
        "Measured speedup",
        "measured_speedup",
        "Tokens per second of this run / those of the target alone, run right afterwards with the same sampling. "
        "Measured, never estimated.",
        "{:.2f}×",
        better=1,
        is_timed=True,
    ),
    _logged(
        "Tokens per second",
        "tokens_per_second",
        "New tokens / the sum of the steps' times, without the prefill.",
        "{:,.1f}",
        better=1,
        is_timed=True,
    ),
    _logged(
        "Baseline, tokens per second",
        "baseline_tokens_per_second",
        "The target alone, one token per forward, in the same process.",
        "{:,.1f}",
    ),
    _logged(
        "Predicted speedup (total times)",
        "predicted_speedup",
        "τ / (K c + v), with this run's own α, and c and v from total times (the formula on the Speed page takes "
        "v's median). For a tree, K is its depth and α that of a level.",
        "{:.2f}×",
    ),
    _logged(
        "Acceptance, of drafted tokens",
        "draft_acceptance_rate",
        "Accepted / drafted tokens, including those that were never tested. In a tree most nodes can't be accepted.",
        "{:.1%}",
        better=1,
        differs_in_trees=True,
    ),
    Figure(
        "α, of tested tokens",
        "",
        "Accepted / tested tokens: the probability that a tested token is accepted; in a tree, that of a level.",
        lambda run: run.alpha,
        "{:.1%}",
        better=1,
        differs_in_trees=True,
    ),
    _logged(
        "Block efficiency, all steps",
        "block_efficiency",
        "New tokens, resampled and bonus ones included / forwards of the target. Plain decoding has 1.",
        better=1,
    ),
    Figure(
        "Acceptance length, drafting steps",
        "mean_acceptance_length",
        "1 + accepted tokens / drafts, over the steps that drafted, as vLLM computes it.",
        mean_acceptance_length,
        better=1,
    ),
    _logged(
        "Cost coefficient c",
        "cost_coefficient",
        "One draft step's time / one target step's time.",
        "{:.3f}",
        better=-1,
        is_timed=True,
    ),
    _mean("Step, ms", "total_ms", "Mean time of a step."),
    _mean("  draft, ms", "draft_ms", "Mean time per step spent drafting."),
    _mean("  verify, ms", "verify_ms", "Mean time per step of the target's forward."),
    _mean("  sample, ms", "sample_ms", "Mean time per step for filters, verification and the next token."),
    Figure(
        "Prefill, ms",
        "prefill_ms",
        "Time to process the prompt.",
        lambda run: run.figure("prefill_ms") or None,
        "{:,.1f}",
    ),
    _logged("Peak memory, MB", "peak_memory_mb", "Of the device, or of the process.", "{:,.0f}"),
    _logged("New tokens", "num_tokens", "Tokens that the run generated.", "{:,.0f}"),
    _logged("Steps", "num_steps", "Steps, plain ones included.", "{:,.0f}"),
)


def verdict(run: RunData) -> str:
    """Whether speculation paid in this run, as measured."""
    speedup = run.figure("measured_speedup")
    if run.config.get("num_draft_tokens") == 0:
        return "This run decoded plainly: it drafted nothing, so it says nothing about speculation."
    if speedup is None and run.config.get("engine"):
        return "This run doesn't show whether speculation pays on the server: outrider sweep --engine measures it."
    if run.summary.was_stepped and run.figure("baseline_tokens_per_second") is not None:
        return STEPWISE
    if speedup is None:
        return f"The baseline {run.baseline_problem}, so this run doesn't show whether speculation pays here."
    interval = run.interval
    if run.is_short:
        return f"Too few steps to tell whether speculation pays here: {speedup:.2f}× the speed of the target alone."
    between = f" (95 % interval {interval_text(interval)})" if interval else ""
    if interval and covers_one(interval):
        return f"This run can’t tell whether speculation pays: {speedup:.2f}× the speed of the target alone{between}."
    if speedup < 1:
        return f"Don’t speculate here: this run was slower than the target alone, at {speedup:.2f}× its speed{between}."
    return f"Speculation paid in this run: {speedup:.2f}× the speed of the target alone{between}."
