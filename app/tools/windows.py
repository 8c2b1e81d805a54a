"""Creates the windows of Check, Sweep and Server when they are first opened."""

from __future__ import annotations

from functools import cached_property, partial

from PySide6.QtWidgets import QMainWindow

from app.controller import RunController
from app.dialogs import Dialogs
from app.jobs import Jobs
from app.menus import Menus
from app.setup.prompt import PromptEditor
from app.setup.settings_panel import SettingsPanel
from app.tools.check import CheckWindow
from app.tools.runs.kept import KeptRuns
from app.tools.server import ServerWindow
from app.tools.sweep.window import SweepWindow


class ToolWindows:
    """The windows that follow a task of the engine, or a server."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        controller: RunController,
        controls: SettingsPanel,
        prompt: PromptEditor,
        runs: KeptRuns,
        jobs: Jobs,
        dialogs: Dialogs,
    ) -> None:
        self._window, self._controller, self._controls, self._prompt = window, controller, controls, prompt
        self._runs, self._jobs, self._dialogs = runs, jobs, dialogs
        for name, action in {"check": menus.check, "sweep": menus.sweep, "server": menus.server}.items():
            action.triggered.connect(partial(self._open, name))

    @cached_property
    def check(self) -> CheckWindow:
        """Checks exactness."""
        return CheckWindow(self._window, self._controller, self._controls, self._jobs, self._dialogs)

    @cached_property
    def sweep(self) -> SweepWindow:
        """Measures a grid of settings."""
        return SweepWindow(
            self._window, self._controller, self._controls, self._prompt, self._runs, self._jobs, self._dialogs
        )

    @cached_property
    def server(self) -> ServerWindow:
        """Follows the chosen server."""
        return ServerWindow(self._window, self._controller, self._controls.engine, self._jobs, self._dialogs)

    def _open(self, name: str, _checked: bool = False) -> None:
        getattr(self, name).open()

    def close(self) -> None:
        """Close those that were opened."""
        for name in {"check", "sweep", "server"} & vars(self).keys():
            getattr(self, name).close()
