"""Everything about sweeps that goes on behind their window: starting, stopping, opening, using, taking away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QModelIndex, Qt, Signal, Slot
from PySide6.QtGui import QAction, QCloseEvent, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QDialog,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QMenu,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.controller import RunController
from app.dialogs import Dialogs
from app.menus import Menus
from app.services import Services
from app.setup.controls import ControlsPanel, settings_of
from app.setup.prompt import PromptEditor
from app.theme import LIGHT, Theme, hold, scaled, text_scale
from app.tools.runs.kept import KeptRuns
from app.tools.sweep.form import SweepChooser, SweepForm
from app.tools.sweep.heatmap import Heatmap, HeatmapLegend, SweepPicture
from app.tools.sweep.sweep_view import (
    FIGURE_HELP,
    FIGURE_TITLES,
    STOPPING,
    WINDOW_SUITE,
    OpenedSweep,
    SweepExport,
    SweepFigure,
    SweepView,
    VerdictLine,
)
from app.tools.sweep.work import SweepAsks, SweepReader, SweepWork, earlier_sweeps, new_path, title_of
from app.tools.tool_window import TaskDesk
from app.widgets.fields import ChoiceRow, card, describe, text_label
from app.widgets.labels import STEPS, Banner, show_share
from app.widgets.tables import Index, Role, RowsModel, prepare_rows
from app.window_layout import bring_forward, open_at, splitter
from core.errors import OutriderError
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep_plan import Cell, FileFailed, Measurement, PlannedRun, SweepPlan
from core.files import write_atomically
from core.runlog.store import KeptRun, KeptState
from core.text import duration_text, spaced_percent


def push_button(text: str, name: str, help_text: str) -> QPushButton:
    """A button that Enter presses only where the focus is on it."""
    button = QPushButton(text)
    button.setObjectName(name)
    button.setAutoDefault(False)
    describe(button, text.rstrip("…"), help_text)
    return button


def menu_button(text: str, name: str, help_text: str) -> QToolButton:
    """A button with a menu, which whoever has it fills."""
    button = QToolButton()
    button.setText(text)
    button.setObjectName(name)
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    describe(button, text, help_text)
    menu = QMenu(button)
    menu.setToolTipsVisible(True)
    button.setMenu(menu)
    return button


class SweepQuestion(QFrame):
    """Signals:
    answered: whether the sweep is to go on.
    """

    answered = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("firstHint")
        self.text = text_label("", "plain")
        self.text.setObjectName("sweepQuestion")
        self.text.setWordWrap(True)
        self.yes_button = QPushButton("Measure all")
        self.yes_button.setObjectName("sweepYesButton")
        describe(self.yes_button, "Measure all of it")
        self.no_button = QPushButton("Stop here")
        self.no_button.setObjectName("sweepNoButton")
        describe(self.no_button, "Stop after the first run", "It is kept; Go on measures the rest at any time.")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 8, 8, 8)
        layout.setSpacing(8)
        layout.addWidget(self.text, 1)
        for button in (self.yes_button, self.no_button):
            button.setAutoDefault(False)
            layout.addWidget(button)
        self.yes_button.clicked.connect(self._on_yes)
        self.no_button.clicked.connect(self._on_no)
        self.hide()

    def ask(self, num_left: int, seconds_left: float) -> None:
        """Ask whether so many runs, which take so long, are to be done."""
        self.text.setText(f"{num_left:,} runs are left, which will take about {duration_text(seconds_left)}.")
        self.setAccessibleName(self.text.text())
        self.show()
        self.no_button.setFocus()

    @Slot()
    def _on_yes(self) -> None:
        self.hide()
        self.answered.emit(True)

    @Slot()
    def _on_no(self) -> None:
        self.hide()
        self.answered.emit(False)


TITLES = ("Prompt", "Repeat", "Tokens/s", "Speedup", "Acceptance", "Tokens/forward", "Tokens", "Outcome")
WIDTHS = (200, 74, 84, 84, 100, 126, 72, 120)
HELP = {
    2: "New tokens / seconds of model work",
    3: "Against plain decoding of the same prompt and temperature, the run nearest in time",
    4: "Accepted / drafted tokens",
    5: "New tokens / forwards of the target",
}
ROW_HEIGHT = 26
PROMPT, OUTCOME = 0, len(TITLES) - 1
UNKNOWN = "–"


class CellRunsModel(RowsModel[tuple[str, ...]]):
    """A row a run."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, TITLES, (PROMPT, OUTCOME), HELP)
        self._runs: tuple[Measurement, ...] = ()

    def show_runs(
        self, runs: tuple[Measurement, ...], prompts: Sequence[Prompt], speedups: Mapping[tuple[int, int], float]
    ) -> None:
        """Show these."""
        rows = [_row(run, prompts, speedups.get((run.run.prompt, run.run.repeat))) for run in runs]
        if (rows, runs) == (self._rows, self._runs):
            return
        is_same = [run.run for run in runs] == [run.run for run in self._runs]
        self._runs = runs
        (self._change if is_same else self._reset)(rows)

    def run(self, row: int) -> Measurement:
        """The run of a row."""
        return self._runs[row]

    def data(self, index: Index, role: int = Role.DisplayRole) -> object:
        """What a cell shows."""
        if role == Role.DisplayRole:
            return self._rows[index.row()][index.column()]
        if role == Role.TextAlignmentRole:
            return self.side(index.column())
        if role == Role.ToolTipRole:
            run = self._runs[index.row()]
            opens = (
                "Double click or Enter opens it in the main window" if run.log is not None else "Its log is not kept"
            )
            return run.error or opens
        return None


