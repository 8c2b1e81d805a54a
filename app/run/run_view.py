"""Everything the window knows about the run at hand: events go in, panels read."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from app.run.tokens import TokenStream
from core.analysis.diagnosis import PlainStep, StepSums, plain_step
from core.analysis.expectation import BlockSums, expected_accepted
from core.runlog.log import RunLog, to_record
from core.types import (
    BaselineStep,
    Coupling,
    Drafted,
    Event,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    RunRequest,
    RunStarted,
    StageChanged,
    Step,
    Summary,
)

Array = NDArray[np.float64]


class Column(IntEnum):
    """What is kept of each step. Times in milliseconds; rates from 0 to 1, NaN where nothing was drafted.

    RATE_LOW and RATE_HIGH: the 95 % band around RUNNING_RATE, NaN before there are two blocks.
    """

    NUM_DRAFTED = 0
    NUM_ACCEPTED = 1
    ACCEPTED_SHARE = 2
    RUNNING_RATE = 3
    PREDICTED_RATE = 4
    DRAFT_MS = 5
    VERIFY_MS = 6
    SAMPLE_MS = 7
    TOTAL_MS = 8
    NUM_EMITTED = 9
    TEMPERATURE = 10
    RATE_LOW = 11
    RATE_HIGH = 12


@dataclass(frozen=True, slots=True)
class Totals:
    """Running sums over the steps. `predicted`: accepted tokens that rejection sampling lets expect."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    predicted: float = 0.0
    total_ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens over the sum of the steps' total_ms; the prefill is not part of it."""
        return 1000.0 * self.tokens / self.total_ms if self.total_ms > 0 else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def predicted_acceptance_rate(self) -> float | None:
        """Expected accepted / drafted by rejection sampling, from sum(min(p, q)) at each drafted position."""
        return self.predicted / self.drafted if self.drafted else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens per target forward."""
        return self.tokens / self.steps if self.steps else None


class StepMetrics:
    """Append-only columns over the steps of a run."""

    def __init__(self, capacity: int = 256) -> None:
        self._buffer: Array = np.full((len(Column), capacity), np.nan)
        self._totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = True

    def __len__(self) -> int:
        return self._totals.steps

    @property
    def totals(self) -> Totals:
        """The running sums."""
        return self._totals

    def clear(self, *, is_rejection: bool = True) -> None:
        """Forget all steps; the buffer stays.

        Args:
            is_rejection: whether the steps to come are tested by rejection sampling. Else what is predicted is not
                their own acceptance, but what it would be.
        """
        self._totals = Totals()
        self._blocks = BlockSums()
        self.is_rejection = is_rejection

    def append(self, step: Step) -> None:
        """Add a step."""
        index, drafted = self._totals.steps, step.num_draft_tokens
        if index == self._buffer.shape[1]:
            self._buffer = np.concatenate([self._buffer, np.full_like(self._buffer, np.nan)], axis=1)
        old = self._totals
        predicted_here = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        self._totals = Totals(
            steps=index + 1,
            tokens=old.tokens + len(step.emitted),
            drafted=old.drafted + drafted,
            accepted=old.accepted + step.num_accepted,
            # A step of a damaged log may lack its figures.
            predicted=old.predicted + (predicted_here if math.isfinite(predicted_here) else step.num_accepted),
            total_ms=old.total_ms + step.total_ms,
        )
        self._blocks.add(drafted, step.num_accepted)
        low, high = self._blocks.interval() or (math.nan, math.nan)
        rate, predicted = self._totals.draft_acceptance_rate, self._totals.predicted_acceptance_rate
        self._buffer[:, index] = (
            drafted,
            step.num_accepted,
            step.num_accepted / drafted if drafted else math.nan,
            math.nan if rate is None else rate,
            math.nan if predicted is None else predicted,
            step.draft_ms,
            step.verify_ms,
            step.sample_ms,
            step.total_ms,
            len(step.emitted),
            step.temperature,
            low,
            high,
        )

    def column(self, column: Column, first: int = 0, last: int | None = None) -> Array:
        """A view of one column for steps first to last - 1; no copy."""
        return self._buffer[column, first : len(self) if last is None else min(last, len(self))]

    def table(self, columns: Mapping[str, Column]) -> dict[str, list[float | int]]:
        """Columns by name over all steps, behind the steps' own numbers; what counts tokens is whole."""
        table: dict[str, list[float | int]] = {"step": list(range(len(self)))}
        for name, column in columns.items():
            values = self.column(column)
            is_count = column in {Column.NUM_DRAFTED, Column.NUM_ACCEPTED, Column.NUM_EMITTED}
            table[name] = (values.astype(np.int64) if is_count else values).tolist()
        return table

    def binned(self, column: Column, first: int, last: int, width: int) -> Array:
        """Means of a column over bins of `width` steps, the last one perhaps shorter; NaN steps are left out."""
        values = self.column(column, first, last)
        if width == 1 or values.size == 0:
            return values
        starts = np.arange(0, values.size, width)
        is_there = np.isfinite(values)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, values, 0.0), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


