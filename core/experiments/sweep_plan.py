"""What a sweep measures: its grid of drafters, K and temperatures, its runs in shuffled order, and its events."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from core.analysis.steadiness import impossible_note
from core.draft_length import DraftLength, parse_draft_length, request_fields
from core.drafters.registry import METHODS, get_method, rule_problem
from core.errors import PairMismatchError, SettingsError
from core.experiments.bench_plan import Spread, option_text
from core.experiments.prompt_suites import Prompt
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.settings import (
    Coupling,
    Device,
    DType,
    LengthPolicy,
    RunRequest,
    SamplingParams,
    VerificationRule,
    setting,
    validate,
)
from core.types import StageChanged, Summary

MAX_RUNS = 200_000
"""More than anyone would wait for; a larger grid is considered a mistake."""

SHAPE_OPTIONS = ("depth", "branching", "rule")
"""Options of a method that, with K, make the shape of a tree."""

ASK_ABOVE = 600
"""Remaining runs above which the user is asked, once the first one has shown how long they take."""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """One way to draft: a method, the draft model's reference where it needs one, and the method's options."""

    method: str = "draft-model"
    draft: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """Its name in tables."""
        if self.draft is None or self.method == "draft-model":
            return option_text(self.draft or self.method, self.options)
        # The same draft may draft chains and trees. With spaces, since this is long.
        return option_text(f"{self.draft}, {self.method}", self.options, " ")

    @property
    def shape(self) -> dict[str, Any]:
        """The options that shape a tree, the defaults among them; None for other methods."""
        options = {**asdict(get_method(self.method).parse()), **self.options} if self.method in METHODS else {}
        return {name: options.get(name) for name in SHAPE_OPTIONS}

    def to_record(self) -> dict[str, Any]:
        """As stored in files."""
        return {"method": self.method, "draft": self.draft, "method_options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid. The baseline, plain decoding, has no drafter and K = 0."""

    drafter: DrafterChoice | None
    num_draft_tokens: DraftLength
    temperature: float

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is drafted here."""
        return self.drafter is None

    @property
    def title(self) -> str:
        """Its name in sentences, without its temperature."""
        return "plain decoding" if self.drafter is None else f"K = {self.num_draft_tokens} with {self.drafter.title}"

    def to_record(self) -> dict[str, Any]:
        """As stored in lines and tables; the baseline's method is "plain"."""
        return {
            **(self.drafter or DrafterChoice("plain")).to_record(),
            "num_draft_tokens": self.num_draft_tokens,
            "temperature": self.temperature,
        }


class PlannedRun(NamedTuple):
    """One run of a cell. `prompt` is an index into the plan's prompts; `repeat` counts from 0."""

    cell: Cell
    prompt: int
    repeat: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything that a sweep measures: a grid of drafters, K and temperatures, on each prompt, several times.

    Each temperature has a baseline. seed is that of the order and of the first run; runs of one prompt and repeat
    share a seed across the cells. The other settings are those of `RunRequest`.

    Raises:
        SettingsError: a value out of range, or an empty or too large grid.
    """

    target: str
    drafters: tuple[DrafterChoice, ...]
    num_draft_tokens: tuple[DraftLength, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    repeats: int = setting(3, label="The number of repeats", min=1)
    max_new_tokens: int = 64
    seed: int = setting(0, label="The seed", min=0, max=2**31 - 1)  # The seeds of its runs stay within a seed's range.
    coupling: Coupling = Coupling.REJECTION
    verification: VerificationRule = VerificationRule.TOKEN
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    chat: bool | None = None
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO
    system: str = ""

    def __post_init__(self) -> None:
        for name, one, many in (
            ("drafters", "a draft or a method", "drafters"),
            ("num_draft_tokens", "at least one K", "values of K"),
            ("temperatures", "at least one temperature", "temperatures"),
            ("prompts", "at least one prompt", ""),
        ):
            values = getattr(self, name)
            _check(bool(values), f"The sweep is empty: name {one}.")
            _check(not many or len(set(values)) == len(values), f"The sweep lists one of its {many} twice.")
        validate(self)
        for k in self.num_draft_tokens:
            parse_draft_length(str(k))  # It refuses 0: the baseline has its own cells.
        # A file may hold methods that aren't installed here, as a class of the user's own; `sweep` refuses them.
        for drafter in (item for item in self.drafters if item.method in METHODS):
            needs_draft = get_method(drafter.method).needs_draft_model
            _check(
                (drafter.draft is not None) == needs_draft,
                f"The method {drafter.method} needs a draft model; name one."
                if needs_draft
                else f"The method {drafter.method} uses no draft model; leave {drafter.draft!r} out.",
            )
            problem = rule_problem(drafter.method, self.coupling, self.verification)
            _check(not problem, problem)
        for temperature in self.temperatures:
            self.sampling(temperature)
        _check(
            self.num_runs <= MAX_RUNS,
            f"The sweep has {self.num_runs:,} runs, more than {MAX_RUNS:,}; use fewer values of K, temperatures, "
            "prompts or repeats.",
        )
        self.request(PlannedRun(next(self.cells()), 0, 0))

    def cells(self) -> Iterator[Cell]:
        """The grid without its baselines, by drafter, then by temperature, then by K."""
        for drafter in self.drafters:
            for temperature in self.temperatures:
                for k in self.num_draft_tokens:
                    yield Cell(drafter, k, temperature)

    def baselines(self) -> Iterator[Cell]:
        """Plain decoding at each temperature."""
        return (Cell(None, 0, temperature) for temperature in self.temperatures)

    @property
    def is_lossy(self) -> bool:
        """Whether the texts don't follow the target's distribution."""
        return self.verification == VerificationRule.TYPICAL

    @property
    def num_cells(self) -> int:
        """Number of cells without the baselines."""
        return len(self.drafters) * len(self.num_draft_tokens) * len(self.temperatures)

    @property
    def num_runs(self) -> int:
        """Number of runs of all cells, including the baselines."""
        return (self.num_cells + len(self.temperatures)) * len(self.prompts) * self.repeats

    def is_long(self, num_done: int = 0) -> bool:
        """Whether enough runs remain that the user is asked to confirm after the first one."""
        return self.num_runs - num_done > ASK_ABOVE

    def order(self) -> list[PlannedRun]:
        """Every run, in the order in which it is measured: shuffled within each repeat.

        A machine that slows down then affects every cell alike, and after the first repeat each cell has a result.
        """
        cells = [*self.baselines(), *self.cells()]
        shuffled: list[PlannedRun] = []
        for repeat in range(self.repeats):
            turn = [PlannedRun(cell, prompt, repeat) for cell in cells for prompt in range(len(self.prompts))]
            random.Random(f"{self.seed}/{repeat}").shuffle(turn)
            shuffled += turn
        return shuffled

    def sampling(self, temperature: float) -> SamplingParams:
        """The sampling of every cell at a temperature, the baseline's as well."""
        return SamplingParams(temperature, self.top_k, self.top_p, self.min_p)

    def request(self, run: PlannedRun) -> RunRequest:
        """The request of one run. A baseline's needs controls whose K is 0 beside it."""
        # Prompt lookup takes no second model, and at K = 0 it is never asked.
        drafter = run.cell.drafter or DrafterChoice("prompt-lookup")
        length = LengthPolicy.AUTO if run.cell.is_baseline else run.cell.num_draft_tokens
        return RunRequest(
            target=self.target,
            draft=drafter.draft,
            prompt=self.prompts[run.prompt].text,
            method=drafter.method,
            method_options=dict(drafter.options),
            **request_fields(length),
            sampling=self.sampling(run.cell.temperature),
            seed=self.seed + run.repeat * len(self.prompts) + run.prompt,
            coupling=self.coupling,
            verification=self.verification,
            max_new_tokens=self.max_new_tokens,
            chat=self.chat,
            system=self.system,
            device=self.device,
            dtype=self.dtype,
        )


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise SettingsError(sentence)


