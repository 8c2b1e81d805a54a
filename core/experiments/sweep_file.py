"""A sweep's file: JSON Lines, its plan first, then one line a run, appended as the sweep runs and continued later."""

from __future__ import annotations

import contextlib
import heapq
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from core.draft_length import parse_draft_length
from core.errors import RunLogError, SettingsError
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep_plan import SUMMARY_FIELDS, Cell, DrafterChoice, Measurement, PlannedRun, SweepPlan
from core.files import (
    LONGEST_LINE,
    FileClaim,
    explain_read_error,
    explain_write_error,
    open_regular,
    read_lines,
    shown_path,
)
from core.runlog.log import Record, installed, to_line
from core.runlog.reading import MOST_DAMAGED_LINES, MOST_LINES, head_record, mapping_of, number_of, parse_line, text_of
from core.runlog.replay import COUNTS, summary_from_record
from core.runlog.tally import Tally
from core.settings import Coupling, Device, DType, VerificationRule
from core.types import FinishReason, Summary

SCHEMA = "outrider.sweep/1"
MOST_OTHERS = 100_000
"""Most lines that are no runs: more than any sweep has sessions."""

_WORDS = {
    "target": "the target", "drafters": "the drafters", "num_draft_tokens": "K", "temperatures": "the temperatures",
    "prompts": "the prompts", "repeats": "the number of repeats", "max_new_tokens": "the number of new tokens",
    "seed": "the seed", "coupling": "the coupling", "verification": "the verification", "top_k": "top-k",
    "top_p": "top-p", "min_p": "min-p", "chat": "the chat template", "system": "the system prompt",
    "device": "the device", "dtype": "the precision",
}  # fmt: skip

_NO_DEVICE = frozenset({"", "arm", "arm GPU", "i386", "i386 GPU"})
"""Names that say nothing: earlier versions wrote one of these on every Mac."""


# --- The plan ---------------------------------------------------------------------------------------------------


def plan_to_config(plan: SweepPlan) -> Record:
    """The plan as stored in the file's first line."""
    config = {item.name: getattr(plan, item.name) for item in fields(plan)}
    if plan.is_lossy:
        config["lossy"] = True
    config["drafters"] = [drafter.to_record() for drafter in plan.drafters]
    config["num_draft_tokens"] = list(plan.num_draft_tokens)
    config["prompts"] = [{"name": item.name, "suite": item.suite, "text": item.text} for item in plan.prompts]
    return config


def plan_from_config(config: Mapping[str, Any]) -> SweepPlan:
    """The plan that `config` was made from.

    Raises:
        RunLogError: it holds a setting that no sweep can have.
    """
    try:
        values = {item.name: config[item.name] for item in fields(SweepPlan) if item.name in config}
        drafters = [
            DrafterChoice(item["method"], item["draft"], {**item["method_options"]}) for item in values["drafters"]
        ]
        if not all(isinstance(drafter.method, str) for drafter in drafters):
            raise TypeError("a method is no text")
        prompts = [Prompt(item["name"], item["text"], suite=text_of(item.get("suite"))) for item in values["prompts"]]
        values |= {
            "drafters": tuple(drafters),
            "prompts": tuple(prompts),
            "num_draft_tokens": tuple(parse_draft_length(str(k)) for k in values["num_draft_tokens"]),
            "temperatures": tuple(values["temperatures"]),
            "coupling": Coupling(values["coupling"]),
            "verification": VerificationRule(values.get("verification", VerificationRule.TOKEN)),
            "device": Device(values["device"]),
            "dtype": DType(values["dtype"]),
            "system": text_of(values.get("system")),
        }
        return SweepPlan(**values)
    except SettingsError as error:
        raise RunLogError(f"The sweep's plan can't be read: {error}") from error
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RunLogError("The sweep's plan is damaged, so the sweep can't be continued.") from error


