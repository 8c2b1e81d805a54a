"""The real window, opened for a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PySide6.QtCore import QEventLoop, QObject, QTimer, SignalInstance

from app.cli.interrupts import handle_interrupt
from app.collecting import collecting_here
from app.main_window import FINAL_WAIT_MS, MainWindow
from app.services import Services
from app.settings import SettingsStore
from core.collector import short_pauses
from core.errors import GenerationError
from core.read_ahead import extensions_read_ahead
from core.types import RunRequest

RunInWindow = Callable[[MainWindow, RunRequest], None]


@contextmanager
def opened_window(open_session: Callable[[], Any]) -> Iterator[tuple[MainWindow, RunInWindow]]:
    """The real window around a session of its own, on screen, with settings and logs that nobody else sees."""
    folders = TemporaryDirectory(prefix="outrider-")
    with folders as folder, short_pauses(), collecting_here(), extensions_read_ahead():
        services = Services(
            open_session=open_session,
            store=SettingsStore(Path(folder) / "settings.json"),
            runs_folder=lambda: Path(folder) / "runs",
            sweeps_folder=lambda: Path(folder) / "sweeps",
        )
        window = MainWindow(services=services)
        sentences: list[str] = []
        window.controller.failed.connect(sentences.append)

        def run(window: MainWindow, request: RunRequest) -> None:
            loop = QEventLoop()
            window.live.run_shown.connect(loop.quit)
            with interruptible(loop, window.controller.stop):
                window.controller.start(request)
                loop.exec()
            window.live.run_shown.disconnect(loop.quit)
            if sentences:
                raise GenerationError(sentences[0])

        try:
            window.show()
            yield window, run
        finally:
            window.close()
            window.threads.join(FINAL_WAIT_MS)
            window.deleteLater()


@contextmanager
def interruptible(loop: QEventLoop, stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let Ctrl-C end a loop, and be raised behind it: Qt swallows what is raised within."""
    is_interrupted = False

    def on_interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = True
        stop()
        loop.quit()

    with handle_interrupt(on_interrupt):
        yield
    if is_interrupted:
        raise KeyboardInterrupt


def wait(milliseconds: int) -> None:
    """Let the window live for so long.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    with interruptible(loop):
        loop.exec()


def wait_for(signal: SignalInstance, *, unless: bool = False) -> None:
    """Let the window live until it says this, unless it has by now.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    if unless:
        return
    loop = QEventLoop()
    connection = signal.connect(loop.quit)
    with interruptible(loop):
        loop.exec()
    QObject.disconnect(connection)
