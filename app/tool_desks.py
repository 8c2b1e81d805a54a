"""The windows of the menu Tools, and what they share."""

from __future__ import annotations

from PySide6.QtWidgets import QMainWindow

from app.check_desk import CheckDesk
from app.controller import RunController
from app.dialogs import Dialogs
from app.menus import Menus
from app.probe_desk import ProbeDesk
from app.runs_desk import RunsDesk
from app.services import Services
from app.sweep_desk import SweepDesk
from app.widgets.controls import ControlsPanel
from app.widgets.prompt_editor import PromptEditor


class ToolDesks:
    """Answers about the pair that the main window has chosen, each in a window of its own."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        services: Services,
        controller: RunController,
        controls: ControlsPanel,
        prompt: PromptEditor,
        runs: RunsDesk,
        dialogs: Dialogs,
    ) -> None:
        self.probes = ProbeDesk(window, menus, services, controller, controls, prompt)
        self.checks = CheckDesk(window, menus, services, controller, controls, runs.reader, dialogs)
        self.sweeps = SweepDesk(window, services, menus, controller, controls, prompt, runs, dialogs)

    @property
    def drawn(self) -> tuple[CheckDesk, SweepDesk]:
        """Those that draw something themselves, in a theme's colours."""
        return (self.checks, self.sweeps)
