"""The page Theory: compares what theory expects of a run with measurement."""

from __future__ import annotations

import re
from typing import Any

from PySide6.QtWidgets import QWidget

from app.jobs import Job, Jobs
from app.run.pages.theory import EMPTY, TheoryReport, live_report, study_of, whole_report
from app.run.pages.theory_plots import GROUPING_TITLES, QUANTITY_TITLES, CalibrationPlot, TheoryPlot
from app.run.run_page import ReportPage, column_label
from app.run.run_view import RunView
from app.theme import hold
from app.widgets.compound_fields import ChoiceRow
from app.widgets.fields import card, text_label
from app.widgets.plot_card import PlotCard
from app.widgets.tables import FigureTable

PLOT_HEIGHT, SMALL_PLOT_HEIGHT = 200, 150


class TheoryPage(ReportPage):
    """Shows a `TheoryReport`; intervals and calibration are computed in a job when the run is over."""

    def __init__(self, run: RunView, jobs: Jobs) -> None:
        super().__init__(run, "theory", "Theory and measurement")
        self._jobs = jobs
        self._job: Job | None = None
        self.plot, self.calibration = TheoryPlot(), CalibrationPlot()
        self.quantity = ChoiceRow(QUANTITY_TITLES, "theoryQuantity", "Over K")
        self.grouping = ChoiceRow(GROUPING_TITLES, "theoryGrouping", "Group tested tokens")
        self.cards = (PlotCard("Expected over K", self.plot), PlotCard("Predicted acceptance", self.calibration))
        hold(self.plot, height=PLOT_HEIGHT)
        hold(self.calibration, height=SMALL_PLOT_HEIGHT)
        self.cards[0].add_row(self.quantity)
        self.cards[1].add_row(self.grouping)
        self.figures = FigureTable("theoryFigures", ("", "value", "95 % interval"))
        self.predictors = FigureTable("theoryPredictors", ("", "with 1 − TV", "with outcome"))
        self.predictors_note = column_label("theoryPredictorsNote", "hint")
        self.quantity.chosen.connect(self.plot.show_quantity)
        self.grouping.chosen.connect(self.calibration.show_grouping)
        self._lay_out(self._make_cards())
        self._show(TheoryReport(EMPTY))

    def _make_cards(self) -> tuple[QWidget, ...]:
        head, _ = card(self.headline, self.basis)
        figures, _ = card(text_label("Figures", "section"), self.figures)
        title = text_label("Cheaper predictors of acceptance", "section")
        predictors, _ = card(title, self.predictors, self.predictors_note)
        self._figures_card, self._predictors_card = figures, predictors
        return head, self.cards[0], figures, self.cards[1], predictors

    def begin(self) -> None:
        """A run starts; the previous run's study is discarded."""
        self._cancel()
        super().begin()

    def _cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _show_run(self, *, has_turned: bool) -> None:
        self._cancel()
        self._show(live_report(self._run))
        if compute := study_of(self._run):
            self._job = self._jobs.submit(lambda _job: compute(), self._show_study, lane="theory")

    def _show_study(self, found: Any) -> None:
        self._show(whole_report(self._run, found))

    def _show(self, report: TheoryReport) -> None:
        has_curves = report.speedup is not None
        self._show_head(held_together(report.headline), report.basis, is_alone=not has_curves)
        for widget in (self.cards[0], self._figures_card):
            widget.setVisible(has_curves)
        self.cards[1].setVisible(report.calibration is not None)
        self._predictors_card.setVisible(bool(report.predictors_note))
        self.predictors.setVisible(bool(report.predictors))
        self.predictors_note.setText(report.predictors_note)
        self.figures.show_rows(report.rows)
        self.predictors.show_rows(report.predictors)
        self.plot.show_theory(report.speedup)
        self.calibration.show_calibration(report.calibration)


def held_together(sentence: str) -> str:
    """The sentence with no line breaks in brackets, so that intervals don't wrap."""
    return re.sub(r"\([^)]*\)", lambda found: found.group().replace(" ", "\u00a0"), sentence)
