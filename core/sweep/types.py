"""The words of a sweep's outcome: what one run came to, what a cell did, which is best, and the events on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.bench.statistics import Spread
from core.sweep.plan import Cell, PlannedRun, SweepPlan
from core.types import StageChanged


@dataclass(frozen=True, slots=True)
class Figures:
    """What is kept of a run's summary, in its words; see `core.types.Summary`."""

    finish_reason: str
    num_tokens: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    draft_acceptance_rate: float | None
    expected_acceptance_rate: float | None
    block_efficiency: float | None
    cost_coefficient: float | None
    tokens_per_second: float | None
    target_step_ms: float | None
    prefill_ms: float | None
    predicted_speedup: float | None
    peak_memory_mb: float | None
    num_threads: int | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run that is over.

    Attributes:
        run: which of the plan's.
        index: how many were measured before it, those of earlier sittings included; neighbours in time have
            neighbouring numbers.
        seed: of its random numbers.
        started_at: when, in UTC.
        seconds: by the clock on the wall, loading and reading the prompt included.
        figures: what it came to; None where it failed.
        error: why it failed, in a sentence; None where it didn't.
        run_id: of its run log, where one was kept.
        log: where that log is.
    """

    run: PlannedRun
    index: int
    seed: int
    started_at: str
    seconds: float
    figures: Figures | None = None
    error: str | None = None
    run_id: str | None = None
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell came to, over its prompts and repeats. A figure that no run has is None.

    Attributes:
        cell: which.
        num_planned: runs that it is to have.
        measurements: its runs so far, those that failed included, in the order in which they were measured.
        speedup: tokens per second against the baseline run of the same prompt and temperature that is nearest in time;
            of a baseline itself, None.
        tokens_per_second, draft_acceptance_rate, block_efficiency, cost_coefficient: as in a run's summary.
    """

    cell: Cell
    num_planned: int
    measurements: tuple[Measurement, ...] = ()
    speedup: Spread | None = None
    tokens_per_second: Spread | None = None
    draft_acceptance_rate: Spread | None = None
    block_efficiency: Spread | None = None
    cost_coefficient: Spread | None = None

    @property
    def num_measured(self) -> int:
        """Runs that came to an end in order."""
        return sum(item.figures is not None for item in self.measurements)

    @property
    def errors(self) -> tuple[str, ...]:
        """What went wrong in its runs, each sentence once."""
        return tuple(dict.fromkeys(item.error for item in self.measurements if item.error is not None))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep says to do at one temperature.

    Attributes:
        temperature: which.
        sentence: the answer for a person.
        best: the cell with the highest median speedup; None where none has any.
        runner_up: the next one; None where there is none.
        interval: 95 % bootstrap interval of the best cell's median speedup, over prompts and repeats. It knows nothing
            of the choice: the best of many cells that hardly differ is, in truth, a little slower than it looks.
        speculates: whether the best cell is faster than plain decoding, by its median.
        is_sure: whether the interval leaves out 1; None where there are too few runs to say.
        beats_runner_up: share of the bootstrap samples in which the best cell is ahead of the runner-up.
        is_distinguishable: whether that share is 97.5 % or more; None where there are too few runs to say.
    """

    temperature: float
    sentence: str
    best: CellResult | None = None
    runner_up: CellResult | None = None
    interval: tuple[float, float] | None = None
    speculates: bool = False
    is_sure: bool | None = None
    beats_runner_up: float | None = None
    is_distinguishable: bool | None = None


# --- Events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepStarted:
    """First event: what is to be done, and what an earlier sitting has done of it.

    Attributes:
        plan: what is measured.
        num_runs: in all.
        num_done: by earlier sittings.
        results: of every cell so far, the baselines' first.
        problems: a sentence for each thing that is wrong with the file but does not stop it from being read.
    """

    plan: SweepPlan
    num_runs: int
    num_done: int
    results: tuple[CellResult, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """A run is over, in order or not.

    Attributes:
        measurement: what it came to.
        results: of the cells whose figures this changed. A baseline's run may change all of its temperature.
        num_done: runs that need not be done any more.
        num_runs: in all.
        seconds_left: for the rest, to be expected from this sitting's runs.
    """

    measurement: Measurement
    results: tuple[CellResult, ...]
    num_done: int
    num_runs: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class FileFailed:
    """The sweep's file, or a run's log, can't be written. The sweep goes on; lines are kept and tried again."""

    sentence: str


@dataclass(frozen=True, slots=True)
class SweepFinished:
    """Last event.

    Attributes:
        is_complete: False where the sweep was stopped; what is missing is done by the next sitting.
        results: of every cell, the baselines' first.
        verdicts: one a temperature.
        num_unsaved: runs that did not get into the file.
    """

    is_complete: bool
    results: tuple[CellResult, ...]
    verdicts: tuple[Verdict, ...]
    num_unsaved: int = 0


SweepEvent = SweepStarted | StageChanged | RunMeasured | FileFailed | SweepFinished
