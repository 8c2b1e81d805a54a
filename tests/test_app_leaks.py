"""Windows that come and go leave nothing, plots no menus; a test that leaves a thread running fails."""

import gc
import threading
import weakref

import psutil
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QThread
from PySide6.QtWidgets import QMenu

from app.widgets.plots import Plot
from tests.fakes_app import FakeSession, keep_files_in
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


@pytest.mark.slow
def test_windows_that_come_and_go_leave_no_object_thread_or_file(qtbot, sound_binding, hub, tmp_path, monkeypatch):
    from app.main_window import MainWindow

    keep_files_in(tmp_path, monkeypatch)

    def open_and_close() -> tuple[int, int, int]:
        window = MainWindow(open_session=FakeSession)
        with qtbot.waitExposed(window):
            window.show()
        gone = weakref.ref(window)
        window.close()
        qtbot.waitUntil(lambda window=window: window.controller.is_closed and window.jobs.is_idle, timeout=30_000)
        window.deleteLater()
        del window
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        # The last job's thread may still hold what its job did.
        qtbot.waitUntil(lambda: gc.collect() >= 0 and gone() is None, timeout=30_000)
        files = 0 if psutil.WINDOWS else psutil.Process().num_fds()
        return threading.active_count(), files, len(gc.get_objects())

    _, first, *_, last = [open_and_close() for _ in range(20)]
    # Earlier tests may still close files.
    threads, files, objects = (now - before for now, before in zip(last, first, strict=True))
    assert max(threads, files) <= 0
    assert objects < 18 * 4
