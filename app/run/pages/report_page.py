"""Base of the pages Why and Theory: a column of cards, updated once a second while visible."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from app.run.run_view import RunView
from app.widgets.fields import describe, set_flag, wrapped_label

REFRESH_S = 1.0


class ReportPage(QScrollArea):
    """Shows the run through `_show_run`, which a page implements."""

    def __init__(self, run: RunView, name: str, title: str) -> None:
        """
        Args:
            run: the run to show.
            name: prefix of the widgets' object names.
            title: accessible name.
        """
        super().__init__()
        describe(self, title, "")
        self._run = run
        self._is_stale = True
        self._read_at = -math.inf
        self.headline = column_label(f"{name}Headline", "title")
        self.basis = column_label(f"{name}Basis", "hint")
        body = QWidget()
        body.setObjectName(f"{name}Body")
        self._layout = QVBoxLayout(body)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(8)
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)

    def _show_run(self) -> None:
        """Show the run so far."""
        raise NotImplementedError

    def _lay_out(self, cards: Iterable[QWidget]) -> None:
        """Put cards in a column; the first holds the headline."""
        for frame in cards:
            self._layout.addWidget(frame)
        self._layout.addStretch(1)

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

    def begin(self) -> None:
        """A run starts."""
        self._read()

    def refresh(self, *, has_news: bool) -> None:
        """Read new steps, at most once a second."""
        self._is_stale = self._is_stale or has_news
        if self._is_stale and time.monotonic() - self._read_at >= REFRESH_S:
            self._read()

    def end(self) -> None:
        """A run is over."""
        self._read()

    def showEvent(self, event: QShowEvent) -> None:
        """Read what arrived while the page was hidden."""
        super().showEvent(event)
        if self._is_stale:
            self._read()

    def _read(self) -> None:
        self._is_stale = not self.isVisible()
        if not self._is_stale:
            self._read_at = time.monotonic()
            self._show_run()


def column_label(name: str, role: str) -> QLabel:
    """A text that wraps at any column width."""
    label = wrapped_label(name, role)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label
