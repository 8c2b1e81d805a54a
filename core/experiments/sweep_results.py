"""What a sweep's runs say: each cell's speedup and other results, and a verdict for each temperature."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from core.analysis.steadiness import BUSY, SHIFT, covers_one
from core.experiments.bench_plan import Spread, spread
from core.experiments.sweep_plan import Cell, CellResult, Measurement, PlannedRun, SweepPlan, Verdict
from core.settings import LOSSY
from core.text import count_text, percent_text, spaced_percent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RUNS = 6
"""Fewest runs of a cell for an interval: six runs all agree by chance with probability 3 %."""
FEWEST_PROMPTS = 6
"""With fewer prompts, the interval covers only these prompts."""
_SURE = 0.975
_MANY = 0.25
"""Share of busy runs above which a verdict may be due to them."""
BEST_OF_MANY = "The interval doesn't allow for the choice of the best of {:,} cells, which may look faster than it is."
_SAMPLES, _MOST_DRAWS = 2_000, 5_000_000


@dataclass(frozen=True, slots=True)
class SweepFigure:
    """A figure of a cell, with its own heat map.

    Attributes:
        name: the attribute of `CellResult`.
        title, legend, meaning: in words.
        form: the format of a value.
        middle: the value that is neither good nor bad; None if only more or less counts.
        unit: after the highest value of its scale.
    """

    name: str
    title: str
    legend: str
    meaning: str
    form: str
    middle: float | None = None
    unit: str = ""

    @property
    def short(self) -> str:
        """The title where there is little room."""
        return self.title.replace(" per second", "/s")

    def spread(self, result: CellResult) -> Spread | None:
        """Its spread in a cell."""
        found: Spread | None = getattr(result, self.name)
        return found

    def text(self, value: float) -> str:
        """A value as text, with its unit if that is short."""
        return spaced_percent(self.form.format(value))


SPEEDUP = SweepFigure(
    "speedup",
    "Speedup",
    "Speedup over plain decoding, logarithmic",
    "Median of tokens per second / those of the baseline run with the same prompt and temperature that is nearest in "
    "time. Below 1, drafting doesn’t pay.",
    "{:.2f}×",
    1.0,
)
ACCEPTANCE = SweepFigure(
    "draft_acceptance_rate", "Acceptance", "Accepted / drafted tokens", "Median of accepted / drafted tokens.", "{:.0%}"
)
TOKENS = SweepFigure(
    "tokens_per_second",
    "Tokens per second",
    "Tokens per second",
    "Median over prompts and repeats.",
    "{:,.1f}",
    unit=" tokens/s",
)
BLOCK = SweepFigure(
    "block_efficiency",
    "Block efficiency",
    "Tokens per target forward",
    "Median of tokens per target forward.",
    "{:.2f}",
    unit=" tokens/forward",
)
COST = SweepFigure("cost_coefficient", "Cost c", "A draft step / a target step", "Median of the runs' c.", "{:.3f}")
FIGURES = (SPEEDUP, ACCEPTANCE, TOKENS, BLOCK)
"""Those with a heat map."""
COLUMNS = (SPEEDUP, TOKENS, ACCEPTANCE, BLOCK, COST)
"""Those of tables."""

Key = tuple[int, int]
"""Prompt and repeat."""


class SweepResults:
    """The results of a plan's cells so far. For one thread."""

    def __init__(self, plan: SweepPlan, measurements: Iterable[Measurement] = ()) -> None:
        self.plan = plan
        self._by_cell: dict[Cell, dict[Key, Measurement]] = {cell: {} for cell in (*plan.baselines(), *plan.cells())}
        self._baselines: defaultdict[tuple[float, int], list[tuple[float, float]]] = defaultdict(list)
        for measurement in measurements:
            self.add(measurement)

    def add(self, measurement: Measurement) -> list[Cell]:
        """Add a run, in place of an earlier one of the same. Returns the cells whose results this changes."""
        run = measurement.run
        self._by_cell[run.cell][run.prompt, run.repeat] = measurement
        speed = _figure(measurement, "tokens_per_second")
        if not run.cell.is_baseline or speed is None:
            return [run.cell]
        temperature = run.cell.temperature
        self._baselines[temperature, run.prompt].append((_moment(measurement), speed))
        return [cell for cell in self._by_cell if cell.temperature == temperature]

    def is_measured(self, run: PlannedRun) -> bool:
        """Whether a run was measured; one that failed was not."""
        measurement = self._by_cell[run.cell].get((run.prompt, run.repeat))
        return measurement is not None and measurement.summary is not None

    @property
    def measurements(self) -> list[Measurement]:
        """All runs, those that failed included."""
        return [item for runs in self._by_cell.values() for item in runs.values()]

    @property
    def num_measured(self) -> int:
        """Runs that did not fail."""
        return sum(item.summary is not None for item in self.measurements)

    def busy_runs(self, temperature: float) -> tuple[int, int]:
        """In how many of the runs measured at a temperature the machine was busy, and their number.

        Equal steps of a run, or the bare forwards of different runs, then took unequal times.
        """
        every = self.measurements
        forwards: dict[int, list[float]] = {}
        for item in every:
            # The forwards after a longer prompt take longer.
            if ms := _figure(item, "target_step_ms"):
                forwards.setdefault(item.run.prompt, []).append(ms)
        usual = {prompt: statistics.median(times) for prompt, times in forwards.items()}
        runs = [item for item in every if item.run.cell.temperature == temperature and item.summary is not None]
        busy = sum(
            (item.unsteadiness or 0.0) > BUSY
            or (_figure(item, "target_step_ms") or 0.0) > SHIFT * usual.get(item.run.prompt, math.inf)
            for item in runs
        )
        return busy, len(runs)

    def is_partial(self, temperature: float) -> bool:
        """Whether runs of the plan at a temperature were not tried yet."""
        num_planned = len(self.plan.prompts) * self.plan.repeats
        return any(len(runs) < num_planned for cell, runs in self._by_cell.items() if cell.temperature == temperature)

    @property
    def busy_note(self) -> str:
        """A sentence about the runs in which the machine was busy, which comes before the verdicts; empty if none."""
        counts = [(at, *self.busy_runs(at)) for at in self.plan.temperatures]
        weak = [found for found in counts if found[1] > _MANY * found[2]]
        shown = weak or [found for found in counts if found[1]]  # Not beside a verdict that stands all the same.
        parts = [f"{busy:,} of {count_text(runs, 'run')} at temperature {at:g}" for at, busy, runs in shown]
        is_partial = any(map(self.is_partial, self.plan.temperatures))
        advice = "; repeat the sweep on an idle machine" if weak and not is_partial else ""
        return f"The machine was busy in {' and '.join(parts)}{advice}." if parts else ""

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the plan's prompts, in their order."""
        return tuple(dict.fromkeys(prompt.suite for prompt in self.plan.prompts))

    def result(self, cell: Cell, suite: str | None = None) -> CellResult:
        """A cell's results, over the prompts of one suite, or of all where it is None."""
        prompts = self.plan.prompts
        wanted = {index for index, prompt in enumerate(prompts) if suite is None or prompt.suite == suite}
        seen = [item for item in self._by_cell[cell].values() if item.run.prompt in wanted]
        speedups = [value for (prompt, _), value in self.speedups(cell).items() if prompt in wanted]

        spreads: dict[str, Any] = {"speedup": spread(speedups) if speedups else None}
        for figure in COLUMNS[1:]:
            values = [value for item in seen if (value := _figure(item, figure.name)) is not None]
            spreads[figure.name] = spread(values) if values else None
        return CellResult(
            cell=cell,
            num_planned=len(wanted) * self.plan.repeats,
            measurements=tuple(sorted(seen, key=lambda item: item.index)),
            **spreads,
        )

    def all(self, suite: str | None = None) -> tuple[CellResult, ...]:
        """Every cell's results, the baselines first, then in the order of the grid."""
        return tuple(self.result(cell, suite) for cell in self._by_cell)

    def at(self, temperature: float) -> list[CellResult]:
        """The results of the cells at a temperature, without the baseline."""
        return [self.result(cell) for cell in self.plan.cells() if cell.temperature == temperature]

    def speedups(self, cell: Cell) -> dict[Key, float]:
        """A cell's speedup in each of its runs that has one; empty for a baseline."""
        found: dict[Key, float] = {}
        for key, measurement in self._by_cell[cell].items() if not cell.is_baseline else ():
            speed, plain = _figure(measurement, "tokens_per_second"), self._plain_speed(cell.temperature, measurement)
            if speed and plain:
                found[key] = speed / plain
        return found

    def _plain_speed(self, temperature: float, measurement: Measurement) -> float | None:
        """Tokens per second of the baseline of this prompt and temperature that ran closest to this run."""
        seen = self._baselines[temperature, measurement.run.prompt]
        moment = _moment(measurement)
        return min(seen, key=lambda item: abs(item[0] - moment), default=(0.0, None))[1]


