"""View model of a comparison: the settings that differ, the results, the settings that agree, and the curves.

Each column is a run, or several runs whose settings agree but for the seed and the prompt: their means, with ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.setup.model_library import UNKNOWN
from core.analysis.run_counts import Column, RunCounts
from core.analysis.steadiness import covers_one, interval_text, unsteadiness
from core.drafters.registry import METHODS
from core.errors import OutriderError
from core.export.run_data import FIGURES, Figure, RunData, cut, differences, numbered, run_data, shown
from core.runlog.reading import RunLog
from core.runlog.store import KeptRun
from core.settings import SETTINGS
from core.text import count_text

MAX_RUNS = 6
"""Most columns."""
MOST_GROUPED = 40
"""Most runs that can be grouped into these columns."""
MAX_POINTS = 1000
"""Most points of a curve; a screen shows no more."""
LONGEST_SIGN = 24
"""Most characters of a setting, or of a title, in a column's name."""
MOST_SIGNS = 3

Array = NDArray[np.float64]

LABELS = {
    **{name: item.metadata["label"] for name, item in SETTINGS.items()},
    "num_draft_tokens": "K",
    "max_new_tokens": "Maximum new tokens",
    "stop": "Stop texts",
    "revision": "Target revision",
    "device_name": "Device name",
    "threads": "Processor threads",
}
MODELS = ("target", "draft")
NOT_COMPARED = {"method_options", "requested_device", "requested_dtype", "baseline"}
SIGNS = {
    "num_draft_tokens": "K {}",
    "temperature": "T {}",
    "draft": "{}",
    "method": "{}",
    "target": "{}",
    "verification": "{}",
    "coupling": "{}",
    "seed": "seed {}",
}
"""How the settings that tell columns apart are written above them, the most telling first."""
GROUP_HELP = (
    "The number of runs in the column. Its figures are the mean of those that have the figure, and the lowest and "
    "highest if they differ."
)
INTERVAL_HELP = (
    "The 95 % interval of the measured speedup. It covers what varied within the run and within its baseline; it "
    "doesn't show whether the machine was faster during one of the two. If it includes 1, the run can't tell whether "
    "drafting pays."
)
TEXT_HELP = "Whether the text equals that of the first run here, character for character."
MACHINE_HELP = (
    "Busy: equal steps of the run or its baseline differed in time; then no speed is marked as best. –: there are too "
    "few equal steps to tell, they were taken one by one, or a server ran them."
)
NOT_GROUPED = {"seed", "prompt"}
"""Settings in which the runs of a group may differ."""
ENVIRONMENT = ("device_name", "threads", "platform", "torch", "transformers", "python")


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A setting or figure of all columns. `best`: the indexes of those with the best figure, if any is better."""

    title: str
    texts: tuple[str, ...]
    help: str = ""
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve's points, as arrays of equal length; y is NaN where it isn't known. A mean has the lowest
    and the highest of its runs."""

    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of several runs, in their order.

    Attributes:
        columns: the runs of each column.
        names: what tells the columns apart: names given by the user, or the settings that differ.
        can_group: whether some of the runs have the same settings.
        acceptance, time: a curve for each column: acceptance over tokens, and tokens over seconds.
    """

    columns: tuple[tuple[KeptRun, ...], ...]
    names: tuple[str, ...]
    differing: tuple[ComparedRow, ...]
    results: tuple[ComparedRow, ...]
    agreeing: tuple[ComparedRow, ...]
    acceptance: tuple[Curve, ...]
    time: tuple[Curve, ...]
    can_group: bool

    @property
    def runs(self) -> tuple[KeptRun, ...]:
        """All runs, column by column."""
        return tuple(run for column in self.columns for run in column)

    @property
    def is_grouped(self) -> bool:
        """Whether a column holds several runs."""
        return len(self.columns) < len(self.runs)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a comparison needs of a run, without its steps."""

    kept: KeptRun
    settings: dict[str, str]
    figures: tuple[float | None, ...]
    interval: tuple[float, float] | None
    text: str
    end: str
    was_busy: bool | None
    """None: its steps don't show it."""
    acceptance: Curve
    time: Curve


