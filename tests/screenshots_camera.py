"""Photographs widgets in both themes and sizes, for tests.screenshots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.main_window import MainWindow
from app.theme import ThemeMode
from app.worker import OpenSession
from tests.fakes_app import keep_files_in
from tests.fakes_models import FakeHub

SIZES = ((1280, 800), (1920, 1080))
LOOKS = tuple((mode, size) for mode in (ThemeMode.LIGHT, ThemeMode.DARK) for size in SIZES)
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


class Camera:
    """Turns a window through its looks, and takes a picture in each."""

    def __init__(self, folder: Path, window: MainWindow, only: str = "") -> None:
        self._folder, self._window, self._only = folder, window, only

    def shoot(self, state: str, *, prepare: Callable[[], None] = lambda: None) -> None:
        """The main window."""
        if self._only in state:
            for mode, size in LOOKS:
                self._turn(mode, size)
                prepare()
                self._take(self._window, f"{state}-{mode.value}-{size[0]}x{size[1]}")

    def shoot_other(self, state: str, widget: Callable[[], QWidget], size: tuple[int, int] | None = None) -> None:
        """Another window, made or shown anew in both themes; as large as it wants to be, if no size is given."""
        if self._only in state:
            for mode in (ThemeMode.LIGHT, ThemeMode.DARK):
                self._turn(mode, SIZES[0])
                other = widget()
                if size is not None:
                    other.resize(*size)
                self._take(other, f"{state}-{mode.value}")

    def _turn(self, mode: ThemeMode, size: tuple[int, int]) -> None:
        self._window.menus.theme_actions[mode].trigger()
        self._window.resize(*size)
        wait(120)

    def _take(self, widget: QWidget, name: str) -> None:
        wait(180)
        path = self._folder / f"{name}.png"
        widget.grab().save(str(path))
        print(path, flush=True)


@contextmanager
def opened(open_session: OpenSession, folder: Path, hub: FakeHub | None = None) -> Iterator[MainWindow]:
    """A window that has been drawn, with its files in a folder; closed afterwards. Without a hub, models are real."""
    patches = pytest.MonkeyPatch()
    keep_files_in(folder, patches)
    if hub is not None:
        hub.install(patches)
    window = MainWindow(open_session=open_session)
    window.show()
    wait(700)
    try:
        yield window
    finally:
        window.close()
        wait(10_000, lambda: window.controller.is_closed)
        window.deleteLater()
        QApplication.processEvents()
        patches.undo()