def check_models(plan: SweepPlan) -> None:
    """Check before the first run that every model exists and every draft suits the target.

    Raises:
        OutriderError: in one sentence.
    """
    target = resolve(plan.target)
    for drafter in plan.drafters:
        if drafter.draft is not None and (problem := pair_problem(resolve(drafter.draft).ref, target.ref)) is not None:
            raise PairMismatchError(problem)


SUMMARY_FIELDS = (
    "finish_reason", "num_tokens", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
    "num_accepted_tokens_per_pos", "draft_acceptance_rate", "expected_acceptance_rate", "block_efficiency",
    "cost_coefficient", "tokens_per_second", "target_step_ms", "prefill_ms", "predicted_speedup", "peak_memory_mb",
    "num_threads",
)  # fmt: skip
"""What a sweep's file keeps of a run's `core.types.Summary`."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run that has ended, with a summary (without the text) or an error.

    index counts runs in the order measured, seconds include loading. unsteadiness is the spread of its equal steps'
    times, see `core.analysis.steadiness`; None in older files, and of few steps.
    """

    run: PlannedRun
    index: int
    seed: int
    started_at: str
    seconds: float
    summary: Summary | None = None
    error: str | None = None
    run_id: str | None = None
    log: Path | None = None
    unsteadiness: float | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell's results over its prompts and repeats; None if no run has the figure. measurements include failed runs.

    speedup is tokens per second against the baseline run of the same prompt and temperature that is nearest in time.
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
        """Runs that did not fail."""
        return sum(item.summary is not None for item in self.measurements)

    @property
    def problem(self) -> str:
        """What speaks against its speedup: more than its tokens per forward allow. Empty for any other."""
        if self.speedup is None or self.block_efficiency is None:
            return ""
        return impossible_note(self.speedup.median, self.block_efficiency.median)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why its runs failed, each sentence once."""
        return tuple(dict.fromkeys(item.error for item in self.measurements if item.error is not None))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep says to do at one temperature.

    is_sure: whether a 95 % bootstrap interval of the best cell's median speedup excludes 1; None where there are too
    few runs to say. The interval does not account for the choice of the best cell, which the sentence says of more than
    two. is_ahead: whether the best cell surely leads the runner-up. was_busy: whether the
    machine was busy in enough of the runs to affect the verdict. is_partial: whether runs of the plan are missing.
    """

    temperature: float
    sentence: str
    best: CellResult | None = None
    speculates: bool = False
    is_sure: bool | None = None
    is_ahead: bool = False
    was_busy: bool = False
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class SweepStarted:
    """First event: what earlier sessions did, the baselines' results first, and what is wrong with the file."""

    plan: SweepPlan
    num_done: int
    results: tuple[CellResult, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """A run has ended, successfully or not; results are those of the cells that this changed."""

    measurement: Measurement
    results: tuple[CellResult, ...]
    num_done: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class FileFailed:
    """The sweep's file, or a run's log, can't be written. The sweep continues; lines are kept and retried."""

    sentence: str


@dataclass(frozen=True, slots=True)
class SweepFinished:
    """Last event; not complete where the sweep was stopped. num_unsaved runs are not in the file."""

    is_complete: bool
    results: tuple[CellResult, ...]
    verdicts: tuple[Verdict, ...]
    num_unsaved: int = 0


SweepEvent = SweepStarted | StageChanged | RunMeasured | FileFailed | SweepFinished
