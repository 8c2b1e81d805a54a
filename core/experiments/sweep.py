"""Runs a plan, run by run in its shuffled order, and keeps what every run came to."""

from __future__ import annotations

import bisect
import contextlib
import csv
import io
import json
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core.controls import RunControls
from core.errors import OutriderError, PromptError, RunLogError, first_line
from core.experiments.bench import Spread, spread
from core.experiments.sweep_log import SweepFile, base_environment, cell_to_record, figures_of, now
from core.experiments.sweep_plan import (
    Cell,
    CellResult,
    Figures,
    FileFailed,
    Measurement,
    PlannedRun,
    RunMeasured,
    SweepEvent,
    SweepFinished,
    SweepPlan,
    SweepStarted,
    Verdict,
)
from core.files import explain_write_error
from core.runlog.log import RunLogWriter
from core.text import percent_text
from core.types import Event, Finished, FinishReason, RunRequest, RunStarted, StageChanged, Summary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SweepControls:
    """Made by whoever may stop the sweep; read by the thread that runs it."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._run: RunControls | None = None

    def cancel(self) -> None:
        """Ask the sweep to stop, the run that goes included. May be called from any thread, and more than once."""
        self._cancelled.set()
        run = self._run
        if run is not None:
            run.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def for_run(self, request: RunRequest, *, is_plain: bool) -> RunControls:
        """The controls of the next run; cancelled already if the sweep is."""
        controls = RunControls(request.sampling, 0) if is_plain else RunControls.from_request(request)
        self._run = controls
        if self.is_cancelled:
            controls.cancel()
        return controls


Key = tuple[int, int]
"""Prompt and repeat."""


class SweepResults:
    """What is known of a plan's cells so far. For one thread."""

    def __init__(self, plan: SweepPlan, measurements: Iterable[Measurement] = ()) -> None:
        self.plan = plan
        self._by_cell: dict[Cell, dict[Key, Measurement]] = {cell: {} for cell in (*plan.baselines(), *plan.cells())}
        self._baselines: defaultdict[tuple[float, int], list[tuple[float, float]]] = defaultdict(list)
        for measurement in measurements:
            self.add(measurement)

    def add(self, measurement: Measurement) -> list[Cell]:
        """Take in a run; one that was done before is replaced. Returns the cells whose figures this changes."""
        run = measurement.run
        self._by_cell[run.cell][run.prompt, run.repeat] = measurement
        speed = _speed(measurement)
        if not run.cell.is_baseline or speed is None:
            return [run.cell]
        temperature = run.cell.temperature
        bisect.insort(self._baselines[temperature, run.prompt], (_moment(measurement), speed))
        return [cell for cell in self._by_cell if cell.temperature == temperature]

    def is_measured(self, run: PlannedRun) -> bool:
        """Whether a run came to an end in order; one that failed did not."""
        measurement = self._by_cell[run.cell].get((run.prompt, run.repeat))
        return measurement is not None and measurement.figures is not None

    @property
    def num_measured(self) -> int:
        """Runs that came to an end in order."""
        return sum(item.figures is not None for seen in self._by_cell.values() for item in seen.values())

    def result(self, cell: Cell, suite: str | None = None) -> CellResult:
        """A cell's figures.

        Args:
            cell: of the plan's grid, or one of its baselines.
            suite: count only prompts of this suite; None for all.
        """
        prompts = self.plan.prompts
        wanted = {index for index, prompt in enumerate(prompts) if suite is None or prompt.suite == suite}
        seen = [item for item in self._by_cell[cell].values() if item.run.prompt in wanted]
        return CellResult(
            cell=cell,
            num_planned=len(wanted) * self.plan.repeats,
            measurements=tuple(sorted(seen, key=lambda item: item.index)),
            speedup=_spread(self.speedups(cell, wanted).values()),
            tokens_per_second=_of(seen, lambda figures: figures.tokens_per_second),
            draft_acceptance_rate=_of(seen, lambda figures: figures.draft_acceptance_rate),
            block_efficiency=_of(seen, lambda figures: figures.block_efficiency),
            cost_coefficient=_of(seen, lambda figures: figures.cost_coefficient),
        )

    def all(self, suite: str | None = None) -> tuple[CellResult, ...]:
        """Every cell's figures, the baselines first, then in the order of the grid."""
        return tuple(self.result(cell, suite) for cell in self._by_cell)

    def speedups(self, cell: Cell, prompts: Iterable[int] | None = None) -> dict[Key, float]:
        """A cell's speedup in each of its runs that has one; none of a baseline, which would be held against itself.

        Args:
            cell: which.
            prompts: indices of those that count; None for all.
        """
        if cell.is_baseline:
            return {}
        wanted = None if prompts is None else set(prompts)
        found = {}
        for key, measurement in self._by_cell[cell].items():
            speed = _speed(measurement)
            plain = self._plain_speed(cell.temperature, measurement)
            if speed and plain and (wanted is None or key[0] in wanted):
                found[key] = speed / plain
        return found

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the plan's prompts, in their order."""
        return tuple(dict.fromkeys(prompt.suite for prompt in self.plan.prompts))

    def _plain_speed(self, temperature: float, measurement: Measurement) -> float | None:
        """Tokens per second of the baseline of this prompt and temperature that ran closest to this run."""
        seen = self._baselines[temperature, measurement.run.prompt]
        if not seen:
            return None
        moment = _moment(measurement)
        at = bisect.bisect_left(seen, (moment, 0.0))
        return min(seen[max(at - 1, 0) : at + 1], key=lambda item: abs(item[0] - moment))[1]


