"""Threads of Qt that something leaves running."""

import contextlib
import weakref
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QThread


@contextlib.contextmanager
def no_thread_left_running() -> Iterator[None]:
    """Fail where a QThread that was started within it still runs at its end."""
    started: list[weakref.ref[QThread]] = []
    start = QThread.start

    def remember(thread: QThread, *priority: QThread.Priority) -> None:
        started.append(weakref.ref(thread))
        start(thread, *priority)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QThread, "start", remember)
        yield
    threads = [thread for reference in started if (thread := reference()) is not None]
    running = [thread.objectName() or repr(thread) for thread in threads if _is_running(thread)]
    assert not running, f"threads left behind: {running}"


def _is_running(thread: QThread) -> bool:
    try:
        return thread.isRunning()
    except RuntimeError:  # its C++ part is gone
        return False
