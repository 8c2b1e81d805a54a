"""Reads and changes the kept runs in a thread of its own: logs may be long, and disks slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.run_questions import OpenedRun, Replay, RunsFound
from app.sentences import sentence_of
from app.services import Services
from app.view_models.comparison import compare
from core.errors import RunLogError
from core.replay import events, request, request_to_show
from core.runs import KeptRun, KeptState, RunStore
from core.trace import export_csv, export_jsonl

BATCH_S = 0.2
"""A long list comes in parts, each after about this long."""


class RunReader(QObject):
    """Lives in its own thread. Its signals are those of `RunReaderThread`."""

    found = Signal(object)
    cut_off = Signal(object)
    opened = Signal(object)
    replay_ready = Signal(object)
    compared = Signal(object)
    changed = Signal()
    deleted = Signal(object)
    restored = Signal(object)
    exported = Signal(str)
    failed = Signal(str)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._store: RunStore | None = None
        self.is_closing = False

    @property
    def store(self) -> RunStore:
        """The folder's runs."""
        if self._store is None:
            self._store = RunStore(self._services.runs_folder())
        return self._store

    @Slot(str)
    def find(self, going: str) -> None:
        """Find the runs that are kept."""
        runs: list[KeptRun] = []
        told_at = time.monotonic()
        try:
            for run in self.store.runs(going):
                if self.is_closing:
                    return
                runs.append(run)
                if time.monotonic() - told_at >= BATCH_S:
                    self.found.emit(RunsFound(tuple(runs), is_complete=False))
                    told_at = time.monotonic()
        except Exception as error:
            self.failed.emit(sentence_of(error, "The kept runs could not be listed"))
        self.found.emit(RunsFound(tuple(runs), is_complete=True))

    @Slot()
    def look_back(self) -> None:
        """Find out whether the newest run was cut off."""

        def look() -> None:
            newest = next(iter(self.store.runs()), None)
            if newest is not None and newest.state is KeptState.CUT_OFF:
                self.cut_off.emit(newest)

        self._try(look, "The kept runs could not be listed")

    @Slot(object)
    def open(self, run: KeptRun) -> None:
        """Read all of a run, to show it."""

        def read() -> None:
            log = self.store.load(run.id)
            opened = OpenedRun(run, request_to_show(log), tuple(events(log)), tuple(log.problems))
            self.opened.emit(opened)

        self._try(read, f"{run.title!r} could not be opened")

    @Slot(object)
    def prepare_replay(self, run: KeptRun) -> None:
        """Read what it takes to run a run again."""

        def read() -> None:
            log = self.store.load(run.id)
            text = log.summary.get("text") if log.summary is not None else None
            is_whole = log.summary is not None and log.summary.get("finish_reason") in {"length", "eos", "stop"}
            self.replay_ready.emit(Replay(run, request(log), text if is_whole and isinstance(text, str) else None))

        self._try(read, f"{run.title!r} could not be read")

    @Slot(object)
    def compare(self, runs: tuple[KeptRun, ...]) -> None:
        """Read runs and hold them against each other."""

        def read() -> None:
            self.compared.emit(compare([(run, self.store.load(run.id)) for run in runs]))

        self._try(read, "These runs could not be compared")

    @Slot(str, str)
    def rename(self, run_id: str, name: str) -> None:
        """Give a run a name."""
        self._try(lambda: self.store.rename(run_id, name), "The name could not be kept")
        # Also where it failed: the list then shows the name that the run still has.
        self.changed.emit()

    @Slot(object)
    def delete(self, run_ids: tuple[str, ...]) -> None:
        """Move runs aside."""
        self._try(lambda: self.deleted.emit(tuple(self.store.delete(run_ids))), "The runs could not be deleted")
        self.changed.emit()

    @Slot(object)
    def restore(self, run_ids: tuple[str, ...]) -> None:
        """Bring deleted runs back."""

        def bring_back() -> None:
            self.store.restore(run_ids)
            self.restored.emit(run_ids)

        self._try(bring_back, "The runs could not be brought back")
        self.changed.emit()

    @Slot(str, object)
    def export(self, run_id: str, path: Path) -> None:
        """Write a run elsewhere, whole or not at all; a name that ends in .csv asks for a table."""

        def write() -> None:
            if path.exists() and path.samefile(self.store.path(run_id)):
                raise RunLogError("This is where the run is kept already; choose another place.")
            export = export_csv if path.suffix.lower() == ".csv" else export_jsonl
            export(path, self.store.load(run_id))
            self.exported.emit(f"Exported to {path}")

        self._try(write, "The run could not be exported")

    @Slot()
    def empty_trash(self) -> None:
        """Remove for good what was deleted."""

        def empty() -> None:
            self.store.empty_trash()

        self._try(empty, "The deleted runs could not be removed")

    @Slot()
    def shut_down(self) -> None:
        """Remove for good what was deleted, and end this thread's event loop."""
        try:
            if self._store is not None:
                self._store.empty_trash()
        finally:
            QThread.currentThread().quit()

    def _try(self, work: Callable[[], None], what: str) -> None:
        if self.is_closing:
            return
        try:
            work()
        except Exception as error:
            self.failed.emit(sentence_of(error, what))