def _moment(measurement: Measurement) -> float:
    return datetime.fromisoformat(measurement.started_at).timestamp()


def _figure(measurement: Measurement, name: str) -> float | None:
    """A figure of a run's summary, which a failed run doesn't have."""
    return getattr(measurement.summary, name, None)


# --- Verdicts ---------------------------------------------------------------------------------------------------


def verdicts(results: SweepResults) -> tuple[Verdict, ...]:
    """One for each temperature of the plan: what is sampled there differs, so temperatures don't compete."""
    return tuple(_verdict(results, temperature) for temperature in results.plan.temperatures)


def ranked_cells(results: SweepResults) -> frozenset[Cell]:
    """The cells that the verdicts rank: those with enough runs, and a speedup that is possible."""
    at = results.plan.temperatures
    return frozenset(cell.cell for each in at for _, cell in _full(results, each) if not cell.problem)


def _full(results: SweepResults, temperature: float) -> list[tuple[float, CellResult]]:
    """The cells of a temperature that have a speedup, and at least half the runs of the fullest; the fastest first."""
    cells = results.at(temperature)
    fullest = max((cell.num_measured for cell in cells), default=0)
    found = [(cell.speedup.median, cell) for cell in cells if cell.speedup and 2 * cell.num_measured >= fullest]
    return sorted(found, key=itemgetter(0), reverse=True)


