"""View model of a run: `apply` takes the events, panels read the state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.run.run_counts import RunCounts, StepMetrics
from app.run.tokens import TokenStream
from core.analysis.diagnosis import PlainStep, plain_step
from core.runlog.log import RunLog, to_record
from core.settings import Coupling, RunRequest
from core.types import (
    BaselineStep,
    Drafted,
    Event,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    RunStarted,
    StageChanged,
    Step,
    Summary,
)


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A value ready to show: its name, how it is computed, and its 95 % interval if it has one."""

    title: str
    value: str
    how: str = ""
    interval: str = ""


COMPLETE = frozenset({FinishReason.LENGTH, FinishReason.EOS, FinishReason.STOP})
"""The ways in which a run ends by itself."""


@dataclass(frozen=True, slots=True)
class TileValues:
    """What the tiles show; None for a value that is not known yet."""

    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float | None = None
    acceptance: float | None = None
    predicted_acceptance: float | None = None
    block_efficiency: float | None = None
    speedup: float | None = None
    baseline_tokens_per_second: float | None = None
    baseline_wanted: bool = False
    is_reproducible: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A frozen snapshot of a run, which another thread can write."""

    started: RunStarted
    steps: tuple[Step, ...]
    baseline_steps: tuple[Step, ...]
    summary: Summary | None

    def log(self) -> RunLog:
        """The run as a log to export. Takes almost a millisecond per step, so call it in a job."""
        events: tuple[Event, ...] = (*self.steps, *map(BaselineStep, self.baseline_steps))
        head, *lines = [to_record(event) or {} for event in (self.started, *events)]
        summary = to_record(Finished(self.summary)) if self.summary is not None else None
        count = len(self.steps)
        return RunLog(head, lines[:count], summary, baseline_steps=lines[count:])


class RunView:
    """The state of one run, fed by `apply`. Its steps are append-only; evidence is added later."""

    def __init__(self) -> None:
        self.tokens = TokenStream()
        self.metrics = StepMetrics()
        self._counts = RunCounts()
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
        """Start with another run's events."""
        self.request = request
        self.stage = ""
        self.started = self.prefill = self.summary = None
        self.baseline_tokens, self.baseline_ms = 0, 0.0
        self.steps, self.baseline_steps = [], []
        self._counts = RunCounts()
        self.tokens = TokenStream(request.prompt, coupling=request.coupling, steps=self.steps)
        self.metrics.clear(is_rejection=request.coupling is Coupling.REJECTION)

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if isinstance(event, Step):
            self.steps.append(event)
            self.tokens.pending = ()
            self.metrics.append(event)
            self.stage = ""
        elif isinstance(event, BaselineStep):
            self.baseline_steps.append(event.step)
            self.baseline_tokens += len(event.step.emitted)
            self.baseline_ms += event.step.total_ms
        elif isinstance(event, Inspected):
            index = event.index
            if index < len(self.steps) and self.steps[index].index == index:
                self.steps[index] = replace(self.steps[index], evidence=event.evidence)
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

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return self.metrics.totals.tokens

    @property
    def baseline_step_ms(self) -> float | None:
        """Mean time of a plain step; None until the baseline has some steps."""
        return self.baseline_ms / self.baseline_tokens if self.baseline_tokens else None

    @property
    def progress(self) -> float | None:
        """Share of the requested tokens, from 0 to 1; None before anything can be counted."""
        if self.request is None or (self.started is None and self.summary is None):
            return None
        if self.summary is not None and self.summary.finish_reason in COMPLETE:
            return 1.0
        if self.baseline_tokens:
            # At temperature 0 the baseline writes as many tokens as the run; otherwise this is an estimate.
            return min(1.0, self.baseline_tokens / max(1, self.num_tokens))
        return min(1.0, self.num_tokens / self.request.max_new_tokens)

    @property
    def tile_values(self) -> TileValues:
        """The values so far, or those of the run's summary once it has arrived."""
        totals, summary = self.metrics.totals, self.summary
        live = TileValues(
            tokens=totals.tokens,
            seconds=totals.total_ms / 1000,
            tokens_per_second=totals.tokens_per_second,
            acceptance=totals.draft_acceptance_rate,
            predicted_acceptance=totals.predicted_acceptance_rate,
            block_efficiency=totals.block_efficiency,
            baseline_tokens_per_second=1000 / self.baseline_step_ms if self.baseline_step_ms else None,
            baseline_wanted=self.wants_baseline,
            is_reproducible=not self.metrics.is_rejection,
        )
        if summary is None:
            return live
        return replace(
            live,
            tokens=summary.num_tokens,
            tokens_per_second=summary.tokens_per_second,
            acceptance=summary.draft_acceptance_rate,
            block_efficiency=summary.block_efficiency,
            speedup=summary.measured_speedup,
            baseline_tokens_per_second=summary.baseline_tokens_per_second,
            is_over=True,
        )

    @property
    def wants_baseline(self) -> bool:
        """Whether the run measures its baseline."""
        return self.request is not None and self.request.baseline

    @property
    def coupling(self) -> Coupling:
        """How draft and target share their randomness."""
        return Coupling.REJECTION if self.request is None else self.request.coupling

    @property
    def counts(self) -> RunCounts:
        """The counts over the steps so far."""
        self._counts.read(self.steps, self.baseline_steps)
        return self._counts

    @property
    def target_step_ms(self) -> float | None:
        """A plain forward of the target, timed before the run."""
        return self.prefill.target_step_ms if self.prefill is not None else None

    @property
    def plain_step(self) -> PlainStep | None:
        """What the run is compared with, as far as known."""
        return plain_step(self.counts.baseline_sums, self.target_step_ms, self.summary)

    @property
    def outcome(self) -> str:
        """How the run ended, in a few words; empty while it is running."""
        if self.summary is None:
            return ""
        reason, wanted = self.summary.finish_reason, self.request.max_new_tokens if self.request is not None else 0
        if reason is FinishReason.LENGTH and self.summary.num_tokens < wanted:
            return "Done: reached the end of the model's context"
        return {
            FinishReason.LENGTH: "Done: reached the requested length",
            FinishReason.EOS: "Done: the model ended its text",
            FinishReason.STOP: "Done: reached a stop text",
            FinishReason.CANCELLED: "Stopped",
            FinishReason.ERROR: "Failed",
        }[reason]

    def snapshot(self) -> RunSnapshot | None:
        """The run so far; None before a run has started."""
        if self.started is None:
            return None
        return RunSnapshot(self.started, tuple(self.steps), tuple(self.baseline_steps), self.summary)

    def log(self) -> RunLog | None:
        """The run so far as a log to export; None before a run has started."""
        snapshot = self.snapshot()
        return snapshot.log() if snapshot is not None else None
