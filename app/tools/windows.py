"""Creates the windows of Probe, Check and Sweep when they are first opened."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TypeVar

from PySide6.QtWidgets import QMainWindow

from app.controller import RunController
from app.dialogs import Dialogs
from app.jobs import Jobs
from app.menus import Menus
from app.setup.controls import ControlsPanel
from app.setup.prompt import PromptEditor
from app.tools.check import CheckWindow
from app.tools.probe import ProbeWindow
from app.tools.runs.kept import KeptRuns
from app.tools.sweep.window import SweepWindow
from app.tools.tool_window import ToolWindow

T = TypeVar("T", bound=ToolWindow)


class ToolWindows:
    """The windows that follow a task of the engine. Each is created when it is first opened."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        controller: RunController,
        controls: ControlsPanel,
        prompt: PromptEditor,
        runs: KeptRuns,
        jobs: Jobs,
        dialogs: Dialogs,
    ) -> None:
        self._make_probe = partial(ProbeWindow, window, controller, controls, prompt)
        self._make_check = partial(CheckWindow, window, controller, controls, jobs, dialogs)
        self._make_sweep = partial(SweepWindow, window, controller, controls, prompt, runs, jobs, dialogs)
        self._made: list[ToolWindow] = []
        for name, action in {"probe": menus.probe, "check": menus.check, "sweep": menus.sweep}.items():
            action.triggered.connect(partial(self._open, name))

    @cached_property
    def probe(self) -> ProbeWindow:
        """Ranks drafts."""
        return self._prepared(self._make_probe())

    @cached_property
    def check(self) -> CheckWindow:
        """Checks exactness."""
        return self._prepared(self._make_check())

    @cached_property
    def sweep(self) -> SweepWindow:
        """Measures a grid of settings."""
        return self._prepared(self._make_sweep())

    def _open(self, name: str, _checked: bool = False) -> None:
        getattr(self, name).open()

    def _prepared(self, window: T) -> T:
        self._made.append(window)
        return window

    def close(self) -> None:
        """Close all of them."""
        for window in self._made:
            window.close()
