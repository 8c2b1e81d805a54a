"""The window starts without the engine; where none can be opened, the reason is a sentence and never a core dump."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app.preflight import find_problem
from tests.children import imports_of, run_code
from tests.test_core_methods import DRAFTER, install

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks for Linux's displays")


class Libraries:
    """A machine's shared libraries: which are missing, and whether its displays answer."""

    def __init__(self, missing=(), *, x11=True, wayland=True):
        self.missing, self.x11, self.wayland = set(missing), x11, wayland
        self.opened = []

    def __call__(self, name):
        self.opened.append(name)
        base = os.path.basename(name)
        if base in self.missing or (base.startswith("libq") and self.missing):
            raise OSError(f"{next(iter(self.missing))}: cannot open shared object file: No such file or directory")

        def function(result):
            return lambda *_: result

        return SimpleNamespace(
            xcb_connect=function(1),
            xcb_connection_has_error=function(0 if self.x11 else 1),
            xcb_disconnect=function(None),
            wl_display_connect=function(1 if self.wayland else None),
            wl_display_disconnect=function(None),
        )


@pytest.fixture
def plugins(tmp_path):
    for name in ("xcb", "wayland", "offscreen", "minimal", "minimalegl"):
        (tmp_path / f"libq{name}.so").touch()
    return tmp_path


@pytest.fixture
def ask(plugins, monkeypatch):
    def find(environment, libraries=None, distribution="debian", system="linux", plugins=plugins):
        with monkeypatch.context() as machine:
            machine.setattr("app.preflight.CDLL", libraries or Libraries())
            machine.setattr("app.preflight._plugin_folder", lambda: plugins)
            machine.setattr("app.preflight._distribution", lambda: distribution)
            machine.setattr(sys, "platform", system)
            return find_problem(environment)

    return find


X11 = {"DISPLAY": ":0"}


def test_without_a_display_the_terminal_command_is_named(ask):
    problem = ask({})
    assert "no display" in problem
    assert "outrider run" in problem
    assert ask({"DISPLAY": ""}) == problem
    assert ask(X11) is None
    assert ask({"WAYLAND_DISPLAY": "wayland-0"}) is None


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        ("debian", "sudo apt install libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1"),
        ("fedora", "sudo dnf install xcb-util-cursor xcb-util-wm xcb-util-keysyms"),
        ("arch", "sudo pacman -S xcb-util-cursor xcb-util-wm xcb-util-keysyms"),
        ("suse", None),
    ],
)
def test_all_missing_libraries_are_named_at_once_with_the_command(ask, distribution, command):
    missing = ["libxcb-keysyms.so.1", "libxcb-cursor.so.0", "libxcb-icccm.so.4"]
    problem = ask(X11, Libraries(missing), distribution)
    assert all(name in problem for name in missing)
    commands = [line.strip() for line in problem.splitlines() if "sudo" in line]
    assert commands == [command] if command else len(commands) == 3


def test_a_package_that_holds_several_libraries_is_named_once(ask):
    problem = ask(X11, Libraries(["libxcb-randr.so.0", "libxcb-xkb.so.1"]), "fedora")
    assert "sudo dnf install libxcb\n" in problem
    assert "libnew.so.9" in ask(X11, Libraries(["libnew.so.9"])), "one that is not in the table"


