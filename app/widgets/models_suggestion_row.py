"""One model of the catalogue of models to get."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QPushButton, QStackedLayout, QToolButton, QWidget

from app.model_store import DownloadState
from app.text_size import hold
from app.view_models.model_text import bytes_text, count_text
from app.widgets.fields import describe, set_flag, text_label
from app.widgets.models_labels import ElidedLabel
from core.models.catalogue import EMBEDDED_TITLES
from core.models.suggestions import Suggestion

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
