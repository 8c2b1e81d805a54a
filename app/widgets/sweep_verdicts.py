"""What a sweep says to do: a word and a sentence for each temperature."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QSizePolicy, QWidget

from app.theme import scaled
from app.view_models.sweep_words import VerdictLine
from app.widgets.fields import text_label

MOST_HEIGHT = 132
EMPTY = (
    "A sweep measures each K at each temperature with each draft, against plain decoding, and says which to take, or "
    "not to speculate at all. Choose on the left what to measure, and start."
)


class SweepVerdicts(QScrollArea):
    """Grows with its lines up to a few, and scrolls then."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepVerdicts")
        self.setAccessibleName("Verdict")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.viewport().setAutoFillBackground(False)
        self._shown: tuple[VerdictLine, ...] | None = None
        self._body = QWidget()
        self._body.setObjectName("sweepVerdictsBody")
        self._grid = QGridLayout(self._body)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(1, 1)
        self.setWidget(self._body)
        self.show_lines([])

    def show_lines(self, lines: Sequence[VerdictLine]) -> None:
        """Show these; none: what the window is for."""
        if tuple(lines) == self._shown:
            return
        self._shown = tuple(lines)
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for row, line in enumerate(lines):
            self._grid.addWidget(_badge(line), row, 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(_sentence(line.sentence, "plain"), row, 1)
        if not lines:
            self._grid.addWidget(_sentence(EMPTY, "hint"), 0, 0, 1, 2)
        self._fit()

    def sentences(self) -> list[str]:
        """What is said."""
        return [line.sentence for line in self._shown or ()]

    def words(self) -> list[str]:
        """The same in a word each."""
        return [line.word for line in self._shown or ()]

    def resizeEvent(self, event: object) -> None:
        """Sentences wrap anew, and take other heights."""
        super().resizeEvent(event)  # type: ignore[arg-type]
        self._fit()

    def _fit(self) -> None:
        width = max(200, self.viewport().width())
        self.setFixedHeight(min(scaled(MOST_HEIGHT), max(scaled(20), self._grid.totalHeightForWidth(width)) + 2))


def _badge(line: VerdictLine) -> QLabel:
    badge = text_label(line.word, "badge")
    badge.setProperty("kind", {True: "pays", False: "pays-not", None: "base"}[line.pays])
    badge.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
    return badge


def _sentence(text: str, role: str) -> QLabel:
    label = text_label(text, role)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
