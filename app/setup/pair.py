"""Forecasts the memory and cost of the chosen pair; shown below the dropdowns, and checked before a run starts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt, QTimer, Slot
from PySide6.QtWidgets import QWidget

from app.jobs import Job, Jobs
from app.setup.model_library import memory_text, verdict_text
from app.theme import hold
from app.widgets.fields import boxed, column, named, plain_tip, set_flag
from app.widgets.labels import FittingNote
from core.models import fit
from core.models.fit import PairVerdict
from core.settings import RunRequest

if TYPE_CHECKING:
    from app.controller import RunController
    from app.run.run_view import RunView

DELAY_MS = 150
LINES_HEIGHT = 44
"""Pixels for three lines: a warning's."""


@dataclass(frozen=True, slots=True)
class PairQuestion:
    """A pair, and where it will run: the arguments of `core.models.fit.pair_verdict`, and what a measured cost is of.

    Attributes:
        context: number of positions in the caches.
        with_memory: whether to forecast memory, which imports torch.
        held_bytes: bytes on the device that unloading the loaded models would free.
        num_nodes: of the largest tree that is drafted; 0 for chains.
        method, method_options: how it drafts, which changes no forecast.
    """

    draft: str
    target: str
    device: str
    dtype: str
    context: int
    with_memory: bool = False
    held_bytes: int = 0
    num_nodes: int = 0
    method: str = field(default="", compare=False)
    method_options: Mapping[str, Any] = field(default_factory=dict, compare=False)


class VerdictLine(QWidget):
    """Expected cost and memory of the pair, or a warning in their place; keeps its height, so that nothing moves."""

    def __init__(self) -> None:
        super().__init__()
        self.line = named(FittingNote(), "verdictLine", "Memory and expected cost of the pair")
        self.line.setAlignment(Qt.AlignmentFlag.AlignTop)
        boxed(column(self.line, None), self)
        hold(self, least_height=LINES_HEIGHT)
        self.show_verdict(None)

    def show_verdict(self, verdict: PairVerdict | None, measured_cost: float | None = None) -> None:
        """Show a forecast, or why the pair can't work; None if nothing is known.

        Args:
            measured_cost: see `verdict_text`.
        """
        known = verdict or PairVerdict()
        problem = known.problem or ""
        text, help_text = verdict_text(known, measured_cost if known is verdict and not problem else None)
        warnings = "\n".join(known.warnings)
        is_too_large = known.memory is not None and known.memory.fits is False
        if problem:
            self.line.show_note(problem)
        elif warnings and not is_too_large:
            self.line.show_note(warnings, known.warnings[0])
        else:
            self.line.show_note(text)
        whole = "\n".join(filter(None, (problem, warnings, text, help_text)))
        self.line.setToolTip(plain_tip(whole))
        self.line.setAccessibleDescription(whole)
        set_flag(self.line, "role", "problem" if problem or is_too_large else "warning" if warnings else "hint")


class PairForecast(QObject):
    """Requests a forecast once the choice of the pair has settled, and shows it.

    Memory is forecast only after the engine has been imported, since that needs torch.
    """

    def __init__(self, jobs: Jobs, controller: RunController, line: VerdictLine, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs = jobs
        self._line = line
        self._wanted: PairQuestion | None = None
        self._answer: tuple[PairQuestion, PairVerdict | None] | None = None
        self._job: Job | None = None
        self._is_engine_ready = False
        self._held: tuple[str, int] = ("", 0)
        """A device, and the bytes on it that unloading the loaded models would free."""
        self._loaded: tuple[object, ...] | None = None
        """What the last run had in memory."""
        self._measured: dict[tuple[object, ...], float] = {}
        """The cost of a draft step that the last such run with a whole baseline measured, by `_drafting`."""
        self._timer = QTimer(self, singleShot=True, interval=DELAY_MS)
        self._timer.timeout.connect(self._on_due)
        controller.engine_ready.connect(self._on_engine_ready)
        controller.memory_held.connect(self._on_memory_held)

    def want(self, question: PairQuestion | None) -> None:
        """Request a forecast of this pair, unless it is known; None if there is no pair."""
        self._wanted = question
        asked = self._question()
        if asked is None:
            self._answer = None
            self._line.show_verdict(None)
        elif self._answer is None or self._answer[0] != asked:
            if self._answer is not None and _pair(self._answer[0]) != _pair(asked):
                self._line.show_verdict(None)
            self._timer.start()
        else:
            self._timer.stop()
            self._show(asked, self._answer[1])

    def too_large(self, request: RunRequest) -> str:
        """The warning to confirm before this run's pair is loaded, if it is not expected to fit; else empty."""
        question = self._question()
        is_new = question is not None and question.with_memory and _models(request) != self._loaded
        if question is None or not is_new or (request.draft, request.target) != _pair(question):
            return ""
        if self._answer is None or self._answer[0] != question:
            # The pair was chosen a moment ago, as by Run again on a kept run. Loading it takes far longer than this.
            self._answer = question, _judge(question)
        verdict = self._answer[1]
        if verdict is None or verdict.memory is None or verdict.memory.fits is not False or verdict.problem is not None:
            return ""
        return memory_text(verdict.memory)

    def note_run(self, run: RunView) -> None:
        """Remember what is in memory now: a pair that has run needs no confirmation again. And the cost it measured."""
        if run.started is not None and run.request is not None:
            self._loaded = _models(run.request)
            summary = run.summary
            # Else it is a share of the one forward timed before the run, or of forwards that idle processors slowed.
            is_sound = summary is not None and summary.has_baseline and not summary.was_stepped
            if summary is not None and is_sound and summary.cost_coefficient is not None:
                self._measured[_drafting(run.request)] = summary.cost_coefficient

    def _show(self, question: PairQuestion, verdict: PairVerdict | None) -> None:
        self._line.show_verdict(verdict, self._measured.get(_drafting(question)))

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
        if question is None:
            return
        if self._job is not None:
            self._job.cancel()

        def take(verdict: PairVerdict | None) -> None:
            asked = self._question()
            if asked is not None and asked == question:
                self._answer = (asked, verdict)
                self._show(asked, verdict)

        self._job = self._jobs.submit(lambda _job: _judge(question), then=take, lane="models")


def _judge(question: PairQuestion) -> PairVerdict | None:
    """Silent if it fails: the check of the pair and the engine report what is wrong with the files."""
    settings = asdict(question)
    del settings["method"], settings["method_options"]
    with contextlib.suppress(Exception):
        return fit.pair_verdict(settings.pop("draft"), settings.pop("target"), **settings)
    return None


def _models(request: RunRequest | PairQuestion) -> tuple[object, ...]:
    return request.draft, request.target, request.device, request.dtype


def _drafting(request: RunRequest | PairQuestion) -> tuple[object, ...]:
    return *_models(request), request.method, repr(sorted(request.method_options.items()))


def _pair(question: PairQuestion) -> tuple[str, str]:
    return question.draft, question.target
