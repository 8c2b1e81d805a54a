"""Reads and writes sweeps' files, and files of prompts, in a thread of its own: they may be long, and disks slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QThread, Signal, SignalInstance, Slot

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


class SweepReaderWorker(QObject):
    """Lives in the thread; its signals are those of `SweepReader`."""

    opened = Signal(object)
    prompts_read = Signal(object, object)
    saved = Signal(str)
    failed = Signal(str)
    prompts_failed = Signal(str)

    @Slot(object)
    def open(self, path: Path) -> None:
        """Read a sweep, and work out what it says."""

        def read() -> None:
            log = read_sweep(path)
            results = SweepResults(log.plan, log.measurements)
            cells, said = results.all(), verdicts(results)
            done = len(log.measurements)
            self.opened.emit(OpenedSweep(path, results, cells, said, done, tuple(log.problems)))

        self._try(read, "The sweep could not be opened", self.failed)

    @Slot(object)
    def read_prompts(self, path: Path) -> None:
        """Read a file of prompts."""
        self._try(
            lambda: self.prompts_read.emit(path, tuple(read_prompts(path))),
            "The prompts could not be read",
            self.prompts_failed,
        )

    @Slot(object, object, object)
    def export(self, source: Path, kind: SweepExport, path: Path) -> None:
        """Write a sweep in another form, whole or not at all."""

        def write() -> None:
            if path.exists() and path.samefile(source):
                raise RunLogError("This is where the sweep is kept already; choose another place.")
            _WRITERS[kind](path, read_sweep(source))
            self.saved.emit(f"Saved to {path}")

        self._try(write, "The sweep could not be exported", self.failed)

    @Slot()
    def shut_down(self) -> None:
        """End the thread's event loop."""
        QThread.currentThread().quit()

    def _try(self, work: Callable[[], None], what: str, failed: SignalInstance) -> None:
        try:
            work()
        except Exception as error:
            failed.emit(sentence_of(error, what))


class SweepReader(QObject):
    """The window's handle: owns the thread, which starts with the first question.

    Signals:
        opened: an `OpenedSweep`.
        prompts_read: a path, and its prompts; or prompts_failed: a sentence.
        saved: one sentence about where a sweep was written.
        failed: one sentence for a person.
        closed: the thread has ended.
    """

    opened = Signal(object)
    prompts_read = Signal(object, object)
    prompts_failed = Signal(str)
    saved = Signal(str)
    failed = Signal(str)
    closed = Signal()

    _open_wanted = Signal(object)
    _prompts_wanted = Signal(object)
    _export_wanted = Signal(object, object, object)
    _shut_down_wanted = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._worker = worker = SweepReaderWorker()
        self._is_closing = False
        self._thread = QThread()
        self._thread.setObjectName("sweep reader")
        worker.moveToThread(self._thread)
        self._open_wanted.connect(worker.open)
        self._prompts_wanted.connect(worker.read_prompts)
        self._export_wanted.connect(worker.export)
        self._shut_down_wanted.connect(worker.shut_down)
        worker.opened.connect(self.opened)
        worker.prompts_read.connect(self.prompts_read)
        worker.prompts_failed.connect(self.prompts_failed)
        worker.saved.connect(self.saved)
        worker.failed.connect(self.failed)
        self._thread.finished.connect(self.closed)

    @property
    def is_closed(self) -> bool:
        """Whether there is no thread any more, or was none."""
        return not self._thread.isRunning()

    def open(self, path: Path) -> None:
        """Have a sweep read; answered by `opened` or `failed`."""
        if self._start():
            self._open_wanted.emit(path)

    def read_prompts(self, path: Path) -> None:
        """Have prompts read; answered by `prompts_read` or `prompts_failed`."""
        if self._start():
            self._prompts_wanted.emit(path)

    def export(self, source: Path, kind: SweepExport, path: Path) -> None:
        """Have a sweep written elsewhere; answered by `saved` or `failed`."""
        if self._start():
            self._export_wanted.emit(source, kind, path)

    def _start(self) -> bool:
        if not self._is_closing and not self._thread.isRunning():
            self._thread.start(QThread.Priority.LowPriority)
        return not self._is_closing

    def begin_close(self) -> None:
        """End the thread after what is at hand. Returns at once."""
        if not self._is_closing:
            self._is_closing = True
            self._shut_down_wanted.emit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)
