"""Photograph the window in each of its states: `python -m tests.screenshots FOLDER`.

The session is the tests' scripted one, so that the pictures are the same every time and need no weights; `--real`
uses the engine and the embedded pair instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from app.controller import RunState
from app.main_window import MainWindow
from app.services import Services
from app.settings import SettingsStore
from app.theme import ThemeMode
from tests.fakes_app import FakeSession, fake_services

SIZES = ((1280, 800), (1920, 1080))
TIMEOUT_MS = 300_000


def wait(milliseconds: int, until: Callable[[], bool] = lambda: False) -> None:
    """Let the window live until something holds, or for a while."""
    loop = QEventLoop()
    deadline, poll = QTimer(), QTimer()
    deadline.setSingleShot(True)
    deadline.timeout.connect(loop.quit)
    poll.timeout.connect(lambda: loop.quit() if until() else None)
    deadline.start(milliseconds)
    poll.start(20)
    loop.exec()


def photograph(folder: Path, mode: ThemeMode, size: tuple[int, int], *, real: bool) -> None:
    """All states in one theme and size."""
    with tempfile.TemporaryDirectory() as scratch:
        session = FakeSession(gate=threading.Semaphore(0), step_ms=11.0)
        services = (
            Services(runs_folder=lambda: Path(scratch) / "runs", store=SettingsStore(Path(scratch) / "settings.json"))
            if real
            else fake_services(session, Path(scratch))
        )
        window = MainWindow(services=services)
        window.menus.theme_actions[mode].trigger()
        window.resize(*size)
        window.show()
        wait(700)

        def shoot(state: str) -> None:
            wait(200)
            path = folder / f"{state}-{mode.value}-{size[0]}x{size[1]}.png"
            window.grab().save(str(path))
            print(path)

        def is_idle() -> bool:
            return window.controller.state is RunState.IDLE

        shoot("empty")
        window.prompt.run_button.click()
        if real:
            wait(TIMEOUT_MS, lambda: window.run_view.tokens.num_tokens > 40 or is_idle())
        else:
            for _ in range(22):
                session.gate.release()
            wait(2000, lambda: window.run_view.metrics.totals.steps >= 22)
        shoot("running")
        session.gate.release(10_000)
        wait(TIMEOUT_MS, is_idle)
        shoot("finished")
        window.menus.show_ghosts.setChecked(True)
        shoot("rejected")
        window.menus.show_ghosts.setChecked(False)
        if not real:
            session.fail_after = (9, "The model returned numbers that can't be sampled (NaN). Try float32.")
            window.prompt.run_button.click()
            wait(2000, is_idle)
            shoot("failed")
        window.close()
        wait(2000, lambda: window.controller.is_closed)
        window.deleteLater()


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", action="store_true", help="the engine and the embedded pair")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    application = QApplication.instance() or QApplication(sys.argv[:1])
    for mode in (ThemeMode.LIGHT, ThemeMode.DARK):
        for size in SIZES:
            photograph(arguments.folder, mode, size, real=arguments.real)
    del application
    return 0


if __name__ == "__main__":
    sys.exit(main())