Group = list[_Run]


def compare(runs: Iterable[tuple[KeptRun, RunLog]], *, grouped: bool = False) -> Comparison:
    """Compare runs, those with the same settings as one if grouped. Reads every step: not for the window's thread.

    Raises:
        OutriderError: there would be more columns than can be told apart.
    """
    found = [_read(kept, run_data(log)) for kept, log in runs]
    models = numbered(run.settings[name] for run in found for name in MODELS if name in run.settings)
    for run in found:
        run.settings.update({name: models[run.settings[name]] for name in MODELS if name in run.settings})
    alike: dict[tuple[tuple[str, str], ...], Group] = {}
    for run in found:
        alike.setdefault(_key(run), []).append(run)
    groups = list(alike.values()) if grouped else [[run] for run in found]
    if len(groups) > MAX_RUNS:
        raise OutriderError(
            f"These {len(found)} runs have {len(groups)} different combinations of settings; Compare shows at most "
            f"{MAX_RUNS}. Select fewer."
        )
    tables = [_shared([run.settings for run in group]) for group in groups]
    differing, agreeing = differences(tables)
    varied = {
        name for name in NOT_GROUPED if any(len({run.settings.get(name) for run in group}) > 1 for group in groups)
    }
    differing += [row for row in agreeing if row[0] in varied]
    agreeing = [row for row in agreeing if row[0] not in varied]
    return Comparison(
        columns=tuple(tuple(run.kept for run in group) for group in groups),
        names=tuple(_names(groups, dict(differing))),
        differing=tuple(map(_row, differing)),
        results=tuple(_results(groups)),
        agreeing=tuple(map(_row, agreeing)),
        acceptance=tuple(mean_curve([run.acceptance for run in group]) for group in groups),
        time=tuple(mean_curve([run.time for run in group]) for group in groups),
        can_group=len(alike) < len(found),
    )


def _key(run: _Run) -> tuple[tuple[str, str], ...]:
    """The settings that runs of a group share."""
    return tuple((name, text) for name, text in run.settings.items() if name not in NOT_GROUPED)


def _row(named: tuple[str, list[str]]) -> ComparedRow:
    name, texts = named
    return ComparedRow(_title(name), tuple(text or UNKNOWN for text in texts))


def _title(name: str) -> str:
    return str(LABELS.get(name, name.replace("_", " ").capitalize()))


def _read(kept: KeptRun, run: RunData) -> _Run:
    figures = tuple(figure.read(run) for figure in FIGURES)
    interval = run.interval if run.figure("measured_speedup") is not None else None
    is_shown = run.summary.source is None and not run.summary.was_stepped
    is_shown = is_shown and unsteadiness(run.counts.sums, run.baseline.sums) is not None
    was_busy = run.was_busy if run.was_busy or is_shown else None
    return _Run(kept, _settings(run), figures, interval, run.summary.text, run.end, was_busy, *curves(run.counts))


# --- Curves -----------------------------------------------------------------------------------------------------


def curves(counts: RunCounts) -> tuple[Curve, Curve]:
    """A run's acceptance over tokens, and tokens over seconds, from their origin, thinned out to `MAX_POINTS`."""
    line, num_steps = counts.timeline, len(counts)
    places = np.unique(np.linspace(0, num_steps, min(num_steps + 1, MAX_POINTS)).round().astype(int))
    emitted, seconds = np.array([0.0, *line.counts])[places], np.array([0.0, *line.ends_ms])[places] / 1000
    rates = np.array([math.nan, *counts.columns[Column.RUNNING_RATE]])[places]
    return Curve(emitted, rates), Curve(seconds, emitted)


