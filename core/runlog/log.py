"""Writes the run log: JSON Lines, one record per event, written during the run; `core.runlog.reading` reads it back.

`RunLogWriter.write` writes every line of a log; `to_record` defines its contents.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import stat
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from core import evidence
from core.errors import RunLogError
from core.files import (
    FileClaim,
    explain_write_error,
    open_to_write,
    shown_path,
)
from core.types import (
    UNKNOWN_ID,
    BaselineStep,
    Event,
    Finished,
    Inspected,
    RunStarted,
    Step,
    StepsCounted,
    StepSource,
    Summary,
)

SCHEMA = "outrider.run/1"
"""Schema in a log's first line. The number rises only when readers of the old schema would misread the new one."""

Record = dict[str, Any]

CONFIG_FIELDS = (
    "target", "draft", "method", "revision", "device", "dtype", "num_draft_tokens", "temperature", "top_k", "top_p",
    "min_p", "seed", "coupling", "max_new_tokens", "prompt", "prompt_token_ids", "chat",
)  # fmt: skip
ENVIRONMENT_FIELDS = ("python", "torch", "transformers", "platform", "device_name", "threads")
STEP_FIELDS = (
    "index", "position", "num_draft_tokens", "temperature", "drafted", "draft_probs", "target_probs",
    "acceptance_probs", "expected_acceptance", "num_accepted", "emitted", "emitted_kinds", "emitted_text", "draft_ms",
    "verify_ms", "sample_ms", "total_ms",
)  # fmt: skip
_ONLY_IF_ANY = ("parents", "accepted_path", "block", "absent_ms", "source")
"""Fields that only steps of a tree, of block verification, across a sleep of the machine, or of a server have."""
SURE_STEP_FIELDS = ("index", "position", "num_draft_tokens", "drafted", "num_accepted", "emitted", "emitted_kinds")
"""Fields that a step of a server has, too; it lacks what the server doesn't report."""
BASELINE_STEP_FIELDS = ("index", "position", "emitted", "emitted_text", "total_ms")
BASELINE_TIMES = ("verify_ms",)
"""Additional fields of a baseline step, which older logs lack."""
SUMMARY_FIELDS = (
    "finish_reason", "text", "num_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
    "num_accepted_tokens_per_pos", "draft_acceptance_rate", "block_efficiency", "cost_coefficient",
    "tokens_per_second", "prefill_ms", "peak_memory_mb", "predicted_speedup",
)  # fmt: skip
BASELINE_FIELDS = ("baseline_tokens_per_second", "measured_speedup")
_OF_BASELINE = (*BASELINE_FIELDS, "measured_speedup_interval", "baseline_text", "baseline_num_threads")


# --- The beginning of a run -------------------------------------------------------------------------------------


def started_now(config: Mapping[str, Any], **environment: Any) -> RunStarted:
    """The first event of a run that starts now; the environment is what else is known of it."""
    started_at = datetime.now(UTC)
    here = {"python": platform.python_version(), "platform": platform.platform(), "process": os.getpid()}
    found = {**environment, **here}
    return RunStarted(
        run_id=f"{started_at:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        started_at=started_at.isoformat(timespec="milliseconds"),
        version=installed("outrider") or "unknown",
        config=config,
        environment={name: found[name] for name in (*ENVIRONMENT_FIELDS, "process") if name in found},
    )


