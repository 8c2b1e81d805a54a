"""Base classes of the Tools menu's windows that run a long task in the engine's thread and follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from PySide6.QtCore import QTimer, Slot
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QProgressBar, QPushButton, QWidget

from app.controller import RunController
from app.setup.settings_panel import SettingsPanel
from app.theme import hold
from app.widgets.fields import column, named, offer, push_button, row, set_flag, wrapped_label
from app.widgets.labels import ElidedLabel
from app.window_layout import bring_forward
from app.worker import EngineTask, Work
from core.errors import OutriderError
from core.text import duration_text
from core.types import StageChanged

POLL_MS = 100
BUTTON_WIDTH = 94


class ToolWindow(QDialog):
    """Starts one task of the engine at a time, polls its events, and stops it when the window is closed."""

    task_title = "A task"

    def __init__(
        self, main: QWidget | None, controller: RunController, name: str, title: str, poll_ms: int = POLL_MS
    ) -> None:
        super().__init__(main)
        self._controller = controller
        self._task: EngineTask | None = None
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

    def _start_task(self, work: Work, title: str = "") -> EngineTask | None:
        """Start work in the engine's thread, under another title if it has one; None if the engine is busy."""
        task = self._controller.start_task(title or self.task_title, work)
        if task is not None:
            self._task = task
            task.failed.connect(self._on_failed)
            task.ended.connect(self._on_ended)
            self._timer.start()
        return task

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

    @Slot(str)
    def _on_failed(self, sentence: str) -> None:
        self._show_failure(sentence)

    @Slot()
    def _on_ended(self) -> None:
        self._timer.stop()
        self._poll()
        self._task = None
        self._show_end()


class ReportWindow(ToolWindow):
    """A tool window with one sentence, the options and the progress at the top, and a table below them."""

    none_yet = running = stopped = ""
    """The sentences before the first start, while the task runs, and where it ended without an answer."""

    def __init__(
        self,
        main: QWidget | None,
        controller: RunController,
        controls: SettingsPanel,
        name: str,
        title: str,
        *,
        start_help: str,
        stop_help: str,
        progress_title: str,
    ) -> None:
        super().__init__(main, controller, name, title)
        self._controls = controls
        self._in_titles = controls.models.library.in_titles
        self._has_answer = False
        self.start_button = push_button(name.capitalize(), f"{name}Button", start_help, self.start)
        self.start_button.setProperty("role", "primary")
        self.stop_button = push_button("Stop", f"stop{name.capitalize()}Button", stop_help, self.stop)
        for button in (self.start_button, self.stop_button):
            hold(button, least_width=BUTTON_WIDTH)
        close_help = "Close the window, and stop what is running"
        self.close_button = push_button("Close", f"{name}CloseButton", close_help, self.close)
        self.headline = wrapped_label(f"{name}Headline", "title")
        self.subject = wrapped_label(f"{name}Subject", "hint")
        self.progress = named(QProgressBar(), f"{name}Progress", progress_title)
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(110)
        self.stage = ElidedLabel("", "hint", takes_all=True)
        self.stage.setObjectName(f"{name}Stage")
        self._part = ("", 0.0, 0)
        """The part of the task that is running, when it began, and how much was done then."""

    # --- For subclasses ---

    def _work(self) -> tuple[Work, str]:
        """The task for the main window's settings, and what it is about, in a line.

        Raises:
            OutriderError: they don't allow it.
        """
        raise NotImplementedError

    def _clear(self) -> None:
        """Show no results."""
        raise NotImplementedError

    def _show_event(self, event: Any) -> None:
        """Show one of the task's own events."""
        raise NotImplementedError

    def _lay_out(
        self, head: QHBoxLayout | None, options: Sequence[QWidget], body: QWidget, *buttons: QPushButton
    ) -> None:
        self._options = options
        asked = row(*options, self.progress, (self.stage, 1), self.start_button, self.stop_button)
        foot = row(None, *buttons, self.close_button)
        layout = column(head or column(self.headline, self.subject), asked, (body, 1), foot)
        layout.setContentsMargins(16, 14, 16, 16)
        self.setLayout(layout)
        self._show_running(is_running=False)
        self._clear()
        self.say(self.none_yet)

    # --- Running ---

    @Slot()
    def start(self) -> None:
        """Start the task, with the main window's settings."""
        if self.is_running:
            return
        try:
            work, subject = self._work()
        except OutriderError as error:
            self._clear()
            self.say(str(error), role="problem")
            return
        if self._start_task(work) is None:
            self.stage.setText(self._controller.busy_sentence())
            return
        self._has_answer = False
        self._clear()
        self.say(self.running)
        self.subject.setText(self._in_titles(subject))
        self.stage.clear()
        self.progress.setRange(0, 0)
        self._show_running(is_running=True)

    def _show_running(self, *, is_running: bool) -> None:
        offer(self.start_button, self.stop_button, is_running=is_running)
        for option in self._options:  # The progress takes their room.
            option.setVisible(not is_running)
        self.progress.setVisible(is_running)

    def say(self, sentence: str, *, role: str = "title") -> None:
        """Show the sentence at the top, in a role of the style sheet: title, problem, verdict."""
        set_flag(self.headline, "role", role)
        self.headline.setText(sentence)

    def _show_stopping(self) -> None:
        self.stage.setText("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        for event in events:
            if isinstance(event, StageChanged):
                self._show_progress(event.text)
            else:
                self._show_event(event)

    def _show_progress(self, text: str, done: int = 0, total: int = 0) -> None:
        if self._task is not None and not self._task.controls.is_cancelled:
            counted = f"{text}: {done:,} of {total:,}" if total and " of " not in text else text
            self.stage.setText(" · ".join(filter(None, (counted, self._time_left(text, done, total)))))
            self.progress.setRange(0, total)
            self.progress.setValue(done)

    def _time_left(self, text: str, done: int, total: int) -> str:
        """The time left in this part of the task, at its speed so far."""
        part, now = text.partition(",")[0], time.monotonic()
        if part != self._part[0] or done <= self._part[2]:
            self._part = (part, now, done)
        _, began, first = self._part
        seconds = (now - began) / (done - first) * (total - done) if done > first else 0.0
        return f"about {duration_text(seconds)} left in this part" if seconds >= 1 else ""

    def _show_failure(self, sentence: str) -> None:
        self._has_answer = True
        self.say(sentence, role="problem")

    def _show_end(self) -> None:
        self._show_running(is_running=False)
        self.stage.clear()
        if not self._has_answer:
            self.say(self.stopped)
