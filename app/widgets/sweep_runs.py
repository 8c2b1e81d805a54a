"""The runs of one cell: a list from which each can be opened in the main window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QModelIndex, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from app.theme import scaled
from app.view_models.sweep_form import WINDOW_SUITE
from app.widgets.row_table import Index, Role, RowsModel, prepare_rows
from core.figures import spaced_percent
from core.prompt_suites import Prompt
from core.sweep.types import Measurement

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
