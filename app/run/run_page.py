"""Base classes of the pages that show a run. They draw only while visible, and catch up when shown."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLabel, QScrollArea, QSizePolicy, QWidget

from app.run.run_view import RunView
from app.widgets.fields import boxed, column, describe, scrolled, set_flag, wrapped_label
from app.widgets.plot_card import PlotCard
from app.window_layout import splitter

REPORT_PAUSE_S = 1.0
"""Least time between two readings of a report."""


class RunPage(QWidget):
    """Shows a run in `_show_run`, which a page implements. A panel of the `LiveView`.

    Attributes:
        is_running: whether more steps may come.
    """

    _pause_s = 0.0
    _shown_at = -math.inf

    def __init__(self) -> None:
        super().__init__()
        self.is_running = False
        self._is_stale = True
        self._has_turned = True
        """Whether a run has begun or ended since the page was drawn."""

    def _show_run(self, *, has_turned: bool) -> None:
        """Show the run so far."""
        raise NotImplementedError

    def begin(self) -> None:
        """A run starts."""
        self.is_running = self._has_turned = True
        self._show_if_seen()

    def refresh(self, *, has_news: bool) -> None:
        """A frame: show what is new."""
        self._is_stale = self._is_stale or has_news
        if self._is_stale and time.monotonic() - self._shown_at >= self._pause_s:
            self._show_if_seen()

    def end(self) -> None:
        """A run is over: show all of it."""
        self.is_running, self._has_turned = False, True
        self._show_if_seen()

    def showEvent(self, event: QShowEvent) -> None:
        """Show what arrived while the page was hidden."""
        super().showEvent(event)
        if self._is_stale:
            self._show_if_seen()

    @Slot()
    def _show_if_seen(self) -> None:
        self._is_stale = self.isHidden()
        if not self._is_stale:
            has_turned, self._has_turned, self._shown_at = self._has_turned, False, time.monotonic()
            self._show_run(has_turned=has_turned)


class PlotPage(RunPage):
    """Plots in a splitter, with `head` above them."""

    def __init__(self, name: str, *cards: PlotCard, head: QWidget | None = None) -> None:
        super().__init__()
        self.cards = cards
        self.splitter = splitter(Qt.Orientation.Vertical, name, *((card, 0) for card in cards))
        boxed(column(*(() if head is None else (head,)), (self.splitter, 1)), self)

    def begin(self) -> None:
        """A run starts: show it from its start."""
        for card in self.cards:
            card.plot.reset_view()
        super().begin()

    def _show_run(self, *, has_turned: bool) -> None:
        for card in self.cards:
            if card.isHidden():
                continue
            if has_turned:
                card.plot.settle(is_over=not self.is_running)
            else:
                card.plot.refresh()


class ReportPage(RunPage):
    """A column of cards that scrolls; the first holds the headline."""

    _pause_s = REPORT_PAUSE_S

    def __init__(self, run: RunView, name: str, title: str) -> None:
        """
        Args:
            run: the run to show.
            name: prefix of the widgets' object names.
            title: accessible name.
        """
        super().__init__()
        self._run, self._name, self._title = run, name, title
        self.headline = column_label(f"{name}Headline", "title")
        self.basis = column_label(f"{name}Basis", "hint")

    def _lay_out(self, cards: Iterable[QWidget]) -> None:
        self._layout = column(*cards, None)
        body = boxed(self._layout)
        body.setObjectName(f"{self._name}Body")
        self.area: QScrollArea = scrolled(body, f"{self._name}Page")
        # The keys scroll it.
        self.area.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        describe(self.area, self._title)
        boxed(column(self.area), self)

    def _show_head(self, headline: str, basis: str, *, is_alone: bool) -> None:
        """Show the headline as a title, or centred if nothing is below it."""
        across = Qt.AlignmentFlag.AlignHCenter if is_alone else Qt.AlignmentFlag.AlignLeft
        set_flag(self.headline, "role", "hint" if is_alone else "title")
        self.headline.setAlignment(across | Qt.AlignmentFlag.AlignVCenter)
        self.headline.setContentsMargins(*((32, 0, 32, 0) if is_alone else (0, 0, 0, 0)))
        self._layout.setStretch(0, int(is_alone))
        self._layout.setStretch(self._layout.count() - 1, int(not is_alone))
        self.headline.setText(headline)
        self.basis.setText(basis)
        self.basis.setVisible(bool(basis))


def column_label(name: str, role: str) -> QLabel:
    """A text that wraps at any column width."""
    label = wrapped_label(name, role)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
