"""View model of a comparison: the settings that differ, the results, the settings that agree, and the curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.setup.model_library import UNKNOWN
from core.analysis.run_counts import Column, RunCounts
from core.draft_shape import shown_draft_length
from core.export.run_data import FIGURES, Figure, RunData, differences, run_data, shown
from core.runlog.log import RunLog
from core.runlog.store import KeptRun
from core.settings import SETTINGS

MAX_RUNS = 6
MAX_POINTS = 1000
"""Most points of a curve; a screen shows no more."""
LONGEST_SIGN = 16
"""Most characters of a setting that distinguishes runs with the same name."""

Array = NDArray[np.float64]

LABELS = {
    **{name: item.metadata["label"] for name, item in SETTINGS.items()},
    "num_draft_tokens": "K",
    "max_new_tokens": "New tokens, at most",
    "stop": "Stop texts",
    "revision": "Target's revision",
    "device_name": "Device's name",
    "threads": "Processor threads",
}
NOT_COMPARED = {"length_policy", "method_options", "requested_device", "requested_dtype", "baseline"}
ENVIRONMENT = ("device_name", "threads", "platform", "torch", "transformers", "python")


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A setting or figure of all runs. `best`: the indexes of the runs with the best figure, if any is better."""

    title: str
    texts: tuple[str, ...]
    help: str = ""
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Curve:
    """A run over its steps, as arrays of equal length. Acceptance is NaN until something has been drafted."""

    tokens: Array
    seconds: Array
    acceptance: Array


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of several runs, in their order."""

    runs: tuple[KeptRun, ...]
    differing: tuple[ComparedRow, ...]
    results: tuple[ComparedRow, ...]
    agreeing: tuple[ComparedRow, ...]
    curves: tuple[Curve, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The runs' titles. Equal titles get a setting that differs, or a number."""
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


def compare(runs: Sequence[tuple[KeptRun, RunLog]]) -> Comparison:
    """Compare runs. Reads every step, so don't call it in the window's thread."""
    found = [run_data(log) for _, log in runs]
    differing, agreeing = (
        tuple(ComparedRow(title, tuple(text or UNKNOWN for text in texts)) for title, texts in rows)
        for rows in differences([_settings(run) for run in found])
    )
    curves = tuple(curve(run.counts) for run in found)
    return Comparison(tuple(run for run, _ in runs), differing, tuple(_results(found)), agreeing, curves)


def curve(counts: RunCounts) -> Curve:
    """A run's curves from their origin, thinned out to `MAX_POINTS`."""
    line, num_steps = counts.timeline, len(counts)
    places = np.unique(np.linspace(0, num_steps, min(num_steps + 1, MAX_POINTS)).round().astype(int))
    emitted, seconds = np.array([0.0, *line.counts]), np.array([0.0, *line.ends_ms]) / 1000
    return Curve(emitted[places], seconds[places], np.array([math.nan, *counts.columns[Column.RUNNING_RATE]])[places])


def _settings(run: RunData) -> dict[str, str]:
    config, options = run.config, run.config.get("method_options")
    found = {name: text for name, text in run.settings.items() if name not in NOT_COMPARED}
    found["prompt"] = run.setting("prompt")
    if "num_draft_tokens" in config:
        found["num_draft_tokens"] = shown(shown_draft_length(config))
    temperature = config.get("temperature")
    if any(step.temperature != temperature for step in run.steps if not math.isnan(step.temperature)):
        found["temperature"] = f"{found.get('temperature', '')}, changed during the run"
    for name, value in (options if isinstance(options, dict) else {}).items():
        found[f"option_{name}"] = shown(value)
    found["outrider"] = run.version
    found.update({name: run.environment.get(name, "") for name in ENVIRONMENT})
    return {LABELS.get(name, name.replace("_", " ").capitalize()): text for name, text in found.items()}


def _results(runs: Sequence[RunData]) -> list[ComparedRow]:
    rows = [_figure(runs, figure) for figure in FIGURES]
    same = ["same" if run.text == runs[0].text else "differs" for run in runs[1:]]
    help_text = "Whether the text equals that of the first run here, character for character."
    return [
        *(row for row in rows if set(row.texts) != {UNKNOWN}),
        ComparedRow("End", tuple(run.end for run in runs)),
        ComparedRow("Text", ("reference", *same), help_text),
    ]


def _figure(runs: Sequence[RunData], figure: Figure) -> ComparedRow:
    texts = tuple(figure.text(run) for run in runs)
    known = {index: value for index, run in enumerate(runs) if (value := figure.read(run)) is not None}
    if not figure.better or not known:
        return ComparedRow(figure.title, texts, figure.meaning)
    top = max(known.values(), key=lambda value: value * figure.better)
    # With one run each, differences below a hundredth are not significant.
    best = frozenset(index for index, value in known.items() if abs(value - top) <= 0.01 * abs(top))
    return ComparedRow(figure.title, texts, figure.meaning, best if len(best) < len(known) else frozenset())
