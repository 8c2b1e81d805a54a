"""The page Why: shows what limits the run's speedup, and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.run.pages.why import EMPTY, Gain, Part, WhyReport, why_report
from app.run.run_page import ReportPage, column_label
from app.run.run_view import NamedValue, RunView
from app.theme import current_theme, scaled, text_scale, ui_font
from app.widgets.fields import card, describe, plain_tip, row, text_label, wrapped_label
from app.widgets.legend import Mark, SeriesSample
from app.widgets.painted import PaintedWidget

BAR_HEIGHT, GAIN_HEIGHT = 18, 8
RADIUS = 3
GAP = 2
WIDEST_SCALE = 1.1
"""Text size up to which all figures fit on one line."""


class ReportBar(PaintedWidget):
    """A title and a value, and a bar of a given height below, in pixels."""

    def __init__(self, object_name: str, height: int) -> None:
        super().__init__(object_name)
        self._height = height
        self._title = self._value = ""
        self._is_strong = True

    def sizeHint(self) -> QSize:
        """A line of text and the bar."""
        return QSize(200, self._line_height() + 4 + scaled(self._height))

    def _place(self, left: float, width: float) -> QRectF:
        """A part of the bar."""
        return QRectF(left, self._line_height() + 3, width, scaled(self._height))

    def _paint(self, painter: QPainter) -> None:
        theme, width, height, middle = current_theme(), self.width(), self._line_height(), Qt.AlignmentFlag.AlignVCenter
        painter.setFont(ui_font(12))
        room = width - painter.fontMetrics().horizontalAdvance(self._value) - 8
        title = painter.fontMetrics().elidedText(self._title, Qt.TextElideMode.ElideRight, room)
        painter.setPen(QColor(theme.text if self._is_strong else theme.muted))
        painter.drawText(QRectF(0, 0, room, height), middle, title)
        painter.setPen(QColor(theme.text))
        painter.drawText(QRectF(0, 0, width, height), middle | Qt.AlignmentFlag.AlignRight, self._value)

    @staticmethod
    def _line_height() -> int:
        return QFontMetrics(ui_font(12)).height()


class TimeBar(ReportBar):
    """A time in parts. Bars with the same `full_ms` can be compared."""

    def __init__(self, object_name: str) -> None:
        super().__init__(object_name, BAR_HEIGHT)
        self._full_ms = 1.0
        self._parts: tuple[Part, ...] = ()

    def show_parts(self, title: str, parts: Sequence[Part], full_ms: float) -> None:
        """Show a time, on a scale that ends at `full_ms`."""
        self._title, self._parts, self._full_ms = title, tuple(parts), max(full_ms, 1e-9)
        self._value = f"{sum(part.milliseconds for part in parts):.2f} ms"
        self.setAccessibleName(f"{title}: {self._value}")
        self.setAccessibleDescription(", ".join(f"{part.title} {part.milliseconds:.2f} ms" for part in parts))
        self.update()

    def parts(self) -> list[tuple[Part, QRectF]]:
        """Each part and its rectangle."""
        found, left = [], 0.0
        for part in self._parts:
            width = self.width() * part.milliseconds / self._full_ms
            found.append((part, self._place(left, width)))
            left += width
        return found

    def tip_at(self, point: QPointF) -> str:
        """The part at a point, in a sentence; empty beside the bar."""
        found = next((part for part, place in self.parts() if place.contains(point)), None)
        return f"{found.title}: {found.milliseconds:.2f} ms. {found.how}" if found is not None else ""

    def _paint(self, painter: QPainter) -> None:
        super()._paint(painter)
        for part, place in self.parts():
            if place.width() < 0.5:
                continue
            color = QColor(getattr(current_theme(), part.token))
            # An extra part is hatched, so that colour is not the only cue.
            painter.setPen(QPen(color, 1) if part.is_extra else Qt.PenStyle.NoPen)
            painter.setBrush(QBrush(color, Qt.BrushStyle.BDiagPattern) if part.is_extra else color)
            inset, gap = 0.5 * part.is_extra, min(GAP, place.width() / 2)
            painter.drawRoundedRect(place.adjusted(inset, inset, -inset - gap, -inset), RADIUS, RADIUS)


class GainBar(ReportBar):
    """A speedup, with a mark at plain decoding."""

    def __init__(self) -> None:
        super().__init__("whyGainBar", GAIN_HEIGHT)
        self._gain = Gain("", 0.0, False, "")
        self._ran, self._full = 0.0, 1.0

    def show_gain(self, gain: Gain, ran: float, full: float) -> None:
        """Show a speedup on a scale that ends at `full`, with another colour beyond the measured one, `ran`."""
        self._gain, self._ran, self._full = gain, ran, full
        self._title, self._is_strong = gain.title, gain.is_main
        self._value = f"{gain.speedup:.2f}×" if math.isfinite(gain.speedup) else "–"
        describe(self, f"{gain.title}: {self._value}", gain.how)
        self.update()

    def tip_at(self, _point: QPointF) -> str:
        """How the speedup is computed."""
        return self._gain.how

    def _paint(self, painter: QPainter) -> None:
        super()._paint(painter)
        theme, width = current_theme(), self.width()
        reached, ran, plain = (width * min(1.0, speedup / self._full) for speedup in (self._gain.speedup, self._ran, 1))
        more = QColor(theme.accent)
        more.setAlphaF(1.0 if self._is_strong else 0.45)
        painter.setPen(Qt.PenStyle.NoPen)
        for length, color in ((width, theme.track), (reached, more), (min(ran, reached), theme.muted)):
            painter.setBrush(QColor(color))
            painter.drawRoundedRect(self._place(0, length), RADIUS, RADIUS)
        pen = QPen(QColor(theme.text), 2)
        pen.setDashPattern([1.5, 1])
        painter.setPen(pen)
        bar = self._place(0, width)
        painter.drawLine(QPointF(round(plain), bar.top() - 2), QPointF(round(plain), bar.bottom() + 2))


class WhyPanel(ReportPage):
    """Shows a `WhyReport`."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run, "why", "Why is it slow?")
        self.figures = FigureRow()
        self.step_bar = TimeBar("whyStepBar")
        self.plain_bar = TimeBar("whyPlainBar")
        self.samples = [
            SeriesSample("draft", Mark.BAR, "draft_bar", "Time to propose the block."),
            SeriesSample("target", Mark.BAR, "target_bar", "The target's forward; hatched: beyond a plain one."),
            SeriesSample("overhead", Mark.BAR, "sample_bar", "Filters, sampling and bookkeeping."),
        ]
        self.gain_bars: list[GainBar] = []
        self.advice = column_label("whyAdvice", "")
        self._lay_out(self._make_cards())
        self._show(WhyReport(EMPTY))

    def _make_cards(self) -> tuple[QWidget, ...]:
        head, _ = card(self.headline, self.basis, self.figures)
        time, _ = card(
            wrapped_label("whyTimeTitle", "section", "Where an average step's time goes"),
            row(*self.samples, None, spacing=14),
            self.step_bar,
            self.plain_bar,
        )
        hint = wrapped_label("whyGainsHint", "hint", "Each alone, with the rest unchanged. Mark: plain decoding, 1×.")
        gains, self._gains_layout = card(text_label("If one thing were ideal", "section"), hint)
        change, _ = card(text_label("What to change", "section"), self.advice)
        self._cards = (time, gains, change)
        return head, *self._cards

    def _show_run(self, *, has_turned: bool) -> None:
        self._show(why_report(self._run))

    def _show(self, report: WhyReport) -> None:
        self._show_head(report.headline, report.basis, is_alone=not report.parts)
        self.figures.setVisible(bool(report.figures))
        self.figures.show_figures(report.figures)
        for frame in self._cards:
            frame.setVisible(bool(report.parts))
        if report.parts:
            full = max(sum(part.milliseconds for part in parts) for parts in (report.parts, report.replaced))
            self.step_bar.show_parts("One step", report.parts, full)
            self.plain_bar.show_parts(report.replaced_title, report.replaced, full)
        self._show_gains(report)
        self.advice.setText("\n\n".join(advice.text for advice in report.advice))

    def _show_gains(self, report: WhyReport) -> None:
        while len(self.gain_bars) < len(report.gains):
            bar = GainBar()
            self.gain_bars.append(bar)
            self._gains_layout.addWidget(bar)
        full = max([1.0, *(gain.speedup for gain in report.gains if math.isfinite(gain.speedup))])
        for index, bar in enumerate(self.gain_bars):
            bar.setVisible(index < len(report.gains))
            if index < len(report.gains):
                bar.show_gain(report.gains[index], report.gains[0].speedup, full)


class FigureRow(QWidget):
    """The formula's values, side by side, with tooltips that explain them."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("whyFigures")
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 2, 0, 0)
        self._layout.setVerticalSpacing(0)
        self._layout.setHorizontalSpacing(8)
        self.labels: list[tuple[QLabel, QLabel]] = []

    def restyle(self) -> None:
        """Side by side, or in two lines if the text is large."""
        in_line = 3 if text_scale() > WIDEST_SCALE else len(self.labels)
        for index, pair in enumerate(self.labels):
            line, column = divmod(index, in_line)
            for offset, label in enumerate(pair):
                self._layout.addWidget(label, 2 * line + offset, column)
            self._layout.setColumnStretch(index, int(index < in_line))

    def show_figures(self, figures: tuple[NamedValue, ...]) -> None:
        """Show these values."""
        while len(self.labels) < len(figures):
            self.labels.append((text_label("", "field"), text_label("", "strong")))
        self.restyle()
        for figure, (title, value) in zip(figures, self.labels, strict=False):
            title.setText(figure.title)
            value.setText(figure.value)
            title.setToolTip(plain_tip(figure.how))
            describe(value, f"{figure.title}: {figure.value}", figure.how)
