"""What the chosen pair needs and costs, forecast shortly after the choice, and before a run loads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Slot

from app.controller import RunController
from app.jobs import Job, Jobs
from app.run.run_view import RunView
from app.setup.model_library import memory_text
from app.setup.models_form import VerdictLine
from core.types import RunRequest

if TYPE_CHECKING:
    from core.models.fit import PairVerdict

DELAY_MS = 150


@dataclass(frozen=True, slots=True)
class PairQuestion:
    """A pair, and where it will run.

    Attributes:
        context: positions of the caches.
        with_memory: whether to forecast memory, which imports torch.
        held_bytes: bytes on the device that already loaded models would free.
    """

    draft: str
    target: str
    device: str
    dtype: str
    context: int
    with_memory: bool = False
    held_bytes: int = 0


def pair_verdict(question: PairQuestion) -> PairVerdict:
    """The forecast for a pair. Reads files."""
    from core.models import fit

    return fit.pair_verdict(
        question.draft,
        question.target,
        device=question.device,
        dtype=question.dtype,
        context=question.context,
        with_memory=question.with_memory,
        held_bytes=question.held_bytes,
    )


class PairForecast(QObject):
    """Computes the forecast for the chosen pair and shows it in the line below the dropdowns.

    Memory is forecast once the engine is ready: it needs torch, which the engine's thread imports.
    """

    def __init__(self, jobs: Jobs, controller: RunController, line: VerdictLine, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs, self._line = jobs, line
        self._wanted: PairQuestion | None = None
        self._answered: PairQuestion | None = None
        self._verdict: PairVerdict | None = None
        self._is_engine_ready = False
        self._held: tuple[str, int] = ("", 0)
        self._loaded: tuple[object, ...] | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(DELAY_MS)
        self._timer.timeout.connect(self._on_due)
        controller.engine_ready.connect(self._on_engine_ready)
        controller.memory_held.connect(self._on_memory_held)

    def want(self, question: PairQuestion | None) -> None:
        """Forecast this pair, unless that is the latest answer; None: no pair is chosen."""
        self._wanted = question
        asked = self._question()
        if asked is None:
            self._answered = self._verdict = None
            self._line.show_verdict(None)
        elif self._answered == asked:
            self._timer.stop()
            self._line.show_verdict(self._verdict)
        else:
            if self._answered is not None and _pair(self._answered) != _pair(asked):
                self._line.show_verdict(None)
            self._timer.start()

    def too_large(self, request: RunRequest) -> str:
        """What to say before this run's pair is loaded if it won't fit; empty if it will, or has run before."""
        asked, memory = self._answered, self._verdict.memory if self._verdict is not None else None
        if asked is None or asked != self._question() or self._verdict is None or memory is None:
            return ""
        is_asked = (request.draft, request.target) == _pair(asked) and _models(request) != self._loaded
        return memory_text(memory) if is_asked and memory.fits is False and self._verdict.problem is None else ""

    def note_run(self, run: RunView) -> None:
        """Remember what is in memory now: a pair that has run is not asked about again."""
        if run.started is not None and run.request is not None:
            self._loaded = _models(run.request)

    def _question(self) -> PairQuestion | None:
        if self._wanted is None:
            return None
        device, num_bytes = self._held
        held = num_bytes if device == self._wanted.device else 0
        return replace(self._wanted, with_memory=self._is_engine_ready, held_bytes=held)

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
            # A forecast only: what is wrong with the files is said by the check of the pair, and by the engine.
            answer = partial(self._on_answered, question)
            self._jobs.submit(partial(_forecast, question), answer, failed=lambda _sentence: answer(None), lane="pair")

    def _on_answered(self, question: PairQuestion, verdict: PairVerdict | None) -> None:
        if question == self._question():
            self._answered, self._verdict = question, verdict
            self._line.show_verdict(verdict)


def _forecast(question: PairQuestion, _job: Job) -> PairVerdict:
    return pair_verdict(question)


def _models(request: RunRequest) -> tuple[object, ...]:
    return request.draft, request.target, request.device, request.dtype


def _pair(question: PairQuestion) -> tuple[str, str]:
    return question.draft, question.target
