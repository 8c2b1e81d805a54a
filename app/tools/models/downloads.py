"""Models to get: a Hub id that is typed, and a short catalogue of families whose models go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStackedLayout,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.setup.model_library import bytes_of_text, bytes_text, count_text, progress_text
from app.theme import hold
from app.tools.models.store import Download, DownloadState
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.labels import STEPS, ElidedLabel, show_share
from core.models.catalogue import EMBEDDED_TITLES
from core.models.suggestions import Suggestion
from core.text import percent_text

ROW_HEIGHT, TALL_ROW_HEIGHT = 64, 80
"""A sentence about a failure has two lines."""
MAX_ROWS_SHOWN = 3
S = DownloadState


class DownloadRow(QFrame):
    """One download. Its height is the same all the way, unless it fails.

    Signals:
        get_requested: a reference, and whether to begin anew.
        cancel_requested, dismiss_requested: a reference.
    """

    get_requested = Signal(str, bool)
    cancel_requested = Signal(str)
    dismiss_requested = Signal(str)

    def __init__(self, ref: str) -> None:
        super().__init__()
        self.ref = ref
        self.setObjectName("downloadRow")
        hold(self, height=ROW_HEIGHT)
        self.name = ElidedLabel(ref, "strong", takes_all=True)
        self.note = text_label("", "hint")
        self.note.setObjectName("downloadNote")
        self.note.setTextFormat(Qt.TextFormat.PlainText)
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.percent = text_label("", "hint")
        self.bar = QProgressBar()
        self.bar.setObjectName("downloadBar")
        self.bar.setTextVisible(False)
        self.bar.setRange(0, STEPS)
        self.cancel = self._button("Cancel", "cancelDownloadButton")
        self.resume = self._button("Resume", "resumeDownloadButton")
        self.restart = self._button("Start over", "restartDownloadButton")
        self.dismiss = self._button("Dismiss", "dismissDownloadButton")
        describe(self.restart, f"Start over with {ref}", "Throw away what came so far, and begin anew")
        self._lay_out()
        self.cancel.clicked.connect(self._on_cancel)
        self.resume.clicked.connect(self._on_resume)
        self.restart.clicked.connect(self._on_restart)
        self.dismiss.clicked.connect(self._on_dismiss)

    def _button(self, text: str, name: str) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAutoDefault(False)
        describe(button, f"{text} {self.ref}")
        return button

    def _lay_out(self) -> None:
        texts = QGridLayout()
        texts.setVerticalSpacing(4)
        texts.addWidget(self.name, 0, 0)
        texts.addWidget(self.percent, 0, 1, Qt.AlignmentFlag.AlignRight)
        texts.addWidget(self.bar, 1, 0, 1, 2)
        texts.addWidget(self.note, 2, 0, 1, 2)
        texts.setColumnStretch(0, 1)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 4, 12, 4)
        layout.setSpacing(8)
        layout.addLayout(texts, 1)
        layout.addSpacing(8)
        for button in (self.resume, self.restart, self.cancel, self.dismiss):
            layout.addWidget(button, 0, Qt.AlignmentFlag.AlignVCenter)

    def show_download(self, download: Download) -> None:
        """Show how it stands."""
        state, progress = download.state, download.progress
        self.cancel.setVisible(state.is_active)
        self.cancel.setEnabled(state is not S.STOPPING)
        for button in (self.resume, self.restart):
            button.setVisible(state in {S.STOPPED, S.FAILED})
        self.dismiss.setVisible(not state.is_active)
        note = _note(download)
        self.note.setText(note)
        self.note.setToolTip(download.sentence)
        set_flag(self.note, "role", "problem" if state is S.FAILED else "hint")
        self.note.setWordWrap(state is S.FAILED)
        self.note.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        hold(self, height=TALL_ROW_HEIGHT if state is S.FAILED else ROW_HEIGHT)
        share = progress.done_bytes / progress.total_bytes if progress is not None and progress.total_bytes else 0.0
        share = 1.0 if state is S.DONE else min(1.0, share)
        is_unknown = state is S.RUNNING and (progress is None or not progress.total_bytes)
        show_share(self.bar, None if is_unknown else share)
        self.percent.setText(percent_text(share) if share and not is_unknown else "")
        self.bar.setAccessibleName(f"{self.ref}: {note}")
        self.setAccessibleName(self.bar.accessibleName())

    @Slot()
    def _on_cancel(self) -> None:
        self.cancel_requested.emit(self.ref)

    @Slot()
    def _on_resume(self) -> None:
        self.get_requested.emit(self.ref, False)

    @Slot()
    def _on_restart(self) -> None:
        self.get_requested.emit(self.ref, True)

    @Slot()
    def _on_dismiss(self) -> None:
        self.dismiss_requested.emit(self.ref)


def _note(download: Download) -> str:
    state, progress = download.state, download.progress
    kept = ""
    if progress is not None and progress.done_bytes:
        total = progress.total_bytes
        kept = bytes_of_text(progress.done_bytes, total) if total else bytes_text(progress.done_bytes)
    if state is S.FAILED:
        return download.sentence
    if state is S.STOPPED:
        return f"Stopped. {kept} are kept." if kept else "Stopped before anything came."
    if state is S.WAITING:
        return "Waiting for the one before it"
    if state is S.STOPPING:
        return "Stopping…"
    if state is S.DONE:
        return f"Done · {bytes_text(progress.total_bytes)}" if progress and progress.total_bytes else "Done"
    return progress_text(progress) if progress is not None else "Asking the Hub…"


class DownloadsShelf(QScrollArea):
    """The downloads, the newest at the bottom; it grows upwards, so that nothing above moves.

    Signals:
        get_requested: a reference, and whether to begin anew.
        cancel_requested, dismiss_requested: a reference.
    """

    get_requested = Signal(str, bool)
    cancel_requested = Signal(str)
    dismiss_requested = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("downloadsShelf")
        self.setAccessibleName("Downloads")
        self._rows: dict[str, DownloadRow] = {}
        body = QWidget()
        body.setObjectName("downloadsBody")
        self._layout = QVBoxLayout(body)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)
        self._layout.addStretch(1)
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.hide()

    def row(self, ref: str) -> DownloadRow | None:
        """The row of a download."""
        return self._rows.get(ref)

    def show_download(self, download: Download) -> None:
        """Show how a download stands; a new one gets a row."""
        row = self._rows.get(download.ref)
        is_new = row is None
        if row is None:
            row = self._rows[download.ref] = DownloadRow(download.ref)
            row.get_requested.connect(self.get_requested)
            row.cancel_requested.connect(self.cancel_requested)
            row.dismiss_requested.connect(self.dismiss_requested)
            self._layout.insertWidget(self._layout.count() - 1, row)
        row.show_download(download)
        self._resize()
        if is_new:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def forget(self, ref: str) -> None:
        """Take a row away."""
        row = self._rows.pop(ref, None)
        if row is not None:
            self._layout.removeWidget(row)
            row.hide()
            row.deleteLater()
            self._resize()

    def rescale(self) -> None:
        """Make room for the rows as high as they now are."""
        self._resize()

    def _resize(self) -> None:
        heights = [row.minimumHeight() for row in self._rows.values()]
        self.setFixedHeight(sum(heights[-MAX_ROWS_SHOWN:]) + 2)
        self.setVisible(bool(heights))


OFFLINE = "Offline mode is on (HF_HUB_OFFLINE), so nothing is downloaded. Models that are here work as always."
GATED_HELP = "Its licence has to be accepted on the Hub first, with the account whose token this computer has."
ACTION_WIDTH = 84
STATE_TEXTS = {
    DownloadState.WAITING: "Waiting",
    DownloadState.RUNNING: "Getting…",
    DownloadState.STOPPING: "Stopping…",
}


class SuggestionRow(QWidget):
    """One model of the catalogue: what it is, and a button, or a word where it is here or on its way."""

    get_requested = Signal(str)

    def __init__(self, suggestion: Suggestion) -> None:
        super().__init__()
        self.suggestion = suggestion
        self._is_here = False
        self._state: DownloadState | None = None
        name = ElidedLabel(suggestion.title, "strong")
        self.button = QPushButton("Get")
        self.button.setObjectName(f"get_{suggestion.ref}")
        self.button.setAutoDefault(False)
        self.pair = QToolButton()
        self.pair.setObjectName(f"getPair_{suggestion.ref}")
        self.pair.setText("Get both")
        self.pair.setProperty("role", "link")
        self.pair.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        if suggestion.drafts:
            pair = f"{suggestion.title} with its draft {suggestion.drafts[0].rpartition('/')[2]}"
            describe(self.pair, f"Get {pair}", f"Download {pair}")
        self.word = text_label("", "hint")
        self.word.setAlignment(Qt.AlignmentFlag.AlignCenter)
        action = QWidget()
        hold(action, width=ACTION_WIDTH)
        self._action = QStackedLayout(action)
        self._action.addWidget(self.button)
        self._action.addWidget(self.word)
        badges = QHBoxLayout()
        badges.setSpacing(6)
        badges.addWidget(name)
        badges.addWidget(_badge("Instruct" if suggestion.is_instruct else "Base"))
        if suggestion.is_gated:
            badges.addWidget(_badge("Gated", GATED_HELP))
        badges.addStretch(1)
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 6, 0, 6)
        layout.setHorizontalSpacing(12)
        layout.setVerticalSpacing(2)
        layout.addLayout(badges, 0, 0)
        drafts = [EMBEDDED_TITLES.get(ref) or ref.rpartition("/")[2] for ref in suggestion.drafts]
        text = f"Drafts: {', '.join(drafts)}" if drafts else "A draft for the larger ones"
        line = QHBoxLayout()
        line.setSpacing(8)
        line.addWidget(ElidedLabel(text, "hint", takes_all=True), 1)
        line.addWidget(self.pair)
        layout.addLayout(line, 1, 0)
        for column, text, width in (
            (1, count_text(suggestion.num_parameters), 56),
            (2, bytes_text(suggestion.download_bytes), 64),
        ):
            label = text_label(text, "plain")
            label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            hold(label, width=width)
            layout.addWidget(label, 0, column, 2, 1)
        layout.addWidget(action, 0, 3, 2, 1, Qt.AlignmentFlag.AlignVCenter)
        layout.setColumnStretch(0, 1)
        self.button.clicked.connect(self._on_clicked)
        self.pair.clicked.connect(self._on_pair_clicked)

    def show_state(self, *, is_here: bool, state: DownloadState | None, lacks_draft: bool, is_offline: bool) -> None:
        """Show whether the model is here, on its way, or can be had, and with it a draft."""
        text = "On this computer" if is_here else STATE_TEXTS.get(state, "") if state is not None else ""
        self.word.setText("Here" if is_here else text)
        self.word.setToolTip(text)
        set_flag(self.word, "role", "done" if is_here else "hint")
        self._action.setCurrentIndex(1 if text else 0)
        resumes = state in {DownloadState.STOPPED, DownloadState.FAILED}
        self.button.setText("Resume" if resumes else "Get")
        self.button.setEnabled(not is_offline)
        self.pair.setVisible(lacks_draft and not text and not is_offline)
        size = bytes_text(self.suggestion.download_bytes)
        help_text = OFFLINE if is_offline else f"Download {self.suggestion.title}, {size}"
        describe(self.button, f"{self.button.text()} {self.suggestion.title}, {size}", help_text)

    @Slot()
    def _on_clicked(self) -> None:
        self.get_requested.emit(self.suggestion.ref)

    @Slot()
    def _on_pair_clicked(self) -> None:
        # The draft is the smaller one, and here first.
        for ref in (self.suggestion.drafts[0], self.suggestion.ref):
            self.get_requested.emit(ref)


def _badge(text: str, help_text: str = "") -> QLabel:
    label = text_label(text, "badge")
    label.setProperty("kind", text.lower())
    label.setToolTip(help_text)
    return label


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

    @property
    def rows(self) -> list[SuggestionRow]:
        """The catalogue's models."""
        self._build()
        return self._rows

    @property
    def is_built(self) -> bool:
        """Whether the catalogue is there."""
        return self._is_built

    def _build(self) -> None:
        # There are many; they are built when somebody looks, so that the window's other page is there at once.
        if self._is_built:
            return
        for family, suggestions in groupby(self._suggestions, key=lambda suggestion: suggestion.family):
            rows = [SuggestionRow(suggestion) for suggestion in suggestions]
            for row in rows:
                row.get_requested.connect(self.get_requested)
            self._rows += rows
            self._cards.append(_family_card(family, rows))
            self._show_rows(rows)
        self._is_built = True
        self._arrange()

    def showEvent(self, event: QShowEvent) -> None:
        """Build the catalogue."""
        super().showEvent(event)
        self._build()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stand the families in two columns where there is room."""
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        count = 2 if self.width() >= TWO_COLUMNS_FROM else 1
        if self._is_built and count != self._num_columns:
            self._num_columns = count
            heights = [0] * count
            for family in self._cards:
                column = heights.index(min(heights))
                self._columns[column].addWidget(family)
                heights[column] += family.sizeHint().height()
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
