"""Work in the engine's thread that a window of the menu Tools follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from PySide6.QtCore import QObject, QTimer, Slot

from app.controller import RunController
from app.engine_task import EngineTask, Work

FRAME_MS = 100


class TaskDesk(QObject):
    """Base of what starts such work and shows what comes of it: one task at a time, looked at now and then."""

    def __init__(self, parent: QObject, controller: RunController, frame_ms: int = FRAME_MS) -> None:
        super().__init__(parent)
        self._controller = controller
        self._task: EngineTask | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(frame_ms)
        self._timer.timeout.connect(self._on_frame)

    # --- For a desk ---

    def _start_task(self, title: str, work: Work) -> EngineTask | None:
        """As `RunController.start_task`; what comes of it is shown from now on."""
        task = self._controller.start_task(title, work)
        if task is not None:
            self._task = task
            task.failed.connect(self._on_failed)
            task.ended.connect(self._on_ended)
            self._timer.start()
        return task

    def _show_stopping(self) -> None:
        """The task was asked to end."""
        raise NotImplementedError

    def _show_events(self, events: Iterator[Any]) -> None:
        """Take what has come, if anyone looks."""
        raise NotImplementedError

    def _show_failure(self, sentence: str) -> None:
        """The task failed; `_show_end` follows."""
        raise NotImplementedError

    def _show_end(self) -> None:
        """The task is over, however it ended, and all its events were shown."""
        raise NotImplementedError

    # --- Itself ---

    @Slot()
    def stop(self) -> None:
        """End what goes, if anything does."""
        if self._task is not None:
            self._task.stop()
            self._show_stopping()

    @Slot()
    def _on_frame(self) -> None:
        if self._task is not None:
            self._show_events(self._task.take_events())

    @Slot(str)
    def _on_failed(self, sentence: str) -> None:
        self._show_failure(sentence)

    @Slot()
    def _on_ended(self) -> None:
        self._timer.stop()
        self._on_frame()
        self._task = None
        self._show_end()
