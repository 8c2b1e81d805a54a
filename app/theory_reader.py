"""Works out runs that are over, in a thread of its own: the page Theory's intervals take up to half a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import overload

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.answering import Answerer, AnsweringThread
from app.giving_way import WindowFirst, giving_way
from app.view_models.theory import Question, answer
from app.widgets.theory_page import TheoryPage
from core.types import Step

STEPS_BETWEEN = 50
"""Less than a millisecond's work."""


class TheoryAnswers:
    """What is answered: a `Question` and its `Study`."""

    answered = Signal(object, object)


class PausedSteps(Sequence[Step]):
    """Steps, of which who goes through them makes a pause now and then."""

    def __init__(self, steps: Sequence[Step], pause: Callable[[], None]) -> None:
        self._steps, self._pause = steps, pause

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...

    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        return self._steps[index]

    def __iter__(self) -> Iterator[Step]:
        for index, step in enumerate(self._steps):
            if index % STEPS_BETWEEN == 0:
                self._pause()
            yield step


class TheoryWorker(Answerer, TheoryAnswers):
    """Lives in the thread.

    Attributes:
        latest: the number of the newest question, set by the window's thread; older ones need no answer any more. Not
            the question: a run of 20,000 tokens would be kept until the next one is asked, and let go amid that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0
        self._window_first = WindowFirst()

    def work_out(self, question: Question, number: int) -> None:
        """Answer a question, if it is still the newest."""
        if number == self.latest and not self.is_closing:
            with giving_way():
                found = answer(
                    replace(
                        question,
                        steps=PausedSteps(question.steps, self._let_window),
                        baseline_steps=PausedSteps(question.baseline_steps, self._let_window),
                    )
                )
            self.answered.emit(question, found)

    def _let_window(self) -> None:
        # A window that closes waits for this thread, and lets nothing through.
        if not self.is_closing:
            self._window_first.let()


class TheoryReader(AnsweringThread, TheoryAnswers):
    """The window's handle."""

    def __init__(self, page: TheoryPage, parent: QObject | None = None) -> None:
        self._worker = worker = TheoryWorker()
        super().__init__("theory", worker, parent, priority=QThread.Priority.LowPriority)
        self._pass_on(TheoryAnswers)
        page.question_asked.connect(self.ask)
        self.answered.connect(page.show_answer)

    @Slot(object)
    def ask(self, question: Question) -> None:
        """Have a run worked out; answered by `answered`, unless another question comes before."""
        self._worker.latest += 1
        self._ask(self._worker.work_out, question, self._worker.latest)