class CellRunsTable(QTableView):
    """Signals:
    run_opened: a `Measurement`.
    """

    run_opened = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepRuns")
        self.setAccessibleName("Runs of the cell")
        self._model = CellRunsModel(self)
        self.setModel(self._model)
        prepare_rows(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionsClickable(False)
        self.horizontalHeader().setStretchLastSection(True)
        self.rescale()
        self.doubleClicked.connect(self._on_double_clicked)

    def rescale(self) -> None:
        """Make rows as high, and columns as wide, as their text."""
        self.verticalHeader().setDefaultSectionSize(scaled(ROW_HEIGHT))
        for column, width in enumerate(WIDTHS):
            self.setColumnWidth(column, scaled(width))

    def show_runs(
        self, runs: tuple[Measurement, ...], prompts: Sequence[Prompt], speedups: Mapping[tuple[int, int], float]
    ) -> None:
        """Show these runs; what is selected stays selected where it is still there."""
        chosen = self.selected()
        self._model.show_runs(runs, prompts, speedups)
        row = next((place for place, run in enumerate(runs) if chosen is not None and run.run == chosen.run), None)
        if row is not None and self.currentIndex().row() != row:
            self.selectRow(row)

    def count(self) -> int:
        """Number of runs that are shown."""
        return self._model.rowCount()

    def selected(self) -> Measurement | None:
        """The selected run."""
        index = self.currentIndex()
        return self._model.run(index.row()) if index.isValid() else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter opens the selected run."""
        if event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter} and (run := self.selected()) is not None:
            self.run_opened.emit(run)
            return
        super().keyPressEvent(event)

    @Slot(QModelIndex)
    def _on_double_clicked(self, index: QModelIndex) -> None:
        self.run_opened.emit(self._model.run(index.row()))


def _row(run: Measurement, prompts: Sequence[Prompt], speedup: float | None) -> tuple[str, ...]:
    prompt, figures = prompts[run.run.prompt], run.figures
    name = prompt.name if prompt.suite in {"", WINDOW_SUITE} else f"{prompt.suite}: {prompt.name}"
    repeat = f"{run.run.repeat + 1}"
    if figures is None:
        return (name, repeat, *[UNKNOWN] * 5, f"failed: {run.error}")
    return (
        name,
        repeat,
        _number(figures.tokens_per_second, ".1f"),
        UNKNOWN if speedup is None else f"{speedup:.2f}×",
        _number(figures.draft_acceptance_rate, ".0%"),
        _number(figures.block_efficiency, ".2f"),
        f"{figures.num_tokens:,}",
        _OUTCOMES.get(figures.finish_reason, figures.finish_reason),
    )


_OUTCOMES = {"length": "length reached", "eos": "end of text", "stop": "end of text"}


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else spaced_percent(format(value, form))


MOST_HEIGHT = 132
SWEEP_VERDICTS_EMPTY = (
    "A sweep measures each K at each temperature with each draft, against plain decoding, and says which to take, or "
    "not to speculate at all. Choose on the left what to measure, and start."
)


class SweepVerdicts(QScrollArea):
    """Grows with its lines up to a few, and scrolls then."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepVerdicts")
        self.setAccessibleName("Verdict")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.viewport().setAutoFillBackground(False)
        self._shown: tuple[VerdictLine, ...] | None = None
        self._body = QWidget()
        self._body.setObjectName("sweepVerdictsBody")
        self._grid = QGridLayout(self._body)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(1, 1)
        self.setWidget(self._body)
        self.show_lines([])

    def show_lines(self, lines: Sequence[VerdictLine]) -> None:
        """Show these; none: what the window is for."""
        if tuple(lines) == self._shown:
            return
        self._shown = tuple(lines)
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for row, line in enumerate(lines):
            self._grid.addWidget(_badge(line), row, 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(_sentence(line.sentence, "plain"), row, 1)
        if not lines:
            self._grid.addWidget(_sentence(SWEEP_VERDICTS_EMPTY, "hint"), 0, 0, 1, 2)
        self._fit()

    def sentences(self) -> list[str]:
        """What is said."""
        return [line.sentence for line in self._shown or ()]

    def words(self) -> list[str]:
        """The same in a word each."""
        return [line.word for line in self._shown or ()]

    def resizeEvent(self, event: object) -> None:
        """Sentences wrap anew, and take other heights."""
        super().resizeEvent(event)  # type: ignore[arg-type]
        self._fit()

    def _fit(self) -> None:
        width = max(200, self.viewport().width())
        self.setFixedHeight(min(scaled(MOST_HEIGHT), max(scaled(20), self._grid.totalHeightForWidth(width)) + 2))


def _badge(line: VerdictLine) -> QLabel:
    badge = text_label(line.word, "badge")
    badge.setProperty("kind", {True: "pays", False: "pays-not", None: "base"}[line.pays])
    badge.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
    return badge


def _sentence(text: str, role: str) -> QLabel:
    label = text_label(text, role)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


EXPORT_TITLES = {
    SweepExport.CELLS: "Table of cells, CSV…",
    SweepExport.RUNS: "Table of runs, CSV…",
    SweepExport.JSONL: "Sweep, JSON Lines…",
    SweepExport.HTML: "Report to read, HTML…",
    SweepExport.PNG: "Heatmap, PNG…",
    SweepExport.SVG: "Heatmap, SVG…",
}
PICK = "Choose a cell to see its runs: click it, or go there with the arrow keys."
EMPTY = "The heatmap of the sweep will be here."
LEAST_FORM, MOST_FORM, WIDE_SCALE = 276, 430, 1.2


class SweepWindow(QDialog):
    """Signals:
    stop_requested, go_on_requested: of the sweep.
    export_requested: a `SweepExport`.
    use_requested: a `Cell` whose settings are wanted in the main window.
    run_opened: a `Measurement`.
    left: it is closed.
    """

    stop_requested = Signal()
    go_on_requested = Signal()
    export_requested = Signal(object)
    use_requested = Signal(object)
    run_opened = Signal(object)
    left = Signal()

    def __init__(self, view: SweepView, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._view = view
        self.setObjectName("sweepWindow")
        self.setWindowTitle("Sweep")
        self.setModal(False)
        self.banner = Banner()
        self.form = SweepForm()
        self.verdicts = SweepVerdicts()
        self.question = SweepQuestion()
        self.figures = ChoiceRow(FIGURE_TITLES, "sweepFigure", "Figure")
        for button, help_text in zip(self.figures.group.buttons(), FIGURE_HELP.values(), strict=True):
            button.setToolTip(help_text)
        self.heatmap = Heatmap(view)
        self.legend = HeatmapLegend()
        self.empty = text_label(EMPTY, "hint")
        self.empty.setObjectName("emptyHint")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.cell_title = text_label(PICK, "strong")
        self.cell_title.setObjectName("sweepCellTitle")
        self.cell_problem = text_label("", "problem")
        self.cell_problem.setObjectName("sweepCellProblem")
        self.cell_problem.setWordWrap(True)
        self.cell_problem.setTextFormat(Qt.TextFormat.PlainText)
        self.runs = CellRunsTable()
        self.use_button = push_button(
            "Use this cell", "sweepUseButton", "Set its K, temperature and draft in the main window"
        )
        self.open_run_button = push_button(
            "Open run", "sweepOpenRunButton", "Show the selected run in the main window (Enter)"
        )
        self.earlier = menu_button("Earlier sweeps", "sweepEarlierButton", "Open a sweep that was kept, or a file")
        self.export_button = menu_button(
            "Export", "sweepExportButton", "Take the sweep away as a table, report or picture"
        )
        self.bar = QProgressBar()
        self.bar.setObjectName("sweepBar")
        self.bar.setAccessibleName("Progress of the sweep")
        self.bar.setTextVisible(False)
        self.bar.setRange(0, STEPS)
        hold(self.bar, width=180)
        self.progress = text_label("", "hint")
        self.progress.setObjectName("sweepProgress")
        self.stop_button = push_button("Stop", "sweepStopButton", "End the sweep; what is measured is kept (Esc)")
        self.go_on_button = push_button("Go on", "sweepGoOnButton", "Measure what is missing")
        self.close_button = push_button("Close", "sweepCloseButton", "Close the window; a sweep that goes is stopped")
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
        grid, inside = card()
        head = self._head = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        head.setSpacing(8)
        head.addWidget(self.figures, 1)
        head.addWidget(self.legend, 0, Qt.AlignmentFlag.AlignRight)
        inside.addLayout(head)
        self._pages = QStackedWidget()
        self._pages.addWidget(self.empty)
        self._pages.addWidget(self.heatmap)
        inside.addWidget(self._pages, 1)
        self._below, listed = card()
        title = QHBoxLayout()
        title.setSpacing(8)
        title.addWidget(self.cell_title, 1)
        title.addWidget(self.open_run_button)
        title.addWidget(self.use_button)
        listed.addLayout(title)
        listed.addWidget(self.cell_problem)
        listed.addWidget(self.runs, 1)
        self.parts = splitter(Qt.Orientation.Vertical, "sweepSplitter", (grid, 2), (self._below, 1))
        self.parts.setSizes([400, 190])
        head_card, top = card()
        line = QHBoxLayout()
        line.setSpacing(12)
        line.addWidget(self.verdicts, 1)
        line.addWidget(self.earlier, 0, Qt.AlignmentFlag.AlignTop)
        line.addWidget(self.export_button, 0, Qt.AlignmentFlag.AlignTop)
        top.addLayout(line)
        right = QWidget()
        column = QVBoxLayout(right)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(head_card)
        column.addWidget(self.question)
        column.addWidget(self.parts, 1)
        column.addLayout(self._foot())
        self._form_card, form = card()
        form.addWidget(self.form, 1)
        self.rescale()
        body = QHBoxLayout()
        body.setSpacing(8)
        body.addWidget(self._form_card)
        body.addWidget(right, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 12)
        layout.setSpacing(8)
        layout.addWidget(self.banner)
        layout.addLayout(body, 1)
        self.setMinimumSize(980, 600)
        open_at(self, 1240, 740)

    def rescale(self) -> None:
        """Large text leaves the heatmap room, and has the legend in a line of its own."""
        is_narrow = text_scale() > WIDE_SCALE
        self._head.setDirection(QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight)
        self._form_card.setFixedWidth(min(max(scaled(300), LEAST_FORM), MOST_FORM))

    def _foot(self) -> QHBoxLayout:
        foot = QHBoxLayout()
        foot.setSpacing(12)
        foot.addWidget(self.bar)
        foot.addWidget(self.progress, 1)
        foot.addWidget(self.go_on_button)
        foot.addWidget(self.stop_button)
        foot.addWidget(self.close_button)
        return foot

    def _connect(self) -> None:
        self.figures.chosen.connect(self._on_figure)
        self.heatmap.cell_chosen.connect(self._on_cell)
        self.heatmap.cell_opened.connect(self._on_cell_opened)
        self.runs.run_opened.connect(self.run_opened)
        self.runs.selectionModel().currentChanged.connect(self._show_actions)
        self.open_run_button.clicked.connect(self._on_open_run)
        self.use_button.clicked.connect(self._on_use)
        self.stop_button.clicked.connect(self.stop_requested)
        self.go_on_button.clicked.connect(self.go_on_requested)
        self.close_button.clicked.connect(self.close)
        menu = self.export_button.menu()
        for kind, title in EXPORT_TITLES.items():
            if kind is SweepExport.PNG:
                menu.addSeparator()
            action = menu.addAction(title)
            action.setObjectName(f"sweepExport{kind.value.capitalize()}")
            action.setData(kind)
        menu.triggered.connect(self._on_export_chosen)
        QShortcut(QKeySequence("Ctrl+Return"), self).activated.connect(self.form.start_button.click)

    # --- What is shown ---

    def refresh(self) -> None:
        """Show what has come."""
        view = self._view
        self.heatmap.refresh()
        self.legend.show_scale(self.heatmap.scale)
        has_plan = view.plan is not None
        self._pages.setCurrentIndex(1 if has_plan else 0)
        for widget in (self.legend, self.figures, self._below, self.bar):
            widget.setVisible(has_plan)
        self.verdicts.show_lines(view.verdict_lines())
        self.progress.setText(view.progress_text())
        self._show_bar()
        self.form.show_going(is_going=view.is_going)
        self.stop_button.setEnabled(view.is_going)
        self.go_on_button.setEnabled(view.can_go_on)
        self.export_button.setEnabled(view.num_done > 0)
        self._show_cell()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.heatmap.set_theme(theme)
        self.legend.set_theme(theme)

    def _show_bar(self) -> None:
        view = self._view
        is_waiting = view.is_going and not view.num_done
        share = view.num_done / view.num_runs if view.num_runs else 0.0
        show_share(self.bar, None if is_waiting else share)

    def _show_cell(self) -> None:
        cell, plan = self.heatmap.current_cell(), self._view.plan
        if cell is None or plan is None:
            self.runs.show_runs((), (), {})
            self.cell_title.setText(PICK if plan is not None else "")
            self.cell_problem.clear()
        else:
            self.runs.show_runs(self._view.runs(cell), plan.prompts, self._view.speedups(cell))
            result = self._view.result(cell)
            title = f"{self._view.cell_title(cell)} · {result.num_measured} of {result.num_planned} runs"
            self.cell_title.setText(title)
            self.cell_problem.setText("\n".join(result.errors))
        self.cell_problem.setVisible(bool(self.cell_problem.text()))
        self._show_actions()

    @Slot()
    def _show_actions(self) -> None:
        cell, run = self.heatmap.current_cell(), self.runs.selected()
        can_use = cell is not None and not cell.is_baseline and self._view.result(cell).num_measured > 0
        self.use_button.setEnabled(can_use)
        self.open_run_button.setEnabled(run is not None and run.log is not None)

    # --- What is asked for ---

    @Slot(QAction)
    def _on_export_chosen(self, action: QAction) -> None:
        self.export_requested.emit(action.data())

    @Slot(object)
    def _on_figure(self, figure: SweepFigure) -> None:
        self.heatmap.show_figure(figure)
        self.legend.show_scale(self.heatmap.scale)

    @Slot(object)
    def _on_cell(self, _cell: Cell) -> None:
        self._show_cell()

    @Slot(object)
    def _on_cell_opened(self, _cell: Cell) -> None:
        self._show_cell()
        if self.runs.count():
            self.runs.setFocus()
            if self.runs.selected() is None:
                self.runs.selectRow(0)

    @Slot()
    def _on_open_run(self) -> None:
        if (run := self.runs.selected()) is not None:
            self.run_opened.emit(run)

    @Slot()
    def _on_use(self) -> None:
        if (cell := self.heatmap.current_cell()) is not None:
            self.use_requested.emit(cell)

    def reject(self) -> None:
        """Escape stops a sweep that goes, and closes the window only where none does."""
        if self._view.is_going:
            self.stop_requested.emit()
        else:
            super().reject()
            self.left.emit()

    def closeEvent(self, event: QCloseEvent) -> None:
        """A sweep that goes is stopped, as Escape does, but the window goes too: so it was asked."""
        event.accept()
        self.left.emit()


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
        runs: KeptRuns,
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
        self.reader = SweepReader(self)
        self.reader.opened.connect(self._on_opened)
        self.reader.saved.connect(self._on_saved)
        self.reader.failed.connect(self._tell)
        menus.sweep.triggered.connect(self.open)

    # --- The window ---

    @Slot()
    def open(self) -> None:
        """Show the window, with the main window's choice in its form at first."""
        if self.window is None:
            self.window = self._make_window()
            self.window.set_theme(self._theme)
        elif self._chooser is not None:
            self._chooser.refresh()
        bring_forward(self.window)

    def close(self) -> None:
        """Close the window, and stop the sweep with it."""
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