class PositionCounts:
    """Counts by position in the block, from 0. Grows by `extend`.

    Attributes:
        drafted: blocks that reached this far.
        tested: those in which all tokens before were accepted, so that this one was tested.
        accepted: those in which this token was accepted.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.drafted: list[int] = []
        self.tested: list[int] = []
        self.accepted: list[int] = []

    def __len__(self) -> int:
        return len(self.drafted)

    def extend(self, steps: Sequence[Step]) -> None:
        """Count steps behind those that are counted."""
        for step in steps:
            drafted, accepted = step.num_draft_tokens, step.num_accepted
            for column in (self.drafted, self.tested, self.accepted):
                column.extend([0] * (drafted - len(column)))
            for position in range(drafted):
                self.drafted[position] += 1
            for position in range(accepted):
                self.tested[position] += 1
                self.accepted[position] += 1
            if accepted < drafted:
                # The first one that was not kept was tested; those behind it were discarded.
                self.tested[accepted] += 1
        self.num_steps += len(steps)

    def unconditional(self, position: int) -> float:
        """Accepted / drafted at a position."""
        return self.accepted[position] / self.drafted[position]

    def conditional(self, position: int) -> float | None:
        """Accepted / tested: given that all before were accepted. None where none was tested."""
        tested = self.tested[position]
        return self.accepted[position] / tested if tested else None


COMPLETE = frozenset({FinishReason.LENGTH, FinishReason.EOS, FinishReason.STOP})
"""Ends that a run reaches by itself."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the tiles show; None where it is not known, or not yet."""

    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float | None = None
    acceptance: float | None = None
    predicted_acceptance: float | None = None
    block_efficiency: float | None = None
    speedup: float | None = None
    predicted_speedup: float | None = None
    baseline_tokens_per_second: float | None = None
    baseline_wanted: bool = False
    is_reproducible: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run as far as it has come. Never changes, so that another thread may write it out."""

    started: RunStarted
    steps: tuple[Step, ...]
    baseline_steps: tuple[Step, ...]
    summary: Summary | None

    def log(self) -> RunLog:
        """As a log to export. Takes a good part of a millisecond a step: not for the window's thread."""
        events: tuple[Event, ...] = (*self.steps, *map(BaselineStep, self.baseline_steps))
        head, *lines = [to_record(event) or {} for event in (self.started, *events)]
        summary = to_record(Finished(self.summary)) if self.summary is not None else None
        count = len(self.steps)
        return RunLog(head, lines[:count], summary, baseline_steps=lines[count:])


