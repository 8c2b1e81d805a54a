"""View model of a run: `apply` takes the events, panels read the state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from app.run.text.tokens import TokenStream
from core.analysis.advice import MAX_LOOKUP_TOKENS, Advice, advise
from core.analysis.diagnosis import LEAST_BLOCKS, Diagnosis, PlainStep, plain_step
from core.analysis.run_counts import RunCounts
from core.analysis.steadiness import absence_note, busy_note, interval_text, speedup_interval
from core.analysis.theory import SpeedupTheory
from core.draft_length import DraftLength, config_fields, lengths_of
from core.drafters.registry import METHODS
from core.runlog.log import to_record
from core.runlog.reading import RunLog, number_of
from core.runlog.tally import Tally
from core.settings import TYPICAL_FIELDS, Coupling, LengthPolicy, RunRequest, is_lossy
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
    StepsCounted,
    StepSource,
    Summary,
)


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A value ready to show: its name, its 95 % interval if it has one, and how it is computed."""

    title: str
    value: str
    interval: str = ""
    how: str = ""


COMPLETE = frozenset({FinishReason.LENGTH, FinishReason.EOS, FinishReason.STOP})
"""The ways in which a run ends on its own."""


def log_of(started: RunStarted, steps: Sequence[Step], plain: Sequence[Step], summary: Summary | None) -> RunLog:
    """A run as a log to export. Takes almost a millisecond per step, so call it in a job."""
    events: tuple[Event, ...] = (started, *steps, *map(BaselineStep, plain))
    head, *lines = [to_record(event) or {} for event in events]
    end = to_record(Finished(summary)) if summary is not None else None
    return RunLog(head, lines[: len(steps)], end, baseline_steps=lines[len(steps) :])


