"""What the tests themselves are watched for: a thread that one of them leaves running fails it."""

import gc

import pytest
from PySide6.QtCore import QThread

from tests.leaks import no_thread_left_running


@pytest.fixture
def thread(qapp):
    thread = QThread()
    thread.setObjectName("left")
    yield thread
    _end(thread)


def _end(thread: QThread) -> None:
    thread.quit()
    assert thread.wait(10_000)


@pytest.mark.parametrize("priority", [(), (QThread.Priority.LowPriority,)])
def test_a_thread_left_running_is_found_by_its_name(thread, priority):
    with pytest.raises(AssertionError, match=r"left behind: \['left'\]"), no_thread_left_running():
        thread.start(*priority)


def test_one_of_a_class_of_its_own_is_found_also_where_the_collector_has_it_set_aside(qapp):
    class Working(QThread):
        def begin(self) -> None:
            self.start()
            gc.freeze()

    thread = Working()
    with pytest.raises(AssertionError, match="Working"), no_thread_left_running():
        thread.begin()
    _end(thread)
    gc.unfreeze()


def test_threads_that_ended_or_never_began_or_are_gone_are_none_left(thread):
    never = QThread()
    with no_thread_left_running():
        gone = QThread()
        for started in (thread, gone):
            started.start()
            _end(started)
        del gone, started
    assert not never.isRunning()


def test_every_test_is_watched(request):
    assert "no_leaked_qthread" in request.fixturenames