def difference(theirs: SweepPlan, ours: SweepPlan) -> str:
    """What differs between two plans, in words; empty if nothing does."""

    def shown(value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
        return str(value) or "none"

    configs = plan_to_config(theirs), plan_to_config(ours)
    found = []
    for name, words in _WORDS.items():
        if configs[0][name] == configs[1][name]:
            continue
        values = [shown(getattr(plan, name)) for plan in (theirs, ours)]
        are_short = name not in {"drafters", "prompts"} and max(map(len, values)) <= 40
        found.append(words + (f" ({values[0]} there, {values[1]} here)" if are_short else ""))
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


# --- Runs -------------------------------------------------------------------------------------------------------


def run_to_record(measurement: Measurement, plan: SweepPlan, folder: Path | None = None) -> Record:
    """A run's line. A log within the file's `folder` is named relative to it, so that both may move."""
    run, log, summary = measurement.run, measurement.log, measurement.summary
    prompt = plan.prompts[run.prompt]
    if log is not None and folder is not None and log.is_relative_to(folder):
        log = log.relative_to(folder)
    return {
        "type": "run",
        "index": measurement.index,
        "cell": run.cell.to_record(),
        "prompt_index": run.prompt,
        "prompt": prompt.name,
        "suite": prompt.suite,
        "repeat": run.repeat,
        "seed": measurement.seed,
        "started_at": measurement.started_at,
        "seconds": measurement.seconds,
        "unsteadiness": measurement.unsteadiness,
        "id": measurement.run_id,
        "log": None if log is None else log.as_posix(),
        "summary": summary and {name: getattr(summary, name) for name in SUMMARY_FIELDS},
        "error": measurement.error,
    }


def run_from_record(record: Mapping[str, Any], plan: SweepPlan, folder: Path) -> Measurement | None:
    """A run from its line in a file of this folder; None if a sweep with this plan can't have written it."""
    try:
        cell = _cell(record["cell"], plan)
        prompt, repeat = int(record["prompt_index"]), int(record["repeat"])
        datetime.fromisoformat(record["started_at"]).timestamp()
        summary, error, log = record.get("summary"), record.get("error"), record.get("log")
        is_planned = 0 <= prompt < len(plan.prompts) and 0 <= repeat < plan.repeats
        if not is_planned or (summary is None) == (not isinstance(error, str)):
            return None
        return Measurement(
            run=PlannedRun(cell, prompt, repeat),
            index=int(record["index"]),
            seed=int(record["seed"]),
            started_at=record["started_at"],
            seconds=float(record["seconds"]),
            summary=None if summary is None else _summary(summary),
            error=text_of(error) or None,
            run_id=text_of(record.get("id")) or None,
            log=None if log is None else Path(os.path.normpath(folder / log)),
            unsteadiness=number_of(record.get("unsteadiness")),
        )
    except (LookupError, TypeError, ValueError, OverflowError, StopIteration, AttributeError):
        return None


def _summary(record: Mapping[str, Any]) -> Summary:
    """A number that is missing or not finite becomes None; counts must be there."""
    counts = {name: int(record[name]) for name in COUNTS}
    nothing = Tally().summary(FinishReason.LENGTH)
    return summary_from_record({**record, **counts}, nothing)


def _cell(record: Mapping[str, Any], plan: SweepPlan) -> Cell:
    k, temperature = record["num_draft_tokens"], float(record["temperature"])
    if temperature not in plan.temperatures:
        raise ValueError("not a temperature of the plan")
    if record["method"] == "plain":
        return Cell(None, 0, temperature)
    named = {name: record[name] for name in ("method", "draft", "method_options")}
    drafter = next(item for item in plan.drafters if item.to_record() == named)
    return Cell(drafter, plan.num_draft_tokens[plan.num_draft_tokens.index(k)], temperature)


def now() -> str:
    """The current time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# --- Reading ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SweepLog:
    """A sweep's file that was read: its plan, its runs, its first line, and a sentence for each problem.

    Of a repeated run the last counts. length is the size in bytes of the lines that are whole. others are sessions'
    heads and lines of types that only newer versions know, each with the number of the runs before it. has_more:
    whether another sweep, which was not read, follows in the file.
    """

    plan: SweepPlan
    measurements: list[Measurement] = field(default_factory=list)
    head: Record = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    length: int = 0
    others: list[tuple[int, Record]] = field(default_factory=list)
    has_more: bool = False

    def records(self, folder: Path) -> Iterator[Record]:
        """Every record, in the file's order, for a file in this folder."""
        yield self.head
        runs = enumerate(run_to_record(item, self.plan, folder) for item in self.measurements)
        yield from (record for _, record in heapq.merge(self.others, runs, key=itemgetter(0)))


def read_sweep(path: str | os.PathLike[str]) -> SweepLog:
    """Read a sweep's file; a torn or damaged line is named in `problems` and left out.

    Raises:
        RunLogError: the file can't be read, or is not a sweep that this version knows.
    """
    name, folder = os.fspath(path), Path(path).absolute().parent
    try:
        with open_regular(path) as file:
            return _read_lines(read_lines(file), name, folder)
    except OSError as error:
        raise RunLogError(explain_read_error(error, path, "sweep's file")) from error


def _read_lines(lines: Iterator[bytes], name: str, folder: Path) -> SweepLog:
    first = next(lines, b"")
    head = head_record(first, name, SCHEMA, "sweep", "sweep")
    log = SweepLog(plan_from_config(head["config"]), head=head, length=len(first) if first.endswith(b"\n") else 0)
    seen: dict[PlannedRun, Measurement] = {}
    for number, line in enumerate(lines, start=2):
        is_strange = len(log.problems) > MOST_DAMAGED_LINES or len(log.others) > MOST_OTHERS
        if is_strange or number > MOST_LINES:
            raise RunLogError(f"{shown_path(name)} is damaged: a sweep writes no such lines. Name another file.")
        if not line.endswith(b"\n"):
            if line.strip():
                log.problems.append(f"The last line of {name!r} is cut off and was left out.")
            break
        record = parse_line(line) if line.strip() else {}
        if record is not None and record.get("type") == "sweep":
            log.has_more = True
            log.problems.append(f"Line {number} of {name!r} begins another sweep; it and all after it were left out.")
            break
        log.length += len(line)
        if record is not None and record.get("type") != "run":
            if record:
                log.others.append((len(seen), record))
            continue
        measurement = None if record is None else run_from_record(record, log.plan, folder)
        if measurement is None:
            log.problems.append(f"Line {number} of {name!r} is damaged and was left out.")
        else:
            seen[measurement.run] = measurement
    log.measurements = list(seen.values())
    return log


# --- Writing ----------------------------------------------------------------------------------------------------


class SweepFile:
    """Appends a line for each run and hands it to the disk at once; continues the sweep that is there, unless
    restarted.

    What is there stays until the first run has ended. A line that can't be written is kept, and tried again with the
    next one. plan has the suites of the file that is continued; device_name is that of the earlier runs; num_unsaved
    runs are not in the file.

    Raises:
        RunLogError: the file holds something else, can't be read or written, or another sweep is writing it; or the
            plan's prompts are too long.
    """

    def __init__(self, path: str | os.PathLike[str], plan: SweepPlan, *, restart: bool = False) -> None:
        self.path = Path(path)
        self.plan = plan
        self._pending: list[bytes] = []
        self.num_unsaved = self._length = 0
        self._has_head = False
        self.device_name: str | None = None
        self.measurements: Sequence[Measurement] = ()
        self.problems: Sequence[str] = ()
        self._claim = FileClaim(self.path)
        name = os.fspath(path)
        head = to_line(plan_to_config(plan))
        # The line will also name the sweep and this machine.
        if len(head) > 0.99 * LONGEST_LINE or parse_line(head) is None:
            raise RunLogError(
                "This sweep's prompts are too long: its file could not be read again. Use fewer or shorter prompts."
            )
        if self.path.is_dir():
            raise RunLogError(f"{name!r} is a folder; name a file inside it.")
        self._is_new = not self.path.exists()
        if not self._is_new and not self.path.is_file():
            raise RunLogError(f"{name!r} is not a regular file, so a sweep can't continue in it; name another.")
        try:
            open(self.path, "ab").close()
        except OSError as error:
            raise RunLogError(explain_write_error(error, path)) from error
        # Before it is read: two sweeps that append at the same end overwrite each other's runs.
        if not self._claim.take():
            raise RunLogError(f"Another sweep is writing {name!r}; wait until it ends, or name another file.")
        try:
            if self.path.stat().st_size:
                self._continue(name, restart)
        except BaseException:
            self._claim.give_back()
            raise

    def _continue(self, name: str, restart: bool) -> None:
        try:
            # Outrider may replace only a sweep, even one with damaged runs.
            if restart:
                with open_regular(self.path) as file:
                    head_record(next(read_lines(file), b""), name, SCHEMA, "sweep", "sweep")
                return
            log = read_sweep(self.path)
            if log.has_more:
                raise RunLogError(f"{name!r} holds more than one sweep, so none can be continued.")
        except (RunLogError, OSError) as error:
            raise RunLogError(f"{error} It was left unchanged; name another file to write.") from error
        ours, theirs = ([(item.name, item.text) for item in plan.prompts] for plan in (self.plan, log.plan))
        if ours == theirs:
            self.plan = replace(self.plan, prompts=log.plan.prompts)  # Suites once had other names.
        if differs := difference(log.plan, self.plan):
            raise RunLogError(
                f"{name!r} holds a sweep with another plan: it differs in {differs}; name another file, or start "
                "this one over with --restart."
            )
        self._length = log.length
        name = text_of(mapping_of(log.head.get("environment")).get("device_name"))
        self.device_name = name if name not in _NO_DEVICE else None
        self.measurements, self.problems = tuple(log.measurements), tuple(log.problems)

    def append(self, measurement: Measurement, environment: Mapping[str, Any]) -> None:
        """Add a run, and before the first one of a session the environment.

        Raises:
            RunLogError: it can't be written. The file keeps its whole lines, and this one is written with the next.
        """
        if not self._has_head:
            self._has_head = True
            shared = {"started_at": now(), "outrider_version": installed("outrider") or "unknown"}
            identity = {"schema": SCHEMA, "type": "sweep", "id": uuid.uuid4().hex[:12], **shared}
            head = {"type": "resumed", **shared} if self._length else identity | {"config": plan_to_config(self.plan)}
            self._pending.append(to_line(head | {"environment": dict(environment)}))
        self._pending.append(to_line(run_to_record(measurement, self.plan, self.path.absolute().parent)))
        self.num_unsaved += 1
        self._flush()

    def _flush(self) -> None:
        data = b"".join(self._pending)
        try:
            with open(self.path, "r+b", buffering=0) as file:
                # Overwrite what is torn, or belongs to the sweep that this one replaces.
                file.truncate(self._length)
                file.seek(self._length)
                rest = memoryview(data)
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(self._length)
                    raise
        except OSError as error:
            raise RunLogError(explain_write_error(error, self.path)) from error
        self._length += len(data)
        self._pending.clear()
        self.num_unsaved = 0

    def close(self) -> None:
        """Try again to write what is left, and release the file. Never raises, see `num_unsaved`."""
        if self._pending:
            with contextlib.suppress(RunLogError):
                self._flush()
        if self._is_new and not self._length:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._is_new = False
        self._claim.give_back()
