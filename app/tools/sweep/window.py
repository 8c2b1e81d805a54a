"""The sweep window: runs, stops and continues a sweep, or a quick estimate; shows, opens and exports sweeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import QBoxLayout, QProgressBar, QStackedWidget, QWidget

from app.controller import RunController
from app.dialogs import Dialogs
from app.jobs import Jobs
from app.settings import sweeps_folder
from app.setup.prompt import PromptEditor
from app.setup.settings_panel import SettingsPanel
from app.theme import hold, scaled
from app.tools.runs.kept import KeptRuns
from app.tools.sweep import files
from app.tools.sweep.estimate import EstimateView
from app.tools.sweep.files import SweepExport
from app.tools.sweep.form import SweepForm
from app.tools.sweep.heatmap import Heatmap, HeatmapLegend, picture_of
from app.tools.sweep.results import CellRuns, SweepVerdicts
from app.tools.sweep.sweep_view import STOPPING, SweepView
from app.tools.tool_window import ToolWindow
from app.widgets.fields import (
    EnumCombo,
    boxed,
    card,
    column,
    describe,
    guard_wheel,
    menu_button,
    named,
    plain_tip,
    push_button,
    row,
    scrolled,
    set_flag,
    wrapped_label,
)
from app.widgets.labels import MessageBar, show_share
from app.window_layout import hold_beside, open_at, splitter
from core.controls import RunControls
from core.errors import OutriderError, RunLogError
from core.experiments.sweep import sweep
from core.experiments.sweep_plan import FileFailed, RunMeasured, SweepFinished, SweepPlan, SweepStarted
from core.experiments.sweep_results import FIGURES
from core.files import explain_write_error, write_atomically
from core.text import duration_text
from core.types import StageChanged

POLL_MS = 500
"""Rarely, since drawing takes processor time from the measured runs."""
ANSWER_POLL_S = 0.05
EMPTY = (
    "A sweep measures every K, temperature and draft against plain decoding, and says which to use, or advises "
    "against speculating.\nOn the left, choose what to measure. Then press Start sweep: the speedups "
    "appear here as a heatmap."
)
HEATMAP, ESTIMATE = 1, 2
"""Pages; the first one is empty."""
FORM_WIDTH, MIN_FORM, MAX_FORM, PROGRESS_WIDTH = 316, 284, 440, 320
LEAST_BESIDE, LEAST_RIGHT = 480, 308
"""The width that verdicts need beside the form, and that all else there needs."""


class _Body(QWidget):
    """What scrolls beside the form: it asks for its least height, so that its parts shrink before it scrolls."""

    def heightForWidth(self, width: int) -> int:
        """Without the spare room of a `QWidget`."""
        layout = self.layout()
        return layout.totalMinimumHeightForWidth(width) if layout is not None else super().heightForWidth(width)


class SweepWindow(ToolWindow):
    """Runs a sweep and shows its results."""

    def __init__(
        self,
        main: QWidget | None,
        controller: RunController,
        controls: SettingsPanel,
        prompt: PromptEditor,
        runs: KeptRuns,
        jobs: Jobs,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(main, controller, "sweep", "Sweep", POLL_MS)
        self._jobs, self._dialogs = jobs, dialogs
        self._may_go_on = threading.Event()
        """Of the last sweep; clear from the start of a long one until the user wants more than its first run."""
        self.view = SweepView(controls.models.library.in_titles)
        self.form = SweepForm(controls, prompt, self.view, jobs, dialogs)
        self.estimate = EstimateView(controls)
        self._is_estimate = False
        """Whether the last task was an estimate."""
        self.verdicts = SweepVerdicts()
        yes_help = "Continue with all runs"
        self.yes_button = push_button("Measure all", "sweepYesButton", yes_help, self._on_measure_all)
        no_help = "Keep the first run; Continue measures the rest"
        self.no_button = push_button("Stop here", "sweepNoButton", no_help, self.stop)
        self.question = MessageBar("firstHint", "sweepQuestion", "plain", self.yes_button, self.no_button)
        self.figures = EnumCombo({figure: figure.title for figure in FIGURES}, "sweepFigure", is_compact=True)
        describe(self.figures, "Figure", "What the heatmap shows")
        for index, figure in enumerate(FIGURES):
            self.figures.setItemData(index, plain_tip(figure.meaning), Qt.ItemDataRole.ToolTipRole)
        self.heatmap = Heatmap(self.view)
        self.legend = HeatmapLegend()
        self.earlier = menu_button("Earlier sweeps", "sweepEarlierButton", "Open a sweep that was kept, or a file")
        export_help = "Save the sweep as a table, report or picture"
        self.export_button = menu_button("Export", "sweepExportButton", export_help)
        for kind in SweepExport:
            if kind is SweepExport.PNG:
                self.export_button.menu().addSeparator()
            self.export_button.menu().addAction(kind.value).triggered.connect(partial(self.export, kind))
        self.bar = named(QProgressBar(), "sweepBar", "Progress of the sweep")
        self.bar.setTextVisible(False)
        hold(self.bar, width=120)
        self.progress = wrapped_label("sweepProgress", "hint", takes_all=True)
        continue_help = "Measure what is missing, and try again what failed"
        self.continue_button = push_button("Continue", "sweepContinueButton", continue_help, self._on_continue)
        self.continue_button.setProperty("role", "primary")
        self.cell = CellRuns(self.view, controls, runs, say=self.progress.setText, warn=self.banner.show_sentence)
        self._arrange()
        self._connect()
        self._show()

    def _arrange(self) -> None:
        empty = wrapped_label("emptyHint", "hint", EMPTY)
        empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._pages = QStackedWidget()
        self._pages.addWidget(boxed(column(empty), margins=(24, 0, 24, 0)))
        self._pages.addWidget(self.heatmap)
        self._pages.addWidget(self.estimate)
        self._head = row(self.figures, None, self.legend)
        self._head.setAlignment(self.legend, Qt.AlignmentFlag.AlignRight)
        grid, _ = card(self._head, (self._pages, 1))
        self.parts = splitter(Qt.Orientation.Vertical, "sweepSplitter", (grid, 2), (self.cell, 1))
        self.parts.setSizes([400, 190])
        said = column(row(self.bar, None), self.progress, spacing=6)
        self._top = row((said, 1), row(self.continue_button, self.earlier, self.export_button, None))
        self._verdict_card, _ = card(self.verdicts)
        self._form_card, _ = card((self.form, 1))
        self._right = column(self._top, self._verdict_card, self.question, (self.parts, 1))
        self._area = scrolled(boxed(self._right, _Body()), "sweepRight")
        hold(self._area, least_width=LEAST_RIGHT)
        guard_wheel(self.figures)
        self.columns = splitter(Qt.Orientation.Horizontal, "sweepColumns", (self._form_card, 0), (self._area, 1))
        self._whole = column(self.banner, (self.columns, 1))
        boxed(self._whole, self, margins=(16, 12, 16, 12))
        self.setMinimumSize(980, 600)
        open_at(self, 1240, 740)
        self.restyle()

    def _connect(self) -> None:
        self.figures.currentIndexChanged.connect(self._on_figure_chosen)
        self.heatmap.cell_chosen.connect(self._show_cell)
        self.columns.splitterMoved.connect(self._fit)
        self.heatmap.cell_opened.connect(self.cell.focus_runs)
        self.form.start_button.clicked.connect(self.start)
        self.form.quick_button.clicked.connect(self.start_estimate)
        self.form.stop_button.clicked.connect(self.stop)
        self.earlier.menu().aboutToShow.connect(self.list_earlier)
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            QShortcut(QKeySequence(keys), self).activated.connect(self.form.start_button.click)

    def refresh(self) -> None:
        """Copy what has changed in the main window."""
        self.form.refresh()

    def restyle(self) -> None:
        """Fit the layout to the size of the text."""
        hold_beside(self._form_card, self._form_width)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the layout to the width."""
        super().resizeEvent(event)
        self._fit()

    @property
    def _form_width(self) -> int:
        return min(max(scaled(FORM_WIDTH), MIN_FORM), MAX_FORM)

    @Slot()
    def _fit(self) -> None:
        """Give the verdicts the whole width where they would need too many lines beside the form, and the progress and
        the legend a line each where they don't fit beside the buttons and the choice of figures."""
        is_beside = self.width() - self._form_width >= scaled(LEAST_BESIDE)
        place = self._right if is_beside else self._whole
        if place.indexOf(self._verdict_card) < 0:
            place.insertWidget(1, self._verdict_card)  # Below the top row, or the banner.
        # As if there was a scroll bar, which the layout would otherwise let come and go.
        room = self._area.width() - self._area.verticalScrollBar().sizeHint().width()
        gap = self._head.spacing()
        buttons = (self.continue_button, self.earlier, self.export_button)
        beside = scaled(PROGRESS_WIDTH) + sum(button.sizeHint().width() + gap for button in buttons)
        needed = self.figures.sizeHint().width() + self.legend.width() + 5 * gap  # With the card's margins.
        direction = QBoxLayout.Direction
        for layout, is_narrow in ((self._top, room < beside), (self._head, room < needed)):
            layout.setDirection(direction.TopToBottom if is_narrow else direction.LeftToRight)
        # Else an empty line lies above the buttons.
        self.progress.setHidden(room < beside and not (self.is_running or self.progress.text()))

    # --- Running ---

    @Slot()
    def start(self) -> None:
        """Run the sweep described by the form."""
        plan = self.form.judge()
        if plan is not None:
            self._start(plan, files.new_path(sweeps_folder(), plan, datetime.now()))

    @Slot()
    def _on_continue(self) -> None:
        if self.view.plan is not None and self.view.path is not None:
            self._start(self.view.plan, self.view.path)

    def _start(self, plan: SweepPlan, path: Path) -> None:
        may_go_on, logs = threading.Event(), path.with_suffix("")  # A folder beside the file.
        may_go_on.set()

        def work(session: Any, controls: RunControls) -> Iterator[Any]:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunLogError(explain_write_error(error, path)) from error
            for event in sweep(plan, session.run, out=path, logs=logs, controls=controls):
                if isinstance(event, SweepStarted) and plan.is_long(event.num_done):
                    may_go_on.clear()
                yield event
                if isinstance(event, RunMeasured):
                    while not controls.is_cancelled and not may_go_on.wait(ANSWER_POLL_S):
                        pass

        if not self._start_task("A sweep", work):
            return
        self._may_go_on = may_go_on
        self._is_estimate = False
        self.view.begin(plan, path)
        self._show()

    @Slot()
    def _on_measure_all(self) -> None:
        self.question.dismiss()
        self._may_go_on.set()

    def _show_stopping(self) -> None:
        self.view.stage = STOPPING
        self.question.dismiss()
        self._show()
        if self._is_estimate:
            self.progress.setText(STOPPING)

    def _show_events(self, events: Iterator[Any]) -> None:
        if self._is_estimate:
            for event in events:
                if isinstance(event, StageChanged):
                    self.progress.setText(event.text)
                self.estimate.show_event(event)
            return
        has_news = False
        for event in events:
            has_news = True
            self.view.apply(event)
            if isinstance(event, FileFailed):
                self.banner.show_sentence(f"{event.sentence} The sweep continues.")
            elif isinstance(event, RunMeasured) and not self._may_go_on.is_set():
                num_left, duration = self.view.num_runs - event.num_done, duration_text(event.seconds_left)
                self.question.show_sentence(
                    f"{num_left:,} runs are left, which will take about {duration}. Measure them all?"
                )
                self.no_button.setFocus()
        if has_news:
            self._show()

    def _show_failure(self, sentence: str) -> None:
        self.banner.show_sentence(sentence)
        self.view.has_failed = not self._is_estimate
        self.estimate.headline.clear()

    def _show_end(self) -> None:
        self.view.end()
        if self._is_estimate:
            self.estimate.end()
            self.progress.clear()
        self.question.dismiss()
        self._show()
        self.form.judge()

    # --- The quick estimate ---

    @Slot()
    def start_estimate(self) -> None:
        """Estimate what each draft on this computer gives for the form's target."""
        try:
            asked = self.form.quick_request()
        except OutriderError as error:
            self.banner.show_sentence(str(error))
            return

        def work(session: Any, controls: RunControls) -> Iterator[Any]:
            from core.analysis.probe import drafts_here
            from core.analysis.run_probe import probe

            yield StageChanged("Looking for drafts…")
            yield from probe(session, replace(asked, drafts=drafts_here(asked.target)), controls)

        if not self._start_task("An estimate", work):
            return
        self._is_estimate = True
        self.estimate.begin(asked)
        self._show()

    # --- What is shown ---

    def _show(self) -> None:
        view, is_estimate, is_running = self.view, self._is_estimate, self.is_running
        has_plan = view.plan is not None and not is_estimate
        self.heatmap.refresh()
        self.legend.show_scale(self.heatmap.scale)
        self._pages.setCurrentIndex(ESTIMATE if is_estimate else HEATMAP if has_plan else 0)
        for widget in (self.legend, self.figures, self.cell):
            widget.setVisible(has_plan)
        self.bar.setVisible(is_running)
        self.verdicts.show_lines([] if is_estimate else view.verdict_lines())
        self._verdict_card.setVisible(bool(self.verdicts.lines))
        is_waiting = view.is_running and not view.num_done
        if is_estimate:
            show_share(self.bar, None)
        else:
            self.progress.setText(view.progress_text())
            show_share(self.bar, None if is_waiting else view.num_done / max(1, view.num_runs))
        self.form.show_running(is_running=is_running)
        can_continue = view.can_continue and not is_running and not is_estimate
        self.continue_button.setEnabled(can_continue)
        self.continue_button.setVisible(can_continue)
        # Start begins afresh: one of the two stands out.
        set_flag(self.form.start_button, "stands", "back" if can_continue else "")
        self.export_button.setEnabled(view.num_done > 0 and not is_estimate)
        self._show_cell()
        self._fit()

    @Slot()
    def _show_cell(self) -> None:
        was_open = self.cell.is_open
        self.cell.show_cell(self.heatmap.current_cell() if self.view.plan is not None else None)
        if self.cell.is_open and not was_open:
            self.parts.setSizes([3, 2])
            QTimer.singleShot(0, self, self._keep_cell)  # Once it is laid out.

    @Slot()
    def _keep_cell(self) -> None:
        """Scroll to the chosen cell's runs, and the heatmap just above them."""
        if self.cell.is_open:
            self._area.ensureWidgetVisible(self.cell, 0, 0)

    @Slot()
    def _on_figure_chosen(self) -> None:
        self.heatmap.show_figure(self.figures.member())
        self.legend.show_scale(self.heatmap.scale)

    # --- Earlier sweeps ---

    @Slot()
    def list_earlier(self) -> None:
        """Fill the menu of earlier sweeps."""
        menu = self.earlier.menu()
        menu.clear()
        for path in files.earlier_sweeps(sweeps_folder()):
            action = menu.addAction(files.title_of(path))
            action.triggered.connect(partial(self.open_sweep, path))
            action.setToolTip(plain_tip(str(path)))
        menu.addSeparator()
        menu.addAction("Open a sweep's file…").triggered.connect(self._on_file_wanted)

    @Slot()
    def _on_file_wanted(self) -> None:
        if (path := self._dialogs.ask_sweep_path(self, sweeps_folder())) is not None:
            self.open_sweep(path)

    def open_sweep(self, path: Path, _checked: bool = False) -> None:
        """Read an earlier sweep and show it."""
        if self.is_running:
            self.banner.show_sentence(self._controller.busy_sentence())
            return
        self._jobs.submit(
            lambda _job: files.open_sweep(path),
            partial(self._show_opened, path),
            failed=self.banner.show_sentence,
            what="The sweep could not be opened",
        )

    def _show_opened(self, path: Path, events: tuple[SweepStarted, SweepFinished]) -> None:
        if not self.is_running:
            self.banner.dismiss()
            self._is_estimate = False
            self.view.show(path, events)
            self._show()
            for problem in events[0].problems[:1]:
                self.banner.show_sentence(problem)

    # --- Export ---

    def export(self, kind: SweepExport, _checked: bool = False) -> None:
        """Ask for a path, and write the sweep there."""
        source = self.view.path
        if source is None:
            return
        path = self._dialogs.ask_save_path(self, kind.name_for(source), title="Export sweep")
        if path is None:
            return
        picture = b""
        if kind in {SweepExport.PNG, SweepExport.SVG}:
            picture = picture_of(self.view, self.heatmap.scale, is_svg=kind is SweepExport.SVG)
        self._jobs.submit(
            lambda _job: write_atomically(path, picture) if picture else files.export_sweep(source, kind, path),
            lambda _: self._show_saved(path),
            failed=self.banner.show_sentence,
            what="The sweep could not be exported",
            must_finish=True,
        )

    def _show_saved(self, path: Path) -> None:
        self.banner.dismiss()
        self.progress.setText(f"Saved to {path}")
