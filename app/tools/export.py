"""Taking the run at hand away: as a file, or to production."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QHBoxLayout, QPlainTextEdit, QTabWidget, QVBoxLayout, QWidget

from app.dialogs import Dialogs
from app.menus import Menus
from app.run.run_view import RunView
from app.run.tiles import StatusStrip
from app.setup.controls import ControlsPanel
from app.theme import hold_font
from app.tools.runs.reader import RunReaderThread
from app.tools.tool_window import push_button, wrapped_label
from app.widgets.labels import Banner
from app.window_layout import bring_forward, open_at
from core.errors import OutriderError
from core.export.projects import PROJECTS, Choice, Configuration, choice_from_request, configuration
from core.runlog.log import to_record
from core.runlog.replay import request_from_config
from core.types import Finished

COPY, COPY_ALL, COPIED = "Copy command", "Copy with comments", "Copied"
NO_COMMAND = "This engine can't do it; the text says why."


class ProductionPage(QDialog):
    """Stays open beside the window. What it shows is made anew each time that it is opened.

    Signals:
        save_requested: a `Configuration`, to be written to a file.
    """

    save_requested = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("productionPage")
        self.setWindowTitle("Take to production")
        self.setModal(False)
        self._found: Sequence[Configuration] = ()
        self.heading = wrapped_label("productionHeading", "title")
        self.verdict = wrapped_label("productionVerdict", "problem")
        self.note = wrapped_label("productionNote", "hint")
        self.saved = wrapped_label("productionSaved", "hint")
        self.tabs = QTabWidget()
        self.tabs.setObjectName("productionTabs")
        self.tabs.setProperty("role", "pages")
        self.tabs.setAccessibleName("Engines")
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setAccessibleName("Engines")
        self.copy_button = push_button(COPY, "copyCommandButton", "The command or program alone, as a shell takes it")
        self.copy_all_button = push_button(COPY_ALL, "copyConfigurationButton", "All of the text, to keep in a file")
        self.save_button = push_button("Save…", "saveConfigurationButton", "Write all of the text to a file")
        self.close_button = push_button("Close", "closeProductionButton", "")
        self._lay_out()
        open_at(self, 860, 640)
        self.tabs.currentChanged.connect(self._on_turned)
        self.copy_button.clicked.connect(self._on_copy)
        self.copy_all_button.clicked.connect(self._on_copy_all)
        self.save_button.clicked.connect(self._on_save)
        self.close_button.clicked.connect(self.close)

    def _lay_out(self) -> None:
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        buttons.addWidget(self.saved, 1)
        for button in (self.copy_button, self.copy_all_button, self.save_button, self.close_button):
            buttons.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 16)
        layout.setSpacing(8)
        for label in (self.heading, self.verdict, self.note):
            layout.addWidget(label)
        layout.addSpacing(4)
        layout.addWidget(self.tabs, 1)
        layout.addLayout(buttons)

    def open_choice(self, choice: Choice, found: Sequence[Configuration]) -> None:
        """Show a choice; the engine that was looked at last stays in front."""
        place = max(self.tabs.currentIndex(), 0)
        self._found = found
        draft = f" with {choice.draft}" if choice.draft else f", {choice.method}"
        self.heading.setText(f"{choice.target}{draft}, K = {choice.num_draft_tokens}")
        origin = "From the run at hand" if choice.run_id else "From the settings; no run has finished yet"
        self.note.setText(f"{origin}. {choice.k_note}".strip())
        self.verdict.setText(choice.verdict)
        self.verdict.setVisible(bool(choice.verdict))
        self._show_pages(place)
        bring_forward(self)

    def current(self) -> Configuration:
        """What is in front."""
        return self._found[self.tabs.currentIndex()]

    @Slot(str)
    def show_saved(self, sentence: str) -> None:
        """Say what came of a file."""
        self.saved.setText(sentence)

    def _show_pages(self, place: int) -> None:
        if self.tabs.count() != len(self._found):
            self.tabs.clear()
            for one in self._found:
                self.tabs.addTab(_page(one.project.title), one.project.title)
        for index, one in enumerate(self._found):
            page = self.tabs.widget(index)
            assert isinstance(page, QPlainTextEdit)
            page.setPlainText(one.text)
            self.tabs.setTabToolTip(index, one.problem or one.project.title)
        self.tabs.setCurrentIndex(min(place, len(self._found) - 1))
        self._on_turned()

    @Slot()
    def _on_turned(self) -> None:
        self.saved.clear()
        self.copy_button.setText(COPY)
        self.copy_all_button.setText(COPY_ALL)
        if self._found:
            can = bool(self.current().program)
            self.copy_button.setEnabled(can)
            self.copy_button.setToolTip(self.copy_button.accessibleDescription() if can else NO_COMMAND)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.current().program)
        self.copy_all_button.setText(COPY_ALL)
        self.copy_button.setText(COPIED)

    @Slot()
    def _on_copy_all(self) -> None:
        QGuiApplication.clipboard().setText(self.current().text)
        self.copy_button.setText(COPY)
        self.copy_all_button.setText(COPIED)

    @Slot()
    def _on_save(self) -> None:
        self.save_requested.emit(self.current())


def _page(title: str) -> QPlainTextEdit:
    page = QPlainTextEdit()
    hold_font(page, 13, is_mono=True)
    page.setReadOnly(True)
    page.setTabChangesFocus(True)
    page.setAccessibleName(f"Configuration for {title}")
    return page


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
