"""A sweep as the window shows it: grid, cells, best ones, and how far it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from app.settings import RunSettings
from core.draft_shape import DraftLength, parse_draft_lengths
from core.drafters.registry import get_method
from core.errors import SettingsError
from core.experiments.bench import Spread
from core.experiments.prompt_suites import Prompt, find_prompts, first_of_each
from core.experiments.sweep import SweepResults
from core.experiments.sweep_plan import (
    ASK_ABOVE,
    Cell,
    CellResult,
    DrafterChoice,
    Measurement,
    RunMeasured,
    SweepFinished,
    SweepPlan,
    SweepStarted,
    Verdict,
)
from core.text import duration_text, percent_text
from core.types import LengthPolicy, StageChanged


class VerdictLine(NamedTuple):
    """A verdict in a word and a sentence; `pays` is None where that is open."""

    word: str
    sentence: str
    pays: bool | None


def verdict_line(verdict: Verdict) -> VerdictLine:
    """What a verdict comes to."""
    return VerdictLine(_word(verdict), verdict.sentence, _pays(verdict))


def _word(verdict: Verdict) -> str:
    if verdict.best is None:
        return "No answer"
    if not verdict.speculates:
        return "Don't speculate"
    return f"K = {verdict.best.cell.num_draft_tokens}"


def _pays(verdict: Verdict) -> bool | None:
    if verdict.best is None:
        return None
    # Few runs may lean one way by chance; not to speculate is the safe advice of the two.
    return (True if verdict.is_sure else None) if verdict.speculates else False


WINDOW_SUITE = "own"
WINDOW_PROMPT = "the window's prompt"


@dataclass(frozen=True, slots=True)
class SweepChoices:
    """What the form holds, whether or not it could be swept as it stands.

    Attributes:
        target: reference of the target.
        drafts: references of the drafts, for the methods that need one.
        methods: names.
        lengths: values of K as text, such as 1-8; may be empty where a policy is ticked.
        policies: those that are ticked.
        temperatures: as text, such as 0, 0.5, 1.
        suites: names of the suites that are ticked.
        own: prompts of a file that was read.
        prompt: the window's prompt; None where it isn't ticked.
        prompts_each: most prompts of a suite; 0 for all.
        settings: the main window's, whose filters, coupling, device and method options hold in every cell.
    """

    target: str
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    lengths: str = ""
    policies: tuple[LengthPolicy, ...] = ()
    temperatures: str = ""
    suites: tuple[str, ...] = ()
    own: tuple[Prompt, ...] = ()
    prompt: str | None = None
    prompts_each: int = 0
    repeats: int = 3
    max_new_tokens: int = 64
    seed: int = 0
    settings: RunSettings = field(default_factory=RunSettings)


def make_plan(choices: SweepChoices) -> SweepPlan:
    """The sweep that is asked for.

    Raises:
        OutriderError: it can't be done as it stands, with a sentence that says why.
    """
    settings = choices.settings
    if not choices.target:
        raise SettingsError("There is no target model yet. Open or get one in the main window.")
    return SweepPlan(
        target=choices.target,
        drafters=_drafters(choices),
        num_draft_tokens=_lengths(choices),
        temperatures=parse_temperatures(choices.temperatures),
        prompts=_prompts(choices),
        repeats=choices.repeats,
        max_new_tokens=choices.max_new_tokens,
        seed=choices.seed,
        coupling=settings.coupling,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        chat=settings.chat.as_flag,
        device=settings.device,
        dtype=settings.dtype,
    )


def _drafters(choices: SweepChoices) -> tuple[DrafterChoice, ...]:
    if not choices.methods:
        raise SettingsError("Tick at least one method.")
    found: list[DrafterChoice] = []
    for name in choices.methods:
        method = get_method(name)
        if method.needs_draft_model and not choices.drafts:
            raise SettingsError(f"The method {method.title} needs a draft model: tick one, or leave the method out.")
        options = _changed_options(name, choices.settings.method_options.get(name, {}))
        found += [
            DrafterChoice(name, draft, options) for draft in (choices.drafts if method.needs_draft_model else (None,))
        ]
    return tuple(found)


def _changed_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not as a method has them by itself; the others would only lengthen its name.

    Raises:
        SettingsError: values that don't go together.
    """
    options = get_method(name).options
    known = {item.name: values[item.name] for item in fields(options) if item.name in values}
    default, chosen = options(), options(**known)
    return {key: value for key, value in known.items() if getattr(chosen, key) != getattr(default, key)}


