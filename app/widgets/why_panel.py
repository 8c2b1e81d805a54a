"""The page Why: what holds the run's speedup back, and what to change."""

from __future__ import annotations

import math
from collections.abc import Generator

from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.theme import LIGHT, Theme
from app.turns import at_once
from app.view_models.run_view import RunView
from app.view_models.why import EMPTY, Figure, WhyModel, WhyReport
from app.widgets.fields import card, text_label
from app.widgets.legend import Mark, SeriesSample
from app.widgets.report_page import ReportPage, column_label
from app.widgets.why_bars import GainBar, TimeBar


class WhyPanel(ReportPage):
    """Shows a `WhyReport`."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run, "why", "Why is it slow?")
        self.setObjectName("whyPanel")
        self._model = WhyModel(run)
        self._sums = self._model.sums
        self._theme = LIGHT
        self.figures = FigureRow()
        self.step_bar = TimeBar("whyStepBar")
        self.plain_bar = TimeBar("whyPlainBar")
        self.samples = [
            SeriesSample("draft", Mark.BAR, "draft_bar", "Time to propose the block."),
            SeriesSample("target", Mark.BAR, "target_bar", "The target's forward; hatched: beyond a plain one."),
            SeriesSample("overhead", Mark.BAR, "sample_bar", "Filters, verdict and bookkeeping."),
        ]
        self.gain_bars: list[GainBar] = []
        self.advice = column_label("whyAdvice", "")
        self._lay_out(self._make_cards())
        at_once(self._showing(WhyReport(EMPTY)))

    def _make_cards(self) -> tuple[QWidget, ...]:
        head, head_layout = card()
        for widget in (self.headline, self.basis, self.figures):
            head_layout.addWidget(widget)
        time, time_layout = card()
        time_layout.addWidget(text_label("Where an average step's time goes", "section"))
        legend = QGridLayout()
        legend.setHorizontalSpacing(14)
        for index, sample in enumerate(self.samples):
            legend.addWidget(sample, 0, index)
        legend.setColumnStretch(len(self.samples), 1)
        time_layout.addLayout(legend)
        time_layout.addWidget(self.step_bar)
        time_layout.addWidget(self.plain_bar)
        gains, self._gains_layout = card()
        self._gains_layout.addWidget(text_label("If one thing were ideal", "section"))
        hint = text_label("Each alone, the rest as it was. Mark: plain decoding, 1×.", "hint")
        hint.setWordWrap(True)
        self._gains_layout.addWidget(hint)
        change, change_layout = card()
        change_layout.addWidget(text_label("What to change", "section"))
        change_layout.addWidget(self.advice)
        self._cards = (time, gains, change)
        return head, *self._cards

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        for bar in (self.step_bar, self.plain_bar):
            bar.set_theme(theme)
        for sample in self.samples:
            sample.set_theme(theme)
        for gain_bar in self.gain_bars:
            gain_bar.set_theme(theme)

    # --- Itself ---

    def _forget_old(self) -> None:
        self._model.sums.forget_old()

    def _looking(self) -> Generator[None]:
        yield from self._showing(self._model.report())

    def _showing(self, report: WhyReport) -> Generator[None]:
        self._show_head(report.headline, report.basis, is_alone=not report.parts)
        self.figures.setVisible(bool(report.figures))
        self.figures.show_figures(report.figures)
        yield
        for frame in self._cards:
            frame.setVisible(bool(report.parts))
        if report.parts:
            self._show_times(report)
        self._show_gains(report)
        yield
        self.advice.setText("\n\n".join(advice.text for advice in report.advice))

    def _show_times(self, report: WhyReport) -> None:
        full = max(sum(part.milliseconds for part in parts) for parts in (report.parts, report.replaced))
        self.step_bar.show_parts("One step", report.parts, full)
        self.plain_bar.show_parts(report.replaced_title, report.replaced, full)

    def _show_gains(self, report: WhyReport) -> None:
        while len(self.gain_bars) < len(report.gains):
            bar = GainBar()
            bar.set_theme(self._theme)
            self.gain_bars.append(bar)
            self._gains_layout.addWidget(bar)
        full = max([1.0, *(gain.speedup for gain in report.gains if math.isfinite(gain.speedup))])
        for index, bar in enumerate(self.gain_bars):
            bar.setVisible(index < len(report.gains))
            if index < len(report.gains):
                bar.show_gain(report.gains[index], report.gains[0].speedup, full)


class FigureRow(QWidget):
    """The figures of the formula, side by side, each explained in its tooltip."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("whyFigures")
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 2, 0, 0)
        self._layout.setVerticalSpacing(0)
        self._layout.setHorizontalSpacing(8)
        self.labels: list[tuple[QLabel, QLabel]] = []

    def show_figures(self, figures: tuple[Figure, ...]) -> None:
        """Show figures; there are always as many."""
        while len(self.labels) < len(figures):
            pair = text_label("", "field"), text_label("", "strong")
            for row, label in enumerate(pair):
                self._layout.addWidget(label, row, len(self.labels))
            self._layout.setColumnStretch(len(self.labels), 1)
            self.labels.append(pair)
        for figure, (title, value) in zip(figures, self.labels, strict=False):
            title.setText(figure.title)
            value.setText(figure.value)
            for label in (title, value):
                label.setToolTip(figure.how)
            value.setAccessibleName(f"{figure.title}: {figure.value}")
            value.setAccessibleDescription(figure.how)
