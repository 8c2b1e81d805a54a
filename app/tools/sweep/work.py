"""Reads and writes sweeps' files, and files of prompts, in a thread of its own: they may be long, and disks slow."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QThread, Signal, SignalInstance

from app.services import Session
from app.threads import Answerer, AnsweringThread
from app.tools.sweep.sweep_view import OpenedSweep, SweepBegun, SweepExport
from core.controls import RunControls
from core.errors import RunLogError, sentence_of
from core.experiments.prompt_suites import read_prompts
from core.experiments.sweep import SweepControls, SweepResults, sweep, to_csv, verdicts
from core.experiments.sweep_log import SweepLog, read_sweep
from core.experiments.sweep_plan import ASK_ABOVE, RunMeasured, SweepPlan, SweepStarted
from core.export.files import export_sweep_csv, export_sweep_html, export_sweep_jsonl
from core.files import explain_write_error, write_atomically

MOST_LISTED = 20
_STAMP = "%Y%m%d-%H%M%S"


def new_path(folder: Path, plan: SweepPlan, moment: datetime) -> Path:
    """A file that isn't there yet: the moment, and whom the sweep is of."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", plan.target.rstrip("/\\").replace("\\", "/").rpartition("/")[2]).strip("-.")
    stem = f"{moment.strftime(_STAMP)}-{name[:40] or 'sweep'}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.jsonl" for number in range(1, 1000))
    return next(path for path in (folder / each for each in names) if not path.exists())


def earlier_sweeps(folder: Path) -> list[Path]:
    """The newest of those that are kept, newest first."""
    with contextlib.suppress(OSError):
        return sorted(folder.glob("*.jsonl"), key=lambda path: path.name, reverse=True)[:MOST_LISTED]
    return []


def title_of(path: Path) -> str:
    """What a list calls a sweep."""
    stamp, name = path.stem[:15], path.stem[16:]
    with contextlib.suppress(ValueError):
        moment = datetime.strptime(stamp, _STAMP)
        return f"{moment.day} {moment:%b %Y, %H:%M} · {name}"
    return path.stem


@dataclass(frozen=True, slots=True)
class SweepAsks:
    """The first run of a long sweep is over; the engine waits for an answer."""

    num_left: int
    seconds_left: float


def logs_folder(path: Path) -> Path:
    """Where the logs of a sweep's runs are: beside its file."""
    return path.with_suffix("")


class SweepWork:
    """One sitting. Its methods are for the window's thread; what is called goes through the sweep in the engine's."""

    def __init__(self, plan: SweepPlan, path: Path) -> None:
        self._plan = plan
        self._path = path
        self._controls = SweepControls()
        self._answered = threading.Event()

    def stop(self) -> None:
        """Ask it to end, the run that goes included. May be called more than once."""
        self._controls.cancel()
        self._answered.set()

    def go_on(self) -> None:
        """Have a long sweep go on after its first run."""
        self._answered.set()

    def __call__(self, session: Session, _controls: RunControls) -> Iterator[Any]:
        """Go through it.

        Raises:
            OutriderError: the target can't be loaded, or the file can't be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunLogError(explain_write_error(error, self._path)) from error
        must_ask = False
        for event in sweep(self._plan, session, out=self._path, logs=logs_folder(self._path), controls=self._controls):
            if isinstance(event, SweepStarted):
                runs = (item for result in event.results for item in result.measurements)
                yield SweepBegun(event, SweepResults(self._plan, runs))
                must_ask = event.num_runs - event.num_done > ASK_ABOVE
                continue
            yield event
            if must_ask and isinstance(event, RunMeasured):
                must_ask = False
                yield SweepAsks(event.num_runs - event.num_done, event.seconds_left)
                self._answered.wait()


def _write_cells(path: Path, log: SweepLog) -> None:
    write_atomically(path, to_csv(SweepResults(log.plan, log.measurements)))


_WRITERS: dict[SweepExport, Callable[[Path, SweepLog], None]] = {
    SweepExport.CELLS: _write_cells,
    SweepExport.RUNS: export_sweep_csv,
    SweepExport.JSONL: export_sweep_jsonl,
    SweepExport.HTML: export_sweep_html,
}


class SweepAnswers:
    """What is answered.

    Signals:
        opened: an `OpenedSweep`.
        prompts_read: a path, and its prompts; or prompts_failed: a sentence.
        saved: one sentence about where a sweep was written.
        failed: one sentence for a person.
    """

    opened = Signal(object)
    prompts_read = Signal(object, object)
    prompts_failed = Signal(str)
    saved = Signal(str)
    failed = Signal(str)


class SweepReaderWorker(Answerer, SweepAnswers):
    """Lives in the thread."""

    def open(self, path: Path) -> None:
        """Read a sweep, and work out what it says."""

        def read() -> None:
            log = read_sweep(path)
            results = SweepResults(log.plan, log.measurements)
            cells, said = results.all(), verdicts(results)
            done = len(log.measurements)
            self.opened.emit(OpenedSweep(path, results, cells, said, done, tuple(log.problems)))

        self._try(read, "The sweep could not be opened", self.failed)

    def read_prompts(self, path: Path) -> None:
        """Read a file of prompts."""
        self._try(
            lambda: self.prompts_read.emit(path, tuple(read_prompts(path))),
            "The prompts could not be read",
            self.prompts_failed,
        )

    def export(self, source: Path, kind: SweepExport, path: Path) -> None:
        """Write a sweep in another form, whole or not at all."""

        def write() -> None:
            if path.exists() and path.samefile(source):
                raise RunLogError("This is where the sweep is kept already; choose another place.")
            _WRITERS[kind](path, read_sweep(source))
            self.saved.emit(f"Saved to {path}")

        self._try(write, "The sweep could not be exported", self.failed)

    def _try(self, work: Callable[[], None], what: str, failed: SignalInstance) -> None:
        try:
            work()
        except Exception as error:
            failed.emit(sentence_of(error, what))


class SweepReader(AnsweringThread, SweepAnswers):
    """The window's handle."""

    def __init__(self, parent: QObject | None = None) -> None:
        self._worker = worker = SweepReaderWorker()
        super().__init__("sweep reader", worker, parent, priority=QThread.Priority.LowPriority)
        self._pass_on(SweepAnswers)

    def open(self, path: Path) -> None:
        """Have a sweep read; answered by `opened` or `failed`."""
        self._ask(self._worker.open, path)

    def read_prompts(self, path: Path) -> None:
        """Have prompts read; answered by `prompts_read` or `prompts_failed`."""
        self._ask(self._worker.read_prompts, path)

    def export(self, source: Path, kind: SweepExport, path: Path) -> None:
        """Have a sweep written elsewhere; answered by `saved` or `failed`."""
        self._ask(self._worker.export, source, kind, path)
