"""From runs to cells: medians with their spread, each speed held against the baseline run nearest to it in time."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime

from core.bench.statistics import Spread, spread
from core.sweep.plan import Cell, PlannedRun, SweepPlan
from core.sweep.types import CellResult, Figures, Measurement

Key = tuple[int, int]
"""Prompt and repeat."""


class SweepResults:
    """What is known of a plan's cells so far. For one thread."""

    def __init__(self, plan: SweepPlan, measurements: Iterable[Measurement] = ()) -> None:
        self.plan = plan
        self._by_cell: dict[Cell, dict[Key, Measurement]] = {cell: {} for cell in (*plan.baselines(), *plan.cells())}
        self._baselines: defaultdict[tuple[float, int], list[tuple[float, float]]] = defaultdict(list)
        for measurement in measurements:
            self.add(measurement)

    def add(self, measurement: Measurement) -> list[Cell]:
        """Take in a run; one that was done before is replaced. Returns the cells whose figures this changes."""
        run = measurement.run
        self._by_cell[run.cell][run.prompt, run.repeat] = measurement
        speed = _speed(measurement)
        if not run.cell.is_baseline or speed is None:
            return [run.cell]
        temperature = run.cell.temperature
        bisect.insort(self._baselines[temperature, run.prompt], (_moment(measurement), speed))
        return [cell for cell in self._by_cell if cell.temperature == temperature]

    def is_measured(self, run: PlannedRun) -> bool:
        """Whether a run came to an end in order; one that failed did not."""
        measurement = self._by_cell[run.cell].get((run.prompt, run.repeat))
        return measurement is not None and measurement.figures is not None

    @property
    def num_measured(self) -> int:
        """Runs that came to an end in order."""
        return sum(item.figures is not None for seen in self._by_cell.values() for item in seen.values())

    def result(self, cell: Cell, suite: str | None = None) -> CellResult:
        """A cell's figures.

        Args:
            cell: of the plan's grid, or one of its baselines.
            suite: count only prompts of this suite; None for all.
        """
        prompts = self.plan.prompts
        wanted = {index for index, prompt in enumerate(prompts) if suite is None or prompt.suite == suite}
        seen = [item for item in self._by_cell[cell].values() if item.run.prompt in wanted]
        return CellResult(
            cell=cell,
            num_planned=len(wanted) * self.plan.repeats,
            measurements=tuple(sorted(seen, key=lambda item: item.index)),
            speedup=_spread(self.speedups(cell, wanted).values()),
            tokens_per_second=_of(seen, lambda figures: figures.tokens_per_second),
            draft_acceptance_rate=_of(seen, lambda figures: figures.draft_acceptance_rate),
            block_efficiency=_of(seen, lambda figures: figures.block_efficiency),
            cost_coefficient=_of(seen, lambda figures: figures.cost_coefficient),
        )

    def all(self, suite: str | None = None) -> tuple[CellResult, ...]:
        """Every cell's figures, the baselines first, then in the order of the grid."""
        return tuple(self.result(cell, suite) for cell in self._by_cell)

    def speedups(self, cell: Cell, prompts: Iterable[int] | None = None) -> dict[Key, float]:
        """A cell's speedup in each of its runs that has one; none of a baseline, which would be held against itself.

        Args:
            cell: which.
            prompts: indices of those that count; None for all.
        """
        if cell.is_baseline:
            return {}
        wanted = None if prompts is None else set(prompts)
        found = {}
        for key, measurement in self._by_cell[cell].items():
            speed = _speed(measurement)
            plain = self._plain_speed(cell.temperature, measurement)
            if speed and plain and (wanted is None or key[0] in wanted):
                found[key] = speed / plain
        return found

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the plan's prompts, in their order."""
        return tuple(dict.fromkeys(prompt.suite for prompt in self.plan.prompts))

    def _plain_speed(self, temperature: float, measurement: Measurement) -> float | None:
        """Tokens per second of the baseline of this prompt and temperature that ran closest to this run."""
        seen = self._baselines[temperature, measurement.run.prompt]
        if not seen:
            return None
        moment = _moment(measurement)
        at = bisect.bisect_left(seen, (moment, 0.0))
        return min(seen[max(at - 1, 0) : at + 1], key=lambda item: abs(item[0] - moment))[1]


def _moment(measurement: Measurement) -> float:
    return datetime.fromisoformat(measurement.started_at).timestamp()


def _speed(measurement: Measurement) -> float | None:
    return measurement.figures.tokens_per_second if measurement.figures is not None else None


def _of(measurements: Iterable[Measurement], pick: Callable[[Figures], float | None]) -> Spread | None:
    picked = (pick(item.figures) for item in measurements if item.figures is not None)
    return _spread(value for value in picked if value is not None)


def _spread(values: Iterable[float]) -> Spread | None:
    known = list(values)
    return spread(known) if known else None
