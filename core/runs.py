"""The runs that are kept: a folder of run logs, listed by their first and last lines alone.

Names that a person gave live in a file of their own, so that a log is never rewritten; losing that file loses the
names and nothing else. A deleted run is moved aside and can be brought back until the window that deleted it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from core.errors import RunLogError
from core.files import explain_write_error, write_atomically
from core.run_heads import Head, read_head
from core.trace import RunLog, read_run_log

NAMES_FILE = "names.json"
SUFFIX = ".jsonl"
TRASH_PREFIX = ".trash-"
MAX_NAME = 200
GOING_SECONDS = 900
"""A log without a summary that nobody has written to for this long belongs to no run that goes."""
_LOCK_SECONDS = 2.0


class KeptState(StrEnum):
    """How a kept run stands."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    CUT_OFF = "cut off"
    GOING = "going"
    DAMAGED = "damaged"


_STATES = {"cancelled": KeptState.STOPPED, "error": KeptState.FAILED}


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as the list has it; the log itself stays on the disk.

    Attributes:
        id: what it is called in the folder; also the log's own id.
        name: what a person called it; empty if nobody did.
        started_at: when, in UTC; None where the log doesn't say.
        config: the log's settings without the ids of the prompt.
        summary: the log's summary without its texts; None where there is none.
        num_steps: how many steps were logged; None where that would take reading all of it.
        num_bytes: size of the log.
        problem: a sentence that says why a damaged run can't be read.
    """

    id: str
    path: Path
    name: str = ""
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
        """Its name, or how its prompt begins."""
        prompt = self.config.get("prompt")
        lines = prompt.strip().splitlines() if isinstance(prompt, str) else []
        return self.name or (lines[0].strip() if lines else "") or self.id


class RunStore:
    """A folder of run logs. For one thread; several stores, in several processes, may share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._heads: dict[str, tuple[tuple[int, int], Head]] = {}
        self._trash = folder / f"{TRASH_PREFIX}{os.getpid()}"
        self._deleted: dict[str, str] = {}
        """The name of each run in the trash."""

    def runs(self, going: str = "") -> Iterator[KeptRun]:
        """The runs, newest first, as they are read. A folder that isn't there holds none.

        Args:
            going: the id of the run that this process is writing; empty if there is none.

        Raises:
            RunLogError: the folder can't be read.
        """
        files = self._files()
        names = self._names()
        self._heads = {name: known for name, known in self._heads.items() if name in files}
        for file_name in sorted(files, reverse=True):
            kept = self._kept(Path(files[file_name].path), names, going)
            if kept is not None:
                yield kept

    def load(self, run_id: str) -> RunLog:
        """All of a run's log.

        Raises:
            RunLogError: it can't be read.
        """
        return read_run_log(self.path(run_id))

    def path(self, run_id: str) -> Path:
        """Where a run's log is."""
        return self.folder / f"{Path(run_id).name}{SUFFIX}"

    def rename(self, run_id: str, name: str) -> None:
        """Give a run a name; an empty one takes it away.

        Raises:
            RunLogError: the name can't be kept.
        """
        self._write_names({run_id: " ".join(name.split())[:MAX_NAME]})

    def delete(self, run_ids: Iterable[str]) -> list[str]:
        """Move runs aside. One that is gone already counts as deleted.

        Returns:
            The ids that are out of the list now.

        Raises:
            RunLogError: the first one can't be moved; if it is a later one, the rest stays where it is.
        """
        names = self._names()
        done: list[str] = []
        for run_id in run_ids:
            try:
                self._trash.mkdir(exist_ok=True)
                self.path(run_id).replace(self._trash / self.path(run_id).name)
            except FileNotFoundError:
                pass
            except OSError as error:
                if done:
                    return done
                raise RunLogError(explain_write_error(error, self.path(run_id))) from error
            else:
                self._deleted[run_id] = names.get(run_id, "")
            done.append(run_id)
        return done

    def restore(self, run_ids: Iterable[str]) -> None:
        """Bring deleted runs back.

        Raises:
            RunLogError: one of them can't be.
        """
        for run_id in run_ids:
            place = self.path(run_id)
            if place.exists():
                continue
            try:
                (self._trash / place.name).replace(place)
            except FileNotFoundError:
                raise RunLogError(f"The run {run_id} is gone for good; it can't be brought back.") from None
            except OSError as error:
                raise RunLogError(explain_write_error(error, place)) from error
            self._deleted.pop(run_id, None)

    def empty_trash(self) -> None:
        """Remove for good what this store deleted, and what a window that crashed had deleted. Never raises."""
        with contextlib.suppress(OSError):
            for folder in self.folder.glob(f"{TRASH_PREFIX}*"):
                pid = folder.name.removeprefix(TRASH_PREFIX)
                if folder == self._trash or not (pid.isdecimal() and psutil.pid_exists(int(pid))):
                    shutil.rmtree(folder, ignore_errors=True)
        if any(self._deleted.values()):
            with contextlib.suppress(RunLogError):
                self._write_names(dict.fromkeys(self._deleted, ""))
        self._deleted = {}

    # --- Files ---

    def _files(self) -> dict[str, os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                return {entry.name: entry for entry in entries if entry.name.endswith(SUFFIX) and entry.is_file()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            reason = error.strerror or error
            raise RunLogError(f"The kept runs in {str(self.folder)!r} can't be read: {reason}.") from error

    def _kept(self, path: Path, names: Mapping[str, str], going: str) -> KeptRun | None:
        run_id = path.name.removesuffix(SUFFIX)
        try:
            status = path.stat()
        except OSError:
            return None  # It was deleted just now.
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._heads.get(path.name)
        if known is None or known[0] != stamp:
            known = (stamp, read_head(path))
            self._heads[path.name] = known
        head = known[1]
        state = _state(head, run_id == going, status.st_mtime)
        return replace(
            KeptRun(run_id, path, names.get(run_id, ""), num_bytes=status.st_size, state=state, problem=head.problem),
            started_at=_time(head.started_at, status.st_mtime),
            config=head.config,
            environment=head.environment,
            summary=head.summary,
            num_steps=head.num_steps,
        )

    # --- Names ---

    def _names(self) -> dict[str, str]:
        try:
            data = json.loads((self.folder / NAMES_FILE).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        names = data.get("names") if isinstance(data, dict) else None
        if not isinstance(names, dict):
            return {}
        return {key: value for key, value in names.items() if isinstance(value, str) and value}

    def _write_names(self, changes: Mapping[str, str]) -> None:
        # Two windows may name runs at once: each reads what is there now, under a lock, and adds its own.
        path = self.folder / NAMES_FILE
        try:
            with FileLock(self.folder / f".{NAMES_FILE}.lock", timeout=_LOCK_SECONDS):
                names = {**self._names(), **changes}
                kept = {key: value for key, value in sorted(names.items()) if value}
                write_atomically(path, json.dumps({"version": 1, "names": kept}, ensure_ascii=False, indent=1) + "\n")
        except Timeout:
            raise RunLogError("Another Outrider is writing the names of the runs; try again.") from None
        except OSError as error:
            raise RunLogError(explain_write_error(error, path)) from error


def _state(head: Head, is_own: bool, written_at: float) -> KeptState:
    if head.problem:
        return KeptState.DAMAGED
    if head.summary is not None:
        return _STATES.get(str(head.summary.get("finish_reason")), KeptState.FINISHED)
    return KeptState.GOING if is_own or _is_elsewhere(head, written_at) else KeptState.CUT_OFF


def _is_elsewhere(head: Head, written_at: float) -> bool:
    """Whether another window seems to be writing this log."""
    pid = head.environment.get("process")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    if datetime.now(UTC).timestamp() - written_at > GOING_SECONDS:
        return False
    try:
        # Ids of processes are used again; who writes this log was there before its last line.
        return bool(psutil.Process(pid).create_time() <= written_at)
    except (psutil.Error, OverflowError, ValueError):
        return False


def _time(text: str, written_at: float) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(written_at, UTC)
    return None