def test_libraries_of_the_other_platform_do_not_matter(ask, plugins):
    class NoWayland(Libraries):
        def __call__(self, name):
            if "wayland" in os.path.basename(name):
                raise OSError("libwayland-cursor.so.0: cannot open shared object file")
            return super().__call__(name)

    assert ask({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, NoWayland()) is None
    assert "libwayland-cursor0" in ask({"WAYLAND_DISPLAY": "w"}, NoWayland())


def test_a_display_that_does_not_answer_is_a_sentence(ask):
    assert "does not answer" in ask(X11, Libraries(x11=False))
    assert "does not answer" in ask({"WAYLAND_DISPLAY": "w"}, Libraries(wayland=False))
    assert ask({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, Libraries(wayland=False)) is None


def test_a_chosen_platform_needs_no_display_but_must_exist(ask):
    assert ask({"QT_QPA_PLATFORM": "offscreen"}) is None
    assert ask({"QT_QPA_PLATFORM": "minimal:size=1x1"}) is None
    problem = ask({"QT_QPA_PLATFORM": "nonsense"})
    assert "'nonsense'" in problem
    assert "offscreen" in problem


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_not_asked(ask, system):
    libraries = Libraries(["libxcb-cursor.so.0"], x11=False)
    assert ask({}, libraries, system=system) is None
    assert libraries.opened == []


def test_a_pyside_from_the_distribution_is_trusted_with_its_libraries(ask, tmp_path):
    assert ask(X11, Libraries(["libxcb-cursor.so.0"]), plugins=tmp_path / "missing") is None


# --- The real thing ---------------------------------------------------------------------------------------------


def outrider(*arguments, **changes):
    names = {"DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE", "QT_QPA_PLATFORM"}
    environment = {name: value for name, value in os.environ.items() if name not in names} | changes
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


@linux_only
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({}, "no display"), ({"DISPLAY": ":987"}, "does not answer"), ({"QT_QPA_PLATFORM": "nonsense"}, "'nonsense'")],
)
def test_the_command_ends_with_a_sentence_and_no_dump(changes, sentence):
    done = outrider(**changes)
    assert done.returncode == 1
    # Where the machine lacks Qt's libraries as well, the command names those.
    assert sentence in done.stderr or "install them" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@linux_only
@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_the_table_knows_every_library_that_the_plugins_link_outside_qt():
    from app import preflight

    folder = preflight._plugin_folder()
    needed = set()
    for plugin in ("libqxcb.so", "libqwayland.so"):
        if (folder / plugin).exists():
            listing = subprocess.run(["ldd", str(folder / plugin)], capture_output=True, text=True, check=True).stdout
            needed |= {line.split()[0] for line in listing.splitlines() if "=>" in line}
    graphical = {name for name in needed if name.startswith(("libxcb", "libX11", "libxkb", "libGL.", "libEGL"))}
    assert graphical
    assert graphical <= set(preflight._PACKAGES)


WINDOW = """
from PySide6.QtWidgets import QApplication
from app.main_window import MainWindow
from app.tools.models.models import find_problem
application = QApplication([])
window = MainWindow()
window.close()
while not (window.controller.is_closed and window.jobs.is_idle):
    application.processEvents()
find_problem("nowhere", "elsewhere")
"""


def test_no_engine_is_imported_before_it_is_needed_by_the_window_and_the_check_of_a_pair():
    assert imports_of(WINDOW, "torch", "transformers", "scipy", "accelerate", "huggingface_hub") == []


CHOSEN = """
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer

import app.main_window
from app.__main__ import main
from tests.fakes_app import FakeSession, keep_files_in
from tests.fakes_models import FakeHub

FakeHub().install(pytest.MonkeyPatch())
keep_files_in(Path(sys.argv[1]), pytest.MonkeyPatch())

class Window(app.main_window.MainWindow):
    def __init__(self):
        super().__init__(open_session=FakeSession)
        QTimer.singleShot(0, self.end)

    def end(self):
        request = self.controls.request("Hi")
        is_within = self.size().boundedTo(self.screen().availableSize()) == self.size()
        print(request.method, dict(request.method_options), request.draft, request.draft_length, is_within)
        self.close()

app.main_window.MainWindow = Window
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("name", ["own_drafter:Stubborn", "stubborn"])
def test_the_window_opens_within_the_screen_with_a_named_class_or_a_method_of_a_package(tmp_path, name):
    (tmp_path / "own_drafter.py").write_text(DRAFTER)
    install(tmp_path, "stubborn = own_drafter:Stubborn")
    done = run_code(CHOSEN, tmp_path / "files", "--method", name, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{name} {{'token': 1}} None 4 True\n"), done.stderr
