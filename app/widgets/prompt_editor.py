"""The prompt, its presets, and the buttons that start and stop a run."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QAction, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPlainTextEdit, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.controller import RunState
from app.theme import mono_font
from app.view_models.presets import Preset
from app.widgets.fields import card, describe, set_flag, text_label

READY_HINT = "Ctrl+Enter runs, Esc stops."


class PromptEditor(QWidget):
    """A card with the prompt.

    Signals:
        changed: the prompt's text is new.
        run_requested, stop_requested: a button was pressed.
    """

    changed = Signal()
    run_requested = Signal()
    stop_requested = Signal()

    def __init__(self, presets: Sequence[Preset]) -> None:
        super().__init__()
        self.edit = QPlainTextEdit()
        self.edit.setObjectName("promptEdit")
        self.edit.setFont(mono_font())
        self.edit.setTabChangesFocus(True)
        self.edit.setPlaceholderText("Write a few words or lines of code for the model to continue.")
        self.edit.setMinimumHeight(64)
        describe(self.edit, "Prompt")
        self.presets_button = QToolButton()
        self.presets_button.setObjectName("presetsButton")
        self.presets_button.setText("Presets")
        self.presets_button.setProperty("role", "quiet")
        self.presets_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.presets_button.setMenu(self._presets_menu(presets))
        self.presets_button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        describe(self.presets_button, "Presets", "Prompts to start from")
        self.note = text_label(READY_HINT, "hint")
        self.note.setObjectName("runNote")
        self.note.setWordWrap(True)
        self.note.setMinimumHeight(32)
        self.run_button = QPushButton("Run")
        self.run_button.setObjectName("runButton")
        describe(self.run_button, "Run", "Run the prompt (Ctrl+Enter)")
        self.stop_button = QPushButton("Stop")
        self.stop_button.setObjectName("stopButton")
        describe(self.stop_button, "Stop", "Stop the run before its next forward (Esc)")
        self.stop_button.setEnabled(False)
        self._lay_out()
        self.edit.textChanged.connect(self.changed)
        self.run_button.clicked.connect(self.run_requested)
        self.stop_button.clicked.connect(self.stop_requested)

    def _lay_out(self) -> None:
        frame, layout = card()
        header = QHBoxLayout()
        header.addWidget(text_label("Prompt", "section", buddy=self.edit))
        header.addStretch(1)
        header.addWidget(self.presets_button)
        footer = QHBoxLayout()
        footer.setSpacing(8)
        footer.addWidget(self.note, 1)
        footer.addWidget(self.stop_button)
        footer.addWidget(self.run_button)
        layout.addLayout(header)
        layout.addWidget(self.edit, 1)
        layout.addLayout(footer)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(frame)

    def _presets_menu(self, presets: Sequence[Preset]) -> QMenu:
        menu = QMenu(self)
        category = None
        for preset in presets:
            if preset.category != category:
                category = preset.category
                heading = menu.addAction(category)
                heading.setEnabled(False)
            action = menu.addAction(preset.name)
            action.setData(preset.text)
        menu.triggered.connect(self._on_preset_chosen)
        return menu

    def text(self) -> str:
        """The prompt."""
        return self.edit.toPlainText()

    def set_text(self, text: str) -> None:
        """Put a prompt in; one step back in the editor brings the old one."""
        cursor = QTextCursor(self.edit.document())
        cursor.select(QTextCursor.SelectionType.Document)
        cursor.insertText(text)

    def show_state(self, state: RunState, problem: str | None) -> None:
        """Enable what can be pressed, and say why Run can't."""
        is_idle = state is RunState.IDLE
        self.run_button.setEnabled(is_idle and problem is None)
        self.stop_button.setEnabled(state is RunState.RUNNING)
        if is_idle:
            self.note.setText(problem or READY_HINT)
        else:
            self.note.setText("K and temperature can be changed while it runs.")
        set_flag(self.note, "role", "problem" if problem and is_idle else "hint")

    @Slot(QAction)
    def _on_preset_chosen(self, action: QAction) -> None:
        self.set_text(action.data())
        self.edit.setFocus()