class RunReaderThread(QObject):
    """The window's handle on the reader: owns the thread and hands questions over.

    Signals:
        found: `RunsFound`, perhaps in parts, each with all that was found so far.
        cut_off: the newest `KeptRun`, if its log ends before the run did.
        opened: an `OpenedRun`; replay_ready: a `Replay`; compared: a `Comparison`.
        changed: names or runs are others now; the list is to be asked for anew.
        deleted, restored: ids.
        exported: one sentence about where a run was written.
        failed: one sentence for a person.
        closed: the thread has ended.
    """

    found = Signal(object)
    cut_off = Signal(object)
    opened = Signal(object)
    replay_ready = Signal(object)
    compared = Signal(object)
    changed = Signal()
    deleted = Signal(object)
    restored = Signal(object)
    exported = Signal(str)
    failed = Signal(str)
    closed = Signal()

    _find_wanted = Signal(str)
    _look_back_wanted = Signal()
    _open_wanted = Signal(object)
    _replay_wanted = Signal(object)
    _compare_wanted = Signal(object)
    _rename_wanted = Signal(str, str)
    _delete_wanted = Signal(object)
    _restore_wanted = Signal(object)
    _export_wanted = Signal(str, object)
    _shut_down_wanted = Signal()

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._reader = reader = RunReader(services)
        self._is_closing = False
        self._thread = QThread()
        self._thread.setObjectName("run reader")
        reader.moveToThread(self._thread)
        for question, slot in (
            (self._find_wanted, reader.find),
            (self._look_back_wanted, reader.look_back),
            (self._open_wanted, reader.open),
            (self._replay_wanted, reader.prepare_replay),
            (self._compare_wanted, reader.compare),
            (self._rename_wanted, reader.rename),
            (self._delete_wanted, reader.delete),
            (self._restore_wanted, reader.restore),
            (self._export_wanted, reader.export),
            (self._shut_down_wanted, reader.shut_down),
        ):
            question.connect(slot)
        for answer, told in (
            (reader.found, self.found),
            (reader.cut_off, self.cut_off),
            (reader.opened, self.opened),
            (reader.replay_ready, self.replay_ready),
            (reader.compared, self.compared),
            (reader.changed, self.changed),
            (reader.deleted, self.deleted),
            (reader.restored, self.restored),
            (reader.exported, self.exported),
            (reader.failed, self.failed),
            (self._thread.started, reader.empty_trash),
            (self._thread.finished, self.closed),
        ):
            answer.connect(told)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return self._thread.isFinished()

    def find(self, going: str) -> None:
        """Ask which runs are kept; `going` is the id of the one that is written now. Answered by `found`."""
        self._find_wanted.emit(going)

    @Slot()
    def look_back(self) -> None:
        """Ask whether the newest run was cut off; answered by `cut_off` if it was."""
        self._look_back_wanted.emit()

    def open(self, run: KeptRun) -> None:
        """Ask for all of a run; answered by `opened` or `failed`."""
        self._open_wanted.emit(run)

    def prepare_replay(self, run: KeptRun) -> None:
        """Ask for what runs a run again; answered by `replay_ready` or `failed`."""
        self._replay_wanted.emit(run)

    def compare(self, runs: tuple[KeptRun, ...]) -> None:
        """Ask how runs differ; answered by `compared` or `failed`."""
        self._compare_wanted.emit(runs)

    def rename(self, run_id: str, name: str) -> None:
        """Have a run named; answered by `changed`."""
        self._rename_wanted.emit(run_id, name)

    def delete(self, run_ids: tuple[str, ...]) -> None:
        """Have runs deleted; answered by `deleted` and `changed`."""
        self._delete_wanted.emit(run_ids)

    def restore(self, run_ids: tuple[str, ...]) -> None:
        """Have deleted runs brought back; answered by `restored` and `changed`."""
        self._restore_wanted.emit(run_ids)

    def export(self, run_id: str, path: Path) -> None:
        """Have a run written elsewhere; answered by `exported` or `failed`."""
        self._export_wanted.emit(run_id, path)

    def begin_close(self) -> None:
        """End the thread after what is at hand. Returns at once; `closed` says when it is done."""
        if not self._is_closing:
            self._is_closing = self._reader.is_closing = True
            self._shut_down_wanted.emit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)
