"""Threads that answer: where questions are answered, where answers arrive, and how such a thread ends."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import Signal

from app.threads import Answerer, AnsweringThread


class Answers:
    told = Signal(object, str)


class Echo(Answerer, Answers):
    def tell(self, thing):
        self.told.emit(thing, threading.current_thread().name)


class EchoThread(AnsweringThread, Answers):
    def __init__(self):
        self.echo = Echo()
        super().__init__("echo", self.echo)
        self._pass_on(Answers)

    def tell(self, thing):
        self._ask(self.echo.tell, thing)


@pytest.fixture
def handle():
    handle = EchoThread()
    yield handle
    handle.begin_close()
    assert handle.join(5000)


def test_a_question_is_answered_in_the_thread_and_the_answer_arrives_in_the_windows(handle, qtbot):
    heard_in = []
    handle.told.connect(lambda *_: heard_in.append(threading.current_thread()))
    with qtbot.waitSignal(handle.told) as told:
        handle.tell("hello")
    thing, thread = told.args
    assert thing == "hello"
    assert thread != threading.current_thread().name
    assert heard_in == [threading.current_thread()]


def test_there_is_no_thread_before_the_first_question(handle, qtbot):
    assert handle.is_closed
    with qtbot.waitSignal(handle.told):
        handle.tell(1)
    assert not handle.is_closed


def test_what_was_asked_before_the_end_is_answered_and_nothing_after_it(handle, qtbot):
    heard = []
    handle.told.connect(lambda thing, _: heard.append(thing))
    handle.tell(1)
    handle.tell(2)
    with qtbot.waitSignal(handle.closed):
        handle.begin_close()
        handle.begin_close()
        handle.tell(3)
    qtbot.waitUntil(lambda: len(heard) == 2)
    assert heard == [1, 2]
    assert handle.is_closed


def test_an_answerer_knows_that_the_end_is_near(handle):
    assert not handle.echo.is_closing
    handle.begin_close()
    assert handle.echo.is_closing