def mean_curve(found: Sequence[Curve]) -> Curve:
    """The mean of several curves, with the lowest and highest of them, up to the last one's end; one as it is.

    A curve that has ended keeps its last value, or the mean would jump there. One without a value is left out.
    """
    found = [curve for curve in found if np.isfinite(curve.y[1:]).any()] or found[:1]
    if len(found) == 1:
        return found[0]
    x = np.linspace(0, max(curve.x[-1] for curve in found), MAX_POINTS)
    values = np.array([values_at(x, curve.x, curve.y) for curve in found])
    return Curve(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def values_at(x: Any, xs: Array, ys: Array) -> Any:
    """A curve's value at x, or its values at several; NaN before its first known point, and its last value after it."""
    known = np.isfinite(ys)
    return np.interp(x, xs[known], ys[known], left=math.nan) if known.any() else x * math.nan


# --- Settings and names -----------------------------------------------------------------------------------------


def _shared(tables: Sequence[dict[str, str]]) -> dict[str, str]:
    """The settings of a group: one text where its runs agree; otherwise all of them, or how many there are."""
    found = {name: list(dict.fromkeys(table.get(name, "") for table in tables)) for name in tables[0]}
    joined = {name: ", ".join(texts) for name, texts in found.items()}
    return {
        name: joined[name] if len(texts) == 1 or len(joined[name]) <= LONGEST_SIGN else f"{len(texts)} different"
        for name, texts in found.items()
    }


def _names(groups: Sequence[Group], differing: dict[str, list[str]]) -> list[str]:
    """What tells columns apart: a name that the user gave, else what differs, else the prompt or a number."""
    is_grouped = any(len(group) > 1 for group in groups)
    signs = {
        name: _sign(name, texts)
        for name, texts in differing.items()
        if not (name in NOT_GROUPED and (is_grouped or name == "prompt"))
    }
    telling = [name for name, texts in signs.items() if len(set(texts)) > 1]
    known = [name for name in SIGNS if name in telling]
    for tried in (known, [*known, *(name for name in telling if name not in SIGNS)]):
        chosen = _most_telling([signs[name] for name in tried])
        found = [_joined(*(sign[place] for sign in chosen)) for place in range(len(groups))]
        if len(set(found)) == len(groups):
            break
    titles = [_cut(group[0].kept.title) for group in groups]
    if len(set(found)) < len(groups) and (len(set(titles)) > 1 or not chosen):
        found = list(map(_joined, found, titles))
    found = [
        _joined(text, f"mean of {len(group)}") if len(group) > 1 else group[0].kept.name or text or title
        for group, text, title in zip(groups, found, titles, strict=True)
    ]
    return [f"{text} · no. {place}" if found.count(text) > 1 else text for place, text in enumerate(found, start=1)]


def _most_telling(signs: Sequence[list[str]]) -> list[list[str]]:
    """At most `MOST_SIGNS` in their order: those that tell columns apart which the earlier ones don't, then others."""
    places, needed, most = range(len(signs)), list[int](), 1
    for place in places:
        count = len(set(zip(*(signs[each] for each in (*needed, place)), strict=True)))
        if count > most:
            most, needed = count, [*needed, place]
    chosen = [*needed, *(place for place in places if place not in needed)][:MOST_SIGNS]
    return [signs[place] for place in sorted(chosen)]


def _sign(name: str, texts: Sequence[str]) -> list[str]:
    """How a setting tells the columns apart."""
    form = SIGNS.get(name, f"{_title(name)} {{}}")
    short = map(_short, texts) if name in MODELS else texts
    return [form.format(_cut(text)) if text else "" for text in short]


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def _cut(text: str) -> str:
    return cut(" ".join(text.split()), LONGEST_SIGN)


def _short(ref: str) -> str:
    """A model without its owner; other texts are unchanged."""
    return ref.rpartition("/")[2]


def _settings(run: RunData) -> dict[str, str]:
    # With their paths: two models, or two drafters' files, may have the same name.
    config = run.log.run["config"]
    options = config.get("method_options")
    found = {name: text for name, text in run.compared.items() if name not in NOT_COMPARED}
    found |= {name: shown(config[name]) for name in MODELS if name in config}
    for name, value in (options if isinstance(options, dict) else {}).items():
        found[f"option_{name}"] = shown(value)
    found["outrider"] = run.version
    found.update({name: run.environment.get(name, "") for name in ENVIRONMENT})
    return found


# --- Results ----------------------------------------------------------------------------------------------------


def _results(groups: Sequence[Group]) -> list[ComparedRow]:
    is_grouped = any(len(group) > 1 for group in groups)
    rows = [_figure(groups, place, figure) for place, figure in enumerate(FIGURES)]
    ends = (", ".join(dict.fromkeys(run.end for run in group)) for group in groups)
    found = [row for row in rows if set(row.texts) != {UNKNOWN}]
    if any(run.interval for group in groups for run in group):
        found.insert(1, ComparedRow("Speedup, 95 % interval", tuple(map(_interval, groups)), INTERVAL_HELP))
    if is_grouped:
        found.insert(0, ComparedRow("Runs", tuple(str(len(group)) for group in groups), GROUP_HELP))
    found.append(ComparedRow("Ended by", tuple(ends)))
    if any(run.was_busy for group in groups for run in group):
        found.insert(0, ComparedRow("Machine", tuple(map(_machine, groups)), MACHINE_HELP))
    if not is_grouped:
        same = ("same" if group[0].text == groups[0][0].text else "differs" for group in groups[1:])
        found.append(ComparedRow("Text", ("reference", *same), TEXT_HELP))
    return found


def _interval(group: Group) -> str:
    """The interval of one run, or in how many of several it includes 1."""
    known = [run.interval for run in group if run.interval]
    if len(group) == 1 or not known:
        return interval_text(group[0].interval) or UNKNOWN
    return f"includes 1.00× in {sum(map(covers_one, known))} of {count_text(len(known), 'run')}"


def _machine(group: Group) -> str:
    """Whether the machine was busy during a group's runs, as far as that is known."""
    busy = sum(run.was_busy is True for run in group)
    if 0 < busy < len(group):
        return f"busy in {busy} of {len(group)}"
    return "busy" if busy else "steady" if all(run.was_busy is False for run in group) else UNKNOWN


def _figure(groups: Sequence[Group], place: int, figure: Figure) -> ComparedRow:
    found = [[value for run in group if (value := run.figures[place]) is not None] for group in groups]
    texts = tuple(_spread_text(figure, values, len(group)) for values, group in zip(found, groups, strict=True))
    known = {index: (min(values), fmean(values), max(values)) for index, values in enumerate(found) if values}
    # What isn't timed doesn't depend on the machine: there, only the settings can make a difference.
    ignored = () if figure.is_timed else (*ENVIRONMENT, "device", "outrider")
    keys = {tuple(item for item in _key(run) if item[0] not in ignored) for group in groups for run in group}
    methods = [METHODS.get(run.settings.get("method", "")) for index in known for run in groups[index]]
    are_trees = {method is not None and method.proposes_trees for method in methods}
    is_alike = not figure.differs_in_trees or len(are_trees) == 1
    is_contest = len(keys) > 1 and is_alike
    is_doubtful = figure.is_timed and any(run.was_busy or "pace" in run.settings for group in groups for run in group)
    if is_doubtful or not (figure.better and known and is_contest):
        return ComparedRow(figure.title, texts, figure.meaning)
    low, top, high = max(known.values(), key=lambda value: value[1] * figure.better)
    # With one run each, differences below a hundredth are not significant; of means, those within half a range.
    best = frozenset(
        index
        for index, (least, mean, most) in known.items()
        if abs(mean - top) <= max(0.01 * abs(top), (most - least) / 2, (high - low) / 2)
    )
    return ComparedRow(figure.title, texts, figure.meaning, best if len(best) < len(known) else frozenset())


def _spread_text(figure: Figure, values: Sequence[float], num_runs: int) -> str:
    """A figure's mean over runs, with its range where that is more than one figure, and in how many it is known."""
    if not values:
        return figure.format(None)
    mean, low, high = (figure.format(value) for value in (fmean(values), min(values), max(values)))
    part = f" in {len(values)} of {num_runs} runs" if len(values) < num_runs else ""
    return f"{mean if low == high else f'{mean} ({low} to {high})'}{part}"
