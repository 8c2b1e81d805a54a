"""Exports the current run to a file, and shows how to serve its pair with other engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QObject, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QPushButton, QWidget

from app.dialogs import EXPORT_FILTERS, Dialogs
from app.jobs import Job, Jobs
from app.menus import Menus
from app.run.run_view import RunView
from app.run.status_strip import StatusStrip
from app.setup.settings_panel import SettingsPanel
from app.theme import hold_font
from app.widgets.fields import column, named, plain_tip, push_button, row, wrapped_label
from app.widgets.labels import Banner, SidePanel
from app.window_layout import bring_forward, open_at
from core.analysis.steadiness import speedup_interval
from core.errors import OutriderError
from core.export.choice import Choice, choice_from_request, choice_of_run
from core.export.configurations import PROJECTS, Configuration, configuration
from core.export.files import export_run, readable_name
from core.files import write_atomically
from core.runlog.store import RunStore, moment_of

COPY, COPY_PROGRAM, COPY_ALL, COPIED = "Copy command", "Copy program", "Copy with comments", "Copied"
NO_COMMAND = "This engine can't run this configuration; the text says why."
NO_PROMPT = "Write your prompt here."
"""Placeholder: a request needs a prompt, but configurations don't contain it."""


class ProductionPage(QDialog):
    """Shows one configuration per engine; stays open beside the main window."""

    def __init__(self, jobs: Jobs, dialogs: Dialogs, parent: QWidget) -> None:
        super().__init__(parent)
        self._jobs, self._dialogs = jobs, dialogs
        self.setObjectName("productionPage")
        self.setWindowTitle("Deploy")
        self._found: Sequence[Configuration] = ()
        self.heading = wrapped_label("productionHeading", "title")
        self.verdict = wrapped_label("productionVerdict", "warning")
        self.note = wrapped_label("productionNote", "hint")
        self.saved = wrapped_label("productionSaved", "hint")
        self.tabs = SidePanel("production", "Engines")
        for project in PROJECTS.values():
            page = named(QPlainTextEdit(), f"{project.name}Configuration", f"Configuration for {project.title}")
            hold_font(page, 13, is_mono=True)
            page.setReadOnly(True)
            page.setTabChangesFocus(True)
            self.tabs.add_page(project.title, page, project.title)
        command, everything = "Only the command or program, ready to paste", "The whole text, to keep in a file"
        self.copy_button = push_button(COPY, "copyCommandButton", command)
        self.copy_all_button = push_button(COPY_ALL, "copyConfigurationButton", everything)
        save_help = "Write the whole text to a file"
        self.save_button = push_button("Save…", "saveConfigurationButton", save_help, self._on_save)
        self.close_button = push_button("Close", "closeProductionButton", "", self.close)
        buttons = (self.copy_button, self.copy_all_button, self.save_button, self.close_button)
        layout = column(self.heading, self.verdict, self.note, (self.tabs, 1), row((self.saved, 1), *buttons))
        layout.setContentsMargins(16, 14, 16, 16)
        layout.insertSpacing(3, 4)
        self.setLayout(layout)
        open_at(self, 860, 640)
        self.tabs.currentChanged.connect(self._on_turned)
        self.copy_button.clicked.connect(lambda: self._copy(self.current().program, self.copy_button))
        self.copy_all_button.clicked.connect(lambda: self._copy(self.current().text, self.copy_all_button))

    def open_choice(self, choice: Choice, origin: str) -> None:
        """Show a choice's configurations below the sentence `origin`; the engine shown last stays in front."""
        self._found = [configuration(choice, project) for project in PROJECTS.values()]
        request = choice.request
        draft = f" with {request.draft}" if request.draft else f", {request.method}"
        self.heading.setText(f"{request.target}{draft}, {choice.shape}")
        self.note.setText(" ".join(filter(None, (origin, choice.k_note, choice.measured))))
        self.verdict.setText(choice.verdict)
        self.verdict.setVisible(bool(choice.verdict))
        for index, one in enumerate(self._found):
            page = self.tabs.widget(index)
            assert isinstance(page, QPlainTextEdit)
            page.setPlainText(one.text)
            self.tabs.setTabToolTip(index, plain_tip(one.problem or one.project.title))
        self._on_turned()
        bring_forward(self)
        self.tabs.currentWidget().setFocus()

    def current(self) -> Configuration:
        """The configuration in front."""
        return self._found[self.tabs.currentIndex()]

    @Slot()
    def _on_turned(self) -> None:
        self.saved.clear()
        self._name_copy_buttons()
        can = bool(self.current().program)
        self.copy_button.setEnabled(can)
        self.copy_button.setToolTip(self.copy_button.accessibleDescription() if can else NO_COMMAND)

    def _copy(self, text: str, button: QPushButton) -> None:
        QGuiApplication.clipboard().setText(text)
        self._name_copy_buttons()
        button.setText(COPIED)

    def _name_copy_buttons(self) -> None:
        title = COPY_PROGRAM if self.current().project.suffix == ".py" else COPY
        self.copy_button.setText(title)
        self.copy_button.setAccessibleName(title)
        self.copy_all_button.setText(COPY_ALL)

    @Slot()
    def _on_save(self) -> None:
        found = self.current()
        name = f"{found.project.name}{found.project.suffix}"
        path = self._dialogs.ask_save_path(self, name, title="Save configuration")
        if path is not None:
            self._jobs.submit(
                lambda _job: write_atomically(path, found.text),
                lambda _: self.saved.setText(f"Saved to {path}"),
                failed=self.saved.setText,
                what="The configuration could not be written",
                lane="files",
                must_finish=True,
            )


