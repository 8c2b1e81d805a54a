"""What holds for all commands: the version, the window, Ctrl-C, and what parsing imports."""

import errno
import sys
from types import SimpleNamespace

import pytest

import app.__main__ as entry
from app import __version__
from app.__main__ import main
from app.cli.errors import OutputClosed, OutputError, write_output
from core.runners.threads import limit_spinning
from tests.children import imports_of, run_code
from tests.errors import failing
from tests.fakes_cli import refused


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"outrider {__version__}\n"


def test_a_window_that_cannot_be_opened_is_a_sentence_and_exit_1(monkeypatch, capsys):
    monkeypatch.setattr("app.preflight.find_problem", lambda _: "There is no display here.")
    assert refused(capsys, code=1) == "There is no display here."


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, OutputError), (errno.EINVAL, OutputClosed)])
def test_on_windows_a_full_disk_is_no_closed_pipe(monkeypatch, number, raised):
    monkeypatch.setattr(sys, "platform", "win32")
    full = SimpleNamespace(isatty=lambda: False, write=failing(OSError(number, "It fails")))
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(raised):
        write_output("text")


def test_no_argument_opens_the_window_and_ctrl_c_in_it_is_not_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(entry, "open_window", lambda *_: 7)
    assert main([]) == 7
    monkeypatch.setattr(entry, "open_window", failing(KeyboardInterrupt()))
    assert main([]) == 130
    assert "Traceback" not in capsys.readouterr().err


INTERRUPTED = """
import signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

# As in a terminal, also where the tests run in the background of a shell that has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from app.__main__ import main
sys.exit(main(sys.argv[2:]))
"""
"""A Ctrl-C at the moment at which a module is looked for."""


@pytest.mark.parametrize("module", ["app.cli.bench", "rich.console", "core.experiments.sweep", "app.cli.distill"])
def test_ctrl_c_while_the_commands_are_imported_is_not_a_traceback(module):
    done = run_code(INTERRUPTED, module, "nonsense")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


def test_parsing_imports_neither_qt_nor_torch_nor_another_command():
    code = "from app.__main__ import main; assert main(['run', '-k', '99', '--prompt', 'x']) == 2"
    others = ("app.cli.bench", "app.cli.sweep", "app.cli.models", "shtab")
    assert imports_of(code, "torch", "transformers", "PySide6", "numpy", *others) == []


def test_a_choice_about_waiting_threads_stays_the_users(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert not limit_spinning()
    monkeypatch.delenv("GOMP_SPINCOUNT")
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    assert limit_spinning()
    assert not limit_spinning()
