"""Runs a sweep's plan in shuffled order, and keeps every result."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.analysis.steadiness import unsteadiness
from core.controls import RunControls
from core.drafters.registry import get_method
from core.errors import OutriderError, PromptError, RunLogError, first_line
from core.experiments.sweep_file import SweepFile, now
from core.experiments.sweep_plan import (
    Cell,
    FileFailed,
    Measurement,
    PlannedRun,
    RunMeasured,
    SweepEvent,
    SweepFinished,
    SweepPlan,
    SweepStarted,
)
from core.experiments.sweep_results import SweepResults, verdicts
from core.files import explain_write_error, write_atomically
from core.runlog.log import event_line
from core.runlog.tally import Tally
from core.settings import RunRequest
from core.types import Event, Finished, FinishReason, RunStarted, StageChanged, Step, Summary

_log = logging.getLogger(__name__)

WARM_UP_TOKENS = 8
"""New tokens of a warm-up run, which loads a model and fills its caches."""

HOPELESS = 5
"""Failed runs after which a cell without a success is abandoned."""


RunRequests = Callable[[RunRequest, RunControls], Iterator[Event]]
"""`core.session.Session.run`."""


def sweep(
    plan: SweepPlan,
    run: RunRequests,
    *,
    out: Path,
    logs: Path | None = None,
    controls: RunControls | None = None,
    restart: bool = False,
) -> Generator[SweepEvent, None, None]:
    """Measure those runs of a plan that are not in the file yet.

    Closing the generator stops it like `controls`, but without the last event. Runs are appended to the file `out`,
    from which an earlier session is continued unless `restart`; a run's log is written to the folder `logs` at its end.

    Yields:
        `SweepStarted`; `StageChanged` while models load; `RunMeasured` for each run, `FileFailed` where something
        can't be written; and `SweepFinished`, also when stopped through `controls`.

    Raises:
        RunLogError: `out` holds something other than this sweep, was measured on another device, or can't be written;
            before any run counts; or the plan's prompts are too long for it.
        OutriderError: there is no such method, or the target can't be loaded.
    """
    for drafter in plan.drafters:
        get_method(drafter.method)
    file = SweepFile(out, plan, restart=restart)
    try:
        yield from _Sweep(file.plan, run, file, logs, controls or RunControls()).events()
    finally:
        file.close()


class _Sweep:
    def __init__(
        self, plan: SweepPlan, run: RunRequests, file: SweepFile, logs: Path | None, controls: RunControls
    ) -> None:
        self._plan, self._run, self._file, self._logs, self._controls = plan, run, file, logs, controls
        self._results = SweepResults(plan, file.measurements)
        self._next_index = max((item.index for item in file.measurements), default=-1) + 1
        # Failed runs are tried again: the memory that was missing may be free by now.
        self._todo = [run for run in plan.order() if not self._results.is_measured(run)]
        self._failures: Counter[Cell] = Counter()
        self._num_skipped = 0
        """Runs of cells that were given up."""
        self._environment: dict[str, Any] = {}
        self._seconds: list[float] = []
        self._reported: set[str] = set()

    def events(self) -> Iterator[SweepEvent]:
        plan, file = self._plan, self._file
        yield SweepStarted(plan, plan.num_runs - len(self._todo), self._results.all(), tuple(file.problems))
        yield from self._warm_up()
        while self._todo and not self._controls.is_cancelled:
            measurement = yield from self._measure(self._todo[0])
            if measurement is None:
                break
            del self._todo[0]
            yield from self._keep(measurement)
        file.close()
        yield SweepFinished(not self._todo, self._results.all(), verdicts(self._results), file.num_unsaved)

    def _warm_up(self) -> Iterator[SweepEvent]:
        """Runs that don't count, one for plain decoding and each drafter: models load, and kernels are compiled.

        Raises:
            OutriderError: the target can't be loaded, so that no cell could be measured.
        """
        drafting = {run.cell.drafter: run for run in reversed(self._todo) if run.cell.drafter is not None}
        plain = [run._replace(cell=Cell(None, 0, run.cell.temperature)) for run in self._todo[:1]]
        for run in [*plain, *drafting.values()]:
            request = self._plan.request(run)
            request = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            try:
                for event in self._events_of(request, self._controls_of(request, run.cell)):
                    if isinstance(event, RunStarted):
                        yield StageChanged("Warming up…")
                    elif isinstance(event, StageChanged):
                        yield event
            except PromptError:
                pass  # Another prompt may fit; this one's own runs report that it doesn't.
            except Exception:
                if run.cell.is_baseline:
                    raise
                _log.debug("a drafter's warm-up failed", exc_info=True)  # Its cells will report it.
            if self._controls.is_cancelled:
                return
        yield StageChanged("")

    def _controls_of(self, request: RunRequest, cell: Cell) -> RunControls:
        return self._controls.sharing_stop(request.sampling, 0 if cell.is_baseline else request.draft_length)

    def _events_of(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """A run's events, without stages once it has started.

        Raises:
            RunLogError: the file's runs were measured on another device, whose times can't be mixed with these.
        """
        has_started = False
        for event in self._run(request, controls):
            if isinstance(event, RunStarted):
                has_started = True
                self._environment = {name: value for name, value in event.environment.items() if name != "process"}
                here = event.environment.get("device_name")
                if self._file.device_name not in {None, here}:
                    raise RunLogError(
                        f"{str(self._file.path)!r} was measured on {self._file.device_name}, and this is {here}; name "
                        "another file, or start this one over with --restart."
                    )
            if not (has_started and isinstance(event, StageChanged)):
                yield event

    def _measure(self, run: PlannedRun) -> Generator[SweepEvent, None, Measurement | None]:
        """One run; None if it was stopped."""
        request = self._plan.request(run)
        controls = self._controls_of(request, run.cell)
        started_at, began = now(), time.perf_counter()
        lines: list[bytes] = []
        tally = Tally()
        run_id = ""
        summary: Summary | None = None
        error: str | None = None
        try:
            for event in self._events_of(request, controls):
                if isinstance(event, RunStarted):
                    run_id = event.run_id
                elif isinstance(event, StageChanged):
                    yield event
                elif isinstance(event, Step):
                    tally.add(event)
                elif isinstance(event, Finished):
                    summary = replace(event.summary, text="")
                if self._logs is not None:
                    lines.append(event_line(_as_planned(event, run.cell)) or b"")
        except OutriderError as refusal:
            error = str(refusal)
        except Exception as failure:
            # One failed run must not end an overnight sweep.
            _log.debug("a run failed", exc_info=True)
            error = f"The run failed: {first_line(failure)}."
        if controls.is_cancelled or (summary and summary.finish_reason is FinishReason.CANCELLED):
            return None
        if summary is None or summary.finish_reason is FinishReason.ERROR:
            error = error or (summary and summary.error) or "The run failed, and the engine did not say why."
        log = yield from self._write_log(run_id, lines)
        self._next_index += 1
        return Measurement(
            run=run,
            index=self._next_index - 1,
            seed=request.seed,
            started_at=started_at,
            seconds=time.perf_counter() - began,
            summary=None if error else summary,
            error=error,
            run_id=None if log is None else run_id,
            log=log,
            unsteadiness=unsteadiness(tally),
        )

    def _write_log(self, run_id: str, lines: Sequence[bytes]) -> Generator[SweepEvent, None, Path | None]:
        """Write a run's log where logs are kept and the run has started; None if there is none."""
        if self._logs is None or not run_id:
            return None
        log = self._logs / f"{Path(run_id).name}.jsonl"
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            write_atomically(log, b"".join(lines))
        except OSError as problem:
            yield from self._fail(explain_write_error(problem, self._logs))
        except RunLogError as problem:
            yield from self._fail(str(problem))
        else:
            return log
        return None

    def _keep(self, measurement: Measurement) -> Iterator[SweepEvent]:
        cell = measurement.run.cell
        changed = self._results.add(measurement)
        self._seconds.append(measurement.seconds)
        if measurement.error is not None:
            self._failures[cell] += 1
            if self._failures[cell] >= HOPELESS and not self._results.result(cell).num_measured:
                left = [run for run in self._todo if run.cell != cell]
                self._num_skipped += len(self._todo) - len(left)
                self._todo = left
        try:
            self._file.append(measurement, self._environment)
        except RunLogError as refusal:
            yield from self._fail(str(refusal))
        num_left = len(self._todo)
        seconds_left = sum(self._seconds) / len(self._seconds) * num_left
        results = tuple(self._results.result(each) for each in changed)
        num_done = self._plan.num_runs - num_left - self._num_skipped
        yield RunMeasured(measurement, results, num_done, seconds_left)

    def _fail(self, sentence: str) -> Iterator[SweepEvent]:
        """Report what could not be written, each sentence once."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            yield FileFailed(sentence)


def _as_planned(event: Event, cell: Cell) -> Event:
    """An event as a run's log stores it: a baseline's says that nothing was drafted."""
    if not isinstance(event, RunStarted) or not cell.is_baseline:
        return event
    return replace(event, config={**event.config, "method": "plain", "method_options": {}, "num_draft_tokens": 0})