def _verdict(results: SweepResults, temperature: float) -> Verdict:
    full = _full(results, temperature)
    ranked = [(median, cell) for median, cell in full if not cell.problem]
    left_out = [cell for _, cell in full if cell.problem]
    busy, runs = results.busy_runs(temperature)
    was_busy = busy > _MANY * runs
    is_partial = results.is_partial(temperature)
    notes = [*left_out_notes(left_out, are_all=not ranked), *([LOSSY] if results.plan.is_lossy else [])]
    is_sure, is_ahead = None, False
    if ranked:
        text, is_sure, is_ahead = _ranking(results, ranked, was_busy=was_busy)
        if len(ranked) > 2 and is_sure is not None:
            notes.append(BEST_OF_MANY.format(len(ranked)))
    elif left_out:
        text = f"there is no ranking{' yet' if is_partial else ''}."
        notes.insert(1, "Continue the sweep." if is_partial else "Repeat the sweep on an idle machine.")
    elif any(cell.speedup for cell in results.at(temperature)):
        text = "too few runs have a baseline to compare them with; continue the sweep."
    else:
        text = "no cell has both a run and a baseline to compare it with."
    median, best = ranked[0] if ranked else (0.0, None)
    said = " ".join((f"At temperature {temperature:g}:", text, *notes))
    return Verdict(
        temperature,
        said,
        best,
        speculates=median > 1.0,
        is_sure=is_sure,
        is_ahead=is_ahead,
        was_busy=was_busy,
        is_partial=is_partial,
    )


def _interval(speeds: Mapping[Key, float]) -> tuple[str, bool | None]:
    """The interval of a cell's median speedup, in words, and whether it excludes 1; "" and None of too few runs."""
    import numpy as np  # Imported late, so that parsing the command line doesn't load it.

    if len(speeds) < FEWEST_RUNS:
        return "", None
    low, high = (float(value) for value in np.quantile(bootstrap_medians(speeds), (1 - _SURE, _SURE)))
    prompts = len({prompt for prompt, _ in speeds})
    these = "this prompt" if prompts == 1 else f"these {prompts} prompts"
    here = f" on {these}" if prompts < FEWEST_PROMPTS else ""
    return f" (95 % interval {low:.2f} to {high:.2f}{here})", not covers_one((low, high))


