"""Base class of the pages that show a run. They draw only while visible, and catch up when shown."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Slot
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.widgets.fields import wrapped_label

if TYPE_CHECKING:
    from app.widgets.plot_card import PlotCard


class RunPage(QWidget):
    """Shows a run in `_show_run`, which a page implements. A panel of the `LiveView`.

    Attributes:
        is_running: whether more steps may come.
        cards: its plots, which follow each run from its start.
    """

    cards: Sequence[PlotCard] = ()
    _pause_s = 0.0
    """Least time between two frames."""
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
        for card in self.cards:
            card.plot.follow()
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


def column_label(name: str, role: str, text: str = "") -> QLabel:
    """A text that wraps at any column width."""
    label = wrapped_label(name, role, text)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
