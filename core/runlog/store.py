"""Stores the kept runs: a folder of run logs, listed from their first and last lines alone.

The names, notes and tags that users give are in files of their own, so logs are never rewritten. Deleted runs go to a
trash folder, and can be restored until the window that deleted them closes, or for a day.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from core.errors import RunLogError
from core.files import (
    FileClaim,
    explain_read_error,
    explain_write_error,
    keep_aside,
    open_regular,
    read_lines,
    read_own_json,
    sweep,
    write_atomically,
)
from core.runlog.log import Record
from core.runlog.reading import RunLog, head_record, mapping_of, parse_line, read_run_log, text_of

MAX_PROMPT = 4_000
"""Most characters of a prompt kept in the list, for display and search."""
LABELS_VERSION = 1
SUFFIX = ".jsonl"
OWN_NAME = re.compile(r"\d{8}-\d{6}-")
"""How the names of our own logs begin: with the run's start, in UTC."""
TRASH_PREFIX = ".trash-"
LOCK_SECONDS = 2.0
TAIL_BYTES = 16_384
MAX_TAIL_BYTES = 64 * 1024 * 1024
MOST_TAIL_LINES = 100_000


class KeptState(StrEnum):
    """The state of a kept run."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    CUT_OFF = "cut off"
    RUNNING = "running"
    DAMAGED = "damaged"


class Label(StrEnum):
    """What a user can give a run; each has a file of this name, which holds one text a run."""

    NAME = "names"
    NOTE = "notes"
    TAGS = "tags"


MAX_LABEL = {Label.NAME: 200, Label.NOTE: 2_000, Label.TAGS: 200}
"""Most characters of a label."""

STATES = {"cancelled": KeptState.STOPPED, "error": KeptState.FAILED}


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run in the list; the log itself stays on disk.

    Attributes:
        id: its file's name without the suffix; also the log's own id.
        name, note, tags: what the user gave it, the tags separated by commas; empty if nothing.
        started_at: in UTC; None if unknown.
        config: the log's settings without the ids of the prompt, and with at most `MAX_PROMPT` of its text.
        summary: the log's summary without its texts; None if there is none.
        num_steps: how many steps were logged; None if counting them would require reading the whole log.
        num_bytes: size of the log.
        problem: one sentence on why a damaged run can't be read.
    """

    id: str
    path: Path
    name: str = ""
    note: str = ""
    tags: str = ""
    started_at: datetime | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    state: KeptState = KeptState.DAMAGED
    num_steps: int | None = None
    num_bytes: int = 0
    problem: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether its log can be opened."""
        return self.state is not KeptState.DAMAGED

    @property
    def title(self) -> str:
        """Its name, or the first line of its prompt."""
        lines = text_of(self.config.get("prompt")).strip().splitlines()
        return self.name or (lines[0].strip() if lines else "") or self.id


# --- One log ----------------------------------------------------------------------------------------------------


def read_head(path: Path) -> KeptRun:
    """Read a log's first and last lines. Never raises: `problem` says what is wrong with the log."""
    run_id = path.name.removesuffix(SUFFIX)
    try:
        with open_regular(path) as file:
            status = os.stat(file.fileno())
            head = head_record(next(read_lines(file), b""), path.name)
            last = _last_record(file) or {}
    except RunLogError as error:
        return KeptRun(run_id, path, num_bytes=status.st_size, problem=str(error))
    except OSError as error:
        return KeptRun(run_id, path, problem=explain_read_error(error, path.name, "run log"))
    config = {
        name: value[:MAX_PROMPT] if isinstance(value, str) else value
        for name, value in head["config"].items()
        if name != "prompt_token_ids"
    }
    summary, num_steps, state = None, None, KeptState.CUT_OFF
    if last.get("type") == "summary":
        summary = {name: value for name, value in last.items() if name not in {"text", "baseline_text"}}
        num_steps = summary.get("num_steps")
        state = STATES.get(str(summary.get("finish_reason")), KeptState.FINISHED)
    elif last.get("type") == "step":
        num_steps = last["index"] + 1 if isinstance(last.get("index"), int) else None
    elif not last:
        num_steps = 0
    return KeptRun(
        run_id,
        path,
        started_at=moment_of(text_of(head.get("started_at")), status.st_mtime),
        config=config,
        environment=mapping_of(head.get("environment")),
        summary=summary,
        state=state,
        num_steps=num_steps if isinstance(num_steps, int) else None,
        num_bytes=status.st_size,
    )


