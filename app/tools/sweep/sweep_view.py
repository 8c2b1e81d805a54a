"""View model of a sweep, without widgets: the grid, its cells and figures, verdicts, and progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from core.experiments.sweep_plan import (
    Cell,
    CellResult,
    DrafterChoice,
    Measurement,
    RunMeasured,
    SweepEvent,
    SweepFinished,
    SweepPlan,
    SweepStarted,
    Verdict,
)
from core.experiments.sweep_results import (
    ACCEPTANCE,
    BLOCK,
    FIGURES,
    SPEEDUP,
    SweepFigure,
    SweepResults,
    left_out_notes,
)
from core.settings import LOSSY, LengthPolicy
from core.text import duration_text, spaced_percent
from core.types import StageChanged

WINDOW_SUITE = "own"
"""The suite of the main window's prompt."""

POLICIES: dict[str, tuple[str, str]] = {
    LengthPolicy.AUTO: ("Auto", "K chosen before each step from the steps' cost and the acceptance so far"),
    LengthPolicy.ADAPTIVE: ("Adaptive", "Like Auto, but a block ends early where the draft is unsure of its tokens"),
}
"""Title and help of each way to choose K during a run."""

# --- Figures and their scales ---


_LIMITS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
"""Possible ends of the speedup scale, on both sides of 1."""


class Scale(NamedTuple):
    """Maps a figure's values to shades; `low` and `high` are its ends."""

    figure: SweepFigure
    low: float
    high: float

    @property
    def is_diverging(self) -> bool:
        """Whether shades diverge from the middle."""
        return self.figure is SPEEDUP

    def level(self, value: float) -> float:
        """The shade of a value: from 0 to 1, or from -1 to 1 on a diverging scale."""
        if self.is_diverging:
            return min(max(math.log(max(value, 1e-9)) / math.log(self.high), -1.0), 1.0)
        if self.high <= self.low:
            return 0.5
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Shades, with the values shown beside them."""
        values = dict.fromkeys((self.low, 1.0, self.high) if self.is_diverging else (self.low, self.high))
        texts = [self.figure.text(value) for value in values]
        texts[-1] += self.figure.unit
        return tuple(zip(map(self.level, values), texts, strict=True))


def make_scale(figure: SweepFigure, results: Iterable[CellResult]) -> Scale:
    """A scale that covers all these values except impossible speedups."""
    counted = [result for result in results if not (figure is SPEEDUP and result.problem)]
    values = [spread.median for result in counted if (spread := figure.spread(result)) is not None]
    if figure is SPEEDUP:
        most = max((abs(math.log(value)) for value in values if value > 0), default=0.0)
        limit = next((limit for limit in _LIMITS if math.log(limit) >= most), _LIMITS[-1])
        return Scale(figure, 1 / limit, limit)
    if figure is ACCEPTANCE:
        return Scale(figure, 0.0, 1.0)
    low = 1.0 if figure is BLOCK else min(values, default=0.0)
    return Scale(figure, low, max(values, default=low))


# --- The sweep ---

PLAIN = "plain"
BEST, LEADING, LEFT_OUT = "best", "leads", "left out"
"""Notes in cells: the fastest, and those whose speedup can't be."""
FAILED = "failed"
WHY = "Why runs failed: {}"
STOPPING = "Stopping…"
UNKNOWN = "–"
_OUTCOMES = {"length": "length reached", "eos": "end of text", "stop": "end of text"}


class VerdictLine(NamedTuple):
    """A verdict in a few words and a sentence; `pays` is None while that is undecided.

    A sentence about all verdicts has no word.
    """

    word: str
    pays: bool | None
    sentence: str


SweepRow = tuple[float, DrafterChoice]
"""One row of the heatmap: its temperature and drafter."""


class ShownCell(NamedTuple):
    """What a cell of the heatmap shows.

    Attributes:
        text: the figure, or a mark that there is none.
        note: how many of its runs are done, until all are; for speedups, then whether it is the best, and always
            whether it is left out.
        level: its shade; None if there is no figure, or one that is left out.
        is_best: whether its temperature's verdict recommends it.
        is_left_out: whether its figure is an impossible speedup.
        has_failed: whether one of its runs failed.
        tip, spoken: the tooltip, and the text for assistive technology.
    """

    text: str
    note: str
    level: float | None
    is_best: bool
    is_left_out: bool
    has_failed: bool
    tip: str
    spoken: str


