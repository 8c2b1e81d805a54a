"""Opens and replays kept runs in the main window, and notices a run that was cut off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtWidgets import QWidget

from app.controller import RunController, RunState
from app.dialogs import Dialogs
from app.jobs import Job, Jobs
from app.menus import key_text
from app.run.run_view import COMPLETE, RunView
from app.tools.runs.window import RunsWindow
from app.window_layout import bring_forward
from core.runlog.reading import RunLog, read_run_log
from core.runlog.replay import events, request_from_config, request_to_show
from core.runlog.store import KeptRun, KeptState, RunStore
from core.settings import Coupling, RunRequest
from core.types import Event, RunStarted

if TYPE_CHECKING:
    from app.run.live import LiveView


class KeptRuns(QObject):
    """The kept runs, as seen by the main window.

    Signals:
        failed: one sentence, if the window of kept runs doesn't show it.
        reported: one line about a result.
        opened: a kept run is about to be shown in the main window.
        replay_wanted: a `RunRequest` to start.
    """

    failed = Signal(str)
    reported = Signal(str)
    opened = Signal()
    replay_wanted = Signal(object)

    def __init__(
        self,
        folder: Path,
        jobs: Jobs,
        controller: RunController,
        live: LiveView,
        run: RunView,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self.store = RunStore(folder)
        self.window: RunsWindow | None = None
        self._jobs, self._controller, self._live, self._run = jobs, controller, live, run
        self._dialogs, self._parent = dialogs, parent
        self._replaying: tuple[RunStarted | None, KeptRun, RunRequest, str | None] | None = None
        controller.engine_ready.connect(self._look_back)
        live.run_shown.connect(self._on_run_shown)
        live.run_begun.connect(self.refresh)
        self.submit(lambda job: self.store.empty_trash())

    # --- The window ---

    @Slot()
    def open(self) -> None:
        """Show the window of kept runs."""
        if self.window is None:
            self.window = RunsWindow(self, self._jobs, self._dialogs, self._parent)
            self._controller.freed.connect(self.window.banner.retract)
        bring_forward(self.window)
        self.window.table.setFocus()
        self.refresh()

    def close(self) -> None:
        """Remove deleted runs for good."""
        self.submit(lambda job: self.store.empty_trash(), must_finish=True)

    @Slot()
    def refresh(self) -> None:
        """Read the list again, if it is visible."""
        if self.window is not None:
            self.window.refresh()

    def running_id(self) -> str:
        """The id of the run that this process is writing; empty if none."""
        # Until a new run has started, the last one is still shown.
        is_shown = self._controller.state is not RunState.IDLE and self._live.upcoming is None
        return self._run.started.run_id if is_shown and self._run.started is not None else ""

    def show_problem(self, sentence: str) -> None:
        """Show a sentence in the window of kept runs, or in the main window if that one is not visible."""
        window = self.window
        (window.banner.show_sentence if window is not None and window.isVisible() else self.failed.emit)(sentence)

    def submit(self, work: Callable[[Job], Any], then: Callable[[Any], None] | None = None, **settings: Any) -> Job:
        """Run a job on the store; such jobs run one at a time. See `Jobs.submit`."""
        return self._jobs.submit(work, then, lane="runs", **{"failed": self.show_problem, **settings})

    @Slot()
    def _look_back(self) -> None:
        """Report it if the last run was cut off."""

        def report(run: KeptRun | None) -> None:
            if run is not None and run.state is KeptState.CUT_OFF and self._run.request is None:
                where = f"Find it under File > Runs ({key_text('Ctrl+O')})"
                self.reported.emit(f"The last run, '{run.title}', was cut off. {where}")

        self.submit(lambda job: next(self.store.runs(), None), report, what="The kept runs could not be listed")

    # --- Opening and replaying ---

    def busy_sentence(self) -> str:
        """Why no run can be opened now; empty if one can."""
        return self._controller.busy_sentence() if self._controller.state is not RunState.IDLE else ""

    def _is_busy(self, sentence: str = "") -> bool:
        if sentence := self.busy_sentence() or sentence:
            self.show_problem(sentence)
            return True
        if self.window is not None:
            self.window.banner.dismiss()
        return False

    def open_run(self, run: KeptRun) -> None:
        """Show a run in the main window. Its log may be outside the folder, like those of a sweep."""

        def read(job: Job) -> tuple[RunRequest, tuple[Event, ...], list[str]]:
            log = read_run_log(run.path, packs_evidence=True)
            return request_to_show(log), tuple(events(log)), log.problems

        if not self._is_busy():
            self.submit(read, lambda read: self.show(run, *read), what=f"'{run.title}' could not be opened")

    def show(self, run: KeptRun, request: RunRequest, events: tuple[Event, ...], problems: list[str]) -> None:
        """Show the run that was read, unless another one has started meanwhile."""
        self._live.finish()
        if self._is_busy():
            return
        self.opened.emit()
        self._live.show_kept(request, events, run.title)
        # The state already says that a run was cut off.
        if problems and (run.state is not KeptState.CUT_OFF or len(problems) > 1):
            self.show_problem(problems[0])

    def replay(self, run: KeptRun) -> None:
        """Run a kept run again."""

        def read(job: Job) -> tuple[RunRequest, str | None]:
            log = self.store.load(run.id)
            return request_from_config(log.run["config"]), _final_text(log)

        if not self._is_busy(self._controller.busy_sentence()):
            self.submit(read, lambda read: self._replay(run, *read), what=f"'{run.title}' could not be read")

    def _replay(self, run: KeptRun, request: RunRequest, text: str | None) -> None:
        if self._is_busy(self._controller.busy_sentence()):
            return
        before = self._run.started
        self.replay_wanted.emit(replace(request, inspect=True))
        # The run was requested, unless it was refused.
        self._replaying = (before, run, request, text) if self._controller.state is not RunState.IDLE else None

    @Slot()
    def _on_run_shown(self) -> None:
        replayed, self._replaying = self._replaying, None
        if replayed is not None:
            before, run, request, text = replayed
            # A replay that was stopped while its models loaded leaves the run before it on screen.
            if self._run.started is not before and (sentence := self._verdict(run, request, text)):
                self.reported.emit(sentence)
        self.refresh()

    def _verdict(self, run: KeptRun, request: RunRequest, text: str | None) -> str:
        """How the new text compares with the kept run's; empty if either is incomplete."""
        summary = self._run.summary
        if summary is None or summary.finish_reason not in COMPLETE or text is None:
            return ""
        if summary.text == text:
            return f"Ran '{run.title}' again: the same text, character for character"
        is_drawn = request.sampling.temperature > 0
        if request.engine and is_drawn:
            reason = "A server draws with its own random numbers"
        elif request.num_draft_tokens is None and request.coupling is Coupling.REJECTION and is_drawn:
            policy = str(request.length_policy).capitalize()
            reason = f"With {policy}, K depends on this machine's timing, and so does the text"
        else:
            reason = "A model or a version is different, or a setting was changed during the run"
        return f"Ran '{run.title}' again: the text differs. {reason}"


def _final_text(log: RunLog) -> str | None:
    """The text of a run that ended by itself; None for any other."""
    summary = log.summary or {}
    text = summary.get("text")
    return text if summary.get("finish_reason") in COMPLETE and isinstance(text, str) else None
