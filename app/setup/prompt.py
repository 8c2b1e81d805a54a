"""The prompt: editor, presets, and a view of the prompt as the target reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QEvent, QMimeData, QObject, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QAction, QFocusEvent, QTextCharFormat, QTextCursor, QTextDocument
from PySide6.QtWidgets import (
    QApplication,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QSplitter,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from app.controller import RunState
from app.jobs import Job, Jobs
from app.menus import key_text
from app.setup.setting_fields import value_of
from app.theme import hold_font, text_scale
from app.widgets.fields import NO_LIMIT, UNFOLD, boxed, card, column, named, quiet_button, row, set_flag, text_label
from app.widgets.labels import FittingNote
from core.experiments.prompt_suites import PRESETS
from core.models import prompting
from core.models.prompting import RenderedPrompt
from core.text import count_text

if TYPE_CHECKING:
    from app.setup.settings_panel import SettingsPanel

WAITING = "Reading the target's tokenizer…"
FOR_CHAT = "For chat models"


class Preset(NamedTuple):
    """A prompt to start from, and the temperature at which it is continued well; None: at any."""

    category: str
    name: str
    text: str
    temperature: float | None = None


def load_presets() -> list[Preset]:
    """The presets that come with Outrider."""
    return [Preset(**json.loads(line)) for line in PRESETS.read_text("utf-8").splitlines()]


class PromptEdit(QPlainTextEdit):
    """The field for a prompt."""

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        """Refuse a dropped file, whose address would become part of the prompt."""
        return not any(url.isLocalFile() for url in source.urls()) and super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Refuse a pasted file, too, which Qt doesn't ask about."""
        if self.canInsertFromMimeData(source):
            super().insertFromMimeData(source)


