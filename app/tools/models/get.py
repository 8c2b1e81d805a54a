"""The page "Get models": a field for a Hub id, and a short catalogue of families whose models work together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QLineEdit, QStackedLayout, QWidget

from app.setup.model_library import ModelLibrary, bytes_text, count_text
from app.theme import hold
from app.tools.models.downloads import Downloads, DownloadState
from app.widgets.fields import (
    boxed,
    card,
    column,
    describe,
    push_button,
    quiet_button,
    row,
    scrolled,
    set_flag,
    text_label,
)
from app.widgets.labels import ElidedLabel
from core.models.catalogue import EMBEDDED_TITLES
from core.models.suggestions import Suggestion

OFFLINE = "Offline mode is on (HF_HUB_OFFLINE): nothing is downloaded. Models on this computer work as always."
GATED_HELP = "Accept its licence on the Hub first, with the account whose token this computer has."
ID_HINT = "Downloads go to the cache that other Hub programs share. Every file is checked before it is used."
ACTION_WIDTH = 84
TWO_COLUMNS_FROM = 1000
STATE_TEXTS = {
    DownloadState.WAITING: "Waiting",
    DownloadState.RUNNING: "Getting…",
    DownloadState.STOPPING: "Stopping…",
}


class SuggestionRow(QWidget):
    """A model of the catalogue, with a button, or a word if it is here or being downloaded."""

    def __init__(self, suggestion: Suggestion, downloads: Downloads) -> None:
        super().__init__()
        self.suggestion = suggestion
        self.button = push_button("Get", f"get_{suggestion.ref}", "")
        self.button.clicked.connect(partial(_get, downloads, suggestion.ref))
        self.pair = quiet_button("Get both", f"getPair_{suggestion.ref}", "", "")
        self.pair.setProperty("role", "link")
        if suggestion.drafts:
            pair = f"{suggestion.title} with its draft {suggestion.drafts[0].rpartition('/')[2]}"
            describe(self.pair, f"Get {pair}", f"Download {pair}")
            # The draft is smaller, so it comes first.
            for ref in (suggestion.drafts[0], suggestion.ref):
                self.pair.clicked.connect(partial(_get, downloads, ref))
        self.word = text_label("", "hint")
        self.word.setAlignment(Qt.AlignmentFlag.AlignCenter)
        action = QWidget()
        hold(action, width=ACTION_WIDTH)
        self._action = QStackedLayout(action)
        self._action.addWidget(self.button)
        self._action.addWidget(self.word)
        badges = row(ElidedLabel(suggestion.title, "strong"), _badge("Instruct" if suggestion.is_instruct else "Base"))
        if suggestion.is_gated:
            badges.addWidget(_badge("Gated", GATED_HELP))
        badges.addStretch(1)
        drafts = [EMBEDDED_TITLES.get(ref) or ref.rpartition("/")[2] for ref in suggestion.drafts]
        text = f"Drafts: {', '.join(drafts)}" if drafts else "A draft for the larger ones"
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 6, 0, 6)
        layout.setHorizontalSpacing(12)
        layout.setVerticalSpacing(2)
        layout.addLayout(badges, 0, 0)
        layout.addLayout(row((ElidedLabel(text, "hint", takes_all=True), 1), self.pair), 1, 0)
        sizes = (count_text(suggestion.num_parameters), 56), (bytes_text(suggestion.download_bytes), 64)
        for place, (size, width) in enumerate(sizes, start=1):
            label = text_label(size, "plain")
            label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            hold(label, width=width)
            layout.addWidget(label, 0, place, 2, 1)
        layout.addWidget(action, 0, 3, 2, 1, Qt.AlignmentFlag.AlignVCenter)
        layout.setColumnStretch(0, 1)

    def show_state(self, *, is_here: bool, state: DownloadState | None, lacks_draft: bool, is_offline: bool) -> None:
        """Show whether the model is here, being downloaded, or available, and whether a draft for it is missing."""
        text = "On this computer" if is_here else STATE_TEXTS.get(state, "") if state is not None else ""
        self.word.setText("Here" if is_here else text)
        self.word.setToolTip(text)
        set_flag(self.word, "role", "done" if is_here else "hint")
        self._action.setCurrentIndex(1 if text else 0)
        self.button.setText("Resume" if state in {DownloadState.STOPPED, DownloadState.FAILED} else "Get")
        self.button.setEnabled(not is_offline)
        self.pair.setVisible(lacks_draft and not text and not is_offline)
        size = bytes_text(self.suggestion.download_bytes)
        help_text = OFFLINE if is_offline else f"Download {self.suggestion.title}, {size}"
        describe(self.button, f"{self.button.text()} {self.suggestion.title}, {size}", help_text)


def _get(downloads: Downloads, ref: str, _checked: bool = False) -> None:
    downloads.get(ref)


def _badge(text: str, help_text: str = "") -> QLabel:
    label = text_label(text, "badge")
    label.setProperty("kind", text.lower())
    label.setToolTip(help_text)
    return label


class GetModelsPage(QWidget):
    """The field for a Hub id above the families, in two columns where there is room."""

    def __init__(self, library: ModelLibrary, downloads: Downloads) -> None:
        super().__init__()
        self._library, self._downloads = library, downloads
        self._is_offline = False
        self._num_columns = 0
        self.edit = QLineEdit()
        self.edit.setObjectName("hubIdEdit")
        self.edit.setPlaceholderText("owner/name of a model on the Hub")
        self.edit.setClearButtonEnabled(True)
        describe(self.edit, "Hub id of a model to get")
        self.get = push_button("Get", "getButton", "")
        hold(self.get, least_width=ACTION_WIDTH)
        self.note = text_label(ID_HINT, "hint")
        self.note.setObjectName("getNote")
        self.note.setWordWrap(True)
        self.rows: list[SuggestionRow] = []
        self._cards: list[QFrame] = []
        for family, suggestions in groupby(library.suggestions, key=lambda suggestion: suggestion.family):
            rows = [SuggestionRow(suggestion, downloads) for suggestion in suggestions]
            self.rows += rows
            self._cards.append(_family_card(family, rows))
        self._columns = column(spacing=12), column(spacing=12)
        for families in self._columns:
            families.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._body = row(*((families, 1) for families in self._columns), spacing=12)
        body = boxed(self._body)
        self._body.setContentsMargins(0, 0, 8, 0)
        layout = column(row((self.edit, 1), self.get), self.note, (scrolled(body, "suggestionsScroll"), 1))
        layout.setContentsMargins(0, 0, 0, 0)
        self.setLayout(layout)
        self.edit.textChanged.connect(self._on_text_changed)
        self.edit.returnPressed.connect(self._on_get)
        self.get.clicked.connect(self._on_get)
        for changed in (downloads.changed, downloads.dismissed):
            changed.connect(self.refresh)
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arrange the families in as many columns as fit."""
        super().resizeEvent(event)
        count = 2 if self.width() >= TWO_COLUMNS_FROM else 1
        if count == self._num_columns:
            return
        self._num_columns = count
        heights = [0] * count
        for family in self._cards:
            place = heights.index(min(heights))
            self._columns[place].addWidget(family)
            heights[place] += family.sizeHint().height()
        self._body.setStretch(1, count - 1)
        self._body.setSpacing(12 * (count - 1))

    def set_offline(self, is_offline: bool) -> None:
        """Whether the network must not be used."""
        self._is_offline = is_offline
        self.note.setText(OFFLINE if is_offline else ID_HINT)
        set_flag(self.note, "role", "warning" if is_offline else "hint")
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        """Show which models are here, and how downloads stand."""
        states = {download.ref: download.state for download in self._downloads.all()}
        here = frozenset(self._library.refs)
        for shown in self.rows:
            suggestion = shown.suggestion
            is_coming = any(states[ref].is_active for ref in suggestion.drafts if ref in states)
            has_draft = is_coming or not (here | EMBEDDED_TITLES.keys()).isdisjoint(suggestion.drafts)
            shown.show_state(
                is_here=suggestion.ref in here,
                state=states.get(suggestion.ref),
                lacks_draft=bool(suggestion.drafts) and not has_draft,
                is_offline=self._is_offline,
            )
        self._on_text_changed()

    @Slot()
    def _on_text_changed(self) -> None:
        self.get.setEnabled(bool(self.edit.text().strip()) and not self._is_offline)
        describe(self.get, "Get the model with this Hub id", OFFLINE if self._is_offline else "")

    @Slot()
    def _on_get(self) -> None:
        ref = self.edit.text().strip()
        if ref and self.get.isEnabled():
            self.edit.clear()
            self._downloads.get(ref)


def _family_card(family: str, rows: Sequence[SuggestionRow]) -> QFrame:
    licences = dict.fromkeys(shown.suggestion.licence for shown in rows)
    head = row(text_label(family, "section"), None, text_label(" · ".join(licences), "hint"))
    frame, layout = card(head)
    layout.setSpacing(0)
    layout.setContentsMargins(12, 10, 12, 6)
    layout.addSpacing(2)
    for index, shown in enumerate(rows):
        if index:
            rule = QFrame()
            rule.setObjectName("rule")
            rule.setFixedHeight(1)
            layout.addWidget(rule)
        layout.addWidget(shown)
    return frame
