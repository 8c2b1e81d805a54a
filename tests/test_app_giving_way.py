"""Threads that work let the window answer."""

import sys
import threading

import pytest
from PySide6.QtWidgets import QWidget

from app import giving_way as module
from app.giving_way import SWITCH_S, WindowFirst, giving_way
from tests.fakes_runs import until


class Painted(QWidget):
    def __init__(self, log):
        super().__init__()
        self._log = log

    def paintEvent(self, event):  # noqa: N802 - Qt's name
        self._log.append("painted")


class Noted(threading.Event):
    """Notes when it is set: the thread that waits for it may be slow to go on."""

    def __init__(self, log):
        super().__init__()
        self._log = log

    def set(self):
        self._log.append("let go")
        super().set()


def test_the_lock_is_let_go_often_until_the_last_one_is_through():
    before = sys.getswitchinterval()
    with giving_way():
        with giving_way():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before


def test_a_thread_waits_until_the_window_has_painted_itself(qtbot, monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 30.0)
    log = []
    widget, first = Painted(log), WindowFirst()
    qtbot.addWidget(widget)
    widget.show()
    qtbot.waitExposed(widget)
    until(qtbot, lambda: bool(log))
    log.clear()
    first._is_through = Noted(log)
    widget.update()
    thread = threading.Thread(target=first.let)
    thread.start()
    until(qtbot, lambda: "let go" in log)
    thread.join()
    assert log == ["painted", "let go"]


def test_a_thread_that_has_just_waited_works_on_and_a_window_that_hangs_is_not_waited_for(qtbot, monkeypatch):
    asked, first = [], WindowFirst()
    monkeypatch.setattr(module, "MOST_S", 0.0)
    first._asked.connect(lambda: asked.append(True))
    first.let()
    monkeypatch.setattr(module, "WORK_S", 30.0)
    first.let()
    assert asked == [True]
