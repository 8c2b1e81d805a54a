"""What every test relies on: an offscreen display, user folders of its own, and no thread left behind."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from core.runners.threads import limit_spinning

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# As the commands do: a run's second thread, waiting, would take from the other process of tests the core that it needs.
limit_spinning()

_LONGEST = ("core_exact", "core_server_check", "app_close", "core_trees", "core_strangers", "core_families",
            "core_mutants", "core_waits", "project", "core_check", "core_check_trees", "core_soak", "app_nothing_lost",
            "app_cli_bench", "app_text_size", "core_policy", "core_hybrids", "core_decode", "app_start", "package",
            "core_bad_trees")  # fmt: skip
"""Files of more than 10 seconds, the longest first."""


def pytest_xdist_auto_num_workers(config):
    """Two processes for the whole suite, whose models keep one core busy each; none beside this for single files."""
    return min(2, os.cpu_count() or 1) if all(Path(arg).is_dir() for arg in config.args) else 0


def pytest_collection_modifyitems(items):
    """The longest files first: of two processes none goes on alone for long at the end. Others stay in order."""
    ranks = {f"test_{name}": rank for rank, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def pytest_configure():
    """No deadlines, which a busy machine misses; and fewer full collections: they took an eighth of the time."""
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")
    gc.set_threshold(700, 10, 50)


_num_frozen = 0
"""Modules that were imported when rubbish was last sought among their objects."""


def _freeze_modules() -> None:
    """Keep the objects of imported modules, which stay, out of all collections to come."""
    global _num_frozen
    if len(sys.modules) > _num_frozen + 200:
        gc.collect()
        gc.freeze()
        _num_frozen = len(sys.modules)


def pytest_collection_finish():
    """What the test files import."""
    _freeze_modules()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """One thread for the tests' models, which are so small that a second one only waits.

    Said anew before each test: a run that chose between one thread and all may leave all behind, and while another
    process keeps a core busy, each of the thousands of forwards of the tests behind it waits for a scheduler's slice.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qapp(qapp):
    """As in a window's process, rubbish is collected in one thread, and not in the middle of what Qt does."""
    from app.__main__ import collecting_here

    with collecting_here():
        yield qapp


def pytest_runtest_logfinish():
    """Delete and collect what the test has left, once there has been a window: see `qapp`."""
    _freeze_modules()
    if main := sys.modules.get("app.__main__"):
        from PySide6.QtCore import QCoreApplication, QEvent

        # Else a plot that was closed, whose items are gone already, is styled with the next test's window.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        main.collect_due()


