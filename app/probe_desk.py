"""Probes drafts for the chosen target: asks the engine, shows what comes, and puts a draft into the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app.controller import RunController
from app.menus import Menus
from app.services import Services, Session
from app.task_desk import TaskDesk
from app.view_models.probing import question, row_of
from app.widgets.controls import ControlsPanel
from app.widgets.probe_window import ProbeWindow
from app.widgets.prompt_editor import PromptEditor
from core.controls import RunControls
from core.errors import OutriderError, SettingsError
from core.probe.types import DraftProbe, DraftProbed, ProbeDone, ProbeRequest, verdict
from core.types import LengthPolicy, StageChanged

TITLE = "A probe"
PROBING = "Probing…"
UNKNOWN_YET = ("?",)
"""Stands for the drafts until the engine's thread has looked for them."""


class ProbeDesk(TaskDesk):
    """Its window is made when it is first wanted."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        services: Services,
        controller: RunController,
        controls: ControlsPanel,
        prompt: PromptEditor,
    ) -> None:
        super().__init__(window, controller)
        self._main, self._services = window, services
        self._controls, self._prompt = controls, prompt
        self._in_titles = controls.models.library.in_titles
        self._probes: list[DraftProbe] = []
        self.window: ProbeWindow | None = None
        menus.probe.triggered.connect(self.open)

    @Slot()
    def open(self) -> None:
        """Show the window."""
        if self.window is None:
            self.window = ProbeWindow(self._main)
            self.window.probe_wanted.connect(self.start)
            self.window.stop_wanted.connect(self.stop)
            self.window.draft_chosen.connect(self._on_chosen)
        if self._task is None:
            self.window.show_subject(f"Target: {self._in_titles(self._controls.target.ref) or 'none chosen'}")
        self.window.open()

    @Slot()
    def start(self) -> None:
        """Probe on the prompt as it stands."""
        window = self.window
        if window is None or self._task is not None:
            return
        try:
            asked = self._question(with_own_text=window.generate.isChecked())
        except OutriderError as error:
            window.say(str(error), is_problem=True)
            return
        services = self._services

        def work(session: Session, controls: RunControls) -> Iterator[Any]:
            yield StageChanged("Looking for drafts…")
            found = replace(asked, drafts=services.find_drafts(asked.target))
            yield from services.probe(session, found, controls)

        if self._start_task(TITLE, work) is None:
            window.say(self._controller.busy_sentence(), is_problem=True)
            return
        self._probes = []
        window.show_rows(())
        window.say(PROBING)
        target, temperature = self._in_titles(asked.target), asked.sampling.temperature
        window.show_subject(f"Target: {target} · temperature {temperature:g} · the prompt at hand")
        window.show_going(is_going=True)

    def _question(self, *, with_own_text: bool) -> ProbeRequest:
        target, prompt = self._controls.target.ref, self._prompt.text()
        if not target:
            raise SettingsError("Choose a target first.")
        return question(target, self._controls.settings(prompt), prompt, UNKNOWN_YET, generate=with_own_text)

    def _show_stopping(self) -> None:
        if self.window is not None:
            self.window.show_stage("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        window = self.window
        if window is None:
            return
        for event in events:
            if isinstance(event, StageChanged):
                window.show_stage(event.text)
            elif isinstance(event, DraftProbed):
                self._probes.append(event.probe)
                window.show_rows([row_of(probe, self._in_titles) for probe in self._probes])
            elif isinstance(event, ProbeDone):
                self._show_done(event)

    def _show_done(self, done: ProbeDone) -> None:
        window = self.window
        assert window is not None
        window.show_rows([row_of(probe, self._in_titles) for probe in done.probes])
        if done.is_stopped and not done.probes:
            window.say("Stopped before a draft was probed.")
        else:
            stopped = " Stopped before all of them were probed." if done.is_stopped else ""
            window.say(f"{self._in_titles(verdict(done.probes))}{stopped}")
        if done.notes:
            window.show_subject(f"{window.subject.text()} · {' '.join(done.notes)}")

    def _show_failure(self, sentence: str) -> None:
        if self.window is not None:
            self.window.say(sentence, is_problem=True)

    def _show_end(self) -> None:
        if self.window is None:
            return
        self.window.show_going(is_going=False)
        self.window.show_stage("")
        if self.window.headline.text() == PROBING:
            self.window.say("Stopped before a draft was probed.")

    @Slot(object)
    def _on_chosen(self, probe: DraftProbe) -> None:
        current = self._controls.settings(self._prompt.text())
        self._controls.apply(
            replace(
                current,
                method="draft-model",
                draft=probe.draft,
                num_draft_tokens=probe.best_k,
                length_policy=LengthPolicy.FIXED,
            )
        )
        self._controls.changed.emit()
        if self.window is not None:
            self.window.show_stage(f"{self._in_titles(probe.draft)} and K = {probe.best_k} are in the settings.")
