"""Takes the pair at hand to production: opens the window with its configurations, and has one saved."""

from __future__ import annotations

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QWidget

from app.dialogs import Dialogs
from app.menus import Menus
from app.run_reader_thread import RunReaderThread
from app.view_models.run_view import RunView
from app.widgets.banner import Banner
from app.widgets.controls import ControlsPanel
from app.widgets.production_page import ProductionPage
from core.errors import OutriderError
from core.production import PROJECTS, Choice, Configuration, choice_from_request, configuration
from core.records import to_record
from core.rerun import request_from_config
from core.types import Finished

NO_PROMPT = "Write your prompt here."
"""A request needs a prompt, but none of it is written into a configuration."""


class ProductionDesk(QObject):
    """Its window is made when it is first wanted."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        run: RunView,
        controls: ControlsPanel,
        reader: RunReaderThread,
        dialogs: Dialogs,
        banner: Banner,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._controls = window, run, controls
        self._reader, self._dialogs, self._banner = reader, dialogs, banner
        self.page: ProductionPage | None = None
        menus.production.triggered.connect(self.open)

    @Slot()
    def open(self) -> None:
        """Show the finished run's pair and K, or the settings' where no run has finished."""
        try:
            choice = self._choice()
        except OutriderError as error:
            self._banner.show_sentence(str(error))
            return
        if self.page is None:
            self.page = ProductionPage(self._window)
            self.page.save_requested.connect(self._on_save)
            self._reader.text_saved.connect(self.page.show_saved)
        self.page.open_choice(choice, [configuration(choice, project) for project in PROJECTS.values()])

    def _choice(self) -> Choice:
        started, summary = self._run.started, self._run.summary
        if started is None or summary is None:
            return choice_from_request(self._controls.request(NO_PROMPT))
        record = to_record(Finished(summary))
        return choice_from_request(request_from_config(started.config), record, run_id=started.run_id)

    @Slot(object)
    def _on_save(self, found: Configuration) -> None:
        page = self.page
        assert page is not None
        path = self._dialogs.ask_configuration_path(page, f"{found.project.name}{found.project.suffix}")
        if path is not None:
            self._reader.save_text(found.text, path)