def _last_record(file: BinaryIO) -> Record | None:
    """The last summary or step after the line that was read; None if there is none near the end."""
    first, size, length = file.tell(), file.seek(0, os.SEEK_END), TAIL_BYTES
    while True:
        start = max(first, size - length)
        file.seek(start)
        rest, *lines = file.read(size - start).rsplit(b"\n", MOST_TAIL_LINES)
        is_whole = start == first and len(lines) < MOST_TAIL_LINES
        for line in reversed([rest, *lines] if is_whole else lines):
            record = parse_line(line)
            if record is not None and record.get("type") in {"summary", "step"}:
                return record
        if is_whole:
            return None
        if length >= MAX_TAIL_BYTES or len(lines) == MOST_TAIL_LINES:
            return {"type": "unknown"}
        length *= 4


def moment_of(text: str, written_at: float = math.nan) -> datetime | None:
    """The time in a log, or else when that was written; None where neither is a time."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        # A date at the edge of the calendar has no local time to be shown in.
        return moment.astimezone().astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(written_at, UTC)
    return None


def _is_being_written(path: Path) -> bool:
    """Whether a run still writes this log, perhaps in another process, or is paused there."""
    claim = FileClaim(path)
    if not claim.lock_path.exists():
        return False
    is_free = claim.take()
    claim.give_back()
    return not is_free


# --- The folder -------------------------------------------------------------------------------------------------


class RunStore:
    """A folder of run logs. For one thread at a time; several processes may share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        """A sentence if a file of labels had to be kept aside."""
        self._known: dict[str, tuple[tuple[int, int], KeptRun]] = {}
        self._trash = folder / f"{TRASH_PREFIX}{secrets.token_hex(8)}"
        self._deleted: set[str] = set()
        """The runs in the trash."""

    def runs(self, running_id: str = "") -> Iterator[KeptRun]:
        """Yield the runs, newest first.

        Args:
            running_id: the run that this process is writing; empty if none.

        Raises:
            RunLogError: the folder can't be read.
        """
        try:
            files = {file.name for file in self.folder.iterdir() if file.name.endswith(SUFFIX)}
        except FileNotFoundError:
            files = set()
        except OSError as error:
            reason = error.strerror or error
            raise RunLogError(f"The kept runs in {str(self.folder)!r} can't be read: {reason}.") from error
        names, notes, tags = (self._whole_labels(label) for label in Label)
        self._known = {name: known for name, known in self._known.items() if name in files}
        for file_name in sorted(files, key=self._begun, reverse=True):
            run = self._head(file_name)
            if run is None:
                continue
            is_own = run.id == running_id
            is_running = run.state is KeptState.CUT_OFF and (is_own or _is_being_written(run.path))
            yield replace(
                run,
                name=names.get(run.id, ""),
                note=notes.get(run.id, ""),
                tags=tags.get(run.id, ""),
                state=KeptState.RUNNING if is_running else run.state,
            )

    def _head(self, file_name: str) -> KeptRun | None:
        """A run as in its log, which is read again only if it has changed; None if it is no file."""
        path = self.folder / file_name
        try:
            status = path.stat()
        except OSError:
            return None  # It was deleted meanwhile, or is a link to nothing.
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp, known = (status.st_mtime_ns, status.st_size), self._known.get(file_name)
        if known is None or known[0] != stamp:
            known = self._known[file_name] = (stamp, read_head(path))
        return known[1]

    def _begun(self, file_name: str) -> str:
        """What sorts runs by their start: a run's own file name, or the like for a log of another name."""
        run = None if OWN_NAME.match(file_name) else self._head(file_name)
        begun = f"{run.started_at:%Y%m%d-%H%M%S}" if run and run.started_at else ""
        return file_name if run is None else f"{begun}-{file_name}"

    def load(self, run_id: str, *, packs_evidence: bool = True) -> RunLog:
        """All of a run's log.

        Args:
            packs_evidence: see `read_run_log`; to be written as JSON Lines, it must stay as it is in the file.

        Raises:
            RunLogError: it can't be read.
        """
        return read_run_log(self.path(run_id), packs_evidence=packs_evidence)

    def path(self, run_id: str) -> Path:
        """Path of a run's log."""
        return self.folder / f"{Path(run_id).name}{SUFFIX}"

    def refuse_own(self, path: Path, run_ids: Iterable[str]) -> None:
        """Raises:
        RunLogError: one of these runs is kept at this path.
        """
        if path.exists() and any(path.samefile(kept) for kept in map(self.path, run_ids) if kept.exists()):
            raise RunLogError("The run is already kept in this file; choose another place.")

    def label(self, label: Label, text: str, *run_ids: str) -> None:
        """Give runs a name, a note or tags; an empty text removes what they had.

        Raises:
            RunLogError: it can't be saved.
        """
        if label is Label.TAGS:
            text = ", ".join(dict.fromkeys(filter(None, (" ".join(tag.split()) for tag in text.split(",")))))
        self._write_labels(label, dict.fromkeys(run_ids, " ".join(text.split())[: MAX_LABEL[label]]))

    def delete(self, run_ids: Iterable[str]) -> Sequence[str]:
        """Move runs to the trash, and return the ids of those that were moved: what `restore` can bring back.

        Raises:
            RunLogError: the first one can't be moved. If a later one can't, the rest stays.
        """
        done = list[str]()
        for run_id in run_ids:
            try:
                self._trash.mkdir(exist_ok=True)
                self.path(run_id).replace(self._trash / self.path(run_id).name)
                self._deleted.add(run_id)
                done.append(run_id)
            except FileNotFoundError:
                pass  # Another window has deleted it, and can restore it.
            except OSError as error:
                if done:
                    return done
                raise RunLogError(explain_write_error(error, self.path(run_id))) from error
        return done

    def restore(self, run_ids: Iterable[str]) -> None:
        """Bring deleted runs back.

        Raises:
            RunLogError: one of them can't be restored; the others are.
        """
        problem = ""
        for run_id in run_ids:
            path = self.path(run_id)
            if path.exists():
                self._deleted.discard(run_id)
                continue
            try:
                (self._trash / path.name).replace(path)
                self._deleted.discard(run_id)
            except FileNotFoundError:
                problem = problem or f"The run {run_id} was deleted permanently; it can't be restored."
            except OSError as error:
                problem = problem or explain_write_error(error, path)
        if problem:
            raise RunLogError(problem)

    def is_in_trash(self, run_id: str) -> bool:
        """Whether `restore` could still bring this run back."""
        return (self._trash / self.path(run_id).name).exists()

    def empty_trash(self) -> None:
        """Permanently remove what this store deleted, and others more than a day ago. Never raises."""
        shutil.rmtree(self._trash, ignore_errors=True)
        with contextlib.suppress(OSError):
            sweep(self.folder, TRASH_PREFIX)
        # A log that somebody has put back keeps its labels.
        gone = {run_id for run_id in self._deleted if not os.path.exists(self.path(run_id))}
        for label in Label:
            if labelled := gone & self._read_labels(label)[0].keys():
                with contextlib.suppress(RunLogError):
                    self._write_labels(label, dict.fromkeys(labelled, ""))
        self._deleted = set()

    def _whole_labels(self, label: Label) -> dict[str, str]:
        labels, is_whole = self._read_labels(label)
        if not is_whole:
            with contextlib.suppress(RunLogError):
                self._write_labels(label, {})  # Keeps the file aside, and what of it can be read.
        return labels

    def _read_labels(self, label: Label) -> tuple[dict[str, str], bool]:
        data, is_whole = read_own_json(self.folder / f"{label}.json", LABELS_VERSION)
        labels = mapping_of(data.get(label)).items()
        return {key: value for key, value in labels if isinstance(value, str) and value}, is_whole

    def _write_labels(self, label: Label, changes: Mapping[str, str]) -> None:
        # Two windows may label runs at once: each adds its labels to the file under a lock.
        path = self.folder / f"{label}.json"
        try:
            with FileLock(self.folder / f".{path.name}.lock", timeout=LOCK_SECONDS):
                kept, is_whole = self._read_labels(label)
                if not is_whole:
                    aside = str(keep_aside(path))
                    self.problem = f"The {label} of the runs could not all be read; their file was kept as {aside!r}."
                kept = {key: value for key, value in sorted({**kept, **changes}.items()) if value}
                record = {"version": LABELS_VERSION, label.value: kept}
                write_atomically(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
        except Timeout:
            raise RunLogError(f"Another Outrider is writing the {label} of the runs; try again.") from None
        except OSError as error:
            raise RunLogError(explain_write_error(error, path)) from error
