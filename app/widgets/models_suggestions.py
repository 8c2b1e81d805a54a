"""Models to get: a Hub id that is typed, and a short catalogue of families whose models go together."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import groupby

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.dress import dress, hold_parts
from app.model_store import Download, DownloadState
from app.text_size import hold
from app.turns import Turns, freeze, thaw
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.models_suggestion_row import ACTION_WIDTH, OFFLINE, SuggestionRow
from core.models.catalogue import EMBEDDED_TITLES
from core.models.suggestions import Suggestion

ID_HINT = "What comes lands in the cache that other programs of the Hub share, and is checked before it is used."
TWO_COLUMNS_FROM = 1000


class SuggestionsPage(QWidget):
    """The field for a Hub id above the families.

    Signals:
        get_requested: a reference.
    """

    get_requested = Signal(str)

    def __init__(self, suggestions: Sequence[Suggestion]) -> None:
        super().__init__()
        self._is_offline = False
        self._num_columns = 0
        self._states: dict[str, DownloadState] = {}
        self._here: frozenset[str] = frozenset()
        self.edit = QLineEdit()
        self.edit.setObjectName("hubIdEdit")
        self.edit.setPlaceholderText("owner/name of a model on the Hub")
        self.edit.setClearButtonEnabled(True)
        describe(self.edit, "Hub id of a model to get")
        self.get = QPushButton("Get")
        self.get.setObjectName("getButton")
        self.get.setAutoDefault(False)
        hold(self.get, least_width=ACTION_WIDTH)
        self.note = text_label(ID_HINT, "hint")
        self.note.setObjectName("getNote")
        self.note.setWordWrap(True)
        self._suggestions = tuple(suggestions)
        self._rows: list[SuggestionRow] = []
        self._cards: list[QFrame] = []
        self._is_built = False
        self._building = Turns(self)
        self._lay_out()
        self.edit.textChanged.connect(self._on_text_changed)
        self.edit.returnPressed.connect(self._on_get)
        self.get.clicked.connect(self._on_get)
        self._show()

    def _lay_out(self) -> None:
        field = QHBoxLayout()
        field.setSpacing(8)
        field.addWidget(self.edit, 1)
        field.addWidget(self.get)
        body = QWidget()
        body.setObjectName("suggestionsBody")
        inner = self._body = QHBoxLayout(body)
        inner.setContentsMargins(0, 0, 8, 0)
        inner.setSpacing(12)
        self._columns = [QVBoxLayout(), QVBoxLayout()]
        for column in self._columns:
            column.setSpacing(12)
            column.setAlignment(Qt.AlignmentFlag.AlignTop)
            inner.addLayout(column, 1)
        scroll = self._scroll = QScrollArea()
        scroll.setObjectName("suggestionsScroll")
        scroll.setWidget(body)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addLayout(field)
        layout.addWidget(self.note)
        layout.addWidget(scroll, 1)
        hold_parts(self, scroll)

    @property
    def rows(self) -> list[SuggestionRow]:
        """The catalogue's models."""
        self._build()
        self._building.finish()
        return self._rows

    @property
    def is_built(self) -> bool:
        """Whether the catalogue is there."""
        return self._is_built

    def _build(self) -> None:
        # There are many; they are built when somebody looks, so that the window's other page is there at once.
        if not self._is_built and not self._building.is_going:
            self._building.start(self._pieces())

    def _pieces(self) -> Generator[None]:
        """A family at a time, unseen until all are there."""
        freeze([self._scroll], "suggestions")
        try:
            for family, suggestions in groupby(self._suggestions, key=lambda suggestion: suggestion.family):
                rows = [SuggestionRow(suggestion) for suggestion in suggestions]
                for row in rows:
                    row.get_requested.connect(self.get_requested)
                self._rows += rows
                self._cards.append(_family_card(family, rows))
                self._show_rows(rows)
                yield
            self._is_built = True
            yield from self._arranged()
        finally:
            thaw([self._scroll], "suggestions")

    def showEvent(self, event: QShowEvent) -> None:
        """Build the catalogue."""
        super().showEvent(event)
        self._build()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stand the families in two columns where there is room."""
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        if self._is_built and not self._building.is_going:
            for _ in self._arranged():
                pass

    def _arranged(self) -> Generator[None]:
        # Again, should the width be another one by the time that all of them stand.
        while (count := 2 if self.width() >= TWO_COLUMNS_FROM else 1) != self._num_columns:
            self._num_columns = count
            heights = [0] * count
            for family in self._cards:
                column = heights.index(min(heights))
                self._columns[column].addWidget(family)
                dress(family)
                heights[column] += family.sizeHint().height()
                yield
            self._body.setStretch(1, count - 1)
            self._body.setSpacing(12 * (count - 1))

    def show_here(self, refs: Iterable[str]) -> None:
        """Mark the models that are on this computer."""
        self._here = frozenset(refs)
        self._show()

    def show_download(self, download: Download) -> None:
        """Show how a model's download stands."""
        if self._states.get(download.ref) is not download.state:
            self._states[download.ref] = download.state
            self._show()

    def forget_download(self, ref: str) -> None:
        """A download is to be seen no longer."""
        if self._states.pop(ref, None) is not None:
            self._show()

    def set_offline(self, is_offline: bool) -> None:
        """Whether the network is to be left alone."""
        self._is_offline = is_offline
        self.note.setText(OFFLINE if is_offline else ID_HINT)
        set_flag(self.note, "role", "warning" if is_offline else "hint")
        self._show()

    def _show(self) -> None:
        self._show_rows(self._rows)
        self._on_text_changed()

    def _show_rows(self, rows: Iterable[SuggestionRow]) -> None:
        for row in rows:
            ref = row.suggestion.ref
            row.show_state(
                is_here=ref in self._here,
                state=self._states.get(ref),
                lacks_draft=self._lacks_draft(row.suggestion),
                is_offline=self._is_offline,
            )

    def _lacks_draft(self, suggestion: Suggestion) -> bool:
        """Whether there are drafts that suit a model, and none of them is here or on its way."""
        drafts = suggestion.drafts
        states = (self._states.get(ref) for ref in drafts)
        is_coming = any(state is not None and state.is_active for state in states)
        return bool(drafts) and not is_coming and (self._here | EMBEDDED_TITLES.keys()).isdisjoint(drafts)

    @Slot()
    def _on_text_changed(self) -> None:
        self.get.setEnabled(bool(self.edit.text().strip()) and not self._is_offline)
        describe(self.get, "Get the model with this Hub id", OFFLINE if self._is_offline else "")

    @Slot()
    def _on_get(self) -> None:
        ref = self.edit.text().strip()
        if ref and self.get.isEnabled():
            self.edit.clear()
            self.get_requested.emit(ref)


def _family_card(family: str, rows: list[SuggestionRow]) -> QFrame:
    frame, layout = card()
    layout.setSpacing(0)
    layout.setContentsMargins(12, 10, 12, 6)
    head = QHBoxLayout()
    head.addWidget(text_label(family, "section"))
    head.addStretch(1)
    licences = dict.fromkeys(row.suggestion.licence for row in rows)
    head.addWidget(text_label(" · ".join(licences), "hint"))
    layout.addLayout(head)
    layout.addSpacing(2)
    for index, row in enumerate(rows):
        if index:
            line = QFrame()
            line.setObjectName("rule")
            line.setFixedHeight(1)
            layout.addWidget(line)
        layout.addWidget(row)
    return frame
