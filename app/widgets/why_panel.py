"""The page Why: what holds the run's speedup back, and what to change."""

from __future__ import annotations

import math
import time

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.theme import LIGHT, Theme
from app.view_models.run_view import RunView
from app.view_models.why import EMPTY, Figure, WhyModel, WhyReport
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.legend import Mark, SeriesSample
from app.widgets.why_bars import GainBar, TimeBar

REFRESH_S = 1.0
"""While a run goes: nobody reads a diagnosis more often, and the engine needs the processor."""


class WhyPanel(QScrollArea):
    """Shows a `WhyReport`; looks at the run only while it is visible, and when the run is over."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self.setObjectName("whyPanel")
        describe(self, "Why is it slow?", "")
        self._run = run
        self._model = WhyModel(run)
        self._theme = LIGHT
        self._is_stale = True
        self._read_at = -math.inf
        self.headline = QLabel(EMPTY)
        self.headline.setObjectName("whyHeadline")
        self.basis = text_label("", "hint")
        self.basis.setObjectName("whyBasis")
        for label in (self.headline, self.basis):
            _make_readable(label)
        self.figures = FigureRow()
        self.step_bar = TimeBar("whyStepBar")
        self.plain_bar = TimeBar("whyPlainBar")
        self.samples = [
            SeriesSample("draft", Mark.BAR, "draft_bar", "Time to propose the block."),
            SeriesSample("target", Mark.BAR, "target_bar", "The target's forward; hatched: beyond a plain one."),
            SeriesSample("overhead", Mark.BAR, "sample_bar", "Filters, verdict and bookkeeping."),
        ]
        self.gain_bars: list[GainBar] = []
        self.advice = QLabel()
        self.advice.setObjectName("whyAdvice")
        self.advice.setTextFormat(Qt.TextFormat.PlainText)
        _make_readable(self.advice)
        self._lay_out()
        self._show(WhyReport(EMPTY))

    def _lay_out(self) -> None:
        body = QWidget()
        body.setObjectName("whyBody")
        layout = self._layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
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
        for frame in (head, *self._cards):
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

    def showEvent(self, event: QShowEvent) -> None:
        """Look at the run if something has come."""
        super().showEvent(event)
        if self._is_stale:
            self._read()

    def _read(self) -> None:
        # A page that nobody sees is read when it is opened.
        self._is_stale = not self.isVisible()
        if self.isVisible():
            self._read_at = time.monotonic()
            self._show(self._model.report())

    def _show(self, report: WhyReport) -> None:
        self._show_headline(report)
        _set_text(self.basis, report.basis)
        self.basis.setVisible(bool(report.basis))
        self.figures.setVisible(bool(report.figures))
        self.figures.show_figures(report.figures)
        for frame in self._cards:
            frame.setVisible(bool(report.parts))
        if report.parts:
            self._show_times(report)
        self._show_gains(report)
        _set_text(self.advice, "\n\n".join(advice.text for advice in report.advice))

    def _show_headline(self, report: WhyReport) -> None:
        """A title; a quiet sentence in the middle of the page, as on the other pages, while there is nothing below."""
        is_alone = not report.parts
        across = Qt.AlignmentFlag.AlignHCenter if is_alone else Qt.AlignmentFlag.AlignLeft
        set_flag(self.headline, "role", "hint" if is_alone else "title")
        self.headline.setAlignment(across | Qt.AlignmentFlag.AlignVCenter)
        self.headline.setContentsMargins(*((32, 0, 32, 0) if is_alone else (0, 0, 0, 0)))
        self._layout.setStretch(0, int(is_alone))
        self._layout.setStretch(self._layout.count() - 1, int(not is_alone))
        _set_text(self.headline, report.headline)

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
            _set_text(title, figure.title)
            _set_text(value, figure.value)
            for label in (title, value):
                label.setToolTip(figure.how)
            value.setAccessibleName(f"{figure.title}: {figure.value}")
            value.setAccessibleDescription(figure.how)


def _make_readable(label: QLabel) -> None:
    label.setWordWrap(True)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)


def _set_text(label: QLabel, text: str) -> None:
    if label.text() != text:
        label.setText(text)
