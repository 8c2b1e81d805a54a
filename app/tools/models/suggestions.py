"""The page of models to get: a field for a Hub id, and a short catalogue of families whose models work together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QLabel, QStackedLayout, QWidget

from app.setup.model_library import parameters_text
from app.theme import hold, scaled
from app.tools.models.downloads import Downloads, DownloadState
from app.widgets.fields import (
    boxed,
    card,
    column,
    describe,
    grid,
    hint_label,
    line_edit,
    plain_tip,
    push_button,
    quiet_button,
    row,
    scrolled,
    set_flag,
    text_label,
)
from app.widgets.labels import ElidedLabel
from app.widgets.rows import alignment
from core.models.catalogue import EMBEDDED_TITLES, SUGGESTIONS, Suggestion
from core.models.remote import hub
from core.text import bytes_text

OFFLINE = "Offline mode is on (HF_HUB_OFFLINE), so nothing is downloaded. Models on this computer still work."
GATED_HELP = "First accept its licence on the Hub, with the account whose token is on this computer."
ID_HINT = "Downloads go to the cache shared with other Hub programs, and are checked before use."
NO_ID = "{!r} is not a Hub id: write owner/name, such as HuggingFaceTB/SmolLM2-135M-Instruct."
ACTION_WIDTH = 84
TWO_COLUMNS_FROM = 1320
"""Pixels from which the longest line fits in each of two columns."""
STATE_TEXTS = {DownloadState.WAITING: "Waiting", DownloadState.RUNNING: "Getting…"}


class SuggestionRow(QWidget):
    """A model in the catalogue: what it is, and a button, or its state if it is downloaded or being downloaded."""

    def __init__(self, suggestion: Suggestion, downloads: Downloads) -> None:
        super().__init__()
        self.suggestion, self._downloads = suggestion, downloads
        self.button = push_button("Get", f"get_{suggestion.ref}", "", lambda: downloads.get(suggestion.ref))
        drafts = [EMBEDDED_TITLES.get(ref) or ref.rpartition("/")[2] for ref in suggestion.drafts]
        num_bytes = suggestion.download_bytes
        num_bytes += sum(each.download_bytes for each in SUGGESTIONS if each.ref in suggestion.drafts[:1])
        pair = f"{suggestion.title} with its draft {', '.join(drafts[:1])}, {bytes_text(num_bytes)} in all"
        title, name = f"Get both, {bytes_text(num_bytes)}", f"getPair_{suggestion.ref}"
        self.pair = quiet_button(title, name, f"Get {pair}", f"Download {pair}", self._on_pair_clicked, role="link")
        self.word = text_label("", "hint")
        self.word.setAlignment(Qt.AlignmentFlag.AlignCenter)
        action = QWidget()
        hold(action, width=ACTION_WIDTH)
        self._action = QStackedLayout(action)
        self._action.addWidget(self.button)
        self._action.addWidget(self.word)
        badges = [_badge("Instruct" if suggestion.is_instruct else "Base")]
        badges += [_badge("Gated", GATED_HELP)] * suggestion.is_gated
        use = f"draft: {drafts[0]}" if drafts else "a draft for the larger ones"
        self.note = ElidedLabel(f"{suggestion.licence} · {use}", "hint", takes_all=True)
        if drafts:
            self.note.setToolTip(plain_tip(f"Drafts, the best first: {', '.join(drafts)}"))
        count = text_label(f"{parameters_text(suggestion.num_parameters)} parameters", "hint")
        layout = grid(self, down=2)
        layout.setContentsMargins(0, 6, 0, 6)
        layout.addLayout(row(ElidedLabel(suggestion.title, "strong"), *badges, None, count, spacing=6), 0, 0)
        layout.addLayout(row((self.note, 1), self.pair), 1, 0)
        size = text_label(bytes_text(suggestion.download_bytes), "plain")
        size.setAlignment(alignment(is_figure=True))
        hold(size, width=64)
        layout.addWidget(size, 0, 1, 2, 1)
        layout.addWidget(action, 0, 2, 2, 1, Qt.AlignmentFlag.AlignVCenter)
        layout.setColumnStretch(0, 1)

    def show_state(self, *, is_here: bool, state: DownloadState | None, lacks_draft: bool, is_offline: bool) -> None:
        """Show whether the model is on this computer, is being downloaded, or can be, alone or with a draft."""
        text = "On this computer" if is_here else STATE_TEXTS.get(state, "") if state is not None else ""
        self.word.setText("Here" if is_here else text)
        self.word.setToolTip(plain_tip(text))
        set_flag(self.word, "role", "done" if is_here else "hint")
        self._action.setCurrentIndex(1 if text else 0)
        self.button.setText("Resume" if state in {DownloadState.STOPPED, DownloadState.FAILED} else "Get")
        self.button.setEnabled(not is_offline)
        self.pair.setVisible(lacks_draft and not text and not is_offline)
        model = f"{self.suggestion.title}, {bytes_text(self.suggestion.download_bytes)}"
        describe(self.button, f"{self.button.text()} {model}", OFFLINE if is_offline else f"Download {model}")

    @Slot()
    def _on_pair_clicked(self) -> None:
        for ref in (self.suggestion.drafts[0], self.suggestion.ref):  # The draft is smaller and arrives first.
            self._downloads.get(ref)


def _badge(text: str, help_text: str = "") -> QLabel:
    label = text_label(text, "badge")
    label.setProperty("kind", text.lower())
    label.setToolTip(help_text)
    return label


class SuggestionsPage(QWidget):
    """The field for a Hub id above the families."""

    def __init__(self, suggestions: Sequence[Suggestion], downloads: Downloads) -> None:
        super().__init__()
        self._suggestions, self._downloads = suggestions, downloads
        self._is_offline = hub.is_offline()
        self._num_columns = 0
        self._states: dict[str, DownloadState] = {}
        self._here: frozenset[str] = frozenset()
        self._rows: list[SuggestionRow] = []
        self._cards: list[QFrame] = []
        self.edit = line_edit("hubIdEdit", "owner/name of a model on the Hub", "Hub id of a model to get")
        self.get = push_button("Get", "getButton", "", self._on_get)
        hold(self.get, least_width=ACTION_WIDTH)
        self.note = hint_label("getNote")
        self.note.setWordWrap(True)
        self._columns = [column(spacing=12), column(spacing=12)]
        self._body = row(*((each, 1) for each in self._columns))
        for each in self._columns:
            each.setAlignment(Qt.AlignmentFlag.AlignTop)
        area = scrolled(boxed(self._body), "suggestionsScroll")
        self._body.setContentsMargins(0, 0, 8, 0)
        area.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        boxed(column(row((self.edit, 1), self.get), self.note, (area, 1)), self)
        self.edit.textChanged.connect(self._show_get)
        self.edit.returnPressed.connect(self._on_get)
        downloads.changed.connect(self._on_downloads_changed)
        downloads.dismissed.connect(self._on_downloads_changed)
        self._on_downloads_changed()

    @property
    def rows(self) -> list[SuggestionRow]:
        """The catalogue's models. Built when first shown, so that the window opens at once."""
        if not self._rows:
            for family, suggestions in groupby(self._suggestions, key=lambda suggestion: suggestion.family):
                rows = [SuggestionRow(suggestion, self._downloads) for suggestion in suggestions]
                self._rows += rows
                self._cards.append(_family_card(family, rows))
            self._show()
            self._arrange()
        return self._rows

    def showEvent(self, event: QShowEvent) -> None:
        """Build the catalogue, and forget that an id was wrong."""
        super().showEvent(event)
        assert self.rows
        if not event.spontaneous():
            self._show_note(*((OFFLINE, "warning") if self._is_offline else (ID_HINT, "hint")))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arrange the families in two columns if there is room."""
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        count = 2 if self.width() >= scaled(TWO_COLUMNS_FROM) else 1
        if self._cards and count != self._num_columns:
            self._num_columns = count
            heights = [0] * count
            for family in self._cards:
                lowest = heights.index(min(heights))
                self._columns[lowest].addWidget(family)
                heights[lowest] += family.sizeHint().height()
            self._body.setStretch(1, count - 1)
            self._body.setSpacing(12 * (count - 1))

    def show_here(self, refs: Iterable[str]) -> None:
        """Mark the models that are on this computer."""
        self._here = frozenset(refs)
        self._show()

    def _show_note(self, text: str, role: str) -> None:
        self.note.setText(text)
        set_flag(self.note, "role", role)

    @Slot()
    def _on_downloads_changed(self) -> None:
        states = {download.ref: download.state for download in self._downloads.all()}
        if states != self._states:
            self._states = states
            self._show()

    def _show(self) -> None:
        for each in self._rows:
            ref = each.suggestion.ref
            each.show_state(
                is_here=ref in self._here,
                state=self._states.get(ref),
                lacks_draft=self._lacks_draft(each.suggestion.drafts),
                is_offline=self._is_offline,
            )
        self._show_get()

    def _lacks_draft(self, drafts: Sequence[str]) -> bool:
        """Whether drafts that suit a model exist, but none is on this computer or being downloaded."""
        is_coming = any(map(self._downloads.is_active, drafts))
        return bool(drafts) and not is_coming and (self._here | EMBEDDED_TITLES.keys()).isdisjoint(drafts)

    @Slot()
    def _show_get(self) -> None:
        self.get.setEnabled(bool(self.edit.text().strip()) and not self._is_offline)
        describe(self.get, "Get the model with this Hub id", OFFLINE if self._is_offline else "")

    @Slot()
    def _on_get(self) -> None:
        if self._is_offline:
            return
        ref = self.edit.text().strip()
        is_id = hub.is_hub_id(ref) and "/" in ref
        self._show_note(ID_HINT if is_id else NO_ID.format(ref[:60]), "hint" if is_id else "problem")
        if is_id:
            self.edit.clear()
            self._downloads.get(ref)


def _family_card(family: str, rows: list[SuggestionRow]) -> QFrame:
    frame, layout = card(text_label(family, "section"))
    layout.setSpacing(0)
    layout.setContentsMargins(12, 10, 12, 6)
    layout.addSpacing(2)
    for index, each in enumerate(rows):
        if index:
            line = QFrame()
            line.setObjectName("rule")
            line.setFixedHeight(1)
            layout.addWidget(line)
        layout.addWidget(each)
    return frame
