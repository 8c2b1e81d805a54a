"""Shows the prompt as the target reads it, for as long as a person wants to see it."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Slot

from app.model_checker import ModelCheckerThread
from app.model_questions import RenderedPrompt, RenderQuestion
from app.widgets.controls import ControlsPanel
from app.widgets.prompt_editor import PromptEditor

DELAY_MS = 120


class PromptReader(QObject):
    """Asks the checker whenever target, chat setting or prompt are new, and only while the view is open."""

    def __init__(
        self, prompt: PromptEditor, controls: ControlsPanel, checker: ModelCheckerThread, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._prompt = prompt
        self._controls = controls
        self._checker = checker
        self._asked: RenderQuestion | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(DELAY_MS)
        self._timer.timeout.connect(self._on_due)
        prompt.reading_toggled.connect(self._on_toggled)
        prompt.changed.connect(self._on_changed)
        controls.changed.connect(self._on_changed)
        checker.prompt_rendered.connect(self._on_rendered)

    @Slot(bool)
    def _on_toggled(self, is_reading: bool) -> None:
        self._asked = None
        if is_reading:
            self._prompt.show_rendered(None)
            self._on_due()

    @Slot()
    def _on_changed(self) -> None:
        if self._prompt.is_reading:
            self._timer.start()

    @Slot()
    def _on_due(self) -> None:
        question = self._controls.render_question(self._prompt.text())
        if self._prompt.is_reading and question is not None and question != self._asked:
            self._asked = question
            self._checker.render(question)

    @Slot(object)
    def _on_rendered(self, rendered: RenderedPrompt) -> None:
        if rendered.question == self._asked:
            self._prompt.show_rendered(rendered)
