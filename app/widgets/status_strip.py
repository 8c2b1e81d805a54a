"""What the engine is doing, in one line at the window's foot."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QSizePolicy, QToolButton

from app.text_size import hold
from app.widgets.fields import text_label
from app.widgets.progress import STEPS, show_share

STRIP_HEIGHT = 29


class StatusStrip(QFrame):
    """Stage, downloads, where it runs, count, progress bar.

    Signals:
        download_clicked: a person wants to see the downloads.
    """

    download_clicked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("statusStrip")
        # What comes and goes in it must not move the panels above.
        hold(self, height=STRIP_HEIGHT)
        self.stage = text_label("", "hint")
        self.stage.setObjectName("stageLabel")
        self.stage.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.download = QToolButton()
        self.download.setObjectName("downloadLine")
        self.download.setToolTip("Show the downloads")
        self.download.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.download.hide()
        self.download.clicked.connect(self.download_clicked)
        self.place = text_label("", "hint")
        self.place.setObjectName("placeLabel")
        self.count = text_label("", "hint")
        self.count.setObjectName("countLabel")
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        hold(self.count, least_width=132)
        self.bar = QProgressBar()
        self.bar.setObjectName("progressBar")
        self.bar.setAccessibleName("Progress")
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(200)
        self.bar.setRange(0, STEPS)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(16, 0, 16, 0)
        layout.setSpacing(16)
        layout.addWidget(self.stage, 1)
        layout.addWidget(self.download)
        layout.addWidget(self.place)
        layout.addWidget(self.count)
        layout.addWidget(self.bar)

    def show_stage(self, text: str) -> None:
        """Say what is going on."""
        if self.stage.text() != text:
            self.stage.setText(text)
            self.stage.setToolTip(text)

    def show_download(self, text: str) -> None:
        """Say in a few words what is being downloaded; empty if nothing is."""
        if self.download.text() != text:
            self.download.setText(text)
            self.download.setVisible(bool(text))

    def show_place(self, text: str) -> None:
        """Say where the models run."""
        if self.place.text() != text:
            self.place.setText(text)

    def show_count(self, text: str) -> None:
        """Say how many tokens there are."""
        if self.count.text() != text:
            self.count.setText(text)

    @property
    def is_busy(self) -> bool:
        """Whether the bar moves with no end in sight."""
        return self.bar.maximum() == 0

    def show_progress(self, share: float | None) -> None:
        """Fill the bar to a share from 0 to 1; None: busy, with no end in sight yet."""
        show_share(self.bar, share)
