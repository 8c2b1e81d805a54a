"""Taking the run at hand away: as a file, or to production."""

from __future__ import annotations

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QWidget

from app.dialogs import Dialogs
from app.menus import Menus
from app.production_desk import ProductionDesk
from app.run_reader_thread import RunReaderThread
from app.view_models.run_view import RunView
from app.widgets.banner import Banner
from app.widgets.controls import ControlsPanel
from app.widgets.status_strip import StatusStrip


class ExportDesk(QObject):
    """Asks where to, has it written in the thread that also reads runs, and says how it went.

    Attributes:
        production: opens the configurations for other engines.
    """

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        run: RunView,
        controls: ControlsPanel,
        reader: RunReaderThread,
        dialogs: Dialogs,
        banner: Banner,
        status: StatusStrip,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._reader, self._dialogs = window, run, reader, dialogs
        self._status = status
        self.production = ProductionDesk(window, menus, run, controls, reader, dialogs, banner)
        menus.export.triggered.connect(self.export)
        reader.written.connect(status.show_stage)
        reader.not_written.connect(banner.show_sentence)

    @Slot()
    def export(self) -> None:
        """Export the run, if there is one and a person says where to."""
        run = self._run.snapshot()
        if run is None:
            return
        path = self._dialogs.ask_export_path(self._window, f"{run.started.run_id}.jsonl")
        if path is not None:
            self._status.show_stage(f"Exporting to {path}…")
            self._reader.write(run, path)