def _moment(measurement: Measurement) -> float:
    return datetime.fromisoformat(measurement.started_at).timestamp()


def _speed(measurement: Measurement) -> float | None:
    return measurement.figures.tokens_per_second if measurement.figures is not None else None


def _of(measurements: Iterable[Measurement], pick: Callable[[Figures], float | None]) -> Spread | None:
    picked = (pick(item.figures) for item in measurements if item.figures is not None)
    return _spread(value for value in picked if value is not None)


def _spread(values: Iterable[float]) -> Spread | None:
    known = list(values)
    return spread(known) if known else None


FEWEST_RUNS = 6
"""Runs of a cell below which nothing is said of chance: six that all lean one way have a chance of 3 % to do so."""

FEWEST_PROMPTS = 6
"""Prompts below which the interval speaks of these prompts alone: of three, all lie on one side of the usual prompt one
time in four, and an interval over them misses it as often."""

_SURE = 0.975
_SAMPLES, _MOST_DRAWS = 2_000, 5_000_000


def verdicts(results: SweepResults) -> tuple[Verdict, ...]:
    """One for each temperature of the plan: it is part of what is sampled, and thus no matter of speed."""
    return tuple(_verdict(results, temperature) for temperature in results.plan.temperatures)


def _verdict(results: SweepResults, temperature: float) -> Verdict:
    import numpy as np  # Late, so that the command line is parsed without it.

    cells = [results.result(cell) for cell in results.plan.cells() if cell.temperature == temperature]
    ranked = _ranked(cells)
    at = f"At temperature {temperature:g}"
    if not ranked:
        return Verdict(temperature, f"{at}: no cell has both a run and a baseline to hold it against.")
    best, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    ours = results.speedups(best.cell)
    theirs = results.speedups(runner_up.cell) if runner_up is not None else {}
    # Only runs that both have are compared; where there is no runner-up, all of the best one's count.
    shared = ours.keys() & theirs.keys() or ours.keys()
    interval, ahead, is_sure, is_distinguishable = None, None, None, None
    if len(ours) >= FEWEST_RUNS:
        medians = bootstrap_medians(ours)
        low, high = (float(value) for value in np.quantile(medians, (1 - _SURE, _SURE)))
        interval, is_sure = (low, high), not low <= 1.0 <= high
    if runner_up is not None and len(shared) >= FEWEST_RUNS and shared <= theirs.keys():
        mine = bootstrap_medians({key: ours[key] for key in shared})
        other = bootstrap_medians({key: theirs[key] for key in shared})
        ahead = float(np.mean(mine > other) + np.mean(mine == other) / 2)
        is_distinguishable = ahead >= _SURE
    verdict = Verdict(
        temperature,
        "",
        best,
        runner_up,
        interval,
        speculates=_median(best) > 1.0,
        is_sure=is_sure,
        beats_runner_up=ahead,
        is_distinguishable=is_distinguishable,
    )
    return replace(verdict, sentence=f"{at}: {_sentence(verdict)}")


