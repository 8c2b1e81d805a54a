"""Rubbish is collected in the window's thread alone, where widgets may be destroyed."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.collecting import INTERVAL_MS, collecting_here

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def collected():
    """In which threads anything is collected, which Python would do all the time, and in which functions."""
    places, thresholds = [], gc.get_threshold()

    def note(phase, _info):
        if phase == "start":
            places.append((threading.get_ident(), sys._getframe(1).f_code.co_name))

    gc.set_threshold(20, 5, 5)
    gc.callbacks.append(note)
    yield places
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)


def test_while_a_run_goes_the_window_collects_and_only_when_it_means_to(window, run_to_end, collected):
    run_to_end(window)
    assert (threading.get_ident(), "collect_due") in collected
    assert {thread for thread, _ in collected} == {threading.get_ident()}
    assert {function for _, function in collected} <= {"collect_due"}


def test_a_window_in_which_nothing_happens_collects_now_and_then(qtbot, collected):
    rings = [[] for _ in range(1000)]
    for ring in rings:
        ring.append(ring)
    qtbot.waitUntil(lambda: bool(collected), timeout=10 * INTERVAL_MS)


def test_behind_the_window_python_collects_as_before(qapp):
    before = gc.isenabled()
    with collecting_here():
        assert not gc.isenabled()
    assert gc.isenabled() is before


WINDOW = """
import gc, sys, threading
from pathlib import Path

from PySide6.QtCore import QTimer

import app.main_window
from app.__main__ import open_window
from tests.fakes_app import FakeSession, fake_services

threads = set()
gc.callbacks.append(lambda phase, info: threads.add(threading.get_ident()))

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(services=fake_services(FakeSession(), Path(sys.argv[1])))
        threads.clear()
        self.live.run_shown.connect(self.close)
        self.controller.engine_ready.connect(self.prompt.run_button.click)

gc.set_threshold(20, 5, 5)
app.main_window.MainWindow = Window
code = open_window()
print(threads == {threading.get_ident()})
sys.exit(code)
"""


def test_the_application_collects_in_its_windows_thread(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WINDOW, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
