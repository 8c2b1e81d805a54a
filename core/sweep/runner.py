"""Runs a plan, run by run in its shuffled order, and keeps what every run came to."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from core.controls import RunControls
from core.errors import OutriderError, PromptError, RunLogError, first_line
from core.files import explain_write_error
from core.sweep.controls import SweepControls
from core.sweep.log import SweepFile, base_environment, now
from core.sweep.plan import Cell, PlannedRun, SweepPlan
from core.sweep.records import figures_of
from core.sweep.results import SweepResults
from core.sweep.types import FileFailed, Measurement, RunMeasured, SweepEvent, SweepFinished, SweepStarted
from core.sweep.verdict import verdicts
from core.trace import RunLogWriter
from core.types import Event, Finished, FinishReason, RunRequest, RunStarted, StageChanged, Summary

_log = logging.getLogger(__name__)

WARM_UP_TOKENS = 8
"""Of the runs that don't count, which load a model and fill the caches behind it."""

HOPELESS = 5
"""Runs of a cell that fail before it is given up, where none has come to an end."""


class Session(Protocol):
    """What a sweep needs of `core.session.Session`."""

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]: ...


def sweep(
    plan: SweepPlan,
    session: Session,
    *,
    out: Path | None = None,
    logs: Path | None = None,
    controls: SweepControls | None = None,
    restart: bool = False,
) -> Generator[SweepEvent, None, None]:
    """Measure what a plan asks for and is not in the file yet.

    Closing the generator stops it like `controls`, but for the last event.

    Args:
        plan: what to measure.
        session: what runs it; models stay with it.
        out: the file that every run is appended to, and that an earlier sitting is gone on from; None for none.
        logs: a folder in which the log of each run is kept; None to keep none.
        controls: the way to stop.
        restart: begin anew although the file holds a sweep.

    Yields:
        `SweepStarted`; `StageChanged` while models load; `RunMeasured` for each run, `FileFailed` where the disk
        refuses something; and `SweepFinished`, also when stopped through `controls`.

    Raises:
        RunLogError: `out` holds something else than this sweep, was measured on another device, or can't be written;
            before any run counts.
        OutriderError: the target can't be loaded.
    """
    file = SweepFile(out, plan, restart=restart) if out is not None else None
    try:
        yield from _Sweep(plan, session, file, logs, controls or SweepControls()).events()
    finally:
        if file is not None:
            file.close()


