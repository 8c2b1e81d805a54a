"""The forecast of the chosen pair: asked for when the choice has settled, and held against a run that is to start."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Slot

from app.controller import RunController
from app.run.run_view import RunView
from app.setup.model_library import memory_text
from app.setup.models_form import VerdictLine
from app.tools.models.checker import ModelCheckerThread
from app.tools.models.questions import VerdictAnswer, VerdictQuestion
from core.types import RunRequest

DELAY_MS = 150


class PairJudge(QObject):
    """Asks the checker about the chosen pair, and shows its answer in the line beneath the dropdowns.

    Memory is asked for once the engine is there: the forecast needs torch, whose import is the engine's thread's work.
    """

    def __init__(
        self, checker: ModelCheckerThread, controller: RunController, line: VerdictLine, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._checker = checker
        self._line = line
        self._wanted: VerdictQuestion | None = None
        self._answer: VerdictAnswer | None = None
        self._is_engine_ready = False
        self._held: tuple[str, int] = ("", 0)
        """A device, and the bytes of it that the kept models would make room with."""
        self._loaded: tuple[object, ...] | None = None
        """What the last run that got going had in memory."""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(DELAY_MS)
        self._timer.timeout.connect(self._on_due)
        checker.verdict_given.connect(self._on_verdict_given)
        controller.engine_ready.connect(self._on_engine_ready)
        controller.memory_held.connect(self._on_memory_held)

    def want(self, question: VerdictQuestion | None) -> None:
        """Ask for a forecast of this pair, unless it is what was answered last; None: there is no pair."""
        self._wanted = question
        asked = self._question()
        if asked is None:
            self._answer = None
            self._line.show_verdict(None)
        elif self._answer is None or self._answer.question != asked:
            if self._answer is not None and _pair(self._answer.question) != _pair(asked):
                self._line.show_verdict(None)
            self._timer.start()
        else:
            # Another pair may have been chosen in between, whose answer is now wanted no longer.
            self._timer.stop()
            self._line.show_verdict(self._answer.verdict)

    def too_large(self, request: RunRequest) -> str:
        """What to ask before this run's pair is loaded, if it won't fit by the forecast; empty if it will."""
        answer = self._answer
        if answer is None or answer.question != self._question() or answer.verdict is None:
            return ""
        memory = answer.verdict.memory
        is_too_large = memory is not None and memory.fits is False and answer.verdict.problem is None
        is_asked = (request.draft, request.target) == _pair(answer.question) and _models(request) != self._loaded
        return memory_text(memory) if memory is not None and is_asked and is_too_large else ""

    def note_run(self, run: RunView) -> None:
        """Take note of what is in memory now: a pair that has run is not asked about again."""
        if run.started is not None and run.request is not None:
            self._loaded = _models(run.request)

    def _question(self) -> VerdictQuestion | None:
        wanted = self._wanted
        if wanted is None:
            return None
        device, num_bytes = self._held
        return replace(
            wanted, with_memory=self._is_engine_ready, held_bytes=num_bytes if device == wanted.device else 0
        )

    @Slot()
    def _on_engine_ready(self) -> None:
        self._is_engine_ready = True
        self.want(self._wanted)

    @Slot(str, object)
    def _on_memory_held(self, device: str, num_bytes: int) -> None:
        self._held = (device, num_bytes)
        self.want(self._wanted)

    @Slot()
    def _on_due(self) -> None:
        question = self._question()
        if question is not None:
            self._checker.judge(question)

    @Slot(object)
    def _on_verdict_given(self, answer: VerdictAnswer) -> None:
        if answer.question == self._question():
            self._answer = answer
            self._line.show_verdict(answer.verdict)


def _models(request: RunRequest) -> tuple[object, ...]:
    return request.draft, request.target, request.device, request.dtype


def _pair(question: VerdictQuestion) -> tuple[str, str]:
    return question.draft, question.target
