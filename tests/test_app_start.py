"""What the window does once it has been drawn, and in which order."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.settings import SettingsStore, WindowSettings
from tests.fakes_app import STRANGER, fake_services


class Started:
    """Services that note what is asked of them, and wait with the libraries until they are told to go on."""

    def __init__(self, session, folder):
        self.asked: list[str] = []
        self.libraries = threading.Event()
        plain = fake_services(session, folder)

        def noted(name, work):
            def call(*args):
                self.asked.append(name)
                return work(*args)

            return call

        def load_libraries():
            assert self.libraries.wait(10)

        self.services = replace(
            plain,
            load_libraries=noted("libraries", load_libraries),
            open_session=noted("engine", plain.open_session),
            find_models=noted("models", plain.find_models),
            resolve=noted("remembered model", plain.resolve),
        )


@pytest.fixture
def started(session, tmp_path):
    started = Started(session, tmp_path)
    yield started
    started.libraries.set()


def test_no_other_thread_imports_anything_while_the_libraries_are_loaded(make_window, qtbot, started, tmp_path):
    SettingsStore(tmp_path / "settings.json").save(WindowSettings(opened_models=(STRANGER.ref,)))
    window = make_window(started.services, is_shown=True)
    qtbot.waitUntil(lambda: "libraries" in started.asked)
    # What would have been asked by now has been answered when this has.
    with qtbot.waitSignal(window.checker.open_failed):
        window.checker.open("/nowhere", None)
    assert started.asked == ["libraries", "remembered model"]
    with qtbot.waitSignal(window.checker.scanned):
        started.libraries.set()
    assert started.asked.count("remembered model") == 2
    # The scan imports so much that it waits for the engine's import, too.
    assert started.asked.index("models") > started.asked.index("engine")


def test_models_are_looked_for_also_where_the_libraries_do_not_load(make_window, qtbot, started, session, tmp_path):
    def fail():
        raise OSError("libtorch.so is not what it was")

    window = make_window(replace(started.services, load_libraries=fail))
    with qtbot.waitSignals([window.checker.scanned, window.controller.engine_ready]):
        window.show()
    assert "not what it was" in window.banner.sentence()


def test_a_run_that_is_asked_for_at_once_loads_the_libraries_first(make_window, started, run_to_end):
    started.libraries.set()
    window = make_window(started.services)
    run_to_end(window)
    assert started.asked[:2] == ["libraries", "engine"]
    assert window.run_view.summary is not None
