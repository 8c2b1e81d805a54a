"""The page Theory: what is expected of a run over K, beside what was measured, and whether predictions came true."""

from __future__ import annotations

import re
from collections.abc import Generator

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QWidget

from app.theme import Theme, scaled
from app.turns import at_once
from app.view_models.run_view import RunView
from app.view_models.theory import EMPTY, Question, TheoryModel, TheoryReport
from app.widgets.calibration_plot import GROUPING_TITLES, CalibrationPlot
from app.widgets.choice_row import ChoiceRow
from app.widgets.fields import card, text_label
from app.widgets.figure_table import FigureTable
from app.widgets.plot_card import PlotCard
from app.widgets.report_page import ReportPage, column_label
from app.widgets.theory_plot import QUANTITY_TITLES, TheoryPlot
from core.theory.study import Study

PLOT_HEIGHT, SMALL_PLOT_HEIGHT = 200, 150


class TheoryPage(ReportPage):
    """Shows a `TheoryReport`.

    Signals:
        question_asked: a `Question` about a run that is over, to be answered through `show_answer`.
    """

    question_asked = Signal(object)

    def __init__(self, run: RunView) -> None:
        super().__init__(run, "theory", "Theory beside measurement")
        self.setObjectName("theoryPage")
        self._model = TheoryModel(run)
        self._sums = self._model.sums
        self._asked: Question | None = None
        self.plot, self.calibration = TheoryPlot(), CalibrationPlot()
        self.quantity = ChoiceRow(QUANTITY_TITLES, "theoryQuantity", "Over K")
        self.grouping = ChoiceRow(GROUPING_TITLES, "theoryGrouping", "Gather tested tokens")
        self.cards = (PlotCard("Expected over K", self.plot), PlotCard("Predicted acceptance", self.calibration))
        self.cards[0].add_row(self.quantity)
        self.cards[1].add_row(self.grouping)
        self.figures = FigureTable("theoryFigures", ("", "value", "95 % interval"))
        self.predictors = FigureTable("theoryPredictors", ("", "with 1 − TV", "with outcome"))
        self.predictors_note = column_label("theoryPredictorsNote", "hint")
        self.quantity.chosen.connect(self.plot.show_quantity)
        self.grouping.chosen.connect(self.calibration.show_grouping)
        self._lay_out(self._make_cards())
        at_once(self._showing(TheoryReport(EMPTY)))

    def _make_cards(self) -> tuple[QWidget, ...]:
        head, head_layout = card()
        for widget in (self.headline, self.basis):
            head_layout.addWidget(widget)
        figures, figures_layout = card()
        figures_layout.addWidget(text_label("Figures", "section"))
        figures_layout.addWidget(self.figures)
        predictors, predictors_layout = card()
        predictors_layout.addWidget(text_label("Cheaper predictors of acceptance", "section"))
        predictors_layout.addWidget(self.predictors)
        predictors_layout.addWidget(self.predictors_note)
        self._figures_card, self._predictors_card = figures, predictors
        return head, self.cards[0], figures, self.cards[1], predictors

    @Slot(object, object)
    def show_answer(self, question: Question, found: Study) -> None:
        """Show a run that was worked out; an answer to a question that is older, or is to be asked anew, is let go."""
        if question is self._asked and not self._turns.is_going:
            self._turns.start(self._showing(self._model.whole(found)))

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for plot_card, height in zip(self.cards, (PLOT_HEIGHT, SMALL_PLOT_HEIGHT), strict=True):
            plot_card.set_theme(theme)
            plot_card.plot.setFixedHeight(scaled(height))

    # --- Itself ---

    def _forget_old(self) -> None:
        self._asked = None
        self._model.sums.forget_old()

    def _looking(self) -> Generator[None]:
        yield from self._showing(self._model.live())

    def _ask(self) -> None:
        question = self._model.question()
        if question is not None:
            self._asked = question
            self.question_asked.emit(question)

    def _showing(self, report: TheoryReport) -> Generator[None]:
        has_figures = report.speedup is not None
        self._show_head(held_together(report.headline), report.basis, is_alone=not has_figures)
        for widget in (self.cards[0], self._figures_card):
            widget.setVisible(has_figures)
        self.cards[1].setVisible(report.calibration is not None)
        self._predictors_card.setVisible(bool(report.predictors_note))
        self.predictors.setVisible(bool(report.predictors))
        self.predictors_note.setText(report.predictors_note)
        yield
        self.figures.show_rows(report.rows)
        yield
        self.predictors.show_rows(report.predictors)
        yield
        self.plot.show_theory(report.speedup)
        self.calibration.show_calibration(report.calibration)


def held_together(sentence: str) -> str:
    """The sentence with what is in brackets on one line: an interval is read as one thing."""
    return re.sub(r"\([^)]*\)", lambda found: found.group().replace(" ", "\u00a0"), sentence)
