"""What the windows share that have the engine work something out: a sentence, what it is about, how far it is."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QProgressBar, QPushButton, QWidget

from app.dress import dress
from app.widgets.fields import set_flag, text_label
from app.widgets.tool_parts import push_button, wrapped_label
from app.window_layout import bring_forward


class ToolWindow(QDialog):
    """Base of both. Stays open beside the main window.

    Signals:
        stop_wanted: the button was pressed, or the window was closed while something goes.
    """

    stop_wanted = Signal()

    def __init__(self, name: str, title: str, progress_title: str, parent: QWidget | None = None) -> None:
        """
        Args:
            name: what its widgets' names begin with.
            title: of the window.
            progress_title: of the progress bar, for those who hear it.
            parent: the main window.
        """
        super().__init__(parent)
        dress(self)
        self.setObjectName(f"{name}Window")
        self.setWindowTitle(title)
        self.setModal(False)
        self.headline = wrapped_label(f"{name}Headline", "title")
        self.subject = wrapped_label(f"{name}Subject", "hint")
        self.progress = QProgressBar()
        self.progress.setObjectName(f"{name}Progress")
        self.progress.setAccessibleName(progress_title)
        self.progress.setTextVisible(False)
        self.stage = text_label("", "hint")
        self.stage.setObjectName(f"{name}Stage")
        self.close_button = push_button("Close", f"close{name.capitalize()}Button", "")
        self.close_button.clicked.connect(self.close)

    def _foot(self, progress_width: int, *buttons: QPushButton) -> QHBoxLayout:
        """How far it is, and what can be done with what came of it."""
        foot = QHBoxLayout()
        foot.setSpacing(8)
        foot.addWidget(self.progress)
        foot.addWidget(self.stage, 1)
        for button in (*buttons, self.close_button):
            foot.addWidget(button)
        self.progress.setFixedWidth(progress_width)
        return foot

    def open(self) -> None:
        """Come to the front."""
        bring_forward(self)

    def say(self, sentence: str, *, is_problem: bool = False) -> None:
        """The one sentence above everything else."""
        set_flag(self.headline, "role", "problem" if is_problem else "title")
        self.headline.setText(sentence)

    def show_subject(self, text: str) -> None:
        """What it is about."""
        self.subject.setText(text)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Work whose window is gone is of no use."""
        self.stop_wanted.emit()
        super().closeEvent(event)
