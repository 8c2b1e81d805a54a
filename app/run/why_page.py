"""The page Why: what holds the run's speedup back, and what to change."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Sequence

from PySide6.QtCore import QEvent, QPoint, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QHelpEvent, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QSizePolicy, QToolTip, QVBoxLayout, QWidget

from app.run.run_view import RunSums, RunView
from app.run.why import EMPTY, Figure, Gain, Part, WhyModel, WhyReport
from app.theme import LIGHT, Theme, scaled, ui_font
from app.tools.tool_window import wrapped_label
from app.turns import Turns, at_once
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.plots import Mark, SeriesSample

REFRESH_S = 1.0
"""While a run goes: nobody reads a page of words more often, and the engine needs the processor."""


class ReportPage(QScrollArea):
    """Base of both. Much that has come is read in several turns of the event loop, and what was seen before stays.

    A page sets `_sums`, which it reads the run through.
    """

    _sums: RunSums

    def __init__(self, run: RunView, name: str, title: str) -> None:
        """
        Args:
            run: that the page is about.
            name: what its widgets' names begin with.
            title: for those who hear it.
        """
        super().__init__()
        describe(self, title, "")
        self._run = run
        self._is_stale = True
        self._turns = Turns(self)
        self._read_at = -math.inf
        self.headline = column_label(f"{name}Headline", "title")
        self.basis = column_label(f"{name}Basis", "hint")
        body = self._body = QWidget()
        body.setObjectName(f"{name}Body")
        self._layout = QVBoxLayout(body)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(8)
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)

    # --- For a page ---

    def _looking(self) -> Generator[None]:
        """Show the run as it stands, in pieces, once all of it is in `_sums`."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Have another thread find out what is not shown yet; by then all else is painted."""

    def _forget_old(self) -> None:
        """Let go of a run that is no longer at hand."""
        raise NotImplementedError

    def _lay_out(self, cards: Iterable[QWidget]) -> None:
        """Put cards under each other; the first holds the headline."""
        for frame in cards:
            self._layout.addWidget(frame)
        self._layout.addStretch(1)

    def _show_head(self, headline: str, basis: str, *, is_alone: bool) -> None:
        """A title; a quiet sentence in the middle of the page, as on the other pages, while there is nothing below."""
        across = Qt.AlignmentFlag.AlignHCenter if is_alone else Qt.AlignmentFlag.AlignLeft
        set_flag(self.headline, "role", "hint" if is_alone else "title")
        self.headline.setAlignment(across | Qt.AlignmentFlag.AlignVCenter)
        self.headline.setContentsMargins(*((32, 0, 32, 0) if is_alone else (0, 0, 0, 0)))
        self._layout.setStretch(0, int(is_alone))
        self._layout.setStretch(self._layout.count() - 1, int(not is_alone))
        self.headline.setText(headline)
        self.basis.setText(basis)
        self.basis.setVisible(bool(basis))

    # --- For the window ---

    def begin(self) -> None:
        """A run starts."""
        self._forget_old()
        self._read()

    def refresh(self, *, has_news: bool) -> None:
        """Read what has come, if it is time to and the page is open."""
        self._is_stale = self._is_stale or has_news
        if self._is_stale and time.monotonic() - self._read_at >= REFRESH_S:
            self._read()

    def end(self) -> None:
        """A run is over."""
        self._read()

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
        if not self._sums.has_much:
            self._turns.stop()
            at_once(self._looking())
            self._ask()
            return
        self._turns.stop()
        self._turns.start(self._pieces())

    def _pieces(self) -> Generator[None]:
        yield from self._sums.pieces()
        self._is_stale = not self.isVisible()
        if not self._is_stale:
            yield from self._looking()
        if not self._is_stale:
            yield
            self._ask()


def column_label(name: str, role: str) -> QLabel:
    """A text that is broken at the column's width, however narrow."""
    label = wrapped_label(name, role)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label


BAR_HEIGHT, GAIN_HEIGHT = 18, 8
RADIUS = 3
GAP = 2


