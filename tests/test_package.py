"""The wheel, built and installed as `pipx install` and `uvx` do it: all of Outrider is in it, and it works offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from app import __version__
from core.runlog.reading import read_run_log

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("app", "core", "resources")
BUILD = """
import sys
from setuptools.build_meta import build_wheel
print(build_wheel(sys.argv[1], {"--build-option": "--compression=stored"}))
"""
WINDOW = """
from PySide6.QtWidgets import QApplication
import app.main_window
application = QApplication([])
window = app.main_window.MainWindow()
window.close()
while not (window.controller.is_closed and window.jobs.is_idle):
    application.processEvents()
print(app.main_window.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, since a build folder of an earlier one would end up in it."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> Path:
    """The scripts of an environment with the wheel, and with this one's libraries in place of downloads."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "-q"]
    command = [*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)]  # A PYTHONPATH may lead to another.
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    asked = [str(scripts / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, check=True, timeout=60, capture_output=True, text=True).stdout.strip()
    # Found behind the wheel's own files. What is installed here for development isn't: its .pth is not read.
    (Path(own) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return scripts


def run(folder: Path, *command: str | Path) -> str:
    """The output of a command in a folder, with no network."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_everything_that_is_used_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"outrider-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PARTS, metadata}
    here = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.is_file() and path.parent.name not in {"__pycache__", "screenshots"}
    }
    assert {name for name in names if not name.startswith(metadata)} == here
    assert {Path(name).suffix for name in here if not name.startswith("resources")} == {".py"}


def test_an_installed_outrider_runs_exports_and_opens_its_window_in_any_folder(scripts, tmp_path):
    outrider = scripts / "outrider"
    assert run(tmp_path, outrider, "--version") == f"outrider {__version__}\n"
    run(tmp_path, outrider, "run", "--prompt", "def f(x):", "--max-new-tokens", "4", "--log", "run.jsonl")
    assert read_run_log(tmp_path / "run.jsonl").summary["num_tokens"] == 4
    run(tmp_path, outrider, "export", "run.jsonl", "--html", "run.html")
    assert "<svg" in (tmp_path / "run.html").read_text("utf-8")
    file = run(tmp_path, scripts / "python", "-c", WINDOW).strip()
    assert Path(file).is_relative_to(scripts.parent)