@pytest.fixture(autouse=True, scope="session")
def kernels():
    """Choices by size instead of by timing, so that all processes compute the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.runners.matmul._measure_packed", lambda weights: int(weights[0].numel() >= 2**16))
        patch.setattr("core.runners.matmul._is_int8_faster", lambda product: product.weights[0].numel() >= 2**16)
        yield


@pytest.fixture(autouse=True)
def user_folders(tmp_path_factory, monkeypatch):
    """No test reads or writes the settings and runs of the person who runs it."""
    home = tmp_path_factory.mktemp("home")
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "APPDATA", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(home / variable.lower()))
    return home


@pytest.fixture(autouse=True)
def no_leaked_qthread():
    """Fails a test that leaves a QThread running."""
    from tests.leaks import no_thread_left_running

    with no_thread_left_running():
        yield


@pytest.fixture
def clean_environment(monkeypatch):
    """The terminal of the test run has no influence, and no test leaves a choice about threads behind."""
    for name in ("NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    values = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    values |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def keys(monkeypatch):
    """The keys of servers: a keyring of the test's own, and none in the environment."""
    kept: dict[str, str] = {}
    for variable in ("OUTRIDER_API_KEY", "SSL_CERT_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("keyring.get_password", lambda _, url: kept.get(url))
    monkeypatch.setattr("keyring.set_password", lambda _, url, key: kept.update({url: key}))
    monkeypatch.setattr("keyring.delete_password", lambda _, url: kept.pop(url))
    return kept


@pytest.fixture
def short_look(monkeypatch):
    """A draft that is shown before its verdict is shown for a moment only."""
    monkeypatch.setattr("core.controls.LOOK_MS", 1.0)


@pytest.fixture
def play(monkeypatch):
    """Plays a script in place of the engine of `outrider run`."""
    from tests.fakes_cli import play_engine

    return partial(play_engine, monkeypatch)


@pytest.fixture
def log(tmp_path):
    """Where a run is logged."""
    return tmp_path / "run.jsonl"


@pytest.fixture
def out(tmp_path):
    """Where a sweep is kept."""
    return tmp_path / "sweep.jsonl"


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A good model in a folder, never changed."""
    from tests.fakes import save_model

    return save_model(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    """A model to distil a draft for."""
    from tests.fakes_distill import save_target

    return save_target(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def target(target_folder):
    """The same, loaded."""
    from core.models import load

    return load(str(target_folder), "cpu", "float32")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """HF_HOME in a folder of the test's own; no pauses before a download is tried again."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("core.models.remote.transfer.PAUSE_SECONDS", 0.0)
    return tmp_path / "hf"


@pytest.fixture
def server(monkeypatch):
    """A Hub that has the model of `fakes_downloads`."""
    from tests import fakes_downloads
    from tests.hub_server import HubServer, Repository

    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.repositories[fakes_downloads.REF] = Repository(fakes_downloads.model_files())
    yield server
    server.close()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with only the test's own models; the Hub cache is `hub` in it."""
    from tests.fakes_cache import empty_shelf

    return empty_shelf(tmp_path, monkeypatch)


@pytest.fixture
def cached(shelf):
    """Puts a model into the Hub cache."""
    from tests.fakes_cache import COMMIT, write_snapshot

    return partial(write_snapshot, commit=COMMIT, main=True)


@pytest.fixture
def terminal(monkeypatch):
    """Opens a terminal of some width, with answers typed at it."""
    from tests.fakes_cache import open_terminal

    return partial(open_terminal, monkeypatch)


@pytest.fixture
def session():
    """A scripted session."""
    from tests.fakes_app import FakeSession

    return FakeSession()


@pytest.fixture
def dialogs():
    """Dialogs that answer without a user."""
    from tests.fakes_app import ScriptedDialogs

    return ScriptedDialogs()


@pytest.fixture(scope="session")
def sound_binding():
    """Fails where the Qt binding releases None on every call, as PySide6 6.12.0 does under Python 3.11.

    Such a process dies sooner or later, far from the cause; so it is said here, before a window is built.
    """
    from PySide6 import __version__
    from PySide6.QtCore import QSize

    size, before = QSize(), sys.getrefcount(None)
    for _ in range(500):
        size.setWidth(1)
    lost = before - sys.getrefcount(None)
    assert lost < 250, f"PySide6 {__version__} miscounts references under this Python. Install PySide6-Essentials<6.12."


@pytest.fixture
def show_at(sound_binding, qtbot):
    """Shows a widget at a size, and waits until it is on screen."""

    def show(widget, width, height):
        qtbot.addWidget(widget)
        widget.resize(width, height)
        with qtbot.waitExposed(widget):
            widget.show()
        return widget

    return show


@pytest.fixture
def apply_theme(qapp):
    """Applies a theme to the application; the light one at the end."""
    from app.theme import LIGHT, apply_style

    yield apply_style
    apply_style(LIGHT)


@pytest.fixture(scope="session")
def engine_imported():
    """The engine and the commands, before fakes take the place of functions that they import: they would keep them for
    later tests."""
    import app.cli
    import core

    for package in (core, app.cli):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not each.name.endswith("__main__"):
                importlib.import_module(each.name)


@pytest.fixture
def hub(engine_imported, monkeypatch):
    """Models and a Hub that are played."""
    from tests.fakes_models import FakeHub

    return FakeHub().install(monkeypatch)


@pytest.fixture
def make_window(sound_binding, qtbot, session, dialogs, hub, tmp_path, monkeypatch):
    """Builds windows over the scripted session; closes them and joins their threads at the end."""
    from app.main_window import MainWindow
    from tests.fakes_app import keep_files_in

    keep_files_in(tmp_path, monkeypatch)
    # No introduction, unless a test asks for it.
    monkeypatch.setattr("app.introduction.introduction.RECORDING", tmp_path / "none")
    windows = []

    def make(open_session=lambda: session, *, is_shown: bool = False):
        window = MainWindow(open_session=open_session, dialogs=dialogs)
        windows.append(window)
        if is_shown:
            with qtbot.waitExposed(window):
                window.show()
        return window

    yield make
    for window in windows:
        window.close()
        qtbot.waitUntil(lambda window=window: window.controller.is_closed and window.jobs.is_idle, timeout=10_000)
        window.close()
        window.deleteLater()


@pytest.fixture
def window(make_window):
    """A window that was never shown: nothing is imported in its engine's thread."""
    return make_window()


@pytest.fixture
def run(request):
    """What the window has of a run that began with the file's request."""
    from app.run.run_view import RunView

    view = RunView()
    view.begin(request.module.REQUEST)
    return view


@pytest.fixture
def run_to_end(qtbot):
    """Presses Run and waits until all of the run is on screen."""

    def run(window, timeout: int = 10_000) -> None:
        with qtbot.waitSignal(window.live.run_shown, timeout=timeout):
            window.prompt.run_button.click()

    return run


@pytest.fixture
def finished(window, run_to_end):
    """A window with a run that is over."""
    run_to_end(window)
    return window


@pytest.fixture
def folder(tmp_path):
    """Where the window keeps its runs."""
    return tmp_path / "runs"


@pytest.fixture
def open_runs(make_window, qtbot):
    """Opens the window of kept runs, and waits until it has listed all."""
    from tests.fakes_runs import until

    def build(count):
        window = make_window()
        window.runs.open()
        panel = window.runs.window
        until(qtbot, lambda: panel._is_complete and panel.table.count() == count)
        return window, panel

    return build