class SweepView:
    """The current sweep, if any. Used only in the window's thread.

    Args:
        in_titles: replaces model references in a text with titles.
    """

    def __init__(self, in_titles: Callable[[str], str] = str) -> None:
        self._in_titles = in_titles
        self.plan: SweepPlan | None = None
        self.path: Path | None = None
        self.is_running = self.is_complete = self.has_failed = False
        self.num_done = self.num_runs = 0
        self.seconds_left: float | None = None
        self.stage = ""
        self.verdicts: tuple[Verdict, ...] = ()
        self.rows: tuple[SweepRow, ...] = ()
        self._results: dict[Cell, CellResult] = {}
        self._runs: SweepResults | None = None
        self._best: set[Cell] = set()
        self._seconds: list[float] = []

    # --- Events ---

    def begin(self, plan: SweepPlan, path: Path) -> None:
        """Prepare for a sweep that is about to start or continue."""
        if (plan, path) != (self.plan, self.path):
            self._set_plan(plan)
        self.path, self.num_runs = path, plan.num_runs
        self.is_running, self.is_complete, self.has_failed = True, False, False
        self.stage, self.seconds_left, self._seconds = "Preparing…", None, []

    def show(self, path: Path, events: Iterable[SweepEvent]) -> None:
        """Replace the current sweep with an earlier one."""
        self.plan, self.path, self.has_failed = None, path, False
        for event in events:
            self.apply(event)
        self.end()

    def apply(self, event: SweepEvent) -> None:
        """Apply an event of the engine."""
        if isinstance(event, SweepStarted):
            if event.plan != self.plan:
                self._set_plan(event.plan)
            runs = (item for result in event.results for item in result.measurements)
            self._runs, self.verdicts = SweepResults(event.plan, runs), ()
            self.num_done, self.num_runs = event.num_done, event.plan.num_runs
            self._take(event.results)
        elif isinstance(event, StageChanged):
            self.stage = self.stage if self.stage == STOPPING else event.text
        elif isinstance(event, RunMeasured):
            assert self._runs is not None, "a sweep reports its start first"
            self._runs.add(event.measurement)
            if event.measurement.summary is not None:
                self._seconds.append(event.measurement.seconds)
            self.num_done, self.seconds_left = event.num_done, event.seconds_left
            self._take(event.results)
        elif isinstance(event, SweepFinished):
            self.is_complete, self.verdicts = event.is_complete, event.verdicts
            self._take(event.results)

    def end(self) -> None:
        """Note that the engine has stopped."""
        self.is_running, self.stage, self.seconds_left = False, "", None

    def _set_plan(self, plan: SweepPlan) -> None:
        self.plan, self.verdicts = plan, ()
        self.rows = tuple((at, drafter) for at in plan.temperatures for drafter in plan.drafters)
        self._results = {cell: CellResult(cell, 0) for cell in (*plan.baselines(), *plan.cells())}
        self._runs, self.num_done, self._best = None, 0, set()

    def _take(self, results: Iterable[CellResult]) -> None:
        self._results |= {result.cell: result for result in results}
        self._best = set()
        for at in self.plan.temperatures if self.plan is not None else ():
            cells = [
                item
                for item in self._results.values()
                if item.cell.temperature == at and item.speedup and not item.problem
            ]
            best = next((verdict.best for verdict in self.verdicts if verdict.temperature == at), None)
            best = best or max(cells, key=_median_speedup, default=None)
            if best is not None:
                # If nothing is faster, plain decoding is the best choice.
                self._best.add(best.cell if _median_speedup(best) > 1.0 else Cell(None, 0, at))

    # --- The heatmap ---

    @property
    def columns(self) -> tuple[str, ...]:
        """Column titles: plain decoding, then each K."""
        return (PLAIN, *(map(str, self.plan.num_draft_tokens) if self.plan is not None else ()))

    def cell(self, row: int, column: int) -> Cell:
        """The cell at a position in the grid."""
        assert self.plan is not None, "a grid has a plan"
        at, drafter = self.rows[row]
        return Cell(None, 0, at) if column == 0 else Cell(drafter, self.plan.num_draft_tokens[column - 1], at)

    def short_title(self, cell: Cell) -> str:
        """A cell's title as in the heatmap, so that what tells it from others comes before it is elided."""
        return self._in_titles(f"T = {cell.temperature:g}, {cell.title}")

    def cell_title(self, cell: Cell) -> str:
        """A cell's title, including its temperature."""
        return self._in_titles(f"{cell.title[:1].upper()}{cell.title[1:]}, temperature {cell.temperature:g}")

    def target_title(self) -> str:
        """The target's title; empty if there is none."""
        return self._in_titles(self.plan.target) if self.plan is not None else ""

    def row_title(self, drafter: DrafterChoice) -> str:
        """The title of a row's drafter."""
        return self._in_titles(drafter.title)

    def result(self, cell: Cell) -> CellResult:
        """A cell's result so far."""
        return self._results[cell]

    def scale(self, figure: SweepFigure) -> Scale:
        """The scale of a figure over all cells."""
        return make_scale(figure, self._results.values())

    def shown(self, cell: Cell, scale: Scale) -> ShownCell:
        """What a cell shows for a scale's figure."""
        result, figure, is_best = self._results[cell], scale.figure, cell in self._best
        spread, done = figure.spread(result), result.num_measured
        text, level, progress = "", None, f"{done} of {result.num_planned}"
        is_left_out = bool(result.problem) and figure is SPEEDUP
        if spread is not None:
            text, level = figure.text(spread.median), None if is_left_out else scale.level(spread.median)
        elif done:
            text = "1.00×" if cell.is_baseline and figure is SPEEDUP else UNKNOWN
        elif result.errors:
            text = FAILED
        rank = LEFT_OUT if result.problem else ""
        if is_best:
            at = [verdict for verdict in self.verdicts if verdict.temperature == cell.temperature]
            is_sure = any(verdict.is_ahead or (verdict.is_sure and not verdict.speculates) for verdict in at)
            is_open = any(verdict.was_busy or verdict.is_partial for verdict in at)
            rank = BEST if is_sure and not is_open else LEADING
        note = rank if figure is SPEEDUP else ""
        if 0 < done < result.num_planned and not is_left_out:
            note = progress
        spoken = [f"{self.cell_title(cell)}: {figure.short} {text or 'not measured yet'}"]
        spoken += [*filter(None, [rank]), f"{progress} runs", *result.errors]
        tip = self._tip(result, is_best=is_best)
        return ShownCell(text, note, level, is_best, is_left_out, bool(result.errors), tip, ", ".join(spoken))

    def _tip(self, result: CellResult, *, is_best: bool) -> str:
        lines = [f"{self.cell_title(result.cell)}{' (the highest speedup at its temperature)' if is_best else ''}"]
        for figure in FIGURES:
            if (spread := figure.spread(result)) is not None:
                median, low, high = map(figure.text, (spread.median, *spread.quartiles))
                lines.append(f"{figure.short}: {median} ({low} to {high})")
        if result.cost_coefficient is not None:
            lines.append(f"c, one draft step / one target step: {result.cost_coefficient.median:.3f}")
        lines.append(f"{result.num_measured} of {result.num_planned} runs; medians, quartiles in brackets")
        lines += filter(None, [result.problem])
        return "\n".join([*lines, *(f"Failed: {error}" for error in result.errors)])

    # --- A cell's runs ---

    def run_rows(self, cell: Cell) -> list[tuple[Measurement, tuple[str, ...]]]:
        """A cell's runs with their texts in a table, by prompt and repeat."""
        speedups = self._runs.speedups(cell) if self._runs is not None else {}
        runs = {(item.run.prompt, item.run.repeat): item for item in self._results[cell].measurements}
        return [(run, self._run_texts(run, speedups.get(place))) for place, run in sorted(runs.items())]

    def _run_texts(self, run: Measurement, speedup: float | None) -> tuple[str, ...]:
        assert self.plan is not None, "a run has a plan"
        prompt, summary = self.plan.prompts[run.run.prompt], run.summary
        name = prompt.name if prompt.suite in {"", WINDOW_SUITE} else f"{prompt.suite}: {prompt.name}"
        if summary is None:
            return (name, f"{run.run.repeat + 1}", *[UNKNOWN] * 5, FAILED)
        return (
            name,
            f"{run.run.repeat + 1}",
            _number(summary.tokens_per_second, ".1f"),
            UNKNOWN if speedup is None else f"{speedup:.2f}×",
            _number(summary.draft_acceptance_rate, ".0%"),
            _number(summary.block_efficiency, ".2f"),
            f"{summary.num_tokens:,}",
            _OUTCOMES.get(summary.finish_reason, summary.finish_reason),
        )

    # --- Progress and verdicts ---

    @property
    def can_continue(self) -> bool:
        """Whether there is anything left to measure."""
        return self.plan is not None and not self.is_running and (not self.is_complete or self.num_failed > 0)

    @property
    def seconds_each(self) -> float | None:
        """Mean time of the runs that were measured since the last sweep started or continued; None if none were."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    @property
    def num_measured(self) -> int:
        """Number of runs that were measured; those that failed were not."""
        return sum(item.num_measured for item in self._results.values())

    @property
    def num_failed(self) -> int:
        """Number of runs that failed."""
        return sum(len(item.measurements) - item.num_measured for item in self._results.values())

    def progress_text(self) -> str:
        """The progress, in one line."""
        if self.plan is None:
            return ""
        if self.is_complete and not self.is_running:
            num_left = self.num_runs - self.num_measured - self.num_failed
            if not self.num_failed:
                return f"All {self.num_runs:,} runs done"
            not_tried = f", {num_left:,} not tried" if num_left else ""
            measured = f"{self.num_measured:,} of {self.num_runs:,} measured"
            return f"{measured}, {self.num_failed:,} failed{not_tried}; Continue tries again"
        # Stages between two runs would only flicker.
        if self.is_running and (self.seconds_left is None or self.stage == STOPPING):
            rest = self.stage
        elif self.is_running:
            rest = f"about {duration_text(self.seconds_left or 0.0)} left"
        else:
            # Where nothing could be measured, a promise that the rest will be is hollow.
            will = "tries again" if self.has_failed and not self.num_measured else "measures the rest"
            rest = f"{FAILED if self.has_failed else 'stopped'}; Continue {will}"
        return " · ".join(filter(None, (f"{self.num_done:,} of {self.num_runs:,} runs", rest)))

    def verdict_lines(self) -> list[VerdictLine]:
        """The verdict at each temperature; while the sweep runs, the leading cell."""
        if self.verdicts:
            note = self._runs.busy_note if self._runs is not None else ""
            sought = "K" if self.plan is not None and len(self.plan.drafters) == 1 else "cell"
            found = [VerdictLine(*_word(each, sought), self._in_titles(each.sentence)) for each in self.verdicts]
            errors = {error for cell in self._runs.all() for error in cell.errors} if self._runs is not None else ()
            failures = [
                VerdictLine("", None, self._in_titles(WHY.format(error))) for error in errors if len(errors) == 1
            ]
            return [*([VerdictLine("", None, note)] if note else []), *found, *failures]
        lines = []
        for temperature in self.plan.temperatures if self.plan is not None else ():
            at = f"At temperature {temperature:g}"
            here = [result for result in self._results.values() if result.cell.temperature == temperature]
            best = next((result for result in here if result.cell in self._best), None)
            notes = left_out_notes([result for result in here if result.problem], are_all=best is None)
            if best is None and not notes:
                continue
            lead = f"{at}: {'there is no ranking yet.' if best is None else 'no cell is faster than plain decoding.'}"
            if best is not None and best.speedup is not None:
                runs = f"{best.num_measured} of its {best.num_planned} runs"
                speed = f"{best.speedup.median:.2f}× the speed of plain decoding"
                lead = f"{at}: {best.cell.title} leads with {speed} after {runs}."
            notes += [LOSSY] if self.plan is not None and self.plan.is_lossy else []
            lines.append(VerdictLine("So far", None, self._in_titles(" ".join((lead, *notes)))))
        return lines


def _word(verdict: Verdict, sought: str) -> tuple[str, bool | None]:
    """What a verdict settles or leaves open, in a few words, and whether drafting pays."""
    if verdict.best is None:
        return "Not complete" if verdict.is_partial else "No answer", None
    # A few runs may favour drafting by chance, and a busy machine distorts the speedup.
    if verdict.is_partial and not (verdict.speculates and verdict.is_sure):
        return "Not complete", None
    if not verdict.is_sure:
        return "Too few runs" if verdict.is_sure is None else "Not sure it pays", None
    if not verdict.speculates:
        return "Don't speculate", None if verdict.was_busy else False
    if verdict.was_busy:
        return "Seems to pay (busy)", None
    if not verdict.is_ahead:
        return "Pays so far" if verdict.is_partial else f"Pays, best {sought} unclear", True
    return f"K = {verdict.best.cell.num_draft_tokens}", True


def _median_speedup(result: CellResult) -> float:
    return result.speedup.median if result.speedup is not None else 0.0


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else spaced_percent(format(value, form))
