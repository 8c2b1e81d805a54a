"""Closing the window, whatever the engine is doing: no thread stays, no log is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from app.settings import SettingsStore, WindowSettings
from core.runlog.reading import read_run_log
from tests.children import ROOT, run_code, skip_if_ignored


def close_and_join(window, qtbot):
    window.close()
    qtbot.waitUntil(lambda: window.controller.is_closed, timeout=10_000)


def test_closing_at_rest_ends_the_thread_drops_the_models_and_lets_nothing_start(window, qtbot, session, run_to_end):
    run_to_end(window)
    window.close()
    close_and_join(window, qtbot)
    assert session.is_closed
    window.menus.run.trigger()
    window.controller.warm_up()
    assert len(session.requests) == 1


@pytest.mark.parametrize("way", ["window", "application"])
def test_closing_in_the_middle_of_a_run_keeps_a_complete_log(make_window, qtbot, session, tmp_path, way):
    session.gate = threading.Semaphore(2)
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.run_view.counts.sums.num_steps == 2)
    if way == "window":
        close_and_join(window, qtbot)
        assert not window.isVisible()
    else:
        window._on_about_to_quit()
        assert window.controller.is_closed
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    assert log.problems == []
    assert len(log.steps) == 2
    assert log.summary["finish_reason"] == "cancelled"


def test_closing_in_the_middle_of_a_load_leaves_nothing_behind(make_window, qtbot, session):
    session.load_gate = threading.Event()
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.status.stage.text() == "Loading the target…")
    close_and_join(window, qtbot)
    assert session.controls[0].is_cancelled
    assert session.is_closed


def test_an_engine_that_does_not_answer_hides_the_window_at_once(make_window, qtbot, session):
    importing, release, was_released = threading.Event(), threading.Event(), []

    def open_slowly():
        importing.set()
        was_released.append(release.wait(10))
        return session

    window = make_window(open_slowly, is_shown=True)
    qtbot.waitUntil(importing.is_set)
    window.close()
    assert was_released == [], "the window waited for the engine"
    assert not window.isVisible()
    assert not window.controller.is_closed
    release.set()
    qtbot.waitUntil(lambda: window.controller.is_closed)
    assert session.is_closed


BUSY_CLOSE = """
import os, signal, sys, threading
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer

import app.main_window
from app.__main__ import open_window
from core.controls import Cancelled
from tests.fakes_app import FakeSession, keep_files_in
from tests.fakes_models import FakeHub

folder, close = Path(sys.argv[1]), sys.argv[2]
importing, hidden = threading.Event(), threading.Event()
session = FakeSession()

def open_slowly():
    importing.set()
    hidden.wait(20)
    threading.Event().wait(0.5)
    return session

def download_slowly(ref, **_):
    open_slowly()
    raise Cancelled

app.main_window.PATIENCE_MS = 60_000
hub = FakeHub()
hub.download = download_slowly
hub.install(pytest.MonkeyPatch())
keep_files_in(folder, pytest.MonkeyPatch())

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(open_session=(lambda: session) if close == "download" else open_slowly)
        if close == "download":
            self.models.downloads.get("owner/model")
        if close != "interrupt":
            self.timer = QTimer(self)
            self.timer.timeout.connect(lambda: importing.is_set() and not hidden.is_set() and self.close())
            self.timer.start(50)

    def hideEvent(self, event):
        super().hideEvent(event)
        hidden.set()

    def _on_about_to_quit(self):
        super()._on_about_to_quit()
        print(self.controller.is_closed and self.jobs.is_idle)

def interrupt():
    importing.wait(20)
    os.kill(os.getpid(), signal.SIGINT)

if close == "interrupt":
    threading.Thread(target=interrupt, daemon=True).start()
app.main_window.MainWindow = Window
code = open_window()
# The download is over before the engine was ever started.
print(hidden.is_set(), session.is_closed or close == "download")
sys.exit(code)
"""


@pytest.mark.parametrize(
    "close",
    [
        "close",
        "download",
        pytest.param("interrupt", marks=pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")),
    ],
)
def test_the_application_ends_by_itself_although_its_window_was_hidden_first(tmp_path, close):
    done = run_code(BUSY_CLOSE, tmp_path, close)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "True"]), done.stderr


STUCK = """
import hashlib, signal, sys
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer

import app.main_window
from app.__main__ import main
from tests.fakes_app import FakeSession, keep_files_in
from tests.fakes_models import FakeHub

folder, close = Path(sys.argv[1]), sys.argv[2]
FakeHub().install(pytest.MonkeyPatch())
keep_files_in(folder, pytest.MonkeyPatch())
app.main_window.PATIENCE_MS = 100