def _ranking(
    results: SweepResults, ranked: Sequence[tuple[float, CellResult]], *, was_busy: bool
) -> tuple[str, bool | None, bool]:
    """What the best cell reaches, in words; whether that is surely faster or slower, and whether it leads surely."""
    (median, best), is_ahead = ranked[0], False
    name, speeds = best.cell.title, results.speedups(best.cell)
    is_partial = results.is_partial(best.cell.temperature)
    cells = [cell for cell in results.all() if cell.cell.temperature == best.cell.temperature]
    untried = [cell for cell in cells if len(cell.measurements) < cell.num_planned]
    have_failed = all(cell.errors and not cell.num_measured for cell in untried)
    goal = "try the failed runs again" if have_failed else "measure the rest"
    goes_on = f"continue the sweep to {goal}" if is_partial or len(speeds) < best.num_planned else ""
    interval, is_sure = _interval(speeds)
    if median <= 1.0 and (is_partial or is_sure):
        judged = "so far" if is_partial else "don't speculate;"
        text = f"{judged} the best cell, {name}, reaches {median:.2f}× the speed of plain decoding{interval}"
        text += f"; {goes_on}." if is_partial else "."
    elif is_sure is None:
        second = f"; {ranked[1][1].cell.title} comes next at {ranked[1][0]:.2f}×" if len(ranked) > 1 else ""
        advice = goes_on if goes_on and best.num_planned >= FEWEST_RUNS else "add repeats or prompts"
        text = (
            f"{name} {'leads with' if median > 1.0 else 'reaches'} {median:.2f}× the speed of plain decoding{second}. "
            f"A verdict needs {FEWEST_RUNS} runs of each cell, and {name} has {len(speeds)}: {advice}."
        )
    elif not is_sure:
        by_median = "is fastest by its median," if median > 1.0 else "reaches"
        advice = goes_on or ("" if was_busy else "add repeats")
        text = (
            f"{name} {by_median} {median:.2f}× the speed of plain decoding{interval}, but these runs "
            f"can't distinguish it from plain decoding{f'; {advice}' if advice else ''}."
        )
    else:
        lead, leads_surely = _lead(results, ranked, was_busy=was_busy)
        is_ahead = leads_surely and not is_partial
        leads = "is fastest," if is_ahead and not was_busy else "leads with"
        doubt = " Measured on a busy machine, so this is not settled." if was_busy and leads_surely else ""
        rest = f" {goes_on[0].upper()}{goes_on[1:]}." if is_partial else ""
        text = f"{name} {leads} {median:.2f}× the speed of plain decoding{interval}; {lead}{doubt}{rest}"
    return text, is_sure, is_ahead


def left_out_notes(cells: Sequence[CellResult], *, are_all: bool) -> list[str]:
    """Which cells of a temperature don't count, and why; unless those are all, a doubt about the others, which share
    the baseline."""
    if not cells:
        return []
    note = (
        f"{len(cells)} cells are left out: their speedups are higher than their tokens per forward allow, probably "
        "because the machine was busy during the baseline."
    )
    if len(cells) == 1:
        note = f"{cells[0].cell.title} is left out. {cells[0].problem}"
    return [note] if are_all else [note, "The other speedups at this temperature may be too high as well."]


def _lead(results: SweepResults, ranked: Sequence[tuple[float, CellResult]], *, was_busy: bool) -> tuple[str, bool]:
    """How sure it is that the best cell is ahead of the runner-up, in words, and whether it is."""
    import numpy as np

    best = ranked[0][1]
    if len(ranked) == 1:
        others = [other for other in results.at(best.cell.temperature) if other.cell != best.cell]
        has_failed = all(other.errors and not other.num_measured for other in others)
        if others and not has_failed and results.is_partial(best.cell.temperature):
            return "no other cell has enough runs yet.", False
        if not others or not has_failed:
            return "there is no other cell to compare it with.", True
        return "the other cell failed." if len(others) == 1 else f"the other {len(others)} cells failed.", True
    median, other = ranked[1]
    # Without the drafter's name, where that is the winner's.
    is_same = other.cell.drafter == best.cell.drafter
    second = f"{f'K = {other.cell.num_draft_tokens}' if is_same else other.cell.title} at {median:.2f}×"
    speeds = [results.speedups(result.cell) for result in (best, other)]
    shared = speeds[0].keys() & speeds[1].keys()
    if len(shared) < FEWEST_RUNS:
        return f"{second} comes next, and these runs are too few to tell the two apart.", False
    ours, theirs = (bootstrap_medians({key: values[key] for key in shared}) for values in speeds)
    ahead = float(np.mean(ours > theirs) + np.mean(ours == theirs) / 2)
    needed = percent_text(_SURE, 1)
    if ahead >= _SURE:
        if was_busy:
            return f"in these runs it was faster than {second}.", True
        return f"it is faster here than {second} (at least {needed} sure).", True
    sure = f"{percent_text(ahead)} sure; {needed} needed"
    return f"whether it is faster than {second} is not settled ({sure}).", False


def bootstrap_medians(values: Mapping[Key, float]) -> NDArray[np.float64]:
    """Medians of resamples: prompts are drawn with replacement, and within each its repeats, since those are alike.

    The draws depend on the keys alone, so that two cells with the same runs are resampled in step.
    """
    import numpy as np

    prompts = sorted({prompt for prompt, _ in values})
    repeats = sorted({repeat for _, repeat in values})
    table = np.array([[values.get((prompt, repeat), np.nan) for repeat in repeats] for prompt in prompts])
    count = max(200, min(_SAMPLES, _MOST_DRAWS // table.size))
    generator = np.random.default_rng(0)
    rows = generator.integers(len(prompts), size=(count, len(prompts), 1))
    columns = generator.integers(len(repeats), size=(count, len(prompts), len(repeats)))
    drawn = table[rows, columns].reshape(count, -1)
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    return np.asarray(np.nanmedian(drawn, axis=1), dtype=np.float64)
