"""The page Theory: what is expected of a run over K, beside what was measured, and whether predictions came true."""

from __future__ import annotations

import math
import re
import time

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.theme import Theme, scaled
from app.view_models.run_view import RunView
from app.view_models.theory import EMPTY, Question, TheoryModel, TheoryReport
from app.widgets.calibration_plot import GROUPING_TITLES, CalibrationPlot
from app.widgets.choice_row import ChoiceRow
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.figure_table import FigureTable
from app.widgets.plot_card import PlotCard
from app.widgets.theory_plot import QUANTITY_TITLES, TheoryPlot
from core.theory.study import Study

REFRESH_S = 1.0
"""While a run goes."""
PLOT_HEIGHT, SMALL_PLOT_HEIGHT = 200, 150


class TheoryPage(QScrollArea):
    """Shows a `TheoryReport`; looks at the run only while it is visible.

    Signals:
        question_asked: a `Question` about a run that is over, to be answered through `show_answer`.
    """

    question_asked = Signal(object)

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("theoryPage")
        describe(self, "Theory beside measurement", "")
        self._run = run
        self._model = TheoryModel(run)
        self._is_stale = True
        self._read_at = -math.inf
        self._asked: Question | None = None
        self.headline = _wrapped("theoryHeadline", "title")
        self.basis = _wrapped("theoryBasis", "hint")
        self.plot, self.calibration = TheoryPlot(), CalibrationPlot()
        self.quantity = ChoiceRow(QUANTITY_TITLES, "theoryQuantity", "Over K")
        self.grouping = ChoiceRow(GROUPING_TITLES, "theoryGrouping", "Gather tested tokens")
        self.cards = (PlotCard("Expected over K", self.plot), PlotCard("Predicted acceptance", self.calibration))
        self.cards[0].add_row(self.quantity)
        self.cards[1].add_row(self.grouping)
        self.figures = FigureTable("theoryFigures", ("", "value", "95 % interval"))
        self.predictors = FigureTable("theoryPredictors", ("", "with 1 − TV", "with outcome"))
        self.predictors_note = _wrapped("theoryPredictorsNote", "hint")
        self.quantity.chosen.connect(self.plot.show_quantity)
        self.grouping.chosen.connect(self.calibration.show_grouping)
        self._lay_out()
        self._show(TheoryReport(EMPTY))

    def _lay_out(self) -> None:
        body = QWidget()
        body.setObjectName("theoryBody")
        layout = self._layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
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
        for frame in (head, self.cards[0], figures, self.cards[1], predictors):
            layout.addWidget(frame)
        layout.addStretch(1)
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)

    # --- For the window ---

    def begin(self) -> None:
        """A run starts."""
        self._asked = None
        self._model.forget_old()
        self._read()

    def refresh(self, *, has_news: bool) -> None:
        """Read what has come, if it is time to and the page is open."""
        self._is_stale = self._is_stale or has_news
        if self._is_stale and time.monotonic() - self._read_at >= REFRESH_S:
            self._read()

    def end(self) -> None:
        """A run is over."""
        self._read()

    @Slot(object, object)
    def show_answer(self, question: Question, found: Study) -> None:
        """Show a run that was worked out; an answer to an older question is let go."""
        if question is self._asked:
            self._show(self._model.whole(found))

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        for plot_card, height in zip(self.cards, (PLOT_HEIGHT, SMALL_PLOT_HEIGHT), strict=True):
            plot_card.set_theme(theme)
            plot_card.plot.setFixedHeight(scaled(height))

    # --- Itself ---

    def showEvent(self, event: QShowEvent) -> None:
        """Look at the run if something has come."""
        super().showEvent(event)
        if self._is_stale:
            self._read()

    def _read(self) -> None:
        # A page that nobody sees is read when it is opened.
        self._is_stale = not self.isVisible()
        if self._is_stale:
            return
        self._read_at = time.monotonic()
        self._show(self._model.live())
        question = self._model.question()
        if question is not None:
            self._asked = question
            self.question_asked.emit(question)

    def _show(self, report: TheoryReport) -> None:
        self._show_headline(report)
        self.basis.setText(report.basis)
        self.basis.setVisible(bool(report.basis))
        has_figures = report.speedup is not None
        for widget in (self.cards[0], self._figures_card):
            widget.setVisible(has_figures)
        self.cards[1].setVisible(report.calibration is not None)
        self._predictors_card.setVisible(bool(report.predictors_note))
        self.predictors.setVisible(bool(report.predictors))
        self.predictors_note.setText(report.predictors_note)
        self.figures.show_rows(report.rows)
        self.predictors.show_rows(report.predictors)
        self.plot.show_theory(report.speedup)
        self.calibration.show_calibration(report.calibration)

    def _show_headline(self, report: TheoryReport) -> None:
        """A title; a quiet sentence in the middle of the page, as on the other pages, while there is nothing below."""
        is_alone = report.speedup is None
        across = Qt.AlignmentFlag.AlignHCenter if is_alone else Qt.AlignmentFlag.AlignLeft
        set_flag(self.headline, "role", "hint" if is_alone else "title")
        self.headline.setAlignment(across | Qt.AlignmentFlag.AlignVCenter)
        self.headline.setContentsMargins(*((32, 0, 32, 0) if is_alone else (0, 0, 0, 0)))
        self._layout.setStretch(0, int(is_alone))
        self._layout.setStretch(self._layout.count() - 1, int(not is_alone))
        self.headline.setText(held_together(report.headline))


def held_together(sentence: str) -> str:
    """The sentence with what is in brackets on one line: an interval is read as one thing."""
    return re.sub(r"\([^)]*\)", lambda found: found.group().replace(" ", "\u00a0"), sentence)


def _wrapped(object_name: str, role: str) -> QLabel:
    label = text_label("", role)
    label.setObjectName(object_name)
    label.setWordWrap(True)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
