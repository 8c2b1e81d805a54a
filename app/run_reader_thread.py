"""The window's handle on the run reader: hands questions over, passes answers on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Slot

from app.answering import AnsweringThread
from app.run_reader import RunAnswers, RunReader
from app.services import Services
from app.view_models.run_view import RunSnapshot
from core.runs import KeptRun


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
