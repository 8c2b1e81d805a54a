"""The runs that are kept: a folder of run logs, listed by their first and last lines alone.

Names that a person gave live in a file of their own, so that a log is never rewritten; losing that file loses the
names and nothing else. A deleted run is moved aside and can be brought back until the window that deleted it ends.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from filelock import FileLock, Timeout

from core.draft_shape import shown_draft_length
from core.errors import RunLogError
from core.files import explain_write_error, write_atomically
from core.runlog.log import RunLog, parse_line, read_run_head, read_run_log

MAX_PROMPT = 4_000
"""Characters of a prompt that a list needs: to show its beginning, and to search in it."""
_TAIL_BYTES = 16_384
_MAX_TAIL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """What a list says of a log.

    Attributes:
        config: without the ids of the prompt, and with no more of the prompt than `MAX_PROMPT`.
        summary: without the texts; None where the log has none.
        problem: why the log can't be read; empty if it can.
    """

    started_at: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    num_steps: int | None = None
    problem: str = ""


def read_head(path: Path) -> Head:
    """Read a log's first and last lines. Never raises: what is wrong with the log is told in `problem`."""
    try:
        with path.open("rb") as file:
            run = read_run_head(file.readline(), path.name)
            return _head(run, *_end(file))
    except RunLogError as error:
        return Head(problem=str(error))
    except OSError as error:
        return Head(problem=f"{path.name!r} can't be read ({error.strerror or error}); check its permissions.")


def _head(run: Mapping[str, Any], summary: dict[str, Any] | None, num_steps: int | None) -> Head:
    config = {name: value for name, value in run["config"].items() if name != "prompt_token_ids"}
    prompt = config.get("prompt")
    if isinstance(prompt, str):
        config["prompt"] = prompt[:MAX_PROMPT]
    if summary is not None:
        summary = {name: value for name, value in summary.items() if name not in {"text", "baseline_text"}}
        told = summary.get("num_steps")
        num_steps = told if isinstance(told, int) else num_steps
    environment = run.get("environment")
    started_at = run.get("started_at")
    return Head(
        started_at if isinstance(started_at, str) else "",
        config,
        environment if isinstance(environment, dict) else {},
        summary,
        num_steps,
    )


def _end(file: BinaryIO) -> tuple[dict[str, Any] | None, int | None]:
    """The summary, and the number of steps, as the last lines tell them."""
    first = file.tell()
    size = file.seek(0, os.SEEK_END)
    if size <= first:
        return None, 0
    for line in _lines_from_end(file, first, size):
        record = parse_line(line)
        if record is None:
            continue  # Torn by a crash, or blank.
        kind = record.get("type")
        if kind == "summary":
            return record, None
        if kind == "step":
            index = record.get("index")
            return None, index + 1 if isinstance(index, int) else None
    return None, None


def _lines_from_end(file: BinaryIO, first: int, size: int) -> Iterator[bytes]:
    """Lines, the last one first, from ever larger pieces of the end; none that begins before `first`."""
    length, given = _TAIL_BYTES, 0
    while True:
        start = max(first, size - length)
        file.seek(start)
        lines = file.read(size - start).split(b"\n")
        if start > first:
            lines = lines[1:]  # It began before this piece.
        yield from reversed(lines[: len(lines) - given])
        given = len(lines)
        if start == first or length >= _MAX_TAIL_BYTES:
            return
        length *= 4


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
    RUNNING = "running"
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

    def refuse_own(self, path: Path, run_ids: Iterable[str]) -> None:
        """Raises:
        RunLogError: the path is where one of these runs is kept.
        """
        if path.exists() and any(path.samefile(kept) for kept in map(self.path, run_ids) if kept.exists()):
            raise RunLogError("This is where the run is kept already; choose another place.")

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
    return KeptState.RUNNING if is_own or _is_elsewhere(head, written_at) else KeptState.CUT_OFF


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


_TERM = re.compile(r"([A-Za-z_-]+)(>=|<=|=|>|<)(\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: abs(a - b) <= 1e-9 * max(1.0, abs(b)),
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_ALIASES = {
    "k": "num_draft_tokens",
    "t": "temperature",
    "temp": "temperature",
    "n": "max_new_tokens",
    "tokens": "num_tokens",
    "steps": "num_steps",
    "acceptance": "draft_acceptance_rate",
    "speed": "tokens_per_second",
    "speedup": "measured_speedup",
    "c": "cost_coefficient",
    "efficiency": "block_efficiency",
}
_WORDS = ("target", "draft", "method", "device", "dtype", "coupling")


def matches(run: KeptRun, query: str, text: str | None = None) -> bool:
    """Whether a run has every word of the query; case doesn't matter. An empty query fits all.

    Args:
        run: to look at.
        query: words and settings, with spaces between.
        text: `searchable` of the run, where the caller has it at hand.
    """
    text = searchable(run) if text is None else text
    return all(_fits(run, text, word) for word in query.casefold().split())


def searchable(run: KeptRun) -> str:
    """What plain words are looked for in."""
    config = run.config
    parts = (run.name, run.id, config.get("prompt"), *(config.get(name) for name in _WORDS), str(run.state))
    return "\n".join(part for part in parts if isinstance(part, str)).casefold()


def _fits(run: KeptRun, text: str, word: str) -> bool:
    term = _TERM.fullmatch(word)
    if term is None:
        return word in text
    key, sign, wanted = term.groups()
    key = _ALIASES.get(key, key).replace("-", "_")
    if not _is_known(run, key):
        return word in text
    return _has(_value(run, key), sign, wanted)


def _is_known(run: KeptRun, key: str) -> bool:
    places = (_ALIASES.values(), run.config, run.summary or {}, _options(run))
    return key in {"state", "num_steps"} or any(key in place for place in places)


def _options(run: KeptRun) -> Mapping[str, Any]:
    options = run.config.get("method_options")
    return options if isinstance(options, dict) else {}


def _value(run: KeptRun, key: str) -> Any:
    if key == "state":
        return str(run.state)
    if key == "num_steps":
        return run.num_steps
    if key == "num_draft_tokens":
        return shown_draft_length(run.config)
    places = (run.config, run.summary or {}, _options(run))
    return next((place[key] for place in places if place.get(key) is not None), None)


def _has(value: Any, sign: str, wanted: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(wanted.removesuffix("%")) / (100 if wanted.endswith("%") else 1)
            return _COMPARE[sign](float(value), number)
        except (ValueError, OverflowError):
            return False
    return sign == "=" and value is not None and wanted in str(value).casefold()
