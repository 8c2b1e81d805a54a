"""Base class of the Tools menu's windows that run a long task in the engine's thread and follow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from PySide6.QtCore import QTimer, Slot
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QWidget

from app.controller import RunController
from app.widgets.labels import Banner
from app.window_layout import bring_forward
from app.worker import EngineTask, Work

POLL_MS = 100


class ToolWindow(QDialog):
    """Starts one task of the engine at a time, polls its events, and stops it when the window is closed."""

    def __init__(
        self, main: QWidget | None, controller: RunController, name: str, title: str, poll_ms: int = POLL_MS
    ) -> None:
        super().__init__(main)
        self._controller = controller
        self._task: EngineTask | None = None
        self.banner = Banner()
        controller.freed.connect(self.banner.retract)
        self.setObjectName(f"{name}Window")
        self.setWindowTitle(title)
        self._timer = QTimer(self)
        self._timer.setInterval(poll_ms)
        self._timer.timeout.connect(self._poll)

    # --- For subclasses ---

    def refresh(self) -> None:
        """Show the main window's settings. Called each time the window is opened."""

    def _show_stopping(self) -> None:
        """Called when the task has been asked to end."""
        raise NotImplementedError

    def _show_events(self, events: Iterator[Any]) -> None:
        """Show the events since the last call."""
        raise NotImplementedError

    def _show_failure(self, sentence: str) -> None:
        """Called when the task has failed; `_show_end` follows."""
        raise NotImplementedError

    def _show_end(self) -> None:
        """Called when the task is over, for whatever reason, and all its events have been shown."""
        raise NotImplementedError

    def _start_task(self, title: str, work: Work) -> bool:
        """Start work in the engine's thread; if the engine is busy, say so, and return False."""
        task = self._controller.start_task(title, work)
        if task is None:
            self.banner.show_sentence(self._controller.busy_sentence())
            return False
        self.banner.dismiss()
        self._task = task
        task.failed.connect(self._show_failure)
        task.ended.connect(self._on_ended)
        self._timer.start()
        return True

    # --- Public ---

    @property
    def is_running(self) -> bool:
        """Whether a task of this window is running."""
        return self._task is not None

    @Slot()
    def open(self) -> None:
        """Bring the window to the front, with the main window's settings."""
        bring_forward(self)
        self.refresh()

    @Slot()
    def stop(self) -> None:
        """Ask the task to end, if there is one."""
        if self._task is not None:
            self._task.stop()
            self._show_stopping()

    def reject(self) -> None:
        """Escape stops a task, and closes the window only when none is running."""
        if self.is_running:
            self.stop()
        else:
            super().reject()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop the task, since its results would not be seen."""
        self.stop()
        event.accept()

    @Slot()
    def _poll(self) -> None:
        if self._task is not None:
            self._show_events(self._task.take_events())

    @Slot()
    def _on_ended(self) -> None:
        self._timer.stop()
        self._poll()
        self._task = None
        self._show_end()
