"""Works out runs that are over, in a thread of its own: the page Theory's intervals take up to half a second."""

from __future__ import annotations

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.view_models.theory import Question, answer
from app.widgets.theory_page import TheoryPage


class TheoryWorker(QObject):
    """Lives in the thread.

    Attributes:
        latest: the newest question, set by the window's thread; older ones need no answer any more.
    """

    answered = Signal(object, object)

    def __init__(self) -> None:
        super().__init__()
        self.latest: Question | None = None

    @Slot(object)
    def work_out(self, question: Question) -> None:
        """Answer a question, if it is still the newest."""
        if question is self.latest:
            self.answered.emit(question, answer(question))

    @Slot()
    def shut_down(self) -> None:
        """End the thread's event loop."""
        QThread.currentThread().quit()


class TheoryReader(QObject):
    """The window's handle: owns the thread, which starts with the first question.

    Signals:
        answered: a `Question` and its `Study`.
        closed: the thread has ended.
    """

    answered = Signal(object, object)
    closed = Signal()

    _wanted = Signal(object)
    _shut_down_wanted = Signal()

    def __init__(self, page: TheoryPage, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._worker = TheoryWorker()
        self._is_closing = False
        self._thread = QThread()
        self._thread.setObjectName("theory")
        self._worker.moveToThread(self._thread)
        self._wanted.connect(self._worker.work_out)
        self._shut_down_wanted.connect(self._worker.shut_down)
        self._worker.answered.connect(self.answered)
        self._thread.finished.connect(self.closed)
        page.question_asked.connect(self.ask)
        self.answered.connect(page.show_answer)

    @property
    def is_closed(self) -> bool:
        """Whether there is no thread any more, or was none."""
        return not self._thread.isRunning()

    @Slot(object)
    def ask(self, question: Question) -> None:
        """Have a run worked out; answered by `answered`, unless another question comes before."""
        if self._is_closing:
            return
        if not self._thread.isRunning():
            self._thread.start(QThread.Priority.LowPriority)
        self._worker.latest = question
        self._wanted.emit(question)

    def begin_close(self) -> None:
        """End the thread after what is at hand. Returns at once."""
        if not self._is_closing:
            self._is_closing = True
            self._worker.latest = None
            self._shut_down_wanted.emit()

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)