def bootstrap_medians(values: Mapping[Key, float]) -> NDArray[np.float64]:
    """Medians of resamples: prompts are drawn anew, and within each its repeats, since those are alike.

    The draws depend on the keys alone, so that two cells with the same runs are resampled in step.
    """
    import numpy as np

    prompts = sorted({prompt for prompt, _ in values})
    repeats = sorted({repeat for _, repeat in values})
    table = np.full((len(prompts), len(repeats)), np.nan)
    for (prompt, repeat), value in values.items():
        table[prompts.index(prompt), repeats.index(repeat)] = value
    count = max(200, min(_SAMPLES, _MOST_DRAWS // table.size))
    generator = np.random.default_rng(0)
    rows = generator.integers(len(prompts), size=(count, len(prompts), 1))
    columns = generator.integers(len(repeats), size=(count, len(prompts), len(repeats)))
    drawn = table[rows, columns].reshape(count, -1)
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    return np.asarray(np.nanmedian(drawn, axis=1), dtype=np.float64)


def _ranked(cells: list[CellResult]) -> list[CellResult]:
    """Those that have a speedup, best first. One with less than half the runs of the fullest is no match for it."""
    fullest = max((cell.num_measured for cell in cells), default=0)
    known = [cell for cell in cells if cell.speedup is not None and 2 * cell.num_measured >= fullest]
    return sorted(known, key=_median, reverse=True)


def _median(result: CellResult) -> float:
    assert result.speedup is not None, "only cells with a speedup are ranked"
    return result.speedup.median


def _sentence(verdict: Verdict) -> str:
    best = verdict.best
    assert best is not None
    speed, name = _median(best), best.cell.title
    if not verdict.speculates:
        said = f"don't speculate; the best cell, {name}, reaches {speed:.2f}× the speed of plain decoding"
        return f"{said}{_interval(verdict)}."
    if verdict.is_sure is False:
        said = f"{name} is fastest by its median, {speed:.2f}× plain decoding{_interval(verdict)}"
        return f"{said}, but these runs can't tell it from plain decoding; repeat them more often."
    return f"{name} is fastest, {speed:.2f}× plain decoding{_interval(verdict)}; {_comparison(verdict)}."


def _interval(verdict: Verdict) -> str:
    if verdict.interval is None or verdict.best is None:
        return ""
    low, high = verdict.interval
    prompts = len({item.run.prompt for item in verdict.best.measurements if item.figures is not None})
    # Two or three prompts can't say how others differ, however often each is repeated.
    here = "" if prompts >= FEWEST_PROMPTS else f" on {'this prompt' if prompts == 1 else f'these {prompts} prompts'}"
    return f" (95 % interval {low:.2f} to {high:.2f}{here})"


def _comparison(verdict: Verdict) -> str:
    other = verdict.runner_up
    if other is None:
        return "there is no other cell to hold it against"
    name = f"{_short(verdict, other)} at {_median(other):.2f}×"
    if verdict.is_distinguishable is None:
        return f"{name} comes next, and these runs are too few to tell the two apart"
    assert verdict.beats_runner_up is not None, "it is told apart by that share"
    share = percent_text(verdict.beats_runner_up)
    if verdict.is_distinguishable:
        return f"it is ahead of {name} in {share} of the bootstrap samples"
    return f"{name} can't be told from it, being behind in {share} of the bootstrap samples"


def _short(verdict: Verdict, other: CellResult) -> str:
    """The runner-up without the drafter's name, where that is the winner's."""
    assert verdict.best is not None
    same = other.cell.drafter == verdict.best.cell.drafter
    return f"K = {other.cell.num_draft_tokens}" if same else other.cell.title


FIGURES = ("speedup", "tokens_per_second", "draft_acceptance_rate", "block_efficiency", "cost_coefficient")
"""Each in three columns: its name for the median, and the same with _q1 and _q3 for the quartiles."""

_KEYS = (
    "target", "method", "draft", "method_options", "num_draft_tokens", "temperature", "suite", "num_planned",
    "num_measured", "num_failed",
)  # fmt: skip


def table_rows(results: SweepResults) -> Iterator[dict[str, Any]]:
    """A row for each cell, the baselines first, over all prompts; then, of several suites, for each cell and suite."""
    suites = results.suites
    for suite in (None, *(suites if len(suites) > 1 else ())):
        for result in results.all(suite):
            yield _row(results.plan.target, result, suite or "")


def _row(target: str, result: CellResult, suite: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "target": target,
        **cell_to_record(result.cell),
        "suite": suite,
        "num_planned": result.num_planned,
        "num_measured": result.num_measured,
        "num_failed": len(result.measurements) - result.num_measured,
    }
    for name in FIGURES:
        spread: Spread | None = getattr(result, name)
        low, high = spread.quartiles if spread is not None else (None, None)
        row |= {name: spread.median if spread is not None else None, f"{name}_q1": low, f"{name}_q3": high}
    return row


def to_csv(results: SweepResults) -> str:
    """The table as CSV under a row of names; an empty cell stands for no value."""
    columns = [*_KEYS, *(f"{name}{end}" for name in FIGURES for end in ("", "_q1", "_q3"))]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in table_rows(results):
        options = row["method_options"]
        row["method_options"] = json.dumps(options) if options else ""
        writer.writerow(["" if row[name] is None else row[name] for name in columns])
    return text.getvalue()


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
