"""Exports the current run to a file, and shows how to serve its pair with other engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QHBoxLayout, QPlainTextEdit, QTabWidget, QVBoxLayout, QWidget

from app.dialogs import EXPORT_FILTERS, Dialogs
from app.jobs import Job, Jobs
from app.menus import Menus
from app.run.run_view import RunView
from app.run.tiles import StatusStrip
from app.setup.controls import ControlsPanel
from app.theme import hold_font
from app.widgets.fields import push_button, wrapped_label
from app.widgets.labels import Banner
from app.window_layout import bring_forward, open_at
from core.errors import OutriderError
from core.export.choice import Choice, choice_from_request
from core.export.configurations import PROJECTS, Configuration, configuration
from core.export.files import export_run
from core.files import write_atomically
from core.runlog.log import to_record
from core.runlog.replay import request_from_config
from core.runlog.store import RunStore
from core.types import Finished

COPY, COPY_ALL, COPIED = "Copy command", "Copy with comments", "Copied"
NO_COMMAND = "This engine can't do it; the text says why."
NO_PROMPT = "Write your prompt here."
"""Placeholder: a request needs a prompt, but configurations don't contain it."""


class ProductionPage(QDialog):
    """Shows one configuration per engine; stays open beside the main window.

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
        self.copy_button = push_button(COPY, "copyCommandButton", "The command or program alone, ready for a shell")
        self.copy_all_button = push_button(COPY_ALL, "copyConfigurationButton", "The whole text, to keep in a file")
        self.save_button = push_button("Save…", "saveConfigurationButton", "Write the whole text to a file")
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

    def open_choice(self, choice: Choice) -> None:
        """Show a choice's configurations; the engine shown last stays in front."""
        front = max(self.tabs.currentIndex(), 0)
        self._found = [configuration(choice, project) for project in PROJECTS.values()]
        request = choice.request
        draft = f" with {request.draft}" if request.draft else f", {request.method}"
        self.heading.setText(f"{request.target}{draft}, K = {choice.k}")
        origin = "From the current run" if choice.run_id else "From the settings; no run has finished yet"
        self.note.setText(f"{origin}. {choice.k_note}".strip())
        self.verdict.setText(choice.verdict)
        self.verdict.setVisible(bool(choice.verdict))
        if not self.tabs.count():
            for one in self._found:
                self.tabs.addTab(_page(one.project.title), one.project.title)
        for index, one in enumerate(self._found):
            page = self.tabs.widget(index)
            assert isinstance(page, QPlainTextEdit)
            page.setPlainText(one.text)
            self.tabs.setTabToolTip(index, one.problem or one.project.title)
        self.tabs.setCurrentIndex(front)
        self._on_turned()
        bring_forward(self)

    def current(self) -> Configuration:
        """The configuration in front."""
        return self._found[self.tabs.currentIndex()]

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


class Exports(QObject):
    """Implements Export and Take to production in the File menu."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        run: RunView,
        controls: ControlsPanel,
        store: RunStore,
        jobs: Jobs,
        dialogs: Dialogs,
        banner: Banner,
        status: StatusStrip,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._controls, self._store, self._jobs = window, run, controls, store, jobs
        self._dialogs, self._banner, self._status = dialogs, banner, status
        self.page: ProductionPage | None = None
        menus.export.triggered.connect(self.export)
        menus.production.triggered.connect(self.open_production)

    @Slot()
    def export(self) -> None:
        """Write the current run to a file that the user names."""
        log, started = self._run.snapshot(), self._run.started
        if log is None or started is None:
            return
        path = self._dialogs.ask_save_path(
            self._window, f"{started.run_id}.jsonl", title="Export run", filters=EXPORT_FILTERS
        )
        if path is None:
            return

        def write(job: Job) -> None:
            self._store.refuse_own(path, [started.run_id])
            export_run(path, log())

        self._status.show_stage(f"Exporting to {path}…")
        done = f"Exported to {path}"
        self._write(write, lambda _: self._status.show_stage(done), self._banner.show_sentence, "The run")

    @Slot()
    def open_production(self) -> None:
        """Show configurations for the finished run's pair and K, or the settings' if no run has finished."""
        try:
            choice = self._choice()
        except OutriderError as error:
            self._banner.show_sentence(str(error))
            return
        if self.page is None:
            self.page = ProductionPage(self._window)
            self.page.save_requested.connect(self._on_save)
        self.page.open_choice(choice)

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
        name = f"{found.project.name}{found.project.suffix}"
        path = self._dialogs.ask_save_path(page, name, title="Save configuration")
        if path is not None:
            done = f"Saved to {path}"
            write = lambda job: write_atomically(path, found.text)  # noqa: E731
            self._write(write, lambda _: page.saved.setText(done), page.saved.setText, "The configuration")

    def _write(
        self, work: Callable[[Job], None], then: Callable[[Any], None], failed: Callable[[str], None], what: str
    ) -> None:
        self._jobs.submit(
            work, then, failed=failed, what=f"{what} could not be written", lane="files", must_finish=True
        )
