"""Checks exactness for the settings at hand: asks the engine, shows what comes, and has the report taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from PySide6.QtCore import Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.menus import Menus
from app.run_reader_thread import RunReaderThread
from app.services import Services, Session
from app.task_desk import TaskDesk
from app.theme import LIGHT, Theme
from app.view_models.checking import (
    MARK_NAMES,
    MARKS,
    STOPPED,
    headline_of,
    is_checked_as,
    remarks_of,
    rows_of,
    subject_of,
)
from app.widgets.check_window import CheckWindow
from app.widgets.controls import ControlsPanel
from core.check.types import CheckFinished, CheckProgress, CheckReport, CheckRequest
from core.check.wording import report_json, report_text
from core.controls import RunControls
from core.errors import OutriderError
from core.types import RunRequest, StageChanged

TITLE = "A check"
_ANY_PROMPT = "any"
"""A request needs a prompt; a check has its own."""


class CheckDesk(TaskDesk):
    """Its window is made when it is first wanted."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        services: Services,
        controller: RunController,
        controls: ControlsPanel,
        reader: RunReaderThread,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(window, controller)
        self._main, self._services = window, services
        self._controls, self._reader, self._dialogs = controls, reader, dialogs
        self._in_titles = controls.models.library.in_titles
        self._theme = LIGHT
        self._report: CheckReport | None = None
        self._has_failed = False
        self._is_saving = False
        self.window: CheckWindow | None = None
        menus.check.triggered.connect(self.open)
        controls.changed.connect(self._show_subject)
        reader.text_saved.connect(self._on_saved)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.window is not None:
            self.window.set_theme(theme)

    @Slot()
    def open(self) -> None:
        """Show the window."""
        if self.window is None:
            self.window = CheckWindow(self._main)
            self.window.set_theme(self._theme)
            self.window.check_wanted.connect(self.start)
            self.window.stop_wanted.connect(self.stop)
            self.window.copy_wanted.connect(self._on_copy)
            self.window.save_wanted.connect(self._on_save)
        self.window.open()
        self._show_subject()

    @Slot()
    def start(self) -> None:
        """Check the settings as they stand."""
        window = self.window
        if window is None or self._task is not None:
            return
        try:
            request = CheckRequest(
                self._run(),
                num_samples=window.blocks.value(),
                with_transformers=window.with_transformers.isChecked(),
            )
        except OutriderError as error:
            window.show_nothing(str(error), is_problem=True)
            return
        services = self._services

        def work(session: Session, controls: RunControls) -> Iterator[Any]:
            return services.check(session, request, controls)

        if self._start_task(TITLE, work) is None:
            window.show_stage(self._controller.busy_sentence())
            return
        self._report, self._has_failed = None, False
        window.show_nothing("Checking…")
        window.show_subject(self._in_titles(subject_of(request.run)))
        window.show_stage("")
        window.show_going(is_going=True)

    def _run(self) -> RunRequest:
        return self._controls.request(_ANY_PROMPT)

    @Slot()
    def _show_subject(self) -> None:
        """What is chosen now; and where a verdict is shown, whether it is about that."""
        window = self.window
        if window is None or not window.isVisible() or self._task is not None:
            return
        try:
            run = self._run()
        except OutriderError as error:
            window.show_subject(str(error))
            return
        if self._report is None:
            window.show_subject(self._in_titles(subject_of(run)))
        else:
            now = "" if is_checked_as(run, self._report.request) else "\nThe settings are others by now."
            window.show_subject(f"{self._in_titles(subject_of(self._report.request.run))}{now}")

    def _show_stopping(self) -> None:
        if self.window is not None:
            self.window.show_stage("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        window, task = self.window, self._task
        if task is None or window is None:
            return
        last: CheckProgress | StageChanged | None = None
        for event in events:
            if isinstance(event, CheckFinished):
                self._report = event.report
            else:
                last = event
        if task.controls.is_cancelled or last is None:
            return
        if isinstance(last, StageChanged):
            window.show_stage(last.text)
        else:
            window.show_stage(last.text, last.done, last.total)

    def _show_failure(self, sentence: str) -> None:
        self._has_failed = True
        if self.window is not None:
            self.window.show_nothing(sentence, is_problem=True)

    def _show_end(self) -> None:
        window, report = self.window, self._report
        if window is None:
            return
        window.show_going(is_going=False)
        window.show_stage("" if report is None else f"{report.seconds:.0f} s")
        if report is not None:
            window.show_verdict(MARKS[report.verdict], MARK_NAMES[report.verdict], headline_of(report))
            first_tokens = () if report.law is None else report.law.first_tokens
            window.show_results(rows_of(report), remarks_of(report), first_tokens)
        elif not self._has_failed:
            window.show_nothing(STOPPED)
        self._show_subject()

    # --- Taking away ---

    @Slot()
    def _on_copy(self) -> None:
        if self._report is not None and self.window is not None:
            QGuiApplication.clipboard().setText(report_text(self._report))
            self.window.show_stage("The report is on the clipboard.")

    @Slot()
    def _on_save(self) -> None:
        if self._report is None or self.window is None:
            return
        path = self._dialogs.ask_report_path(self.window, "exactness.txt")
        if path is not None:
            write = report_json if path.suffix.lower() == ".json" else report_text
            self._is_saving = True
            self._reader.save_text(write(self._report), path)

    @Slot(str)
    def _on_saved(self, sentence: str) -> None:
        if self._is_saving and self.window is not None:
            self._is_saving = False
            self.window.show_stage(sentence)
