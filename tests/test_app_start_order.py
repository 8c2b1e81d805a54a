"""What the window does once it has been drawn, and in which order."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.controller import RunState
from app.settings import RunSettings, SettingsStore, WindowSettings
from tests.fakes_app import STRANGER, TARGET, fake_services


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


def test_what_imports_much_waits_until_the_engine_is_imported(make_window, qtbot, started):
    window = make_window(started.services, is_shown=True)
    qtbot.waitUntil(lambda: "libraries" in started.asked)
    # What would have been asked by now has been answered when this has.
    with qtbot.waitSignal(window.checker.open_failed):
        window.checker.open("/nowhere", None)
    assert "models" not in started.asked
    with qtbot.waitSignal(window.checker.scanned):
        started.libraries.set()
    assert started.asked.index("libraries") < started.asked.index("engine") < started.asked.index("models")


def test_the_models_of_last_time_are_looked_for_at_once_so_that_no_run_takes_others(
    make_window, qtbot, started, tmp_path
):
    SettingsStore(tmp_path / "settings.json").save(
        WindowSettings(run=RunSettings(target=STRANGER.ref, draft=TARGET.ref), opened_models=("/gone.gguf",))
    )
    window = make_window(started.services, is_shown=True)
    qtbot.waitUntil(lambda: window.controls.target.ref == STRANGER.ref)
    assert "engine" not in started.asked, "it waits for its libraries"
    assert started.asked.count("remembered model") == 2, "one that ships with the window is known"


def test_models_are_looked_for_also_where_the_engine_does_not_start(make_window, qtbot, started):
    def fail():
        raise OSError("libtorch.so is not what it was")

    window = make_window(replace(started.services, load_libraries=fail))
    with qtbot.waitSignals([window.checker.scanned, window.controller.engine_ready]):
        window.show()
    assert "not what it was" in window.banner.sentence()


def test_a_run_that_is_asked_for_before_the_engine_is_there_holds_nothing_up(make_window, qtbot, started, session):
    started.libraries.set()
    session.gate = threading.Semaphore(0)
    window = make_window(started.services)
    with qtbot.waitSignal(window.checker.scanned):
        window.prompt.run_button.click()
        window.controller.warm_up()
    assert window.controller.state is RunState.RUNNING
    with qtbot.waitSignal(window.live.run_shown):
        session.gate.release(10_000)


def test_a_run_that_is_asked_for_at_once_loads_the_libraries_first(make_window, started, run_to_end):
    started.libraries.set()
    window = make_window(started.services)
    run_to_end(window)
    assert [name for name in started.asked if name in {"libraries", "engine"}] == ["libraries", "engine"]
    assert window.run_view.summary is not None