class Gate:
    left = 2

    def acquire(self, **_):
        if not self.left:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # As a forward that hangs: in C, without Python's lock.
        self.left -= 1
        return True

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(open_session=lambda: FakeSession(gate=Gate()))
        QTimer.singleShot(0, self.prompt.run_button.click)
        self.timer = QTimer(self)
        self.timer.timeout.connect(self.end)
        self.timer.start(50)

    def end(self):
        if self.run_view.counts.sums.num_steps == 2 and not self._is_leaving:
            self.prompt.stop_button.click()
            self.close() if close == "close" else signal.raise_signal(signal.SIGTERM)

app.main_window.MainWindow = Window
sys.exit(main([]))
"""


@pytest.mark.parametrize(("close", "code"), [("close", 0), ("SIGTERM", 143)])
def test_a_library_that_never_returns_keeps_no_closed_window_alive_and_the_log_is_whole(tmp_path, close, code):
    if close == "SIGTERM" and sys.platform == "win32":
        pytest.skip("Windows has no such signal")
    done = run_code(STUCK, tmp_path, close)
    assert done.returncode == code, done.stderr
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    assert len(log.steps) == 2
    (problem,) = log.problems
    assert "has no summary" in problem


COLLECTED = """
import gc, sys
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer

import app.main_window
from app.__main__ import open_window
from tests.fakes_app import FakeSession, keep_files_in
from tests.fakes_models import FakeHub

FakeHub().install(pytest.MonkeyPatch())
keep_files_in(Path(sys.argv[1]), pytest.MonkeyPatch())
seen, old = [], gc.get_threshold()[2]
gc.set_threshold = lambda *thresholds: seen.append(thresholds[2])

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(open_session=FakeSession)
        QTimer.singleShot(0, self.prompt.run_button.click)
        self.live.run_shown.connect(lambda: QTimer.singleShot(0, self.close))

app.main_window.MainWindow = Window
open_window()
print(seen[0] == 0, seen[-1] == old)
"""


def test_what_takes_several_frames_to_collect_waits_until_no_run_is_running(tmp_path):
    done = run_code(COLLECTED, tmp_path)
    assert done.stdout.split() == ["True", "True"], done.stderr


TYPING = """
import sys
from pathlib import Path
from threading import Semaphore

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtTest import QTest

import app.main_window
from app.__main__ import main
from tests.fakes_app import FakeSession, keep_files_in

keep_files_in(Path(sys.argv[1]), pytest.MonkeyPatch())
app.window_state.SAVE_DELAY_MS = 600_000

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(open_session=lambda: FakeSession(gate=Semaphore(2)))
        QTimer.singleShot(0, self.prompt.run_button.click)
        self.timer = QTimer(self)
        self.timer.timeout.connect(self.type)
        self.timer.start(50)

    def type(self):
        if self.run_view.counts.sums.num_steps == 2:
            self.timer.stop()
            self.controls.fields["temperature"].set_value(1.25)
            self.prompt.edit.selectAll()
            QTest.keyClicks(self.prompt.edit, "typed just before")
            print(flush=True)

app.main_window.MainWindow = Window
sys.exit(main([]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_the_window_with_its_run_and_what_was_typed_just_before(tmp_path, name, code):
    skip_if_ignored(name)
    settings = SettingsStore(tmp_path / "settings.json")
    assert settings.save(WindowSettings(introduction_seen=True)) is None
    command = [sys.executable, "-c", TYPING, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        child.send_signal(getattr(signal, name))
        _, complaints = child.communicate(timeout=60)
    assert child.returncode == code, complaints
    assert "Traceback" not in complaints
    run = settings.load().run
    assert (run.prompt, run.temperature) == ("typed just before", 1.25)
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    assert (len(log.steps), log.summary["finish_reason"], log.problems) == (2, "cancelled", [])


EARLY = """
import os, signal, sys
from pathlib import Path

folder, moment = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGINT, signal.default_int_handler)  # What a script starts in the background ignores Ctrl-C.

def strike(*_):
    if os.environ.pop("STRIKES", ""):
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(lambda event, found: event == "import" and found[0] == moment and strike())
from app.__main__ import main

if moment in {"built", "shown"}:
    import pytest

    import app.main_window
    from tests.fakes_app import FakeSession, keep_files_in

    keep_files_in(folder, pytest.MonkeyPatch())

    class Window(app.main_window.MainWindow):
        def __init__(self):
            super().__init__(open_session=FakeSession)

        def _lay_out(self):
            super()._lay_out()
            moment == "built" and strike()

        def showEvent(self, event):
            super().showEvent(event)
            moment == "shown" and strike()

    app.main_window.MainWindow = Window
sys.exit(main([]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("moment", ["core.text", "app.cli.parsing", "app.run.text.transcript", "built", "shown"])
def test_ctrl_c_while_the_window_opens_ends_it_without_a_crash(tmp_path, moment):
    done = run_code(EARLY, tmp_path, moment, STRIKES="1")
    # A window that is shown is closed as by a click, once its event loop runs.
    assert done.returncode in ({0, 130} if moment == "shown" else {130})
    assert "Traceback" not in done.stderr
