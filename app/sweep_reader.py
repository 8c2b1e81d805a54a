"""Reads and writes sweeps' files, and files of prompts, in a thread of its own: they may be long, and disks slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QThread, Signal, SignalInstance

from app.answering import Answerer, AnsweringThread
from app.sentences import sentence_of
from app.view_models.sweep import OpenedSweep, SweepExport
from core.errors import RunLogError
from core.files import write_atomically
from core.prompt_suites import read_prompts
from core.report.sweep_files import export_sweep_csv, export_sweep_html, export_sweep_jsonl
from core.sweep.log import SweepLog, read_sweep
from core.sweep.results import SweepResults
from core.sweep.table import to_csv
from core.sweep.verdict import verdicts


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
