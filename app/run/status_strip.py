"""The strip at the bottom of the window: stage, place and progress of a run, and downloads."""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import QFrame, QProgressBar

from app.theme import hold
from app.widgets.fields import boxed, hint_label, named, quiet_button, row, text_label
from app.widgets.labels import STEPS, ElidedLabel
from core.settings import LOSSY

STRIP_HEIGHT, BAR_WIDTH = 29, 120


class StatusStrip(QFrame):
    """Stage, downloads, whether the text is lossy, device, token count and progress bar."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("statusStrip")
        hold(self, height=STRIP_HEIGHT)
        self.stage = ElidedLabel("", "hint", takes_all=True, name="stageLabel", elided=Qt.TextElideMode.ElideMiddle)
        self.place, self.count = map(hint_label, ("placeLabel", "countLabel"))
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        hold(self.count, least_width=132)
        self.lossy = named(text_label("Lossy", "problem"), "lossyLabel", LOSSY, LOSSY)
        self.lossy.hide()
        self.download = quiet_button("", "downloadLine", "", "Show the downloads", role="")
        self.download.hide()
        self.bar = named(QProgressBar(textVisible=False, maximum=STEPS), "progressBar", "Progress")
        self.bar.setFixedWidth(BAR_WIDTH)
        boxed(
            row((self.stage, 1), self.download, self.lossy, self.place, self.count, self.bar, spacing=16),
            self,
            margins=(16, 0, 16, 0),
        )

    @Slot(str)
    def show_download(self, text: str) -> None:
        """Show what is being downloaded; empty if nothing is."""
        self.download.setText(text)
        self.download.setVisible(bool(text))