class Exports(QObject):
    """Implements Export in the File menu and Deploy under Tools."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        run: RunView,
        controls: SettingsPanel,
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
        self._failure = ""
        """Why the last export failed."""
        menus.export.triggered.connect(self.export)
        menus.production.triggered.connect(self.open_production)

    @Slot()
    def export(self) -> None:
        """Write the current run to a file that the user names."""
        log, started = self._run.snapshot(), self._run.started
        if log is None or started is None:
            return
        name = readable_name(started.config, moment_of(started.started_at))
        path = self._dialogs.ask_save_path(self._window, name, title="Export run", filters=EXPORT_FILTERS)
        if path is None:
            return

        def write(job: Job) -> None:
            self._store.refuse_own(path, [started.run_id])
            export_run(path, log())

        self._banner.retract(self._failure)
        self._status.stage.setText(f"Exporting to {path}…")
        self._jobs.submit(
            write,
            lambda _: self._status.stage.setText(f"Exported to {path}"),
            failed=self._on_failed,
            what="The run could not be written",
            lane="files",
            must_finish=True,
        )

    def _on_failed(self, sentence: str) -> None:
        self._failure = sentence
        self._banner.show_sentence(sentence)

    @Slot()
    def open_production(self) -> None:
        """Show configurations for the finished run's pair and K, or the settings' if no run has finished."""
        try:
            choice, origin = self._choice()
        except OutriderError as error:
            self._banner.show_sentence(str(error))
            return
        if self.page is None:
            self.page = ProductionPage(self._jobs, self._dialogs, self._window)
        self.page.open_choice(choice, origin)

    def _choice(self) -> tuple[Choice, str]:
        started, summary = self._run.started, self._run.summary
        if started is None or summary is None:
            choice = choice_from_request(self._controls.request_here(NO_PROMPT, "Deploy"))
            why = "no run has finished yet" if started is None else "this run has not finished"
            return choice, f"From the current settings: {why}."
        interval = speedup_interval(self._run.counts.sums, self._run.baseline.sums)
        choice = replace(
            choice_of_run(started.config, self._run.steps),
            run_id=started.run_id,
            measured_speedup=summary.measured_speedup,
            interval=interval,
            is_short=interval is None and self._run.baseline.sums.num_steps > 0,
            was_busy=bool(self._run.busy_note),
        )
        moment = moment_of(started.started_at)
        when = f" of {moment.astimezone():%Y-%m-%d %H:%M}" if moment else ""
        return choice, f"From the run{when}."
