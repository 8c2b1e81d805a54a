"""Threads that answer: the window hands a question over and goes on; the answer comes back as a signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol

from PySide6.QtCore import QObject, QThread, Signal, Slot


class OwnsThread(Protocol):
    """What owns one thread."""

    closed: Any
    """A signal: the thread has ended."""

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        ...

    def begin_close(self) -> None:
        """Have it end, and return at once."""
        ...

    def join(self, milliseconds: int) -> bool:
        """Wait for its end; true when it has ended."""
        ...


class Threads(QObject):
    """Ends several threads as one.

    Signals:
        closed: the last of them has ended.
    """

    closed = Signal()

    def __init__(self, owners: Sequence[OwnsThread], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._owners = tuple(owners)
        for owner in self._owners:
            owner.closed.connect(self._on_closed)

    @property
    def is_closed(self) -> bool:
        """Whether all have ended."""
        return all(owner.is_closed for owner in self._owners)

    def begin_close(self) -> None:
        """Have all end. Returns at once; `closed` says when it is done. Asking twice does nothing."""
        for owner in self._owners:
            owner.begin_close()

    def join(self, milliseconds: int) -> bool:
        """Wait for all, and for no longer than this; true when they have ended."""
        deadline = time.monotonic() + milliseconds / 1000
        ended = [owner.join(max(0, round(1000 * (deadline - time.monotonic())))) for owner in self._owners]
        return all(ended)

    @Slot()
    def _on_closed(self) -> None:
        if self.is_closed:
            self.closed.emit()


P = ParamSpec("P")


class Answerer(QObject):
    """Base of what lives in such a thread. A question is a call of one of its methods, which emits what comes of it.

    Attributes:
        is_closing: set by the window's thread; a long answer ends early.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_closing = False

    @Slot(object)
    def take(self, question: Callable[[], None]) -> None:
        """Answer a question that has come."""
        self.answer(question)

    def answer(self, question: Callable[[], None]) -> None:
        """Answer a question; for a subclass to see to what goes on meanwhile."""
        question()

    def shut_down(self) -> None:
        """End this thread's event loop."""
        QThread.currentThread().quit()


class AnsweringThread(QObject):
    """Base of the window's handle on an answerer: owns the thread, which starts with the first question.

    Signals:
        closed: the thread has ended.
    """

    closed = Signal()

    _asked = Signal(object)

    def __init__(
        self,
        name: str,
        answerer: Answerer,
        parent: QObject | None = None,
        *,
        priority: QThread.Priority = QThread.Priority.InheritPriority,
    ) -> None:
        super().__init__(parent)
        self._answerer = answerer
        self._is_closing = False
        self._priority = priority
        self._thread = QThread()
        self._thread.setObjectName(name)
        answerer.moveToThread(self._thread)
        self._asked.connect(answerer.take)
        self._thread.finished.connect(self.closed)

    @property
    def is_closed(self) -> bool:
        """Whether there is no thread any more, or was none."""
        return not self._thread.isRunning()

    def begin_close(self) -> None:
        """End the thread after what was asked already. Returns at once; `closed` says when it is done."""
        if not self._is_closing:
            self._is_closing = self._answerer.is_closing = True
            self._asked.emit(self._answerer.shut_down)

    def join(self, milliseconds: int) -> bool:
        """Wait for the thread after `begin_close`; true when it has ended."""
        return self._thread.wait(milliseconds)

    def _pass_on(self, answers: type) -> None:
        """Pass on each of these signals, which handle and answerer both have, in the window's thread."""
        for name, signal in vars(answers).items():
            if isinstance(signal, Signal):
                getattr(self._answerer, name).connect(getattr(self, name))

    def _ask(self, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a method of the answerer called in its thread. Nothing is asked of one that is closing."""
        if self._is_closing:
            return
        if not self._thread.isRunning():
            self._thread.start(self._priority)
        self._asked.emit(partial(method, *args, **kwargs))
