"""Taking the run at hand away as a file."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QWidget

from app.dialogs import Dialogs
from app.menus import Menus
from app.view_models.run_view import RunView
from app.widgets.banner import Banner
from app.widgets.status_strip import StatusStrip
from core.errors import OutriderError
from core.trace import RunLog, export_csv, export_jsonl


class ExportDesk(QObject):
    """Asks where to, writes, and says how it went."""

    def __init__(
        self, window: QWidget, menus: Menus, run: RunView, dialogs: Dialogs, banner: Banner, status: StatusStrip
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._dialogs = window, run, dialogs
        self._banner, self._status = banner, status
        menus.export.triggered.connect(self.export)

    @Slot()
    def export(self) -> None:
        """Export the run, if there is one and a person says where to."""
        log = self._run.log()
        if log is None:
            return
        path = self._dialogs.ask_export_path(self._window, f"{log.run['id']}.jsonl")
        if path is None:
            return
        try:
            export_run(path, log)
        except OutriderError as error:
            self._banner.show_sentence(str(error))
        else:
            self._status.show_stage(f"Exported to {path}")


def export_run(path: Path, log: RunLog) -> None:
    """Write a run whole or not at all; a name that ends in .csv asks for a table.

    Raises:
        RunLogError: it can't be written, with a sentence that says why.
    """
    write = export_csv if path.suffix.lower() == ".csv" else export_jsonl
    write(path, log)
