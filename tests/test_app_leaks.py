"""A test that leaves a thread running fails; a window leaves no menus behind."""

import pytest
from PySide6.QtCore import QEvent, QThread
from PySide6.QtWidgets import QMenu

from app.widgets.plots import Plot
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


def test_a_thread_left_running_is_found_by_its_name(thread, request):
    assert "no_leaked_qthread" in request.fixturenames
    with pytest.raises(AssertionError, match=r"left behind: \['left'\]"), no_thread_left_running():
        thread.start(QThread.Priority.LowPriority)


def test_threads_that_ended_or_never_began_or_are_gone_are_none_left(thread):
    never = QThread()
    with no_thread_left_running():
        gone = QThread()
        for started in (thread, gone):
            started.start()
            _end(started)
        del gone, started
    assert not never.isRunning()


def test_a_plot_takes_its_hidden_menus_with_it(qapp):
    def menus():
        return [widget for widget in qapp.topLevelWidgets() if isinstance(widget, QMenu)]

    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete)  # What earlier tests left to be deleted.
    before = len(menus())
    plot = Plot(object_name="plot", title="Plot", x_label="x", y_label="y")
    assert len(menus()) > before, "pyqtgraph makes menus of its own"
    plot.deleteLater()
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    assert len(menus()) == before
