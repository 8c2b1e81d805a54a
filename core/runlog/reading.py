"""Reads run logs, and the values in any file or answer from elsewhere, which may hold anything."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, BinaryIO

from core import evidence
from core.errors import RunLogError
from core.files import explain_read_error, open_regular, parse_json, read_lines, shown_path
from core.runlog.log import BASELINE_STEP_FIELDS, SCHEMA, STEP_FIELDS, SURE_STEP_FIELDS, Record

MOST_DAMAGED_LINES, MOST_LINES = 2_000, 2_000_000
"""A file that has more is no log of a run."""


@dataclass(slots=True)
class RunLog:
    """A log that was read: its records as they are in the file.

    Attributes:
        run: the first line.
        steps, baseline_steps: the lines of type "step" and "baseline_step".
        summary: the last line; None if the run was cut off or is still running.
        problems: one sentence for each problem with the file.
        others: lines of types that only newer versions know, each with the number of the steps before it.
        has_more: whether another run, which was not read, follows in the file.
    """

    run: Record
    steps: list[Record] = field(default_factory=list)
    summary: Record | None = None
    problems: list[str] = field(default_factory=list)
    baseline_steps: list[Record] = field(default_factory=list)
    others: list[tuple[int, Record]] = field(default_factory=list)
    has_more: bool = False

    def records(self) -> Iterator[Record]:
        """Every record, in the file's order."""
        yield self.run
        steps = enumerate((*self.steps, *self.baseline_steps))
        # At equal numbers `merge` takes the others first: each stood before the step of its number.
        yield from (record for _, record in heapq.merge(self.others, steps, key=itemgetter(0)))
        if self.summary is not None:
            yield self.summary


def read_run_log(path: str | os.PathLike[str], *, packs_evidence: bool = False) -> RunLog:
    """Read a run log. A torn last line and a missing summary are tolerated and reported in `problems`.

    Args:
        packs_evidence: keep it as `PackedEvidence`; as lists it takes eight times its size in the file.

    Raises:
        RunLogError: the file can't be read, or is not a run log of a known version.
    """
    name = os.fspath(path)
    try:
        with open_regular(path) as file:
            return _read_lines(file, name, packs_evidence)
    except OSError as error:
        raise RunLogError(explain_read_error(error, path, "run log")) from error


def parse_line(line: bytes) -> Record | None:
    """A line as a record, with a text as its type; None if it is not one."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("type", ""), str) else None


def number_of(value: Any) -> float | None:
    """The value if it is a finite number; else None, since a damaged log may hold anything."""
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return None
    return float(value) if is_number else None


def count_of(value: Any) -> int | None:
    """The value if it is a whole number from 0 on that a float holds; else None."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def ids_of(values: Any) -> tuple[int, ...]:
    """The ids or counts in a list; none if it is no list of these."""
    found = tuple(map(count_of, values)) if isinstance(values, list | tuple) else ()
    return tuple(value for value in found if value is not None) if None not in found else ()


def text_of(value: Any) -> str:
    """The value if it is a text; else an empty one."""
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> dict[str, Any]:
    """The value if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def head_record(line: bytes, name: str, schema: str = SCHEMA, what: str = "run log", of: str = "run") -> Record:
    """The first line of a run's log, or of a file with another `schema`, which is called `what` in sentences.

    Raises:
        RunLogError: this version can't read it.
    """
    if not line.strip():
        raise RunLogError(f"{name!r} is empty; a {what} begins with a line that describes the {of}.")
    record = parse_line(line.removeprefix(b"\xef\xbb\xbf"))
    found = record.get("schema") if record else None
    if record is None or not isinstance(found, str):
        raise RunLogError(f"{name!r} is not a {what}: its first line names no schema such as {schema!r}.")
    if found != schema:
        kind, _, version = found.rpartition("/")
        if kind == schema.rpartition("/")[0] and version.isdecimal() and int(version) > 1:
            raise RunLogError(f"{name!r} was written by a newer Outrider ({found}); update Outrider to read it.")
        if kind == "outrider.sweep":
            raise RunLogError(f"{name!r} is a sweep's file, not the log of a run; choose a run's log.")
        raise RunLogError(f"{name!r} is not a {what}: its schema is {found!r}, and this Outrider reads {schema}.")
    if record.get("type", of) != of or not isinstance(record.get("config"), dict):
        raise RunLogError(f"{name!r} is damaged: its first line does not describe a {of}.")
    return record


def _read_lines(file: BinaryIO, name: str, packs_evidence: bool) -> RunLog:
    # Lines end only at \n: text may hold other characters at which str.splitlines would split.
    lines = read_lines(file)
    log = RunLog(head_record(next(lines, b""), name))
    for number, line in enumerate(lines, start=2):
        if len(log.problems) > MOST_DAMAGED_LINES or number > MOST_LINES:
            raise RunLogError(
                f"{shown_path(name)} is damaged: it contains lines that no run writes. Choose another log."
            )
        if not line.strip():
            continue
        record = parse_line(line)
        if record is None:
            where = "is damaged" if line.endswith(b"\n") else "is cut off"
            log.problems.append(f"Line {number} {where} and was left out.")
            continue
        if record.get("type") == "run":  # Runs were appended to one file; their steps must not be mixed.
            log.has_more = True
            log.problems.append(f"Line {number} begins another run; it and all after it were left out.")
            break
        if packs_evidence and "evidence" in record:
            record["evidence"] = evidence.packed(evidence.evidence_from_record(record))
        if problem := _add(log, record):
            log.problems.append(f"Line {number} {problem}")
    if log.summary is None:
        log.problems.append("The log has no summary: the run was cut off, or is still running.")
    return log


def _add(log: RunLog, record: Record) -> str:
    """Add a record to the log, or return why it was left out."""
    kind = record.get("type")
    if kind in {"step", "baseline_step"}:
        is_step = kind == "step"
        needed = (SURE_STEP_FIELDS if record.get("source") else STEP_FIELDS) if is_step else BASELINE_STEP_FIELDS
        missing = [name for name in needed if name not in record]
        if missing:
            return f"lacks {', '.join(missing)} and was left out."
        (log.steps if is_step else log.baseline_steps).append(record)
    elif kind == "evidence":
        step = _step_of(log.steps, record.get("index"))
        if step is None or "evidence" in step:
            return "holds evidence of an unknown step and was left out."
        step["evidence"] = record.get("evidence")
    elif kind == "summary" and log.summary is None:
        log.summary = record
    elif kind == "summary":
        return "is a second summary and was left out."
    else:
        log.others.append((len(log.steps) + len(log.baseline_steps), record))
    return ""


def _step_of(steps: list[Record], index: object) -> Record | None:
    """The step of this index, which is further to the front if earlier steps are missing."""
    if not isinstance(index, int):
        return None
    return next((steps[at] for at in range(min(index, len(steps) - 1), -1, -1) if steps[at]["index"] == index), None)