class RunView:
    """The state of one run, fed by `apply`.

    Attributes:
        steps, baseline_steps: as they came; while a run goes they are only added to, and given their evidence.
    """

    def __init__(self) -> None:
        self.tokens = TokenStream()
        self.metrics = StepMetrics()
        self.stage = ""
        self.request: RunRequest | None = None
        self.started: RunStarted | None = None
        self.prefill: PrefillDone | None = None
        self.summary: Summary | None = None
        self.baseline_tokens = 0
        self.baseline_ms = 0.0
        self.steps: list[Step] = []
        self.baseline_steps: list[Step] = []

    def begin(self, request: RunRequest) -> None:
        """Forget the run before and wait for this one's events."""
        self.request = request
        self.stage = ""
        self.started = self.prefill = self.summary = None
        self.baseline_tokens, self.baseline_ms = 0, 0.0
        self.steps, self.baseline_steps = [], []
        self.tokens.clear(request.prompt, request.coupling)
        self.metrics.clear(is_rejection=request.coupling is Coupling.REJECTION)

    def apply(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Step):
            self.steps.append(event)
            self.tokens.append(event)
            self.metrics.append(event)
            self.stage = ""
        elif isinstance(event, BaselineStep):
            self.baseline_steps.append(event.step)
            self.baseline_tokens += len(event.step.emitted)
            self.baseline_ms += event.step.total_ms
        elif isinstance(event, Inspected):
            self._add_evidence(event)
        elif isinstance(event, StageChanged):
            self.stage = event.text
        elif isinstance(event, RunStarted):
            self.started = event
            self.tokens.gap = "\n\n" if event.config.get("chat") else ""
            self.tokens.kept = str(event.config.get("continuation_text") or "")
            self.tokens.forced = str(event.config.get("forced_text") or "")
        elif isinstance(event, Drafted):
            self.tokens.draft(event)
        elif isinstance(event, PrefillDone):
            self.prefill = event
        elif isinstance(event, Finished):
            self.summary = event.summary
            self.tokens.pending = ()
            self.stage = ""

    def _add_evidence(self, event: Inspected) -> None:
        if event.index < len(self.steps) and (step := self.steps[event.index]).index == event.index:
            self.steps[event.index] = replace(step, evidence=event.evidence)

    @property
    def baseline_step_ms(self) -> float | None:
        """Mean time of a plain step; None until the baseline has run a little."""
        return self.baseline_ms / self.baseline_tokens if self.baseline_tokens else None

    @property
    def progress(self) -> float | None:
        """Share of the tokens asked for, from 0 to 1; None while nothing can be counted."""
        if self.request is None or (self.started is None and self.summary is None):
            return None
        if self.summary is not None and self.summary.finish_reason in COMPLETE:
            return 1.0
        if self.baseline_tokens:
            # At temperature 0 the baseline writes as many tokens as the run did; above it, this is only a guess.
            return min(1.0, self.baseline_tokens / max(1, self.tokens.num_tokens))
        return min(1.0, self.tokens.num_tokens / self.request.max_new_tokens)

    @property
    def figures(self) -> Figures:
        """The figures so far, or the run's own summary once it is there."""
        totals, summary = self.metrics.totals, self.summary
        wanted = self.request is not None and self.request.baseline
        live = Figures(
            tokens=totals.tokens,
            seconds=totals.total_ms / 1000,
            tokens_per_second=totals.tokens_per_second,
            acceptance=totals.draft_acceptance_rate,
            predicted_acceptance=totals.predicted_acceptance_rate,
            block_efficiency=totals.block_efficiency,
            baseline_tokens_per_second=1000 / self.baseline_step_ms if self.baseline_step_ms else None,
            baseline_wanted=wanted,
            is_reproducible=not self.metrics.is_rejection,
        )
        if summary is None:
            return live
        return Figures(
            tokens=summary.num_tokens,
            seconds=live.seconds,
            tokens_per_second=summary.tokens_per_second,
            acceptance=summary.draft_acceptance_rate,
            predicted_acceptance=live.predicted_acceptance,
            block_efficiency=summary.block_efficiency,
            speedup=summary.measured_speedup,
            predicted_speedup=summary.predicted_speedup,
            baseline_tokens_per_second=summary.baseline_tokens_per_second,
            baseline_wanted=wanted,
            is_reproducible=live.is_reproducible,
            is_over=True,
        )

    @property
    def outcome(self) -> str:
        """How the run ended, in a few words; empty while it goes."""
        if self.summary is None:
            return ""
        if self.summary.finish_reason is FinishReason.LENGTH and self._is_context_full(self.summary):
            return "Done: reached the end of the model's context"
        return {
            FinishReason.LENGTH: "Done: reached the length asked for",
            FinishReason.EOS: "Done: the model ended its text",
            FinishReason.STOP: "Done: met a stop text",
            FinishReason.CANCELLED: "Stopped",
            FinishReason.ERROR: "Failed",
        }[self.summary.finish_reason]

    def _is_context_full(self, summary: Summary) -> bool:
        return self.request is not None and summary.num_tokens < self.request.max_new_tokens

    def snapshot(self) -> RunSnapshot | None:
        """The run as far as it has come; None before a run has started."""
        if self.started is None:
            return None
        return RunSnapshot(self.started, tuple(self.steps), tuple(self.baseline_steps), self.summary)

    def log(self) -> RunLog | None:
        """The run as a log to export, as far as it has come; None before a run has started."""
        snapshot = self.snapshot()
        return snapshot.log() if snapshot is not None else None


PIECE = 1000
"""Steps that are read without a pause: a few milliseconds."""


class RunSums:
    """Reads a `RunView`, each step once.

    Attributes:
        steps, baseline: sums over the run's own steps, and over its baseline's.
    """

    def __init__(self, run: RunView) -> None:
        self._run = run
        self._steps, self.steps = run.steps, StepSums()
        self._baseline_steps, self.baseline = run.baseline_steps, StepSums()

    def forget_old(self) -> None:
        """Let go of the steps of a run that is no longer at hand."""
        run = self._run
        if self._steps is not run.steps:  # Another run.
            self._steps, self.steps = run.steps, StepSums()
        if self._baseline_steps is not run.baseline_steps:
            self._baseline_steps, self.baseline = run.baseline_steps, StepSums()

    def read(self) -> None:
        """Take in what has come."""
        for _ in self.pieces():
            pass

    def pieces(self) -> Generator[None]:
        """Take in what has come, so many steps at a time. Who stops in between loses nothing."""
        self.forget_old()
        for sums, steps in ((self.steps, self._steps), (self.baseline, self._baseline_steps)):
            while new := steps[sums.num_steps : sums.num_steps + PIECE]:
                for step in new:
                    sums.add(step)
                yield

    @property
    def has_much(self) -> bool:
        """Whether more has come than is to be read without a pause."""
        run = self._run
        read = self.steps.num_steps if self._steps is run.steps else 0
        baseline_read = self.baseline.num_steps if self._baseline_steps is run.baseline_steps else 0
        return len(run.steps) - read + len(run.baseline_steps) - baseline_read > PIECE

    @property
    def target_step_ms(self) -> float | None:
        """A plain forward of the target, timed before the run."""
        return self._run.prefill.target_step_ms if self._run.prefill is not None else None

    def plain(self) -> PlainStep | None:
        """What the run is held against, as far as is known."""
        return plain_step(self.baseline, self.target_step_ms, self._run.summary)
