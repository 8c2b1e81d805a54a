"""The prompt: editor, presets, and a view of the prompt as the target reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QTimer, Signal, Slot
from PySide6.QtGui import QAction, QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.controller import RunState
from app.jobs import Job, Jobs
from app.setup.controls import ControlsPanel
from app.theme import RESOURCES, hold_font
from app.widgets.fields import card, describe, quiet_button, set_flag, text_label
from app.widgets.labels import FittingNote

if TYPE_CHECKING:
    from core.models.prompting import RenderedPrompt

WAITING = "Reading the target's tokenizer…"


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt with a name."""

    name: str
    category: str
    text: str


def load_presets(folder: Path = RESOURCES / "prompts") -> tuple[Preset, ...]:
    """All presets; invalid lines are skipped, since presets are only a convenience.

    The folder's other files are suites for measurements, with too many prompts for a menu.
    """
    found: list[Preset] = []
    for path in folder.glob("presets.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                found.append(Preset(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return tuple(found)


class PromptReading(QPlainTextEdit):
    """A read-only view of a rendered prompt."""

    _rendered: RenderedPrompt | None = None

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("promptReading")
        self.setReadOnly(True)
        hold_font(self, 13, is_mono=True)
        self.setTabChangesFocus(True)
        describe(self, "The prompt as the target reads it")

    def show_rendered(self, rendered: RenderedPrompt) -> None:
        """Show what a model reads; nothing if there was a problem."""
        self._rendered = rendered
        self.setPlainText(rendered.text)
        if not rendered.special_tokens:
            return
        special = QTextCharFormat()
        palette = QApplication.palette()
        special.setBackground(QColor(palette.color(palette.ColorRole.Highlight)))
        longest_first = sorted(rendered.special_tokens, key=len, reverse=True)
        text = self.toPlainText()
        for match in re.finditer("|".join(map(re.escape, longest_first)), text):
            cursor = QTextCursor(self.document())
            # Qt counts in units of UTF-16.
            start = len(text[: match.start()].encode("utf-16-le")) // 2
            cursor.setPosition(start)
            cursor.setPosition(start + len(match.group().encode("utf-16-le")) // 2, QTextCursor.MoveMode.KeepAnchor)
            cursor.setCharFormat(special)

    def changeEvent(self, event: QEvent) -> None:
        """Mark the special tokens in the colours of a new theme."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.PaletteChange and self._rendered is not None and self.toPlainText():
            self.show_rendered(self._rendered)


def reading_note(rendered: RenderedPrompt) -> str:
    """The number of tokens, and whether a template was applied."""
    tokens = f"{rendered.num_tokens:,} token{'' if rendered.num_tokens == 1 else 's'}"
    return f"{tokens} · {'chat template applied' if rendered.is_chat else 'raw, no chat template'}"


READY_HINT = "Ctrl+Enter runs, Esc stops."
LIVE_HINT = "K and temperature can be changed while it runs."
LIVE_HINT_SHORT = "K and temperature are live."


class PromptEditor(QWidget):
    """A card with the prompt.

    Signals:
        changed: the prompt's text has changed.
        run_requested, stop_requested: a button was pressed.
        reading_toggled: whether to show the prompt as the target reads it.
    """

    changed = Signal()
    reading_toggled = Signal(bool)
    run_requested = Signal()
    stop_requested = Signal()

    def __init__(self, presets: Sequence[Preset]) -> None:
        super().__init__()
        self.edit = QPlainTextEdit()
        self.edit.setObjectName("promptEdit")
        hold_font(self.edit, 13, is_mono=True)
        self.edit.setTabChangesFocus(True)
        self.edit.setPlaceholderText("Write a few words or lines of code for the model to continue.")
        self.edit.setMinimumHeight(64)
        describe(self.edit, "Prompt")
        self.reading = PromptReading()
        reading_help = "With the target's chat template and special tokens, and the number of tokens (Ctrl+R)"
        reading_title = "Show the prompt as the model reads it"
        self.reading_button = quiet_button("Model input", "readingButton", reading_title, reading_help)
        self.reading_button.setCheckable(True)
        self.presets_button = quiet_button("Presets", "presetsButton", "Presets", "Prompts to start from")
        self.presets_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.presets_button.setMenu(self._presets_menu(presets))
        self.note = FittingNote()
        self.note.setProperty("role", "hint")
        self.note.setObjectName("runNote")
        self.note.show_note(READY_HINT)
        self.run_button = QPushButton("Run")
        self.run_button.setObjectName("runButton")
        describe(self.run_button, "Run", "Run the prompt (Ctrl+Enter)")
        self.stop_button = QPushButton("Stop")
        self.stop_button.setObjectName("stopButton")
        describe(self.stop_button, "Stop", "Stop the run before its next forward (Esc)")
        self.stop_button.setEnabled(False)
        self._state, self._problem = RunState.IDLE, ""
        self._read = (WAITING, False)
        """The line about the rendered prompt, and whether it reports a problem."""
        self._lay_out()
        self.reading_button.toggled.connect(self._on_reading_toggled)
        self.edit.textChanged.connect(self.changed)
        self.run_button.clicked.connect(self.run_requested)
        self.stop_button.clicked.connect(self.stop_requested)

    def _lay_out(self) -> None:
        frame, layout = card()
        header = QHBoxLayout()
        header.addWidget(text_label("Prompt", "section", buddy=self.edit))
        header.addStretch(1)
        header.addWidget(self.reading_button)
        header.addWidget(self.presets_button)
        footer = QHBoxLayout()
        footer.setSpacing(8)
        footer.addWidget(self.note, 1)
        footer.addWidget(self.stop_button)
        footer.addWidget(self.run_button)
        layout.addLayout(header)
        self._pages = QStackedWidget()
        self._pages.addWidget(self.edit)
        self._pages.addWidget(self.reading)
        layout.addWidget(self._pages, 1)
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
        """Insert a prompt; one undo in the editor restores the old one."""
        cursor = QTextCursor(self.edit.document())
        cursor.select(QTextCursor.SelectionType.Document)
        cursor.insertText(text)

    def show_state(self, state: RunState, problem: str | None) -> None:
        """Enable the buttons that apply, and show why Run can't be pressed."""
        self._state, self._problem = state, problem or ""
        is_idle = state is RunState.IDLE
        self.run_button.setEnabled(is_idle and problem is None)
        self.stop_button.setEnabled(state in {RunState.RUNNING, RunState.PAUSED})
        if self.is_reading and not problem:
            self._note(*self._read)
        elif is_idle:
            self._note(problem or READY_HINT, bool(problem))
        else:
            self._note(LIVE_HINT, short=LIVE_HINT_SHORT)

    @property
    def is_reading(self) -> bool:
        """Whether the prompt is shown as the target reads it."""
        return self.reading_button.isChecked()

    def show_rendered(self, rendered: RenderedPrompt) -> None:
        """Show what the target reads."""
        if self.is_reading:
            self.reading.show_rendered(rendered)
            self._show_read(reading_note(rendered))

    def show_rendering(self, problem: str = "") -> None:
        """Show that the prompt is being rendered, or why it can't be."""
        if self.is_reading:
            if problem:
                self.reading.clear()
            self._show_read(problem or WAITING, bool(problem))

    def _show_read(self, note: str, is_problem: bool = False) -> None:
        self._read = (note, is_problem)
        self._note(note, is_problem)

    def _note(self, text: str, is_problem: bool = False, *, short: str = "") -> None:
        self.note.show_note(text, short)
        set_flag(self.note, "role", "problem" if is_problem else "hint")

    @Slot(bool)
    def _on_reading_toggled(self, is_reading: bool) -> None:
        self._pages.setCurrentWidget(self.reading if is_reading else self.edit)
        if not is_reading:
            self.reading.clear()
            self.show_state(self._state, self._problem or None)
        self.reading_toggled.emit(is_reading)

    @Slot(QAction)
    def _on_preset_chosen(self, action: QAction) -> None:
        self.reading_button.setChecked(False)
        self.set_text(action.data())
        self.edit.setFocus()


DELAY_MS = 120


class PromptReader(QObject):
    """Renders the prompt whenever the target, chat setting or prompt changes, but only while the view is open."""

    def __init__(
        self, prompt: PromptEditor, controls: ControlsPanel, jobs: Jobs, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._prompt = prompt
        self._controls = controls
        self._jobs = jobs
        self._job: Job | None = None
        self._asked: tuple[str, str, bool | None] | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(DELAY_MS)
        self._timer.timeout.connect(self._on_due)
        prompt.reading_toggled.connect(self._on_toggled)
        prompt.changed.connect(self._on_changed)
        controls.changed.connect(self._on_changed)

    @Slot(bool)
    def _on_toggled(self, is_reading: bool) -> None:
        self._asked = None
        if is_reading:
            self._prompt.show_rendering()
            self._on_due()

    @Slot()
    def _on_changed(self) -> None:
        if self._prompt.is_reading:
            self._timer.start()

    @Slot()
    def _on_due(self) -> None:
        text, target = self._prompt.text(), self._controls.target.ref
        asked = (target, text, self._controls.fields["chat"].member())
        if not self._prompt.is_reading or not target or asked == self._asked:
            return
        if self._job is not None:
            self._job.cancel()

        def render(_job: Job) -> RenderedPrompt:
            from core.models.prompting import render_prompt

            return render_prompt(*asked)

        self._asked = asked
        self._job = self._jobs.submit(
            render,
            then=self._prompt.show_rendered,
            failed=self._prompt.show_rendering,
            what="The prompt could not be rendered",
            lane="models",
        )
