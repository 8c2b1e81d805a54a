"""A session with known speeds, small plans, and a sweep's file and window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.controls import RunControls
from core.errors import GenerationError
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep import sweep
from core.experiments.sweep_plan import DrafterChoice, RunMeasured, SweepPlan
from core.settings import RunRequest
from core.types import Event, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Summary
from tests.fakes_cli import finished, step

DRAFT = DrafterChoice("draft-model", "D")


def plan_of(**changes: Any) -> SweepPlan:
    """Two values of K, one temperature, two prompts, two repeats: twelve runs, the baseline's included."""
    values = {
        "target": "T",
        "drafters": (DRAFT,),
        "num_draft_tokens": (1, 2),
        "temperatures": (0.0,),
        "prompts": (Prompt("one", "def f", suite="a"), Prompt("two", "def g", suite="b")),
        "repeats": 2,
        "max_new_tokens": 16,
    }
    return SweepPlan(**values | changes)


def by_k(request: RunRequest, is_plain: bool) -> float:
    """10 tokens per second of plain decoding, 10 more with each K."""
    return 10.0 if is_plain else 10.0 * (1 + (request.num_draft_tokens or 0))


@dataclass
class FakeSweepSession:
    """Answers with the speed that `speed` returns; `on_run` is called before each run, and may raise.

    Attributes:
        calls: (request, whether it was plain), of the runs that count.
        warm_ups: requests of those that don't, which are shorter.
    """

    speed: Callable[[RunRequest, bool], float] = by_k
    on_run: Callable[[RunRequest, RunControls], None] = lambda request, controls: None
    length: int = 16
    block_efficiency: float = 4.0
    calls: list[tuple[RunRequest, bool]] = field(default_factory=list)
    warm_ups: list[RunRequest] = field(default_factory=list)

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        is_plain = controls.num_draft_tokens == 0
        if request.max_new_tokens < self.length:
            self.warm_ups.append(request)
        else:
            self.calls.append((request, is_plain))
        yield StageChanged("Loading T…")
        if request.max_new_tokens >= self.length:
            self.on_run(request, controls)
        run_id = f"run-{len(self.calls)}"
        environment = {"device_name": "an abacus", "threads": 1, "process": 7}
        config = {"target": "T", "num_draft_tokens": request.num_draft_tokens, "method": request.method}
        yield RunStarted(run_id, "2026-01-02T03:04:05+00:00", "0.1.0", config, environment)
        yield StageChanged("Reading the prompt…")
        yield PrefillDone(3, 1.0, 2.0)
        yield step("a", "b")
        if controls.is_cancelled:
            yield Finished(finished("ab", FinishReason.CANCELLED).summary)
            return
        speed = self.speed(request, is_plain)
        figures = {"tokens_per_second": speed, "draft_acceptance_rate": None if is_plain else 0.5}
        yield finished("ab", **figures, block_efficiency=1.0 if is_plain else self.block_efficiency)

    def held_bytes(self, _device: str) -> int:
        return 0

    def close(self) -> None:
        """Nothing is loaded."""


def summary_with(speed: float, **changes: Any) -> Summary:
    """The figures of a run of this speed, as a sweep keeps them."""
    return finished("", tokens_per_second=speed, **changes).summary


def events_of(plan: SweepPlan, session: FakeSweepSession, **settings: Any) -> list[Any]:
    """The events of a whole sweep; its file goes."""
    with TemporaryDirectory() as folder:
        return list(sweep(plan, session.run, out=Path(folder) / "sweep.jsonl", **settings))


def measured(events: Iterable[Any]) -> list[Any]:
    """The runs among a sweep's events."""
    return [event.measurement for event in events if isinstance(event, RunMeasured)]


def fails_at(k: int, error: Exception | None = None):
    """For `on_run`: runs with this K fail."""

    def on_run(request, controls):
        if controls.num_draft_tokens == k:
            raise error or GenerationError("The draft ran out of memory.")

    return on_run


def keep_sweep(path: Path, plan: SweepPlan | None = None, engine: FakeSweepSession | None = None) -> Path:
    """Write a whole sweep's file, with the logs of its runs beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in sweep(plan or plan_of(), (engine or FakeSweepSession()).run, out=path, logs=path.with_suffix("")):
        pass
    return path


def choose_small(window, *, lengths: str = "1, 2", temperatures: str = "0"):
    """Open the window of sweeps and choose a small one: one prompt, two repeats."""
    window.menus.sweep.trigger()
    sweeps = window.sweep
    sweeps.form.lengths.setText(lengths)
    sweeps.form.temperatures.setText(temperatures)
    sweeps.form.repeats.setValue(2)
    sweeps.form.length.setValue(16)
    return sweeps