class TimeBar(QWidget):
    """A title, milliseconds, and under them a bar in parts. Bars with the same `full_ms` can be compared."""

    def __init__(self, object_name: str) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._theme = LIGHT
        self._title = ""
        self._parts: tuple[Part, ...] = ()
        self._full_ms = 1.0

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.updateGeometry()
        self.update()

    def show_parts(self, title: str, parts: Sequence[Part], full_ms: float) -> None:
        """Show a time, on a scale that ends at `full_ms`."""
        self._title, self._parts, self._full_ms = title, tuple(parts), max(full_ms, 1e-9)
        spoken = ", ".join(f"{part.title} {part.milliseconds:.2f} ms" for part in parts)
        self.setAccessibleName(f"{title}: {self.total_ms:.2f} ms")
        self.setAccessibleDescription(spoken)
        self.update()

    @property
    def total_ms(self) -> float:
        """The whole bar."""
        return sum(part.milliseconds for part in self._parts)

    def places(self) -> list[tuple[Part, QRectF]]:
        """Where each part stands."""
        top, left = self._line() + 3, 0.0
        found = []
        for part in self._parts:
            width = self.width() * part.milliseconds / self._full_ms
            found.append((part, QRectF(left, top, width, scaled(BAR_HEIGHT))))
            left += width
        return found

    def sizeHint(self) -> QSize:
        """A line of text and the bar."""
        return QSize(200, self._line() + 4 + scaled(BAR_HEIGHT))

    def _line(self) -> int:
        return QFontMetrics(ui_font(12)).height()

    def event(self, event: QEvent) -> bool:
        """Say what the part under the pointer is."""
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            QToolTip.showText(event.globalPos(), self.explanation(event.pos()), self)
            return True
        return super().event(event)

    def explanation(self, point: QPoint) -> str:
        """What stands at a point, in a sentence; empty beside the bar."""
        for part, place in self.places():
            if place.contains(point):
                return f"{part.title}: {part.milliseconds:.2f} ms. {part.how}"
        return ""

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw title, figure and bar."""
        painter = QPainter(self)
        _draw_line(painter, self._theme, self.width(), self._line(), self._title, f"{self.total_ms:.2f} ms")
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for part, place in self.places():
            if place.width() >= 0.5:
                _fill(painter, place.adjusted(0, 0, -min(GAP, place.width() / 2), 0), self._theme, part)
        painter.end()


def _fill(painter: QPainter, place: QRectF, theme: Theme, part: Part) -> None:
    color = QColor(getattr(theme, part.token))
    if not part.is_extra:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawRoundedRect(place, RADIUS, RADIUS)
        return
    # Hatched, so that colour is not the only sign of what comes on top of a plain forward.
    painter.setPen(QPen(color, 1))
    painter.setBrush(QBrush(color, Qt.BrushStyle.BDiagPattern))
    painter.drawRoundedRect(place.adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)


class GainBar(QWidget):
    """A title, a speedup, and under them a bar beside the mark of plain decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._theme = LIGHT
        self._gain = Gain("", 0.0, False, "")
        self._ran, self._full = 0.0, 1.0

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.updateGeometry()
        self.update()

    def show_gain(self, gain: Gain, ran: float, full: float) -> None:
        """Show a speedup.

        Args:
            ran: the speedup as it ran; the bar changes its colour there.
            full: where the scale ends.
        """
        self._gain, self._ran, self._full = gain, ran, full
        self.setToolTip(gain.how)
        self.setAccessibleName(f"{gain.title}: {speedup_text(gain.speedup)}")
        self.setAccessibleDescription(gain.how)
        self.update()

    def sizeHint(self) -> QSize:
        """A line of text and the bar."""
        return QSize(200, QFontMetrics(ui_font(12)).height() + 4 + scaled(GAIN_HEIGHT))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw title, figure and bar."""
        painter, theme, gain = QPainter(self), self._theme, self._gain
        line = QFontMetrics(ui_font(12)).height()
        _draw_line(painter, theme, self.width(), line, gain.title, speedup_text(gain.speedup), is_strong=gain.is_main)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        top, height = line + 3, scaled(GAIN_HEIGHT)
        reached, ran = self._x(gain.speedup), self._x(self._ran)
        painter.setBrush(QColor(theme.track))
        painter.drawRoundedRect(QRectF(0, top, self.width(), height), RADIUS, RADIUS)
        more = QColor(theme.accent)
        more.setAlphaF(1.0 if gain.is_main else 0.45)
        painter.setBrush(more)
        painter.drawRoundedRect(QRectF(0, top, reached, height), RADIUS, RADIUS)
        painter.setBrush(QColor(theme.muted))
        painter.drawRoundedRect(QRectF(0, top, min(ran, reached), height), RADIUS, RADIUS)
        pen = QPen(QColor(theme.text), 2)
        pen.setDashPattern([1.5, 1])
        painter.setPen(pen)
        plain = self._x(1.0)
        painter.drawLine(QPoint(round(plain), top - 2), QPoint(round(plain), top + height + 2))
        painter.end()

    def _x(self, speedup: float) -> float:
        return self.width() * min(1.0, speedup / self._full)


def speedup_text(speedup: float) -> str:
    """A speedup as it is written everywhere."""
    return f"{speedup:.2f}×" if math.isfinite(speedup) else "–"


def _draw_line(
    painter: QPainter, theme: Theme, width: int, height: int, title: str, value: str, *, is_strong: bool = True
) -> None:
    painter.setFont(ui_font(12))
    metrics = painter.fontMetrics()
    room = width - metrics.horizontalAdvance(value) - 8
    flags = Qt.AlignmentFlag.AlignVCenter
    painter.setPen(QColor(theme.text if is_strong else theme.muted))
    shown = metrics.elidedText(title, Qt.TextElideMode.ElideRight, room)
    painter.drawText(QRectF(0, 0, room, height), flags | Qt.AlignmentFlag.AlignLeft, shown)
    painter.setPen(QColor(theme.text))
    painter.drawText(QRectF(0, 0, width, height), flags | Qt.AlignmentFlag.AlignRight, value)


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