def _lengths(choices: SweepChoices) -> tuple[DraftLength, ...]:
    found = parse_draft_lengths(choices.lengths) if choices.lengths.strip() else ()
    found = tuple(dict.fromkeys((*found, *choices.policies)))
    if not found:
        raise SettingsError("Name at least one K, such as 4 or 1-8, or tick Auto.")
    return found


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Temperatures with commas or spaces between them, each once.

    Raises:
        SettingsError: what stands there is no list of numbers.
    """
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        values = ()
    if not values:
        shown = f", not {text[:60]!r}" if parts else ""
        raise SettingsError(f"Temperatures are numbers with commas between them, such as 0, 0.5, 1{shown}.")
    return tuple(dict.fromkeys(values))


def _prompts(choices: SweepChoices) -> tuple[Prompt, ...]:
    found = [*_suites(choices.suites), *choices.own]
    if choices.prompts_each:
        found = first_of_each(found, choices.prompts_each)
    if choices.prompt is not None:
        if not choices.prompt.strip():
            raise SettingsError("The main window's prompt is empty: write one there, or leave it out.")
        found.insert(0, Prompt(WINDOW_PROMPT, choices.prompt, suite=WINDOW_SUITE))
    if not found:
        raise SettingsError("Tick at least one suite of prompts, a file, or the window's prompt.")
    return tuple(found)


@lru_cache(maxsize=64)
def _suites(names: tuple[str, ...]) -> tuple[Prompt, ...]:
    return tuple(find_prompts(names))


def size_text(plan: SweepPlan, seconds_each: float | None) -> str:
    """How large a sweep is, and how long it will take where a run's length is known.

    Args:
        plan: the sweep.
        seconds_each: of a run, as measured; None where none was.
    """
    cells = _count(plan.num_cells, "cell")
    baselines = _count(len(plan.temperatures), "baseline")
    prompts, repeats = _count(len(plan.prompts), "prompt"), _count(plan.repeats, "repeat")
    text = f"{_count(plan.num_runs, 'run')}: {cells} and {baselines}, each on {prompts}, {repeats}."
    if seconds_each is not None:
        return f"{text} About {duration_text(seconds_each * plan.num_runs)}, by the runs measured last."
    return f"{text} {large_note(plan)}".strip()


def large_note(plan: SweepPlan) -> str:
    """That a person will be asked; empty where it is not that large."""
    return "You are asked once the first run has shown how long that takes." if plan.num_runs > ASK_ABOVE else ""


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


class SweepFigure(StrEnum):
    """The value is the attribute of a `CellResult`."""

    SPEEDUP = "speedup"
    ACCEPTANCE = "draft_acceptance_rate"
    TOKENS = "tokens_per_second"
    BLOCK = "block_efficiency"


FIGURE_TITLES = {
    SweepFigure.SPEEDUP: "Speedup",
    SweepFigure.ACCEPTANCE: "Acceptance",
    SweepFigure.TOKENS: "Tokens/s",
    SweepFigure.BLOCK: "Block efficiency",
}
FIGURE_HELP = {
    SweepFigure.SPEEDUP: "Tokens per second against plain decoding of the same prompt and temperature, the run nearest "
    "in time. Above 1× drafting pays. Median over prompts and repeats.",
    SweepFigure.ACCEPTANCE: "Accepted / drafted tokens. Median over prompts and repeats.",
    SweepFigure.TOKENS: "New tokens / seconds of model work, the prompt's forward left out. Median over prompts and "
    "repeats.",
    SweepFigure.BLOCK: "New tokens / forwards of the target; 1 is plain decoding, K + 1 the most there can be. Median "
    "over prompts and repeats.",
}
LEGENDS = {
    SweepFigure.SPEEDUP: "Speedup over plain decoding, logarithmic",
    SweepFigure.ACCEPTANCE: "Accepted / drafted tokens",
    SweepFigure.TOKENS: "Tokens per second",
    SweepFigure.BLOCK: "Tokens per target forward",
}
_ENDS = {
    SweepFigure.SPEEDUP: (" slower", " faster"),
    SweepFigure.ACCEPTANCE: ("", ""),
    SweepFigure.TOKENS: ("", " tokens/s"),
    SweepFigure.BLOCK: ("", " tokens/forward"),
}
"""What stands behind the figures at the ends of a scale."""
_LIMITS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
"""Ends of the scale of speedups, on both sides of 1."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to shades.

    Attributes:
        figure: of which.
        low, high: values at its ends.
    """

    figure: SweepFigure
    low: float
    high: float

    @property
    def is_diverging(self) -> bool:
        """Whether it has a middle, from which it goes two ways."""
        return self.figure is SweepFigure.SPEEDUP

    def level(self, value: float) -> float:
        """The shade of a value: from 0 to 1, or from -1 to 1 where the scale goes two ways."""
        if self.is_diverging:
            share = math.log(max(value, 1e-9)) / math.log(self.high)
            return min(max(share, -1.0), 1.0)
        if self.high <= self.low:
            return 0.5
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """What stands along it: shades and values."""
        values = (self.low, 1.0, self.high) if self.is_diverging else (self.low, self.high)
        low, *rest = [figure_text(self.figure, value) for value in dict.fromkeys(values)]
        first, last = _ENDS[self.figure]
        texts = [f"{low}{first if rest else last}", *(f"{text}{last if text is rest[-1] else ''}" for text in rest)]
        return tuple(zip((self.level(value) for value in dict.fromkeys(values)), texts, strict=True))


def make_scale(figure: SweepFigure, results: Iterable[CellResult]) -> Scale:
    """The scale that all these fit on."""
    values = [spread.median for result in results if (spread := spread_of(figure, result)) is not None]
    if figure is SweepFigure.SPEEDUP:
        most = max((abs(math.log(value)) for value in values if value > 0), default=0.0)
        limit = next((limit for limit in _LIMITS if math.log(limit) >= most), _LIMITS[-1])
        return Scale(figure, 1 / limit, limit)
    if figure is SweepFigure.ACCEPTANCE:
        return Scale(figure, 0.0, 1.0)
    low = 1.0 if figure is SweepFigure.BLOCK else min(values, default=0.0)
    return Scale(figure, low, max(values, default=low))


def spread_of(figure: SweepFigure, result: CellResult) -> Spread | None:
    """What a cell has of a figure."""
    found: Spread | None = getattr(result, figure.value)
    return found


def figure_text(figure: SweepFigure, value: float) -> str:
    """A figure as it is written, with its unit where that is short."""
    if figure is SweepFigure.SPEEDUP:
        return f"{value:.2f}×"
    if figure is SweepFigure.ACCEPTANCE:
        return percent_text(value)
    return f"{value:.1f}" if figure is SweepFigure.TOKENS else f"{value:.2f}"


def spread_text(figure: SweepFigure, spread: Spread) -> str:
    """A median with its quartiles."""
    low, high = (figure_text(figure, value) for value in spread.quartiles)
    return f"{figure_text(figure, spread.median)} ({low} to {high})"


PLAIN = "plain"
BEST = "best"
FAILED = "failed"
STOPPING = "Stopping…"


class SweepExport(StrEnum):
    """What a sweep can be taken away as; pictures are drawn by the window."""

    CELLS = "cells"
    RUNS = "runs"
    JSONL = "jsonl"
    HTML = "html"
    PNG = "png"
    SVG = "svg"


class SweepRow(NamedTuple):
    """One row of the heatmap."""

    temperature: float
    drafter: DrafterChoice


@dataclass(frozen=True, slots=True)
class ShownCell:
    """What a place of the heatmap shows.

    Attributes:
        text: the figure, or that there is none.
        note: how many of its runs are done, as long as that is not all; of speedups, which is best.
        level: its shade; None where there is no figure.
        is_best: whether it is what its temperature's verdict says to take.
        has_failed: whether a run of it did.
        tip, spoken: for the pointer, and for who can't see it.
    """

    text: str
    note: str
    level: float | None
    is_best: bool
    has_failed: bool
    tip: str
    spoken: str


@dataclass(frozen=True, slots=True)
class SweepBegun:
    """A sitting begins: what is known, in a form to add to."""

    started: SweepStarted
    results: SweepResults


@dataclass(frozen=True, slots=True)
class OpenedSweep:
    """An earlier sweep that was read from its file.

    Attributes:
        problems: a sentence for each thing that is wrong with it.
    """

    path: Path
    results: SweepResults
    cells: tuple[CellResult, ...]
    verdicts: tuple[Verdict, ...]
    num_done: int
    problems: tuple[str, ...]


class SweepView:
    """The sweep at hand, if there is one. For the window's thread.

    Args:
        in_titles: puts titles in a text in the place of models' references.
    """

    def __init__(self, in_titles: Callable[[str], str] = str) -> None:
        self._in_titles = in_titles
        self.plan: SweepPlan | None = None
        self.path: Path | None = None
        self.is_going = False
        self.is_complete = False
        self.num_done = self.num_runs = 0
        self.seconds_left: float | None = None
        self.seconds_each: float | None = None
        self.stage = ""
        self.verdicts: tuple[Verdict, ...] = ()
        self.rows: tuple[SweepRow, ...] = ()
        self._results: dict[Cell, CellResult] = {}
        self._runs: SweepResults | None = None
        self._best: set[Cell] = set()
        self._seconds: list[float] = []

    # --- What comes ---

    def begin(self, plan: SweepPlan, path: Path) -> None:
        """A sweep is about to be begun, or gone on with."""
        if (plan, path) != (self.plan, self.path):
            self._set_plan(plan)
        self.path, self.num_runs = path, plan.num_runs
        self.is_going, self.is_complete = True, False
        self.stage, self.seconds_left, self._seconds = "Preparing…", None, []

    def show(self, opened: OpenedSweep) -> None:
        """An earlier sweep takes the place of the one at hand."""
        plan = opened.results.plan
        self._set_plan(plan)
        self._runs, self.path, self.verdicts = opened.results, opened.path, opened.verdicts
        self._results = {result.cell: result for result in opened.cells}
        self.num_done, self.num_runs = opened.num_done, plan.num_runs
        self.is_going, self.is_complete = False, opened.num_done >= plan.num_runs
        self.stage, self.seconds_left, self._seconds = "", None, []
        self._find_best()

    def apply(self, event: object) -> None:
        """Take in what the engine tells."""
        if isinstance(event, SweepBegun):
            self._runs, self.num_done, self.verdicts = event.results, event.started.num_done, ()
            self._take(event.started.results)
        elif isinstance(event, StageChanged):
            self.stage = self.stage if self.stage == STOPPING else event.text
        elif isinstance(event, RunMeasured):
            assert self._runs is not None, "a sweep tells its beginning first"
            self._runs.add(event.measurement)
            self._seconds.append(event.measurement.seconds)
            self.seconds_each = sum(self._seconds) / len(self._seconds)
            self.num_done, self.seconds_left = event.num_done, event.seconds_left
            self._take(event.results)
        elif isinstance(event, SweepFinished):
            self.is_complete, self.verdicts = event.is_complete, event.verdicts
            self._take(event.results)

    def end(self) -> None:
        """The engine does no more."""
        self.is_going, self.stage, self.seconds_left = False, "", None

    def _set_plan(self, plan: SweepPlan) -> None:
        self.plan, self.verdicts = plan, ()
        self.rows = tuple(SweepRow(at, drafter) for at in plan.temperatures for drafter in plan.drafters)
        self._results = {cell: CellResult(cell, 0) for cell in (*plan.baselines(), *plan.cells())}
        self._runs, self.num_done, self._best = None, 0, set()

    def _take(self, results: Iterable[CellResult]) -> None:
        self._results |= {result.cell: result for result in results}
        self._find_best()

    def _find_best(self) -> None:
        self._best = set()
        for at in self.plan.temperatures if self.plan is not None else ():
            cells = [
                item for item in self._results.values() if item.cell.temperature == at and item.speedup is not None
            ]
            best = next((verdict.best for verdict in self.verdicts if verdict.temperature == at), None)
            best = best or max(cells, key=_median_speedup, default=None)
            if best is not None:
                # Where nothing is faster, plain decoding is what to take.
                self._best.add(best.cell if _median_speedup(best) > 1.0 else Cell(None, 0, at))

    # --- What is shown ---

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of the columns: plain decoding, then each K."""
        return (PLAIN, *(map(str, self.plan.num_draft_tokens) if self.plan is not None else ()))

    def cell(self, row: int, column: int) -> Cell:
        """The cell of a place."""
        assert self.plan is not None, "a grid has a plan"
        at, drafter = self.rows[row]
        return Cell(None, 0, at) if column == 0 else Cell(drafter, self.plan.num_draft_tokens[column - 1], at)

    def cell_title(self, cell: Cell) -> str:
        """What a cell is called, its temperature included."""
        title = cell.title
        return self._in_titles(f"{title[:1].upper()}{title[1:]}, temperature {cell.temperature:g}")

    def target_title(self) -> str:
        """What the target is called; empty where there is none."""
        return self._in_titles(self.plan.target) if self.plan is not None else ""

    def drafter_title(self, drafter: DrafterChoice) -> str:
        """What a way to draft is called."""
        return self._in_titles(drafter.title)

    def row_title(self, row: SweepRow) -> str:
        """A row's drafter by the end of its name, where the difference is."""
        return self.drafter_title(row.drafter).rpartition("/")[2]

    def result(self, cell: Cell) -> CellResult:
        """What a cell came to so far."""
        return self._results[cell]

    def scale(self, figure: SweepFigure) -> Scale:
        """The scale on which a figure's cells are."""
        return make_scale(figure, self._results.values())

    def shown(self, cell: Cell, scale: Scale) -> ShownCell:
        """What a cell shows of a scale's figure."""
        result, figure = self._results[cell], scale.figure
        spread = spread_of(figure, result)
        has_failed = bool(result.errors)
        text, level = "", None
        if spread is not None:
            text, level = figure_text(figure, spread.median), scale.level(spread.median)
        elif result.num_measured:
            text = "1.00×" if cell.is_baseline and figure is SweepFigure.SPEEDUP else "–"
        elif has_failed:
            text = FAILED
        done, planned = result.num_measured, result.num_planned
        is_best = cell in self._best
        note = BEST if is_best and figure is SweepFigure.SPEEDUP else ""
        if 0 < done < planned and text != FAILED:
            note = f"{done} of {planned}"
        spoken = f"{self.cell_title(cell)}: {FIGURE_TITLES[figure]} {text or 'not measured yet'}"
        spoken = ", ".join([spoken, *([BEST] if is_best else []), f"{done} of {planned} runs", *result.errors])
        return ShownCell(text, note, level, is_best, has_failed, self._tip(result, is_best=is_best), spoken)

    def _tip(self, result: CellResult, *, is_best: bool) -> str:
        lines = [f"{self.cell_title(result.cell)}{' (the best speedup of its temperature)' if is_best else ''}"]
        for figure, title in FIGURE_TITLES.items():
            spread = spread_of(figure, result)
            if spread is not None:
                lines.append(f"{title}: {spread_text(figure, spread)}")
        if result.cost_coefficient is not None:
            lines.append(f"c, one draft step / one target step: {result.cost_coefficient.median:.3f}")
        lines.append(f"{result.num_measured} of {result.num_planned} runs; medians, quartiles in brackets")
        return "\n".join([*lines, *(f"Failed: {error}" for error in result.errors)])

    def speedups(self, cell: Cell) -> dict[tuple[int, int], float]:
        """The speedup of each of a cell's runs, by prompt and repeat."""
        return self._runs.speedups(cell) if self._runs is not None else {}

    def runs(self, cell: Cell) -> tuple[Measurement, ...]:
        """A cell's runs, by prompt and repeat."""
        return tuple(sorted(self._results[cell].measurements, key=lambda item: (item.run.prompt, item.run.repeat)))

    @property
    def can_go_on(self) -> bool:
        """Whether there is something to go on with."""
        return self.plan is not None and not self.is_going and (not self.is_complete or self.num_failed > 0)

    @property
    def num_failed(self) -> int:
        """Runs that did not come to an end in order."""
        return sum(len(item.measurements) - item.num_measured for item in self._results.values())

    def progress_text(self) -> str:
        """How far it is, in a line."""
        if self.plan is None:
            return ""
        done = f"{self.num_done:,} of {self.num_runs:,} runs"
        if self.is_going:
            # Between runs models may make room for each other; a line that says so for a moment only flickers.
            is_calm = self.seconds_left is not None and self.stage != STOPPING
            left = f"about {duration_text(self.seconds_left)} left" if is_calm and self.seconds_left is not None else ""
            return " · ".join(part for part in (done, left or self.stage) if part)
        if not self.is_complete:
            return f"{done} · stopped; Go on measures the rest"
        failed = f"{self.num_failed:,} failed; Go on tries again" if self.num_failed else ""
        return " · ".join(part for part in (done, "complete", failed) if part)

    def verdict_lines(self) -> list[VerdictLine]:
        """What to take at each temperature; while the sweep goes, what leads."""
        if self.verdicts:
            return [line._replace(sentence=self._in_titles(line.sentence)) for line in map(verdict_line, self.verdicts)]
        lines = []
        for cell in sorted(self._best, key=lambda cell: cell.temperature):
            result = self._results[cell]
            at = f"At temperature {cell.temperature:g}"
            if cell.is_baseline or result.speedup is None:
                lines.append(VerdictLine("So far", f"{at}, no cell is faster than plain decoding.", None))
                continue
            runs = f"{result.num_measured} of {result.num_planned} runs"
            lead = f"{at}, {cell.title} leads with {result.speedup.median:.2f}× plain decoding, {runs}."
            lines.append(VerdictLine("So far", self._in_titles(lead), None))
        return lines


def _median_speedup(result: CellResult) -> float:
    return result.speedup.median if result.speedup is not None else 0.0
