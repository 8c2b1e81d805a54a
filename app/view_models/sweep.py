"""A sweep as the window shows it: grid, cells, best ones, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from app.sentences import in_words
from app.view_models.sweep_scale import FIGURE_TITLES, Scale, SweepFigure, figure_text, make_scale, spread_of
from app.view_models.sweep_scale import spread_text as figure_spread
from app.view_models.sweep_words import VerdictLine, verdict_line
from core.sweep.plan import Cell, DrafterChoice, SweepPlan
from core.sweep.results import SweepResults
from core.sweep.types import CellResult, Measurement, RunMeasured, SweepFinished, SweepStarted, Verdict
from core.types import StageChanged

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
                lines.append(f"{title}: {figure_spread(figure, spread)}")
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
            left = f"about {in_words(self.seconds_left)} left" if is_calm and self.seconds_left is not None else ""
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
