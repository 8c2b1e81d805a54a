"""The window's handle on the run reader: hands questions over, passes answers on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal, SignalInstance, Slot

from app.giving_way import WindowFirst, giving_way
from app.run.run_view import RunSnapshot
from app.services import Services
from app.threads import Answerer, AnsweringThread
from app.tools.runs.comparison import compare
from core.errors import RunLogError, sentence_of
from core.evidence import packed_from_record
from core.export.files import export_html
from core.files import write_atomically
from core.runlog.log import RunLog, export_csv, export_jsonl, read_run_log
from core.runlog.replay import events, request, request_to_show
from core.runlog.store import KeptRun, KeptState, RunStore
from core.types import Event, RunRequest


@dataclass(frozen=True, slots=True)
class RunsFound:
    """The kept runs, newest first; perhaps not all yet."""

    runs: tuple[KeptRun, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A kept run, ready to be shown.

    Attributes:
        request: what it was asked for, as far as its log tells.
        problems: a sentence for each thing that is wrong with its log.
    """

    run: KeptRun
    request: RunRequest
    events: tuple[Event, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """A kept run that is to run again, and the text that it had; None where its end was cut off."""

    run: KeptRun
    request: RunRequest
    text: str | None


BATCH_S = 0.2
"""A long list comes in parts, each after about this long."""


class RunAnswers:
    """What the reader answers.

    Signals:
        found: `RunsFound`, perhaps in parts, each with all that was found so far.
        cut_off: the newest `KeptRun`, if its log ends before the run did.
        opened: an `OpenedRun`; replay_ready: a `Replay`; compared: a `Comparison`.
        changed: names or runs are others now; the list is to be asked for anew.
        deleted, restored: ids.
        exported: one sentence about where a kept run was written.
        written, not_written: likewise about the run at hand; or why it was not.
        text_saved: one sentence about where a text was written, or why it was not.
        plot_saved: what `save_plot` was given to tell a plot by, and one sentence about why it was not written, or
            nothing.
        failed: one sentence for a person.
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
    plot_saved = Signal(object, str)
    failed = Signal(str)


class RunReader(Answerer, RunAnswers):
    """Lives in its own thread. To be made in the window's."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self._window_first = WindowFirst()
        self._store: RunStore | None = None

    @property
    def store(self) -> RunStore:
        """The folder's runs."""
        if self._store is None:
            self._store = RunStore(self._services.runs_folder())
        return self._store

    def answer(self, question: Callable[[], None]) -> None:
        """As ever, letting the window in often."""
        with giving_way():
            question()

    def find(self, going: str) -> None:
        """Find the runs that are kept."""
        runs: list[KeptRun] = []
        told_at = time.monotonic()
        try:
            for run in self.store.runs(going):
                if self.is_closing:
                    return
                self._window_first.let()
                runs.append(run)
                if time.monotonic() - told_at >= BATCH_S:
                    self.found.emit(RunsFound(tuple(runs), is_complete=False))
                    told_at = time.monotonic()
        except Exception as error:
            self.failed.emit(sentence_of(error, "The kept runs could not be listed"))
        self.found.emit(RunsFound(tuple(runs), is_complete=True))

    def look_back(self) -> None:
        """Find out whether the newest run was cut off."""

        def look() -> None:
            newest = next(iter(self.store.runs()), None)
            if newest is not None and newest.state is KeptState.CUT_OFF:
                self.cut_off.emit(newest)

        self._try(look, "The kept runs could not be listed")

    def open(self, run: KeptRun) -> None:
        """Read all of a run, to show it."""

        def read() -> None:
            # By its path: a sweep keeps the logs of its runs in a folder of its own.
            log = read_run_log(run.path, keep=packed_from_record)
            opened = OpenedRun(run, request_to_show(log), tuple(events(log)), tuple(log.problems))
            _let_go(log)
            self.opened.emit(opened)

        self._try(read, f"{run.title!r} could not be opened")

    def prepare_replay(self, run: KeptRun) -> None:
        """Read what it takes to run a run again."""

        def read() -> None:
            log = self.store.load(run.id)
            text = log.summary.get("text") if log.summary is not None else None
            is_whole = log.summary is not None and log.summary.get("finish_reason") in {"length", "eos", "stop"}
            self.replay_ready.emit(Replay(run, request(log), text if is_whole and isinstance(text, str) else None))

        self._try(read, f"{run.title!r} could not be read")

    def compare(self, runs: tuple[KeptRun, ...]) -> None:
        """Read runs and hold them against each other."""

        def read() -> None:
            logs = [(run, self.store.load(run.id)) for run in runs]
            comparison = compare(logs)
            for _, log in logs:
                _let_go(log)
            self.compared.emit(comparison)

        self._try(read, "These runs could not be compared")

    def rename(self, run_id: str, name: str) -> None:
        """Give a run a name."""
        self._try(lambda: self.store.rename(run_id, name), "The name could not be kept")
        # Also where it failed: the list then shows the name that the run still has.
        self.changed.emit()

    def delete(self, run_ids: tuple[str, ...]) -> None:
        """Move runs aside."""
        self._try(lambda: self.deleted.emit(tuple(self.store.delete(run_ids))), "The runs could not be deleted")
        self.changed.emit()

    def restore(self, run_ids: tuple[str, ...]) -> None:
        """Bring deleted runs back."""

        def bring_back() -> None:
            self.store.restore(run_ids)
            self.restored.emit(run_ids)

        self._try(bring_back, "The runs could not be brought back")
        self.changed.emit()

    def export(self, run_ids: tuple[str, ...], path: Path) -> None:
        """Write a run elsewhere, whole or not at all, in the form that the name's end asks for; several as a report."""

        def write() -> None:
            for run_id in run_ids:
                self._check_place(path, run_id)
            logs = [self.store.load(run_id) for run_id in run_ids]
            if len(logs) == 1:
                _export(path, logs[0])
            else:
                export_html(path, *logs)
            for log in logs:
                _let_go(log)
            self.exported.emit(f"Exported to {path}")

        self._try(write, f"The run{'' if len(run_ids) == 1 else 's'} could not be exported", is_owed=True)

    def write(self, run: RunSnapshot, path: Path) -> None:
        """Write the run at hand, whole or not at all."""

        def write() -> None:
            self._check_place(path, run.started.run_id)
            log = run.log()
            _export(path, log)
            _let_go(log)
            self.written.emit(f"Exported to {path}")

        self._try(write, "The run could not be exported", self.not_written, is_owed=True)

    def save_text(self, text: str, path: Path) -> None:
        """Write a text, whole or not at all."""

        def save() -> None:
            write_atomically(path, text)
            self.text_saved.emit(f"Saved to {path}")

        self._try(save, "The text could not be saved", self.text_saved, is_owed=True)

    def save_plot(self, draw: Callable[[], str | bytes], path: Path, key: object) -> None:
        """Write a plot, whole or not at all."""
        problem = ""
        try:
            write_atomically(path, draw())
        except Exception as error:
            problem = sentence_of(error, "The plot could not be saved")
        self.plot_saved.emit(key, problem)

    def _check_place(self, path: Path, run_id: str) -> None:
        if path.exists() and path.samefile(self.store.path(run_id)):
            raise RunLogError("This is where the run is kept already; choose another place.")

    def empty_trash(self) -> None:
        """Remove for good what was deleted."""

        def empty() -> None:
            self.store.empty_trash()

        self._try(empty, "The deleted runs could not be removed")

    def shut_down(self) -> None:
        """Remove for good what was deleted, and end this thread's event loop."""
        try:
            if self._store is not None:
                self._store.empty_trash()
        finally:
            super().shut_down()

    def _try(
        self, work: Callable[[], None], what: str, failed: SignalInstance | None = None, *, is_owed: bool = False
    ) -> None:
        # A file that was asked for is written although the window closes meanwhile; what is only shown is not.
        if self.is_closing and not is_owed:
            return
        try:
            work()
        except Exception as error:
            (failed or self.failed).emit(sentence_of(error, what))


def _export(path: Path, log: RunLog) -> None:
    """Write a run whole or not at all; a name that ends in .csv asks for a table, one in .html for a report."""
    suffix = path.suffix.lower()
    if suffix in {".html", ".htm"}:
        export_html(path, log)
    else:
        (export_csv if suffix == ".csv" else export_jsonl)(path, log)


def _let_go(log: RunLog) -> None:
    """Drop a log's records one by one: dropped at once, tens of thousands would keep the window's thread waiting."""
    for records in (log.steps, log.baseline_steps):
        while records:
            records.pop()


class RunReaderThread(AnsweringThread, RunAnswers):
    """Its signals are `RunAnswers`."""

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        self._reader = reader = RunReader(services)
        super().__init__("run reader", reader, parent)
        self._pass_on(RunAnswers)
        self._ask(reader.empty_trash)

    def find(self, going: str) -> None:
        """Ask which runs are kept; `going` is the id of the one that is written now. Answered by `found`."""
        self._ask(self._reader.find, going)

    @Slot()
    def look_back(self) -> None:
        """Ask whether the newest run was cut off; answered by `cut_off` if it was."""
        self._ask(self._reader.look_back)

    def open(self, run: KeptRun) -> None:
        """Ask for all of a run; answered by `opened` or `failed`."""
        self._ask(self._reader.open, run)

    def prepare_replay(self, run: KeptRun) -> None:
        """Ask for what runs a run again; answered by `replay_ready` or `failed`."""
        self._ask(self._reader.prepare_replay, run)

    def compare(self, runs: tuple[KeptRun, ...]) -> None:
        """Ask how runs differ; answered by `compared` or `failed`."""
        self._ask(self._reader.compare, runs)

    def rename(self, run_id: str, name: str) -> None:
        """Have a run named; answered by `changed`."""
        self._ask(self._reader.rename, run_id, name)

    def delete(self, run_ids: tuple[str, ...]) -> None:
        """Have runs deleted; answered by `deleted` and `changed`."""
        self._ask(self._reader.delete, run_ids)

    def restore(self, run_ids: tuple[str, ...]) -> None:
        """Have deleted runs brought back; answered by `restored` and `changed`."""
        self._ask(self._reader.restore, run_ids)

    def export(self, run_ids: tuple[str, ...], path: Path) -> None:
        """Have a run written elsewhere, or a report of several; answered by `exported` or `failed`."""
        self._ask(self._reader.export, run_ids, path)

    def write(self, run: RunSnapshot, path: Path) -> None:
        """Have the run at hand written; answered by `written` or `not_written`."""
        self._ask(self._reader.write, run, path)

    def save_text(self, text: str, path: Path) -> None:
        """Have a text written; answered by `text_saved`."""
        self._ask(self._reader.save_text, text, path)

    def save_plot(self, draw: Callable[[], str | bytes], path: Path, key: object) -> None:
        """Have a plot written: what `draw` gives; answered by `plot_saved`, with this key."""
        self._ask(self._reader.save_plot, draw, path, key)
