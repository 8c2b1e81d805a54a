"""Everything about sweeps that goes on behind their window: starting, stopping, opening, using, taking away."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.dress import dressing
from app.menus import Menus
from app.replaying import settings_of
from app.runs_desk import RunsDesk
from app.services import Services
from app.sweep_choices import SweepChooser
from app.sweep_files import earlier_sweeps, new_path, title_of
from app.sweep_reader import SweepReader
from app.sweep_work import SweepAsks, SweepWork
from app.task_desk import TaskDesk
from app.theme import LIGHT, Theme
from app.turns import Turns
from app.view_models.sweep import STOPPING, OpenedSweep, SweepExport, SweepView
from app.widgets.controls import ControlsPanel
from app.widgets.prompt_editor import PromptEditor
from app.widgets.sweep_picture import SweepPicture
from app.widgets.sweep_window import SweepWindow
from app.window_layout import bring_forward
from core.errors import OutriderError
from core.files import write_atomically
from core.runs import KeptRun, KeptState
from core.sweep.plan import Cell, PlannedRun, SweepPlan
from core.sweep.types import FileFailed, Measurement

FRAME_MS = 500
"""Rarely: what drawing takes of a processor, the runs that are measured lack."""
TITLE = "A sweep"
NO_LOG = "The log of this run was not kept, or is gone."


class SweepDesk(TaskDesk):
    """Connects the engine, the form, the heatmap and the files.

    Attributes:
        view: the sweep at hand.
        window: made when it is first wanted.
        reader: has a thread of its own.
    """

    def __init__(
        self,
        window: QWidget,
        services: Services,
        menus: Menus,
        controller: RunController,
        controls: ControlsPanel,
        prompt: PromptEditor,
        runs: RunsDesk,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(window, controller, FRAME_MS)
        self._parent, self._services = window, services
        self._controls, self._prompt, self._runs, self._dialogs = controls, prompt, runs, dialogs
        self._theme = LIGHT
        self._work: SweepWork | None = None
        self.view = SweepView(controls.models.library.in_titles)
        self.window: SweepWindow | None = None
        self._chooser: SweepChooser | None = None
        self._opening = Turns(self)
        self.reader = SweepReader(self)
        self.reader.opened.connect(self._on_opened)
        self.reader.saved.connect(self._on_saved)
        self.reader.failed.connect(self._tell)
        menus.sweep.triggered.connect(self.open)

    # --- The window ---

    @Slot()
    def open(self) -> None:
        """Show the window, with the main window's choice in its form at first."""
        is_new = self.window is None
        if self.window is None:
            self.window = self._make_window()
            self.window.set_theme(self._theme)
        elif self._chooser is not None:
            self._chooser.refresh()
        self._opening.start(self._pieces(self.window))
        if not (is_new and self._parent.isVisible()):
            self._opening.finish()

    def _pieces(self, window: SweepWindow) -> Generator[None]:
        """To make it takes a turn, to dress it some more, to lay it out and paint it another one."""
        if not window.isVisible():
            yield from dressing(window)
            yield from self._opening.rest()
        bring_forward(window)

    def close(self) -> None:
        """Close the window, or open it no more, and stop the sweep with it."""
        self._opening.stop()
        if self.window is not None:
            self.window.close()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.window is not None:
            self.window.set_theme(theme)

    def _make_window(self) -> SweepWindow:
        window = SweepWindow(self.view, self._parent)
        self._chooser = SweepChooser(window.form, self._controls, self._prompt, self.reader, self._dialogs, self.view)
        window.form.start_requested.connect(self._on_start)
        window.stop_requested.connect(self.stop)
        window.go_on_requested.connect(self._on_go_on)
        window.left.connect(self.stop)
        window.question.answered.connect(self._on_answered)
        window.export_requested.connect(self._on_export)
        window.use_requested.connect(self._on_use)
        window.run_opened.connect(self._on_run_opened)
        window.earlier.menu().aboutToShow.connect(self.list_earlier)
        window.earlier.menu().triggered.connect(self._on_earlier_chosen)
        return window

    @Slot(str)
    def _tell(self, sentence: str) -> None:
        if self.window is not None:
            self.window.banner.show_sentence(sentence)

    # --- Going ---

    @Slot()
    def _on_start(self) -> None:
        plan = self._chooser.judge() if self._chooser is not None else None
        if plan is not None:
            self._start(plan, new_path(self._services.sweeps_folder(), plan, datetime.now()))

    @Slot()
    def _on_go_on(self) -> None:
        if self.view.plan is not None and self.view.path is not None:
            self._start(self.view.plan, self.view.path)

    def _start(self, plan: SweepPlan, path: Path) -> None:
        window = self.window
        assert window is not None
        if sentence := self._controller.busy_sentence():
            self._tell(sentence)
            return
        work = SweepWork(plan, path)
        task = self._start_task(TITLE, work)
        if task is None:
            return
        self._work = work
        task.stop_asked.connect(work.stop)
        window.banner.dismiss()
        self.view.begin(plan, path)
        window.refresh()

    def _show_stopping(self) -> None:
        self.view.stage = STOPPING
        if self.window is not None:
            self.window.question.hide()
            self.window.refresh()

    @Slot(bool)
    def _on_answered(self, goes_on: bool) -> None:
        if goes_on and self._work is not None:
            self._work.go_on()
        elif not goes_on:
            self.stop()

    def _show_events(self, events: Iterator[Any]) -> None:
        if self.window is None:
            return
        has_news = False
        for event in events:
            has_news = True
            if isinstance(event, FileFailed):
                self._tell(f"{event.sentence} The sweep goes on.")
            elif isinstance(event, SweepAsks):
                self.window.question.ask(event.num_left, event.seconds_left)
            else:
                self.view.apply(event)
        if has_news:
            self.window.refresh()

    def _show_failure(self, sentence: str) -> None:
        self._tell(sentence)

    def _show_end(self) -> None:
        self._work = None
        self.view.end()
        if self.window is not None:
            self.window.question.hide()
            self.window.refresh()
            if self._chooser is not None:
                self._chooser.judge()

    # --- Earlier sweeps ---

    @Slot()
    def list_earlier(self) -> None:
        """Fill the menu of earlier sweeps."""
        if self.window is None:
            return
        menu = self.window.earlier.menu()
        menu.clear()
        for path in earlier_sweeps(self._services.sweeps_folder()):
            action = menu.addAction(title_of(path))
            action.setData(str(path))
            action.setToolTip(str(path))
        menu.addSeparator()
        menu.addAction("Open a sweep's file…").setData("")

    @Slot(QAction)
    def _on_earlier_chosen(self, action: QAction) -> None:
        chosen = action.data()
        if chosen:
            self.open_sweep(Path(chosen))
        elif self.window is not None:
            path = self._dialogs.ask_sweep_path(self.window, self._services.sweeps_folder())
            if path is not None:
                self.open_sweep(path)

    def open_sweep(self, path: Path) -> None:
        """Have an earlier sweep read and shown."""
        if self._task is not None:
            self._tell("A sweep is going. Stop it, or wait for its end, before you open another.")
        else:
            self.reader.open(path)

    @Slot(object)
    def _on_opened(self, opened: OpenedSweep) -> None:
        if self.window is None or self._task is not None:
            return
        self.window.banner.dismiss()
        self.view.show(opened)
        self.window.refresh()
        if opened.problems:
            self._tell(opened.problems[0])

    # --- From a cell to the main window ---

    @Slot(object)
    def _on_use(self, cell: Cell) -> None:
        plan = self.view.plan
        if plan is None or self.window is None:
            return
        kept = self._controls.settings(self._prompt.text())
        found = settings_of(plan.request(PlannedRun(cell, 0, 0)), kept)
        # What the cell doesn't speak of stays as it was.
        found = replace(
            found, prompt=kept.prompt, seed=kept.seed, max_new_tokens=kept.max_new_tokens, baseline=kept.baseline
        )
        self._controls.apply(found)
        self._controls.changed.emit()
        self.window.progress.setText(f"The main window is set to {self.view.cell_title(cell)}")

    @Slot(object)
    def _on_run_opened(self, run: Measurement) -> None:
        if run.log is None or run.run_id is None or not run.log.is_file():
            self._tell(NO_LOG)
        elif sentence := self._runs.busy_sentence():
            self._tell(sentence)
        else:
            name = f"{self.view.cell_title(run.run.cell)}, repeat {run.run.repeat + 1}"
            self._runs.open_run(KeptRun(run.run_id, run.log, name, state=KeptState.FINISHED))
            self._parent.raise_()
            self._parent.activateWindow()

    # --- Taking away ---

    @Slot(object)
    def _on_export(self, kind: SweepExport) -> None:
        window, source = self.window, self.view.path
        if window is None or source is None:
            return
        suffix = {SweepExport.CELLS: "csv", SweepExport.RUNS: "csv"}.get(kind, kind.value)
        name = f"{source.stem}-{kind.value}.{suffix}" if suffix == "csv" else f"{source.stem}.{suffix}"
        path = self._dialogs.ask_sweep_export_path(window, name)
        if path is None:
            return
        if kind not in {SweepExport.PNG, SweepExport.SVG}:
            self.reader.export(source, kind, path)
            return
        picture = SweepPicture(self.view, window.heatmap.scale, self._theme)
        try:
            write_atomically(path, picture.png() if kind is SweepExport.PNG else picture.svg())
        except OutriderError as error:
            self._tell(str(error))
        else:
            self._on_saved(f"Saved to {path}")

    @Slot(str)
    def _on_saved(self, sentence: str) -> None:
        if self.window is not None:
            self.window.banner.dismiss()
            self.window.progress.setText(sentence)