class RunView:
    """The state of one run, fed by `apply`. Steps are only added; their evidence, and counts that a server
    reports at the end, come later.

    Attributes:
        counts, baseline: what is counted over its steps, and over those of its baseline.
        previous: the counts of the run shown before, maybe of another draft; None if there was none, or if it had
            another target.
        prefill, summary: None until they have arrived.
    """

    request: RunRequest | None = None
    previous: RunCounts | None = None

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.stage = ""
        self.started: RunStarted | None = None
        self.prefill: PrefillDone | None = None
        self.summary: Summary | None = None
        self.steps: list[Step] = []
        self.baseline_steps: list[Step] = []
        self.counts, self.baseline = RunCounts(), RunCounts()
        self.tokens = TokenStream(steps=self.steps)
        self._judged: tuple[Summary, str] | None = None
        """A summary and its `busy_note`: several panels ask, and in a long run each answer takes a frame's time."""

    def begin(self, request: RunRequest) -> None:
        """Start with another run's events."""
        last = self.request
        if last is None or (last.engine, last.target) != (request.engine, request.target):
            self.previous = None
        elif len(self.counts):  # A line has two points.
            self.previous = self.counts if len(self.counts) > 1 else None
        self._clear()
        self.request = request
        self.tokens.prompt, self.tokens.coupling = request.prompt, request.coupling

    def apply(self, event: Event) -> None:
        """Apply one event."""
        if isinstance(event, Step):
            self.steps.append(event)
            self.tokens.pending = ()
            self.counts.add(event)
            self.stage = ""
        elif isinstance(event, StepsCounted):
            self.steps[:] = event.applied(self.steps)
            self.counts = RunCounts()
            for step in self.steps:
                self.counts.add(step)
        elif isinstance(event, BaselineStep):
            self.baseline_steps.append(event.step)
            self.baseline.add(event.step)
        elif isinstance(event, Inspected):
            index = event.index
            if index < len(self.steps) and self.steps[index].index == index:
                self.steps[index] = replace(self.steps[index], evidence=event.evidence)
                self.tokens.inspected.append(index)
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
            self.tokens.steps, self.tokens.pending = event.summary.shown(self.steps), ()
            self.stage = ""

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that the run started with; empty before that."""
        return self.started.config if self.started is not None else {}

    def advice(self, found: Diagnosis, theory: SpeedupTheory | None = None) -> list[Advice]:
        """What to change, the most promising first."""
        emitted = list(islice((token for step in self.steps for token in step.emitted), MAX_LOOKUP_TOKENS))
        latest = self._latest_length
        config = self.config if latest is None else {**self.config, **config_fields(latest)}
        return advise(self.counts.sums, found, config, emitted, theory)

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return self.counts.sums.tokens

    @property
    def baseline_step_ms(self) -> float | None:
        """Mean time of a plain step; None until the baseline has some steps."""
        plain = self.baseline.sums
        return plain.total_ms / plain.tokens if plain.tokens else None

    @property
    def source_text(self) -> str:
        """How the steps of a run on a server are known; empty for a run on this machine."""
        sources = {step.source for step in self.steps}
        if StepSource.TEXT in sources:
            return "some steps unknown" if StepSource.SERVER in sources else "steps unknown"
        if StepSource.CHUNKS in sources:
            is_counted = self.summary is not None and self.summary.source is StepSource.SERVER
            return "some steps inferred" if is_counted or StepSource.SERVER in sources else "steps inferred"
        return "steps as the server counts them" if StepSource.SERVER in sources else ""

    @property
    def predicted_acceptance(self) -> float | None:
        """See `Tally.predicted_rate`."""
        return None if self.is_lossy else self.counts.sums.predicted_rate

    @property
    def is_on_server(self) -> bool:
        """Whether the run is a server's."""
        return self.request is not None and bool(self.request.engine)

    @property
    def drafts_trees(self) -> bool:
        """Whether it drafts trees: by what it has drafted, and before its first block by its method."""
        if self.counts.sums.num_blocks or self.request is None or self.is_on_server:
            return self.counts.sums.is_tree
        method = METHODS.get(self.request.method)
        return method is not None and method.proposes_trees

    @property
    def wants_baseline(self) -> bool:
        """Whether the run measures its baseline."""
        return self.request is not None and self.request.baseline

    @property
    def coupling(self) -> Coupling:
        """How draft and target share their randomness."""
        return Coupling.REJECTION if self.request is None else self.request.coupling

    @property
    def length_policy(self) -> LengthPolicy | None:
        """What chooses K, by the latest step if it was changed; None if it is fixed, or a server's."""
        if self.request is None or self.is_on_server:
            return None
        latest = self._latest_length
        length = self.request.draft_length if latest is None else latest
        return length if isinstance(length, LengthPolicy) else None

    @property
    def _latest_length(self) -> DraftLength | None:
        return self.steps[-1].draft_length if self.steps else None

    @property
    def lengths(self) -> set[DraftLength]:
        """K, or the policy that chose it, as recorded by the steps, or else as requested; several if it was changed."""
        requested = set() if self.request is None else {self.request.draft_length}
        return lengths_of(self.steps) or requested

    @property
    def temperatures(self) -> set[float]:
        """In force for the steps, as far as recorded; several if it was changed."""
        return {step.temperature for step in self.steps if not math.isnan(step.temperature)}

    @property
    def is_lossy(self) -> bool:
        """Whether the text doesn't follow the target's distribution."""
        return (self.request is not None and self.request.is_lossy) or is_lossy(self.config)

    @property
    def typical(self) -> tuple[float, float] | None:
        """Floor and share of typical acceptance's threshold; None if the run doesn't say."""
        floor, share = (number_of(self.config.get(name)) for name in TYPICAL_FIELDS)
        return None if floor is None or share is None else (floor, share)

    def file_prefix(self) -> str:
        """The start of this run's file names; empty before it has started."""
        return "" if self.started is None else f"{self.started.run_id}-{'lossy-' if self.is_lossy else ''}"

    @property
    def target_step_ms(self) -> float | None:
        """A plain forward of the target, timed before the run or in its first plain step."""
        if self.prefill is not None and self.prefill.target_step_ms is not None:
            return self.prefill.target_step_ms
        plain = (step for step in self.steps if not step.num_draft_tokens and step.source is None)
        return next((step.verify_ms for step in plain), None)

    @property
    def was_stepped(self) -> bool:
        """Whether the run is over, and its steps were taken one by one."""
        return self.summary is not None and self.summary.was_stepped

    @property
    def measured_speedup(self) -> float | None:
        """See `Summary`; None before the end."""
        return None if self.summary is None else self.summary.measured_speedup

    @property
    def interval(self) -> str:
        """The 95 % interval of the measured speedup in words; empty if there is none."""
        return interval_text(speedup_interval(self.counts.sums, self.baseline.sums)) if self.summary else ""

    @property
    def absence_note(self) -> str:
        """A sentence about time in which the machine slept; empty if it didn't."""
        return absence_note(self.counts.sums, self.baseline.sums)

    @property
    def busy_note(self) -> str:
        """A sentence if the machine was busy during the run or its baseline; empty if not."""
        if self.summary is None:
            return ""
        if self._judged is None or self._judged[0] is not self.summary:
            self._judged = self.summary, busy_note(self.counts.sums, self.baseline.sums, self.summary)
        return self._judged[1]

    @property
    def plain_step(self) -> PlainStep | None:
        """What the run is compared with, as far as known; measured once its baseline has finished."""
        sums, baseline = self.counts.sums, self.baseline.sums
        if self.summary is None and baseline.tokens < LEAST_BLOCKS:
            baseline = Tally()
        found = plain_step(baseline, self.target_step_ms, self.summary)
        if found is None or (self.summary is not None and found.is_measured):
            return found
        # A step that drafts includes a forward: one that took longer, before the run, was slowed by something else.
        is_over = self.summary is not None and sums.num_blocks > 0
        is_slow = is_over and found.is_one_forward and found.total_ms * sums.num_steps > sums.total_ms
        return None if is_slow else replace(found, is_measured=False)

    @property
    def outcome(self) -> tuple[str, str]:
        """How the run ended, in a few words, and in as few as can be; empty while it is running."""
        if self.summary is None:
            return "", ""
        reason, wanted = self.summary.finish_reason, self.request.max_new_tokens if self.request is not None else 0
        if reason not in COMPLETE:
            ending = "Stopped" if reason is FinishReason.CANCELLED else "Failed"
            return ending, ending
        whole, short = "Done: reached a stop text", "Done: stop text"
        if reason is FinishReason.EOS:
            whole, short = "Done: the model ended its text", "Done: end of text"
        elif reason is FinishReason.LENGTH:
            whole, short = "Done: reached the requested length", "Done"
            if self.summary.num_tokens < wanted:
                whole, short = "Done: reached the end of the model's context", "Done: context full"
                if self.is_on_server:  # Which may have a limit of its own.
                    whole, short = "Done: stopped at the server's own length limit", "Done: server's limit"
        baseline = ""
        if self.wants_baseline and not self.summary.has_baseline:
            baseline = f" · baseline {'failed' if self.summary.error else 'stopped'}"
        return whole + baseline, short + baseline

    def past_events(self) -> tuple[Event, ...]:
        """What `apply` needs to show this run again, evidence included; empty before it has started."""
        if self.started is None:
            return ()
        between = () if self.prefill is None else (self.prefill,)
        end = () if self.summary is None else (Finished(self.summary),)
        return (self.started, *between, *self.steps, *map(BaselineStep, self.baseline_steps), *end)

    def snapshot(self) -> Callable[[], RunLog] | None:
        """A function that makes a log of the run so far, in any thread; None before a run has started."""
        if self.started is None:
            return None
        return partial(log_of, self.started, tuple(self.steps), tuple(self.baseline_steps), self.summary)