class _Sweep:
    def __init__(
        self, plan: SweepPlan, session: Session, file: SweepFile | None, logs: Path | None, controls: SweepControls
    ) -> None:
        self._plan = plan
        self._session = session
        self._file = file
        self._logs = logs
        self._controls = controls
        earlier = file.measurements if file is not None else ()
        self._results = SweepResults(plan, earlier)
        self._next_index = max((item.index for item in earlier), default=-1) + 1
        # What failed is tried again: the memory that it lacked may be free by now.
        self._todo = deque(run for run in plan.order() if not self._results.is_measured(run))
        self._failures: Counter[Cell] = Counter()
        self._environment: Mapping[str, Any] = base_environment()
        self._seconds: list[float] = []
        self._said: set[str] = set()

    def events(self) -> Iterator[SweepEvent]:
        plan = self._plan
        problems = tuple(self._file.problems) if self._file is not None else ()
        num_done = plan.num_runs - len(self._todo)
        yield SweepStarted(plan, plan.num_runs, num_done, self._results.all(), problems)
        yield from self._warm_up()
        while self._todo and not self._controls.is_cancelled:
            measurement = yield from self._measure(self._todo[0])
            if measurement is None:
                break
            self._todo.popleft()
            yield from self._keep(measurement)
        if self._file is not None:
            self._file.close()
        unsaved = self._file.num_unsaved if self._file is not None else 0
        yield SweepFinished(not self._todo, self._results.all(), verdicts(self._results), unsaved)

    def _warm_up(self) -> Iterator[SweepEvent]:
        """Runs that don't count, one for plain decoding and each drafter: models load, and what is compiled is.

        Raises:
            OutriderError: the target can't be loaded, so that no cell could be measured.
        """
        runs = {run.cell.drafter: run for run in reversed(self._todo) if run.cell.drafter is not None}
        plain = [run._replace(cell=Cell(None, 0, run.cell.temperature)) for run in list(self._todo)[:1]]
        for run in [*plain, *runs.values()]:
            drafter = run.cell.drafter
            request = self._plan.request(run)
            request = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
            controls = self._controls.for_run(request, is_plain=drafter is None)
            try:
                has_started = False
                for event in self._session.run(request, controls):
                    if isinstance(event, RunStarted):
                        has_started = True
                        self._note_environment(event)
                        yield StageChanged("Warming up…")
                    elif isinstance(event, StageChanged) and not has_started:
                        yield event
            except PromptError:
                pass  # Another prompt may fit; this one's own runs say that it doesn't.
            except Exception:
                if drafter is None:
                    raise
                _log.debug("a drafter's warm-up failed", exc_info=True)  # Its cells will say so.
            if self._controls.is_cancelled:
                return
        yield StageChanged("")

    def _measure(self, run: PlannedRun) -> Generator[SweepEvent, None, Measurement | None]:
        """One run; None where it was stopped."""
        request = self._plan.request(run)
        controls = self._controls.for_run(request, is_plain=run.cell.is_baseline)
        measurement = Measurement(run, self._next_index, request.seed, now(), 0.0)
        started = time.perf_counter()
        log: RunLogWriter | None = None
        summary: Summary | None = None
        error: str | None = None
        has_started = False
        try:
            for event in self._session.run(request, controls):
                if isinstance(event, RunStarted):
                    has_started = True
                    self._note_environment(event)
                    log = yield from self._open_log(event.run_id)
                    measurement = replace(measurement, run_id=event.run_id if log else None)
                elif isinstance(event, StageChanged) and not has_started:
                    yield event
                elif isinstance(event, Finished):
                    summary = event.summary
                if log is not None:
                    log = yield from self._write_log(log, _as_planned(event, run.cell))
        except OutriderError as refusal:
            error = str(refusal)
        except Exception as failure:
            # A sweep of a night doesn't end with what one of its runs met.
            _log.debug("a run failed", exc_info=True)
            error = f"The run failed: {first_line(failure)}."
        finally:
            failure_of_log = _close(log)
        if failure_of_log:
            yield from self._fail(failure_of_log)
        if log is not None:
            measurement = replace(measurement, log=log.path)
        if controls.is_cancelled or (summary and summary.finish_reason is FinishReason.CANCELLED):
            if log is not None:
                # It is no run of the sweep; that one is still to come.
                with contextlib.suppress(OSError):
                    log.path.unlink()
            return None
        if summary is None or summary.finish_reason is FinishReason.ERROR:
            said = summary.error if summary is not None else None
            error = error or said or "The run failed, and the engine did not say why."
        self._next_index += 1
        seconds = time.perf_counter() - started
        figures = None if error is not None or summary is None else figures_of(summary)
        return replace(measurement, seconds=seconds, figures=figures, error=error)

    def _keep(self, measurement: Measurement) -> Iterator[SweepEvent]:
        cell = measurement.run.cell
        changed = self._results.add(measurement)
        self._seconds.append(measurement.seconds)
        if measurement.error is not None:
            self._failures[cell] += 1
            if self._failures[cell] >= HOPELESS and not self._results.result(cell).num_measured:
                self._todo = deque(run for run in self._todo if run.cell != cell)
        if self._file is not None:
            try:
                self._file.append(measurement, self._environment)
            except RunLogError as refusal:
                yield from self._fail(str(refusal))
        num_runs = self._plan.num_runs
        left = sum(self._seconds) / len(self._seconds) * len(self._todo)
        results = tuple(self._results.result(each) for each in changed)
        yield RunMeasured(measurement, results, num_runs - len(self._todo), num_runs, left)

    # --- Logs of the runs ---

    def _open_log(self, run_id: str) -> Generator[SweepEvent, None, RunLogWriter | None]:
        if self._logs is None:
            return None
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            return RunLogWriter(self._logs / f"{Path(run_id).name}.jsonl")
        except OSError as error:
            yield from self._fail(explain_write_error(error, self._logs))
        except RunLogError as error:
            yield from self._fail(str(error))
        return None

    def _write_log(self, log: RunLogWriter, event: Event) -> Generator[SweepEvent, None, RunLogWriter | None]:
        try:
            log.write(event)
        except RunLogError as error:
            _close(log)
            yield from self._fail(str(error))
            return None
        return log

    def _note_environment(self, event: RunStarted) -> None:
        """Raises:
        RunLogError: the file's runs were measured on another device, with whose times these can't be mixed.
        """
        self._environment = {name: value for name, value in event.environment.items() if name != "process"}
        before, here = self._file.device_name if self._file is not None else None, event.environment.get("device_name")
        if self._file is not None and before is not None and before != here:
            raise RunLogError(
                f"{str(self._file.path)!r} was measured on {before}, and this is {here}; name another file, or begin "
                "this one anew with --restart."
            )

    def _fail(self, sentence: str) -> Iterator[SweepEvent]:
        """Say what the disk refused; the same sentence once."""
        if sentence not in self._said:
            self._said.add(sentence)
            yield FileFailed(sentence)


def _close(log: RunLogWriter | None) -> str:
    """Close a run's log; a sentence where some of it did not get to the disk."""
    try:
        if log is not None:
            log.close()
    except RunLogError as error:
        return str(error)
    return ""


def _as_planned(event: Event, cell: Cell) -> Event:
    """An event as a run's log shall hold it: of a baseline, that nothing was drafted."""
    if not isinstance(event, RunStarted) or not cell.is_baseline:
        return event
    return replace(event, config={**event.config, "method": "plain", "method_options": {}, "num_draft_tokens": 0})
