"""Everything the window knows about the run at hand: events go in, panels read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.view_models.metrics import StepMetrics
from app.view_models.token_stream import TokenStream
from core.trace import RunLog, to_record
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
