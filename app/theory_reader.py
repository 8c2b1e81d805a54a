"""Works out runs that are over, in a thread of its own: the page Theory's intervals take up to half a second."""

from __future__ import annotations

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.answering import Answerer, AnsweringThread
from app.giving_way import giving_way
from app.view_models.theory import Question, answer
from app.widgets.theory_page import TheoryPage


class TheoryAnswers:
    """What is answered: a `Question` and its `Study`."""

    answered = Signal(object, object)


class TheoryWorker(Answerer, TheoryAnswers):
    """Lives in the thread.

    Attributes:
        latest: the number of the newest question, set by the window's thread; older ones need no answer any more. Not
            the question: a run of 20,000 tokens would be kept until the next one is asked, and let go amid that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0

    def work_out(self, question: Question, number: int) -> None:
        """Answer a question, if it is still the newest."""
        if number == self.latest and not self.is_closing:
            with giving_way():
                found = answer(question)
            self.answered.emit(question, found)


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