def installed(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- Lines ------------------------------------------------------------------------------------------------------


def to_record(event: Event) -> Record | None:
    """The log's record of an event, with None for NaN and infinity; None for events that are not logged."""
    if isinstance(event, RunStarted):
        return {
            "schema": SCHEMA,
            "type": "run",
            "id": event.run_id,
            "started_at": event.started_at,
            "outrider_version": event.version,
            # A server leaves out what it doesn't know.
            "config": _plain(event.config) if event.config.get("engine") else _in_order(event.config, CONFIG_FIELDS),
            "environment": _in_order(event.environment, () if event.config.get("engine") else ENVIRONMENT_FIELDS),
        }
    if isinstance(event, Step):
        return {name: _plain(value) for name, value in _step_record(event).items()}
    if isinstance(event, Inspected):
        return {"type": "evidence", "index": event.index, "evidence": list(map(evidence.to_record, event.evidence))}
    if isinstance(event, StepsCounted):
        return {"type": "steps_counted", "counts": _plain(event.counts)}
    if isinstance(event, BaselineStep):
        names = (*BASELINE_STEP_FIELDS, *BASELINE_TIMES, *(["absent_ms"] if event.step.absent_ms else []))
        return {"type": "baseline_step", **{name: _plain(getattr(event.step, name)) for name in names}}
    if isinstance(event, Finished):
        return {"type": "summary", **_summary_fields(event.summary)}
    return None


def event_line(event: Event) -> bytes | None:
    """The log's line for an event; None for events that are not logged."""
    # Most steps can be written as they are, which is twice as fast as making a plain record first.
    record = _step_record(event) if isinstance(event, Step) else to_record(event)
    return None if record is None else to_line(record)


def to_line(record: Mapping[str, Any]) -> bytes:
    """A record as one line of UTF-8 JSON, with its line end."""
    try:
        text = _dump(record)
    except (TypeError, ValueError):
        text = _dump(_plain(record))
    # UTF-8 can't hold a lone surrogate; backslashreplace writes it as JSON does: \udxxx.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _step_record(step: Step) -> Record:
    values = {**_values(step), "emitted_text": step.emitted_text}
    del values["evidence"]
    for name in _ONLY_IF_ANY:
        if not values[name] and not (name == "accepted_path" and step.parents):
            del values[name]
    if step.draft_length is None:
        del values["draft_length"]
    record = {"type": "step", **{name: values.pop(name) for name in STEP_FIELDS}, **values}
    if step.evidence:
        record["evidence"] = list(map(evidence.to_record, step.evidence))
    return record if step.source is None else _as_reported(record)


def _as_reported(record: Record) -> Record:
    """A record of a server without what the server didn't report, and with null for an unknown id."""
    for name in ("drafted", "emitted"):
        record[name] = [None if token == UNKNOWN_ID else token for token in record[name]]
    plain = ((name, _plain(value)) for name, value in record.items())
    return {
        name: value
        for name, value in plain
        if name in SURE_STEP_FIELDS
        or (any(item is not None for item in value) if isinstance(value, list) else value is not None)
    }


def _summary_fields(summary: Summary) -> Record:
    values = _values(summary)
    names: tuple[str, ...] = SUMMARY_FIELDS
    if summary.baseline_tokens_per_second is None:
        for name in _OF_BASELINE:
            del values[name]
    else:
        names += BASELINE_FIELDS
    if summary.error is None:
        del values["error"]
    if not summary.was_stepped:
        del values["was_stepped"]
    if summary.source is None:
        del values["source"]
        return _in_order(values, names)
    if summary.source is StepSource.TEXT:
        for name in ("num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "block_efficiency"):
            del values[name]
    elif summary.source is StepSource.CHUNKS and summary.draft_acceptance_rate is None and summary.num_accepted_tokens:
        del values["num_drafts"], values["num_draft_tokens"]  # Not every draft is known.
    return {name: value for name, value in _in_order(values, names).items() if value is not None and value != []}


def _values(event: Step | Summary) -> Record:
    # Not asdict, which copies every list.
    return {item.name: getattr(event, item.name) for item in fields(event)}


def _in_order(values: Mapping[str, Any], names: Iterable[str]) -> Record:
    """The named fields first, null if missing, then all others."""
    return {name: _plain(values.get(name)) for name in dict.fromkeys((*names, *values))}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)  # Enum members become their values.
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)


def _dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


# --- Writing ----------------------------------------------------------------------------------------------------


class RunLogWriter:
    """Appends and flushes a line for each event, so that a crash loses no earlier line.

    An existing log is replaced when the first line is written, so a run that never starts leaves it unchanged.

    Raises:
        RunLogError: on creation, if the file can't be written, or another run is writing it.
    """

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO | None = None) -> None:
        """Args: file: written to instead of opening `path`; unbuffered."""
        self.path = Path(path)
        self._length = 0
        self._error: str | None = None
        self._is_new = not os.path.lexists(path)
        try:
            self._claim = FileClaim(path)
            self._file: BinaryIO = file or os.fdopen(open_to_write(self.path), "wb", buffering=0)
        except (OSError, ValueError) as error:
            raise RunLogError(explain_write_error(error, path)) from error
        self._is_regular = file is None and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if self._is_regular and not self._claim.take():
            self._file.close()
            raise RunLogError(f"Another run is writing {shown_path(path)}; wait until it ends, or name another file.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The run's own error matters more than an error on closing its log.
        with contextlib.suppress(RunLogError) if error is not None else contextlib.nullcontext():
            self.close()

    def write(self, event: Event) -> None:
        """Append the event's line; events that are not logged are skipped.

        Raises:
            RunLogError: it can't be written. Earlier lines stay; every later call raises it again.
        """
        if self._error is not None:
            raise RunLogError(self._error)
        line = event_line(event)
        if line is None:
            return
        try:
            if self._length == 0 and self._is_regular:
                self._file.truncate(0)
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._error = explain_write_error(error, self.path)
            # Remove the partly written line, so that all lines are complete.
            with contextlib.suppress(OSError):
                if self._is_regular:
                    self._file.truncate(self._length)
            raise RunLogError(self._error) from error
        self._length += len(line)

    def close(self) -> None:
        """Flush the log to the disk. May be called more than once.

        Raises:
            RunLogError: some of it was not written.
        """
        if self._file.closed:
            return
        try:
            with self._file:
                if self._length and self._is_regular:
                    os.fsync(self._file.fileno())
        except OSError as error:
            raise RunLogError(explain_write_error(error, self.path)) from error
        finally:
            self._claim.give_back()
        if self._is_new and self._is_regular and not self._length:
            with contextlib.suppress(OSError):
                self.path.unlink()
