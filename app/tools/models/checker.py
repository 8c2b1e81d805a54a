"""Answers questions about model files in a thread of its own: what is here, what is this, do these two fit together?

Small files only, but disks and network folders are slow, and the engine's thread may be in a run. Deleting a model,
which is a matter of the disk too, is done here as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from app.services import Services
from app.threads import Answerer, AnsweringThread
from app.tools.models.questions import (
    ModelRole,
    OpenedModel,
    PairVerdicts,
    RenderedPrompt,
    RenderQuestion,
    VerdictAnswer,
    VerdictQuestion,
)
from core.errors import OutriderError, sentence_of
from core.models.catalogue import ModelEntry

BATCH_S = 0.25
"""Answers about many models come in parts, each after about this long."""

T = TypeVar("T")


class ModelAnswers:
    """What the checker answers.

    Signals:
        opened: an `OpenedModel`; open_failed: a sentence and the role it was to have.
        scanned: `FoundModels`.
        details_read: by reference, `ModelDetails` or the sentence that says why there are none.
        pairs_checked: `PairVerdicts`, perhaps of some of the drafts only.
        verdict_given: a `VerdictAnswer`; prompt_rendered: a `RenderedPrompt`. Only of the latest question.
        removal_planned: a `Removal`; removed: a reference and the bytes that were freed.
        failed: one sentence for a person.
    """

    opened = Signal(object)
    open_failed = Signal(str, object)
    scanned = Signal(object)
    details_read = Signal(object)
    pairs_checked = Signal(object)
    verdict_given = Signal(object)
    prompt_rendered = Signal(object)
    removal_planned = Signal(object)
    removed = Signal(str, object)
    failed = Signal(str)


class ModelChecker(Answerer, ModelAnswers):
    """Lives in its own thread.

    Attributes:
        latest: the newest question of each kind, set by the window's thread; older ones need no answer any more.
    """

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.latest: dict[type, object] = {}

    def answer(self, question: Callable[[], None]) -> None:
        """As ever, but the first question of its kind imports what it takes, such as tokenizers."""
        question()

    def open(self, ref: str, role: ModelRole | None) -> None:
        """Find out what a reference names."""
        try:
            entry = self._services.resolve(ref)
        except (OutriderError, OSError) as error:
            self.open_failed.emit(str(error), role)
        else:
            self.opened.emit(OpenedModel(entry, role))

    def scan(self) -> None:
        """Find the models that are here."""
        try:
            self.scanned.emit(self._services.find_models())
        except Exception as error:
            self.failed.emit(sentence_of(error, "The models on this computer could not be listed"))

    def read_details(self, entries: tuple[ModelEntry, ...]) -> None:
        """Read what the models' files say of themselves; a sentence in place of what can't be read."""
        by_ref = {entry.ref: entry for entry in entries}
        for part in self._batches(tuple(by_ref), lambda ref: self._details(by_ref[ref])):
            self.details_read.emit(part)

    def check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        """Find out which drafts fit a target."""
        for part in self._batches(drafts, lambda draft: self._problem(draft, target)):
            self.pairs_checked.emit(PairVerdicts(target, part))

    def judge(self, question: VerdictQuestion) -> None:
        """Forecast cost of a pair, and its memory where that is asked for."""
        if self._is_stale(question):
            return
        try:
            verdict = self._services.pair_verdict(question)
        except Exception:
            # Only a forecast: what is wrong with the files is told by the check of the pair, and by the engine.
            verdict = None
        self.verdict_given.emit(VerdictAnswer(question, verdict))

    def render(self, question: RenderQuestion) -> None:
        """Put a prompt through the target's tokenizer."""
        if self._is_stale(question):
            return
        try:
            rendered = self._services.render_prompt(question)
        except Exception as error:
            rendered = RenderedPrompt(question, problem=sentence_of(error, "The prompt could not be rendered"))
        self.prompt_rendered.emit(rendered)

    def plan_removal(self, ref: str) -> None:
        """Find out what deleting a model would free."""
        try:
            self.removal_planned.emit(self._services.plan_removal(ref))
        except Exception as error:
            self.failed.emit(sentence_of(error, f"{ref} can't be deleted"))

    def remove(self, ref: str) -> None:
        """Delete a model."""
        try:
            self.removed.emit(ref, self._services.remove(ref))
        except Exception as error:
            self.failed.emit(sentence_of(error, f"{ref} could not be deleted"))

    def _is_stale(self, question: object) -> bool:
        return self.is_closing or self.latest.get(type(question)) is not question

    def _batches(self, refs: tuple[str, ...], ask: Callable[[str], T]) -> Iterator[dict[str, T]]:
        answers: dict[str, T] = {}
        told_at = time.monotonic()
        for ref in refs:
            if self.is_closing:
                return
            answers[ref] = ask(ref)
            if time.monotonic() - told_at >= BATCH_S:
                yield answers
                answers, told_at = {}, time.monotonic()
        if answers:
            yield answers

    def _details(self, entry: ModelEntry) -> object:
        try:
            return self._services.read_details(entry)
        except Exception as error:
            return sentence_of(error, f"{entry.title} could not be read")

    def _problem(self, draft: str, target: str) -> str | None:
        try:
            return self._services.pair_problem(draft, target)
        except OutriderError as error:
            return str(error)
        except Exception:
            # A file that can't be read here may still be read by the engine, which says better what is wrong with it.
            return None


class ModelCheckerThread(AnsweringThread, ModelAnswers):
    """The window's handle on the checker: its signals are `ModelAnswers`."""

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        self._checker = checker = ModelChecker(services)
        super().__init__("model checker", checker, parent)
        self._pass_on(ModelAnswers)

    def open(self, ref: str, role: ModelRole | None) -> None:
        """Ask what a reference names; answered by `opened` or `open_failed`."""
        self._ask(self._checker.open, ref, role)

    @Slot()
    def scan(self) -> None:
        """Ask which models are here; answered by `scanned`."""
        self._ask(self._checker.scan)

    def read_details(self, entries: tuple[ModelEntry, ...]) -> None:
        """Ask what models are like; answered by `details_read`, perhaps in parts."""
        self._ask(self._checker.read_details, entries)

    @Slot(str, object)
    def check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        """Ask which drafts fit; answered by `pairs_checked`, perhaps in parts."""
        self._ask(self._checker.check_pairs, target, drafts)

    def judge(self, question: VerdictQuestion) -> None:
        """Ask for a forecast; answered by `verdict_given`."""
        self._checker.latest[VerdictQuestion] = question
        self._ask(self._checker.judge, question)

    @Slot(object)
    def render(self, question: RenderQuestion) -> None:
        """Ask what a model reads; answered by `prompt_rendered`."""
        self._checker.latest[RenderQuestion] = question
        self._ask(self._checker.render, question)

    @Slot(str)
    def plan_removal(self, ref: str) -> None:
        """Ask what deleting a model would free; answered by `removal_planned` or `failed`."""
        self._ask(self._checker.plan_removal, ref)

    def remove(self, ref: str) -> None:
        """Have a model deleted; answered by `removed` or `failed`."""
        self._ask(self._checker.remove, ref)
