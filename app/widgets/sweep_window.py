"""The window of sweeps: the form on the left; verdict, heatmap and the runs of a cell on the right; progress below."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QAction, QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QBoxLayout,
    QHBoxLayout,
    QProgressBar,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.dress import DressingDialog
from app.text_size import hold
from app.theme import Theme, scaled, text_scale
from app.view_models.sweep import SweepExport, SweepView
from app.view_models.sweep_scale import FIGURE_HELP, FIGURE_TITLES, SweepFigure
from app.widgets.banner import Banner
from app.widgets.choice_row import ChoiceRow
from app.widgets.fields import card, text_label
from app.widgets.progress import STEPS, show_share
from app.widgets.sweep_buttons import menu_button, push_button
from app.widgets.sweep_form import SweepForm
from app.widgets.sweep_heatmap import Heatmap, HeatmapLegend
from app.widgets.sweep_question import SweepQuestion
from app.widgets.sweep_runs import CellRunsTable
from app.widgets.sweep_verdicts import SweepVerdicts
from app.window_layout import open_at, splitter
from core.sweep.plan import Cell

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


class SweepWindow(DressingDialog):
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
