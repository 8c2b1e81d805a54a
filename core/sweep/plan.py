"""What a sweep measures: a plan, the cells of its grid, and the single runs that make it up."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core.draft_length import request_fields
from core.drafters.methods import get_method
from core.errors import SettingsError
from core.prompt_suites import Prompt
from core.types import MAX_DRAFT_TOKENS, Coupling, Device, DType, LengthPolicy, RunRequest, SamplingParams

POLICIES = tuple(policy for policy in LengthPolicy if policy is not LengthPolicy.FIXED)
"""What may stand in place of a K: "auto" and "adaptive"."""

MAX_RUNS = 200_000
"""Far beyond what anyone waits for; a larger grid is taken for a slip."""

ASK_ABOVE = 600
"""Runs that are left to do, above which a person is asked, once the first one has shown how long that takes."""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """One way to draft.

    Attributes:
        method: of the registry.
        draft: reference of the draft model; None for methods that need none.
        options: of the method.
    """

    method: str = "draft-model"
    draft: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """What a table calls it."""
        words = [f"{name.replace('_', '-')}={_word(value)}" for name, value in self.options.items()]
        return ":".join([self.draft or self.method, *words])


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid.

    Attributes:
        drafter: who drafts; None for plain decoding, the baseline.
        num_draft_tokens: K; a word of `POLICIES` where it is chosen as the run goes; 0 for the baseline.
        temperature: in force.
    """

    drafter: DrafterChoice | None
    num_draft_tokens: int | str
    temperature: float

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is drafted here."""
        return self.drafter is None

    @property
    def title(self) -> str:
        """What a sentence calls it, but for its temperature."""
        return "plain decoding" if self.drafter is None else f"K = {self.num_draft_tokens} with {self.drafter.title}"


class PlannedRun(NamedTuple):
    """One run of a cell. `prompt` is an index into the plan's prompts; `repeat` counts from 0."""

    cell: Cell
    prompt: int
    repeat: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """All that decides what a sweep measures.

    Attributes:
        target: reference of the target.
        drafters: who drafts, one after the other in the grid.
        num_draft_tokens: the values of K: whole numbers, or words of `POLICIES`.
        temperatures: each with a baseline of its own.
        prompts: what is continued.
        repeats: runs of each cell on each prompt.
        max_new_tokens: longest text of a run; an end of text ends it earlier.
        seed: of the order, and of the first run; runs of one prompt and repeat share a seed across the cells.
        coupling, top_k, top_p, min_p, chat, device, dtype: as in `RunRequest`, the same for every cell.

    Raises:
        SettingsError: a value out of range, or a grid that holds nothing, or too much.
    """

    target: str
    drafters: tuple[DrafterChoice, ...]
    num_draft_tokens: tuple[int | str, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    repeats: int = 3
    max_new_tokens: int = 64
    seed: int = 0
    coupling: Coupling = Coupling.REJECTION
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    chat: bool | None = None
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO

    def __post_init__(self) -> None:
        _check(bool(self.drafters), "The sweep is empty: name a draft or a method.")
        _check(bool(self.num_draft_tokens), "The sweep is empty: name at least one K.")
        _check(bool(self.temperatures), "The sweep is empty: name at least one temperature.")
        _check(bool(self.prompts), "The sweep is empty: name at least one prompt.")
        _check(self.repeats >= 1, f"The number of repeats must be 1 or more, not {self.repeats}.")
        # What is drawn in a run must stay within a seed's range too.
        _check(0 <= self.seed < 2**31, f"The seed must be from 0 to 2^31 - 1, not {self.seed}.")
        for k in self.num_draft_tokens:
            _check_k(k)
        for name in ("drafters", "num_draft_tokens", "temperatures"):
            values = getattr(self, name)
            _check(len(set(values)) == len(values), f"The sweep names one of its {_SAID[name]} twice.")
        for drafter in self.drafters:
            method = get_method(drafter.method)
            _check(
                (drafter.draft is not None) == method.needs_draft_model,
                f"The method {method.name} needs a draft model; name one."
                if method.needs_draft_model
                else f"The method {method.name} uses no draft model; leave {drafter.draft!r} out.",
            )
        for temperature in self.temperatures:
            self.sampling(temperature)
        _check(
            self.num_runs <= MAX_RUNS,
            f"The sweep has {self.num_runs:,} runs, more than {MAX_RUNS:,}; take fewer K, temperatures, prompts or "
            "repeats.",
        )
        self.request(PlannedRun(next(self.cells()), 0, 0))

    def cells(self) -> Iterator[Cell]:
        """The grid without its baselines, drafter by drafter, then by temperature, then by K."""
        for drafter in self.drafters:
            for temperature in self.temperatures:
                for k in self.num_draft_tokens:
                    yield Cell(drafter, k, temperature)

    def baselines(self) -> Iterator[Cell]:
        """Plain decoding at each temperature."""
        for temperature in self.temperatures:
            yield Cell(None, 0, temperature)

    @property
    def num_cells(self) -> int:
        """Cells of the grid without the baselines."""
        return len(self.drafters) * len(self.num_draft_tokens) * len(self.temperatures)

    @property
    def num_runs(self) -> int:
        """Runs of all cells, the baselines' included."""
        return (self.num_cells + len(self.temperatures)) * len(self.prompts) * self.repeats

    def order(self) -> list[PlannedRun]:
        """Every run, in the order in which it is measured: within each repeat all runs are shuffled.

        A machine that grows slower then weighs on every cell alike, and after the first repeat each cell has a figure.
        """
        cells = [*self.baselines(), *self.cells()]
        shuffled: list[PlannedRun] = []
        for repeat in range(self.repeats):
            turn = [PlannedRun(cell, prompt, repeat) for cell in cells for prompt in range(len(self.prompts))]
            random.Random(f"{self.seed}/{repeat}").shuffle(turn)
            shuffled += turn
        return shuffled

    def seed_of(self, run: PlannedRun) -> int:
        """The seed of one run: that of all cells on this prompt in this repeat."""
        return self.seed + run.repeat * len(self.prompts) + run.prompt

    def sampling(self, temperature: float) -> SamplingParams:
        """The sampler of every cell at a temperature, the baseline's as well."""
        return SamplingParams(temperature, self.top_k, self.top_p, self.min_p)

    def request(self, run: PlannedRun) -> RunRequest:
        """The request that carries out one run. A baseline's needs controls whose K is 0 beside it."""
        # Looking things up in the prompt takes no second model, and at K = 0 it is never asked.
        drafter = run.cell.drafter or DrafterChoice("prompt-lookup")
        length = LengthPolicy.AUTO if run.cell.is_baseline else run.cell.num_draft_tokens
        return RunRequest(
            target=self.target,
            draft=drafter.draft,
            prompt=self.prompts[run.prompt].text,
            method=drafter.method,
            method_options=dict(drafter.options),
            **request_fields(length if isinstance(length, int) else LengthPolicy(length)),
            sampling=self.sampling(run.cell.temperature),
            seed=self.seed_of(run),
            coupling=self.coupling,
            max_new_tokens=self.max_new_tokens,
            chat=self.chat,
            device=self.device,
            dtype=self.dtype,
        )


_SAID = {"drafters": "drafters", "num_draft_tokens": "values of K", "temperatures": "temperatures"}


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise SettingsError(sentence)


def _check_k(k: int | str) -> None:
    is_number = isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= MAX_DRAFT_TOKENS
    _check(
        is_number or k in POLICIES,
        f"K must be a whole number from 1 to {MAX_DRAFT_TOKENS}, or {' or '.join(POLICIES)}, not {k!r}.",
    )
