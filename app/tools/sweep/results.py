"""What a sweep found: the verdict at each temperature, and the runs of one cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import QSize, Qt, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QScrollArea, QSizePolicy, QWidget

from app.settings import settings_of
from app.setup.settings_panel import SettingsPanel
from app.theme import scaled
from app.tools.runs.kept import KeptRuns
from app.tools.sweep.sweep_view import SweepView, VerdictLine
from app.widgets.fields import (
    NO_LIMIT,
    boxed,
    card,
    column,
    held,
    push_button,
    row,
    scrolled,
    set_flag,
    text_label,
    wrapped_label,
)
from app.widgets.painted import CENTRE, LEFT
from app.widgets.rows import Column, Row
from app.widgets.tables import Table
from core.experiments.sweep_plan import Cell, Measurement, PlannedRun
from core.runlog.store import KeptRun, KeptState

MAX_VERDICTS_HEIGHT, MOST_OF_WINDOW = 132, 0.36


class SweepVerdicts(QScrollArea):
    """A line for each temperature's verdict; scrolls when there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Verdict")
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.lines: tuple[VerdictLine, ...] | None = None
        self.show_lines([])

    def show_lines(self, lines: Sequence[VerdictLine]) -> None:
        """Show these."""
        if tuple(lines) == self.lines:
            return
        self.lines = tuple(lines)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(1, 1)
        for index, line in enumerate(lines):
            sentence = wrapped_label("", "plain" if line.word else "warning", held(line.sentence))
            sentence.setAlignment(Qt.AlignmentFlag.AlignTop)  # Where a row is higher, beside the word.
            if not line.word:
                self._grid.addWidget(sentence, index, 0, 1, 2)
                continue
            badge = text_label(line.word, "badge")
            badge.setProperty("kind", {True: "pays", False: "pays-not", None: "base"}[line.pays])
            badge.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
            self._grid.addWidget(badge, index, 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(sentence, index, 1)
        scrolled(boxed(self._grid), "sweepVerdicts", self)
        self.restyle()

    def restyle(self) -> None:
        """Ask for the height that the sentences have at the size of the text."""
        self.updateGeometry()
        self._fit_bar()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show the scroll bar only where it is needed."""
        super().resizeEvent(event)
        self._fit_bar()

    def _fit_bar(self) -> None:
        # Qt may leave it above lines that fit.
        fits = self._grid.totalHeightForWidth(self.width()) <= self.height()
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(policy.ScrollBarAlwaysOff if fits else policy.ScrollBarAsNeeded)

    def heightForWidth(self, width: int) -> int:
        """As high as the sentences, up to a share of the window."""
        most = max(scaled(MAX_VERDICTS_HEIGHT), round(MOST_OF_WINDOW * self.window().height()))
        inner = width - self.verticalScrollBar().sizeHint().width()  # It may be shown while the height is found.
        return min(most, max(scaled(20), self._grid.totalHeightForWidth(inner))) + 2

    def sizeHint(self) -> QSize:
        """Before the width is known."""
        return QSize(super().sizeHint().width(), self.heightForWidth(max(200, self.width())))

    def minimumSizeHint(self) -> QSize:
        """One line."""
        return QSize(200, scaled(20))


RUN_COLUMNS = (
    Column("Prompt"),
    Column("Repeat", is_figure=True, rank=1),
    Column("Tokens/s", "New tokens / the sum of the steps' times", is_figure=True),
    Column(
        "Speedup",
        "Relative to plain decoding of the same prompt and temperature, in the run nearest in time",
        is_figure=True,
    ),
    Column("Acceptance", "Accepted / drafted tokens", is_figure=True, rank=2),
    Column("Tokens/forward", "New tokens / forwards of the target", is_figure=True, rank=4),
    Column("Tokens", is_figure=True, rank=5),
    Column("Outcome", rank=3),
)
OPEN_TIP, NO_LOG_TIP = "Double-click or press Enter to open it in the main window", "Its log is not kept"
CHOOSE = "Choose a cell to see its runs or to use it."
NO_RUNS, NONE_MEASURED = "No run of this cell has ended yet.", "No run of this cell was measured."
NO_LOG = "The log of this run was not kept, or is gone."


class CellRuns(QWidget):
    """The runs of a cell; each can be opened in the main window, which can also take over the cell's settings.

    Args:
        say, warn: show a line about a result, or a sentence about a problem.
    """

    def __init__(
        self,
        view: SweepView,
        controls: SettingsPanel,
        kept: KeptRuns,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._view, self._controls, self._kept, self._say, self._warn = view, controls, kept, say, warn
        self._cell: Cell | None = None
        self.title = wrapped_label("sweepCellTitle", "strong", takes_all=True)
        self.problem = wrapped_label("sweepCellProblem", "problem")
        last = len(RUN_COLUMNS) - 1
        self.table: Table[Measurement] = Table("sweepRuns", "Runs of the cell", RUN_COLUMNS, NO_RUNS, stretched=last)
        use_help = "Set its K, temperature and draft in the main window"
        self.use_button = push_button("Use this cell", "sweepUseButton", use_help, self._on_use)
        open_help = "Show the selected run in the main window (Enter)"
        self.open_button = push_button("Open run", "sweepOpenRunButton", open_help, self._on_open)
        head = row((self.title, 1), self.open_button, self.use_button)
        boxed(column(card(head, self.problem, (self.table, 1))[0]), self)
        self.table.activated.connect(self._on_open)
        self.table.chosen.connect(self._show_actions)

    def show_cell(self, cell: Cell | None) -> None:
        """Show a cell's runs so far; None: no cell is chosen."""
        self._cell = cell
        title, problem, rows = CHOOSE if self._view.plan is not None else "", "", []
        if cell is not None:
            result = self._view.result(cell)
            done = f"{result.num_measured} of {result.num_planned} runs".replace(" ", "\u00a0")
            title = f"{self._view.short_title(cell)}\u00a0· {done}"
            problem = "\n".join(result.errors)
            for run, texts in self._view.run_rows(cell):
                tip = run.error or (OPEN_TIP if run.log is not None else NO_LOG_TIP)
                rows.append(Row(run, run.run, texts, tip))
        self.title.setText(title)
        self.title.setAlignment(LEFT if self.is_open else CENTRE)
        set_flag(self.title, "role", "strong" if self.is_open else "hint")
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.table.hint.setText(NO_RUNS if self._view.is_running else NONE_MEASURED)
        self.table.show_rows(rows)
        # Before that, the heatmap has the room.
        for widget in (self.table, self.open_button, self.use_button):
            widget.setVisible(self.is_open)
        self.setMaximumHeight(NO_LIMIT if self.is_open else self.sizeHint().height())
        self._show_actions()

    @property
    def is_open(self) -> bool:
        """Whether a cell is chosen."""
        return self._cell is not None

    def focus_runs(self) -> None:
        """Move the keyboard to the runs, if there are any."""
        if runs := self.table.items():
            self.table.setFocus()
            if self.selected_run() is None:
                self.table.select([runs[0].run])

    def selected_run(self) -> Measurement | None:
        """The run selected in the table."""
        return next(iter(self.table.selected()), None)

    @Slot()
    def _show_actions(self) -> None:
        cell, run = self._cell, self.selected_run()
        can_use = cell is not None and not cell.is_baseline and self._view.result(cell).num_measured > 0
        self.use_button.setEnabled(can_use)
        self.open_button.setEnabled(run is not None and run.log is not None)

    @Slot()
    def _on_use(self) -> None:
        cell, plan = self._cell, self._view.plan
        if cell is None or plan is None:
            return
        kept = self._controls.settings("")  # The prompt has its own editor, which the controls don't change.
        # Settings that the cell doesn't determine stay unchanged.
        others = {name: getattr(kept, name) for name in ("prompt", "system", "seed", "max_new_tokens", "baseline")}
        request = plan.request(PlannedRun(cell, 0, 0))
        self._controls.apply(replace(settings_of(request, kept), **others))
        self._controls.changed.emit()
        # A model or method may have gone, and a sweep takes values that the window doesn't have.
        taken, k = self._controls.settings(""), request.num_draft_tokens
        is_lost = {
            "target": self._controls.target.ref != request.target,
            "draft": bool(request.draft) and self._controls.draft.ref != request.draft,
            "method": taken.method != request.method,
            "K": k is not None and taken.num_draft_tokens != k,
            "temperature": not math.isclose(taken.temperature, request.sampling.temperature),
        }
        said = f"The main window is set to {self._view.cell_title(cell)}"
        if lost := ", ".join(name for name, is_so in is_lost.items() if is_so):
            said = f"The main window doesn't have this cell's {lost}; it shows what a run would use"
        self._say(said)

    @Slot()
    def _on_open(self) -> None:
        if (run := self.selected_run()) is None:
            return
        if run.log is None or run.run_id is None or not run.log.is_file():
            self._warn(NO_LOG)
        elif sentence := self._kept.busy_sentence():
            self._warn(sentence)
        else:
            name = f"{self._view.cell_title(run.run.cell)}, repeat {run.run.repeat + 1}"
            self._kept.open_run(KeptRun(run.run_id, run.log, name, state=KeptState.FINISHED))
            if (main := self.window().parentWidget()) is not None:
                main.raise_()
                main.activateWindow()
