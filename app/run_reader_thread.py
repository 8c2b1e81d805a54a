"""The window's handle on the run reader: owns its thread, hands questions over, passes answers on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.run_reader import RunReader
from app.services import Services
from app.view_models.run_view import RunSnapshot
from core.runs import KeptRun


class RunReaderThread(QObject):
    """The window's handle on the reader: owns the thread and hands questions over.

    Signals:
        found: `RunsFound`, perhaps in parts, each with all that was found so far.
        cut_off: the newest `KeptRun`, if its log ends before the run did.
        opened: an `OpenedRun`; replay_ready: a `Replay`; compared: a `Comparison`.
        changed: names or runs are others now; the list is to be asked for anew.
        deleted, restored: ids.
        exported: one sentence about where a kept run was written.
        written, not_written: likewise about the run at hand; or why it was not.
        text_saved: one sentence about where a text was written, or why it was not.
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
    written = Signal(str)
    not_written = Signal(str)
    text_saved = Signal(str)
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
    _write_wanted = Signal(object, object)
    _save_text_wanted = Signal(str, object)
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
            (self._write_wanted, reader.write),
            (self._save_text_wanted, reader.save_text),
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
            (reader.written, self.written),
            (reader.not_written, self.not_written),
            (reader.text_saved, self.text_saved),
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

    def write(self, run: RunSnapshot, path: Path) -> None:
        """Have the run at hand written; answered by `written` or `not_written`."""
        self._write_wanted.emit(run, path)

    def save_text(self, text: str, path: Path) -> None:
        """Have a text written; answered by `text_saved`."""
        self._save_text_wanted.emit(text, path)

    def begin_close(self) -> None:
        """End the thread after what is at hand. Returns at once; `closed` says when it is done."""
        if not self._is_closing:
            self._is_closing = self._reader.is_closing = True
            self._shut_down_wanted.emit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)