class PromptReading(QPlainTextEdit):
    """A read-only view of a rendered prompt."""

    _rendered: RenderedPrompt | None = None

    def __init__(self) -> None:
        super().__init__()
        named(self, "promptReading", "The prompt as the target reads it")
        self.setReadOnly(True)
        hold_font(self, 13, is_mono=True)
        self.setTabChangesFocus(True)

    def show_rendered(self, rendered: RenderedPrompt) -> None:
        """Show what a model reads; nothing if there was a problem."""
        self._rendered = rendered
        self.setPlainText(rendered.text)
        special = QTextCharFormat()
        special.setBackground(QApplication.palette().highlight())
        exactly = QTextDocument.FindFlag.FindCaseSensitively
        # One edit: after each of many, the text would be laid out again.
        edit = QTextCursor(self.document())
        edit.beginEditBlock()
        for token in filter(rendered.text.__contains__, rendered.special_tokens):
            found = self.document().find(token, 0, exactly)
            while not found.isNull():
                found.setCharFormat(special)
                found = self.document().find(token, found, exactly)
        edit.endEditBlock()

    def changeEvent(self, event: QEvent) -> None:
        """Mark the special tokens in the colours of a new theme."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.PaletteChange and self._rendered is not None and self.toPlainText():
            self.show_rendered(self._rendered)


DELAY_MS = 120
READY_HINT = f"{key_text('Ctrl+Enter')} starts a run."
READY_HINT_SHORT = f"{key_text('Ctrl+Enter')} runs."
SLOWED_HINT = "Space pauses or resumes, Esc shows the rest."
LIVE_HINT = "Esc stops. K and temperature change this run."
LIVE_HINT_FIXED_K = "Esc stops. Temperature changes this run."
PAUSED_HINT = "F8 steps, Space resumes. Change K or temperature."
PAUSED_HINT_FIXED_K = "F8 steps, Space resumes. Change temperature."
BASELINE_HINT = "Esc stops the baseline. Changes apply to the next run."
SERVED_HINT = "The server writes; settings apply from the next run."
NO_READING = "Only the server knows how its model reads the prompt. For a local model's input, choose This machine."
LIVE_HINT_SHORT = "Esc stops."
AHEAD_HINT = "Esc stops. Changes apply to what isn't computed yet."
STOP_HELP, REST_HELP = "Stop the run before its next forward (Esc)", "Show the rest of the text at once (Esc)"
OPEN_HEIGHT, FOLDED_LINES, LARGE_SCALE = 64, 2, 1.2
LOW_WINDOW = 800
"""Below this height, a prompt in large text is folded to one line."""


class PromptEditor(QWidget):
    """A card with the prompt, which can also be shown as the target reads it.

    Signals:
        preset_chosen: the `Preset` that the prompt is from.
    """

    preset_chosen = Signal(object)

    def __init__(self, controls: SettingsPanel, jobs: Jobs) -> None:
        super().__init__()
        self._controls, self._jobs = controls, jobs
        self.edit = named(PromptEdit(), "promptEdit", "Prompt")
        self.edit.installEventFilter(self)
        self.edit.viewport().installEventFilter(self)
        hold_font(self.edit, 13, is_mono=True)
        self.edit.setTabChangesFocus(True)
        self.edit.setPlaceholderText("Write a few words or lines of code for the model to continue.")
        self.reading = PromptReading()
        reading_help = (
            f"With the target's chat template and special tokens, and the number of tokens ({key_text('Ctrl+R')})"
        )
        reading_title = "Model input: the prompt as the model reads it"
        self.reading_button = quiet_button("Model input", "readingButton", reading_title, reading_help)
        self.reading_button.setCheckable(True)
        self.presets_button = quiet_button("Presets", "presetsButton", "Presets", "Prompts to start from")
        self.presets_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.presets_button.setMenu(self._presets_menu())
        self.note = FittingNote()
        self.note.setProperty("role", "hint")
        self.note.setObjectName("runNote")
        self.note.show_note(READY_HINT)
        self.run_button = named(QPushButton("Run"), "runButton", "Run", f"Run the prompt ({key_text('Ctrl+Enter')})")
        self.stop_button = named(QPushButton("Stop"), "stopButton", "Stop", STOP_HELP)
        self.stop_button.setEnabled(False)
        self.is_folded = False
        self._open_sizes: list[int] = []
        self._state, self._problem, self._busy = RunState.IDLE, "", ""
        self._is_slowed = self._is_ahead = self._is_baseline = self._is_served = False
        self._takes_k = True
        self._read = (WAITING, False)
        """The line about the rendered prompt, and whether it reports a problem."""
        self._rendered: tuple[str, str, bool | None, str] | None = None
        self._job: Job | None = None
        self._timer = QTimer(self, singleShot=True, interval=DELAY_MS)
        self._timer.timeout.connect(self._render)
        title = text_label("Prompt", "section", buddy=self.edit)
        self._header = boxed(row(title, None, self.reading_button, self.presets_button, spacing=6))
        self._pages = QStackedWidget()
        self._pages.addWidget(self.edit)
        self._pages.addWidget(self.reading)
        name, unfold_help = "Show all of the prompt", "Show all of the prompt, Model input and Presets"
        self.unfold_button = quiet_button(UNFOLD, "unfoldButton", name, unfold_help, self._open, role="fold")
        below = row(self.unfold_button, (self.note, 1), self.stop_button, self.run_button)
        frame, _ = card(self._header, (self._pages, 1), below)
        boxed(column(frame), self)
        self.set_folded(is_folded=False)
        self.reading_button.toggled.connect(self._on_reading_toggled)
        self.edit.textChanged.connect(self._open)
        for changed in (self.edit.textChanged, controls.changed):
            changed.connect(self._on_changed)

    def _presets_menu(self) -> QMenu:
        menu, last = QMenu(self), None
        for preset in load_presets():
            if preset.category != last:
                menu.addAction(preset.category).setEnabled(False)
                last = preset.category
            menu.addAction(preset.name).setData(preset)
        menu.triggered.connect(self._on_preset_chosen)
        return menu

    def text(self) -> str:
        """The prompt."""
        # Not `toPlainText`, which makes no-break spaces ordinary ones. Qt has its own ends of lines and paragraphs.
        return self.edit.document().toRawText().replace("\u2029", "\n").replace("\u2028", "\n")

    def set_folded(self, *, is_folded: bool) -> None:
        """Show two lines of the prompt and leave the room to the text, or all of it, as high as it was.

        With large text, a folded prompt has a button that opens it in place of the heading and buttons above it, and
        one line if the window is low.
        """
        splitter = self.parentWidget()
        if is_folded and not self.is_folded and isinstance(splitter, QSplitter):
            self._open_sizes = splitter.sizes()
        was_folded, self.is_folded = self.is_folded, is_folded
        # Without the margin below, which would show a slice of the next line.
        margins = self.edit.document().documentMargin() + 2 * self.edit.frameWidth()
        is_large = text_scale() > LARGE_SCALE
        is_low = is_large and self.window().height() < LOW_WINDOW
        lines = round((1 if is_low else FOLDED_LINES) * self.edit.cursorRect().height() + margins)
        self._header.setVisible(not (is_folded and is_large))
        self.unfold_button.setVisible(is_folded and is_large)
        self.note.most_lines = 2 if is_folded and is_large else FittingNote.most_lines
        self._show_hint()
        self._pages.setMinimumHeight(lines if is_folded or is_low else OPEN_HEIGHT)
        self._pages.setMaximumHeight(lines if is_folded else NO_LIMIT)
        # The splitter gives a widget that can't grow no more than it asks for.
        policy = QSizePolicy.Policy
        self.setSizePolicy(policy.Preferred, policy.Maximum if is_folded else policy.Preferred)
        if was_folded is not is_folded and isinstance(splitter, QSplitter):
            splitter.setSizes([0, sum(self._open_sizes)] if is_folded else self._open_sizes)

    def restyle(self) -> None:
        """Show whole lines at the text's and the window's size."""
        self.set_folded(is_folded=self.is_folded)

    def event(self, event: QEvent) -> bool:
        """Stay as low as it can be while it is folded, whatever the note beside Run takes."""
        splitter = self.parentWidget()
        if event.type() is QEvent.Type.LayoutRequest and self.is_folded and isinstance(splitter, QSplitter):
            splitter.setSizes([0, sum(splitter.sizes())])
        return super().event(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Unfold the prompt that gets the focus or a click, but not one that regains focus from a menu or window."""
        reason = Qt.FocusReason
        is_back = isinstance(event, QFocusEvent) and event.reason() in {
            reason.PopupFocusReason,
            reason.ActiveWindowFocusReason,
        }
        if event.type() in {QEvent.Type.FocusIn, QEvent.Type.MouseButtonPress} and not is_back:
            self._open()
        return super().eventFilter(watched, event)

    @Slot()
    def _open(self) -> None:
        if self.is_folded:
            self.set_folded(is_folded=False)

    def set_text(self, text: str) -> None:
        """Insert a prompt; one undo in the editor restores the old one."""
        cursor = QTextCursor(self.edit.document())
        cursor.select(QTextCursor.SelectionType.Document)
        cursor.insertText(text)

    def show_state(
        self,
        state: RunState,
        problem: str | None,
        *,
        is_slowed: bool = False,
        is_ahead: bool = False,
        is_baseline: bool = False,
        is_served: bool = False,
        takes_k: bool = True,
        busy: str = "",
    ) -> None:
        """Enable the buttons that apply, and show why Run can't be pressed; Stop also ends a slowed display.

        Args:
            is_ahead: whether the chosen pace lets the engine run ahead of the text.
            is_baseline: whether the run is over but for its baseline.
            is_served: whether the run is a server's.
            takes_k: whether a change of K changes the run.
            busy: why nothing can be started now, whatever the settings.
        """
        self._state, self._problem, self._is_slowed, self._is_baseline = state, problem or "", is_slowed, is_baseline
        self._is_ahead, self._is_served, self._takes_k, self._busy = is_ahead, is_served, takes_k, busy
        self.run_button.setEnabled(state is RunState.IDLE and problem is None)
        self.stop_button.setEnabled(is_slowed or state in {RunState.RUNNING, RunState.PAUSED})
        is_shown_late = is_slowed and state is RunState.IDLE
        self.stop_button.setText("Show all" if is_shown_late else "Stop")
        self.stop_button.setAccessibleName(self.stop_button.text())
        self.stop_button.setToolTip(REST_HELP if is_shown_late else STOP_HELP)
        self._show_hint()

    def _show_hint(self) -> None:
        """Say beside Run why it can't be pressed, or what the keys do now."""
        state, problem, is_idle = self._state, self._problem, self._state is RunState.IDLE
        if self.is_reading and not problem:
            self._note(*self._read)
            if is_idle and self._rendered is None:
                self._timer.start()
        elif is_idle and self._is_slowed and not problem:
            self._note(SLOWED_HINT, short="Esc shows the rest.")
        elif is_idle:
            why_not = problem or self._busy
            self._note(why_not or READY_HINT, bool(problem), short="" if why_not else READY_HINT_SHORT)
        elif self._is_served:
            self._note(SERVED_HINT, short=LIVE_HINT_SHORT)
        elif self._is_baseline:
            self._note(BASELINE_HINT, short=LIVE_HINT_SHORT)
        elif state is RunState.PAUSED:
            self._note(PAUSED_HINT if self._takes_k else PAUSED_HINT_FIXED_K, short="F8 steps, Space resumes.")
        else:
            live = LIVE_HINT if self._takes_k else LIVE_HINT_FIXED_K
            self._note(AHEAD_HINT if self._is_ahead else live, short=LIVE_HINT_SHORT)

    @property
    def is_reading(self) -> bool:
        """Whether the prompt is shown as the target reads it."""
        return self.reading_button.isChecked()

    def _show_read(self, note: str, is_problem: bool = False) -> None:
        self._read = (note, is_problem)
        self._note(note, is_problem)

    def _note(self, text: str, is_problem: bool = False, *, short: str = "") -> None:
        self.note.show_note(text, short)
        # A problem needs all the room there is.
        self.unfold_button.setText(UNFOLD if is_problem else f"{UNFOLD} Prompt")
        set_flag(self.note, "role", "problem" if is_problem else "hint")

    @Slot(QAction)
    def _on_preset_chosen(self, action: QAction) -> None:
        preset = action.data()
        self.show_preset(preset)
        self.edit.setFocus()
        self.preset_chosen.emit(preset)

    def show_preset(self, preset: Preset) -> None:
        """Show a preset's prompt, and its temperature if it names one."""
        self.reading_button.setChecked(False)
        self.set_text(preset.text)
        if preset.temperature is not None:
            with self._controls.filling():
                self._controls.fields["temperature"].set_value(preset.temperature)

    # --- As the target reads it ---

    @Slot(bool)
    def _on_reading_toggled(self, is_reading: bool) -> None:
        self._open()
        self._pages.setCurrentWidget(self.reading if is_reading else self.edit)
        if is_reading:
            self._rendered = None
            self._show_read(WAITING)
            self._render()
        else:
            self.reading.clear()
            self._show_hint()

    @Slot()
    def _on_changed(self) -> None:
        if self.is_reading:
            self._timer.start()

    @Slot()
    def _render(self) -> None:
        """Render the prompt, if it is shown and anything that matters has changed."""
        if self._controls.engine.url:
            if self.is_reading:
                self._rendered = None
                self._show_rendering_problem(NO_READING)
            return
        target = self._controls.target.ref
        fields = self._controls.fields
        wanted = (target, self.text(), fields["chat"].member(), value_of(fields["system"]))
        if not self.is_reading or not target or wanted == self._rendered:
            return
        if self._job is not None:
            self._job.cancel()
        self._rendered = wanted
        self._job = self._jobs.submit(
            lambda _job: prompting.render_prompt(*wanted),
            then=self._show_rendered,
            failed=self._show_rendering_problem,
            what="The prompt could not be rendered",
            lane="models",
        )

    def _show_rendered(self, rendered: RenderedPrompt) -> None:
        if self.is_reading:
            self.reading.show_rendered(rendered)
            how = "chat template applied" if rendered.is_chat else "raw, no chat template"
            self._show_read(f"{count_text(rendered.num_tokens, 'token')} · {how}")

    def _show_rendering_problem(self, sentence: str) -> None:
        self._rendered = None  # It is tried again, since a run may have converted the model.
        if self.is_reading:
            self.reading.clear()
            self._show_read(sentence, True)
