"""The Speed page: whether drafting pays, where the time goes, what limits the speedup, and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from app.jobs import Job, Jobs
from app.run.race.race import race_of
from app.run.run_page import RunPage, column_label
from app.run.run_view import RunView
from app.run.speed.speed import EMPTY, LIMITS, SpeedReport, speed_report, study_of
from app.run.speed.speed_bars import GainBar, TimeBar
from app.run.speed.speed_figures import INTERVAL
from app.run.speed.speed_plots import CalibrationPlot, Grouping, Quantity, SpeedupPlot
from app.theme import hold, hold_font
from app.widgets.compound_fields import ChoiceRow, Fold
from app.widgets.fields import Part, boxed, card, column, describe, held, push_button, row, scrolled, set_flag
from app.widgets.legend import Legend, Mark, SeriesSample
from app.widgets.plot_card import PlotCard
from app.widgets.tables import FigureTable
from core.analysis.advice import Advice

REPORT_PAUSE_S = 1.0
FORWARD = "plain forward", "The target's forward for one token."
FORWARDS = "verify, plain forward", "The target's forward: of a step over its draft, of plain decoding over one token."
"""Where verifying took no longer than a plain forward."""
GAINS_HINT = "The speedup if one part were ideal and the rest unchanged. The mark is plain decoding, 1×."
COPY = "Copy command"
PLOT_HEIGHT, SMALL_PLOT_HEIGHT = 200, 150


class AdviceRow(QWidget):
    """A piece of advice, with a button that follows it.

    Signals:
        applied: the `Advice`.
    """

    applied = Signal(object)

    def __init__(self, *above: QWidget) -> None:
        """`above`: widgets above the advice, beside the button."""
        super().__init__()
        self.text = column_label("adviceText", "")
        self.button = push_button("Apply", "adviceButton", "", self._on_clicked)
        self._advice = Advice("")
        boxed(row((column(*above, self.text, spacing=2), 1), (self.button, 0)), self)

    def show_advice(self, advice: Advice, lead: str = "") -> None:
        """Show a piece of advice, after words that lead to it."""
        self._advice = advice
        self.text.setText(lead + advice.text)
        is_choice, pace = None in advice.settings.values(), advice.settings.get("pace")
        self.button.setText("Run again" if advice.repeats else "Choose…" if is_choice else "Apply")
        again = f"Start the same run again{f', at the pace “{pace.title}”' if pace else ''}"
        how = again if advice.repeats else "Change the settings in the left column"
        describe(self.button, f"{self.button.text()}: {advice.text}", how)
        self.button.setEnabled(True)

    def allow_repeat(self, *, is_allowed: bool) -> None:
        """Whether its Run again may be pressed."""
        if self._advice.repeats:
            self.button.setEnabled(is_allowed)

    @Slot()
    def _on_clicked(self) -> None:
        if self.button.text() == "Apply":
            self.button.setText("Applied")
            self.button.setEnabled(False)
        self.applied.emit(self._advice)


class SpeedPage(RunPage):
    """Shows a `SpeedReport`, from top to bottom one story; a job computes intervals when the run is over.

    Signals:
        applied: the `Advice` that is to be followed.
    """

    applied = Signal(object)
    _pause_s = REPORT_PAUSE_S

    def __init__(self, run: RunView, jobs: Jobs) -> None:
        super().__init__()
        self._run, self._jobs = run, jobs
        self._job: Job | None = None
        self.headline, self.basis = column_label("speedHeadline", "title"), column_label("speedBasis", "hint")
        self._command = ""
        self.command = column_label("speedCommand", "")
        hold_font(self.command, 12, is_mono=True)
        copy_help = "Copy the command, to paste it into a terminal"
        self.copy_button = push_button(COPY, "copySweepButton", copy_help, self._on_copy)
        race_help = "Replay the run and its baseline side by side, on one clock"
        self.race_button = push_button("Race…", "raceButton", race_help)
        self.compared = FigureTable("speedCompared", ("", "this run", "formula"))
        self.compared_note = column_label("speedComparedNote", "hint")
        self.step_bar, self.plain_bar = TimeBar("stepBar"), TimeBar("plainBar")
        self.samples = [
            SeriesSample("draft", Mark.BAR, "draft_bar", "Time to propose the block."),
            SeriesSample(FORWARD[0], Mark.BAR, "target_bar", FORWARD[1]),
            SeriesSample(
                "extra verify time", Mark.HATCHED, "target_bar", "The extra time to verify the draft as well."
            ),
            SeriesSample("overhead", Mark.BAR, "sample_bar", "Filters, sampling and bookkeeping."),
        ]
        self.limit = column_label("speedLimit", "")
        self.gain_bars = [GainBar() for _ in range(1 + len(LIMITS))]
        self.remarks = column_label("speedRemarks", "")
        self.advice: list[AdviceRow] = []
        self._can_repeat = True
        self.plot, self.calibration = SpeedupPlot(), CalibrationPlot()
        self.quantity = ChoiceRow({quantity: quantity.title for quantity in Quantity}, "speedQuantity", "Plotted by K")
        self.grouping = ChoiceRow({by: by.title for by in Grouping}, "alphaGrouping", "Group tested tokens")
        self.cards = PlotCard("Formula by K", self.plot), PlotCard("Acceptance of tested tokens", self.calibration)
        hold(self.plot, height=PLOT_HEIGHT)
        hold(self.calibration, height=SMALL_PLOT_HEIGHT)
        self.cards[0].add_row(self.quantity)
        self.cards[1].add_row(self.grouping)
        self.shapes = FigureTable("speedShapes", ("", "formula", "95 % interval"))
        self.figures = FigureTable("speedFigures", ("", "value", "95 % interval"), shows_how=True)
        self.predictors = FigureTable("speedPredictors", ("", "with 1 − TV", "with outcome"))
        self.predictors_note = column_label("speedPredictorsNote", "hint")
        self.quantity.chosen.connect(self.plot.show_quantity)
        self.grouping.chosen.connect(self.calibration.show_grouping)
        self._lay_out()
        self._show(SpeedReport(EMPTY))

    def _lay_out(self) -> None:
        buttons = row(None, self.copy_button, self.race_button)
        self._head, _ = card(self.headline, self.basis, self.command, self.compared, self.compared_note, buttons)
        self._time = _card("Where an average step's time goes", Legend(self.samples), self.step_bar, self.plain_bar)
        hint = column_label("gainsHint", "hint", GAINS_HINT)
        self._limits = _card("What limits the speedup", self.limit, hint, column(*self.gain_bars))
        self._advice = column(spacing=12)
        self._change = _card("What to change", self._advice, self.remarks)
        self._trees = _card("Shapes of trees", self.shapes)
        self._predictors = _card("Cheaper predictors of acceptance", self.predictors, self.predictors_note)
        formulas, _ = card(column_label("speedIntervals", "hint", INTERVAL), self.figures)
        self.fold = Fold("Figures and formulas", "formulasFold", formulas, self.cards[1], self._predictors)
        story = self._head, self._time, self._limits, self._change, self.cards[0], self._trees, self.fold
        self._layout = column(*story, None)
        body = boxed(self._layout)
        self.area: QScrollArea = scrolled(body, "speedPage")
        # The keys scroll it.
        self.area.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        describe(self.area, "Speed: whether drafting pays, and why")
        boxed(column(self.area), self)

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
        self._show(speed_report(self._run))
        if compute := study_of(self._run):
            self._job = self._jobs.submit(
                lambda _job: compute(), lambda done: self._show(speed_report(self._run, done)), lane="speed"
            )

    def _show(self, report: SpeedReport) -> None:
        has_parts, has_curves = bool(report.parts), report.theory is not None
        self._show_head(report, is_alone=not (has_parts or report.advice or report.command))
        for widget, is_shown in {
            self._time: has_parts,
            self._limits: has_parts,
            self._change: bool(report.advice or report.remarks),
            self.cards[0]: has_curves,
            self._trees: bool(report.shapes),
            self.fold: has_parts,
            self.cards[1]: report.calibration is not None,
            self._predictors: bool(report.predictors_note),
            self.predictors: bool(report.predictors),
            self.compared: bool(report.compared),
            self.compared_note: bool(report.compared),
            self.limit: bool(report.limit),
            self.remarks: bool(report.remarks),
        }.items():
            widget.setVisible(is_shown)
        if has_parts:
            full = max(sum(part.milliseconds for part in parts) for parts in (report.parts, report.replaced))
            has_extra = any(part.is_extra for part in report.parts)
            self.samples[1].set_meaning(*(FORWARD if has_extra else FORWARDS))
            self.samples[2].setVisible(has_extra)
            self.step_bar.show_parts("One step", report.parts, full)
            self.plain_bar.show_parts(report.replaced_title, report.replaced, full)
        self.limit.setText(report.limit)
        self.remarks.setText(report.remarks)
        self._show_gains(report)
        self._show_advice(report.advice)
        self.predictors_note.setText(report.predictors_note)
        self.compared.show_rows(report.compared)
        self.compared_note.setText(report.compared_note)
        self.shapes.show_rows(report.shapes)
        self.figures.show_rows(report.figures)
        self.predictors.show_rows(report.predictors)
        self.plot.show_theory(report.theory)
        self.calibration.show_calibration(report.calibration)

    def allow_repeat(self, *, is_allowed: bool) -> None:
        """Whether the run may be repeated: not while the one above, which seems to be meant, can't start."""
        self._can_repeat = is_allowed
        for advice in self.advice:
            advice.allow_repeat(is_allowed=is_allowed)

    def _show_head(self, report: SpeedReport, *, is_alone: bool) -> None:
        """Show the headline as a title, or centred if nothing is below it."""
        across = Qt.AlignmentFlag.AlignHCenter if is_alone else Qt.AlignmentFlag.AlignLeft
        set_flag(self.headline, "role", "hint" if is_alone else "title")
        self.headline.setAlignment(across | Qt.AlignmentFlag.AlignVCenter)
        self.headline.setContentsMargins(*((32, 0, 32, 0) if is_alone else (0, 0, 0, 0)))
        self._layout.setStretch(0, int(is_alone))
        self._layout.setStretch(self._layout.count() - 1, int(not is_alone))
        self.headline.setText(held(report.headline))
        self.basis.setText(report.basis)
        self.basis.setVisible(bool(report.basis))
        self._command = report.command
        self.command.setText(report.command)
        self.copy_button.setText(COPY)
        for widget in (self.command, self.copy_button):
            widget.setVisible(bool(report.command))
        self.race_button.setVisible(race_of(self._run) is not None)

    @Slot()
    def _on_copy(self) -> None:
        # On one line, which not every shell would continue.
        QGuiApplication.clipboard().setText(self._command.replace(" \\\n    ", " "))
        self.copy_button.setText("Copied")

    def _show_gains(self, report: SpeedReport) -> None:
        full = max([1.0, *(gain.speedup for gain in report.gains if math.isfinite(gain.speedup))])
        for index, bar in enumerate(self.gain_bars):
            bar.setVisible(index < len(report.gains))
            if index < len(report.gains):
                bar.show_gain(report.gains[index], report.gains[0].speedup, full)

    def _show_advice(self, advice: Sequence[Advice]) -> None:
        while len(self.advice) < len(advice):
            line, before = AdviceRow(), self.advice[-1].button if self.advice else self.race_button
            line.applied.connect(self.applied)
            self._advice.addWidget(line)
            # A new button would come last in the tab order.
            QWidget.setTabOrder(before, line.button)
            self.advice.append(line)
        for index, line in enumerate(self.advice):
            line.setVisible(index < len(advice))
            if index < len(advice):
                line.show_advice(advice[index])
                line.allow_repeat(is_allowed=self._can_repeat)


def _card(title: str, *parts: Part) -> QFrame:
    """A card with a title, which wraps if the text is large."""
    return card(column_label("", "section", title), *parts)[0]
