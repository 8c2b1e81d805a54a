"""What the pages Why and Theory share: a column of cards under a headline, about a run, read only while it is seen."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.turns import Turns, at_once, frame_of, freeze, thaw
from app.view_models.run_sums import RunSums
from app.view_models.run_view import RunView
from app.widgets.fields import describe, set_flag
from app.widgets.tool_parts import wrapped_label

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
            self._read(is_new=True)

    def _read(self, *, is_new: bool = False) -> None:
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
        pieces = self._pieces([frame_of(self)] if is_new else [])
        # Frozen at once, and so that whoever gives it up thaws it.
        next(pieces)
        self._turns.start(pieces)

    def _pieces(self, frozen: list[QWidget]) -> Generator[None]:
        cards = self._body.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)
        freeze(frozen, "report")
        try:
            yield from self._sums.pieces()
            self._is_stale = not self.isVisible()
            if not self._is_stale:
                yield from self._looking()
            if frozen and not self._is_stale:
                # Of a page that comes up, each card is painted in a turn of its own; plots take longest.
                freeze(cards, "report")
                thaw(frozen, "report")
                for card in cards:
                    yield from self._turns.rest()
                    thaw([card], "report")
        finally:
            thaw([*frozen, *cards], "report")
        if not self._is_stale:
            yield
            self._ask()


def column_label(name: str, role: str) -> QLabel:
    """A text that is broken at the column's width, however narrow."""
    label = wrapped_label(name, role)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
