"""Between the sweep's form and what it chooses from: models, the main window's settings, files of prompts."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Slot

from app.dialogs import Dialogs
from app.sweep_reader import SweepReader
from app.view_models.sweep import SweepView
from app.view_models.sweep_form import make_plan, size_text
from app.widgets.controls import ControlsPanel
from app.widgets.prompt_editor import PromptEditor
from app.widgets.sweep_form import SweepForm
from core.errors import OutriderError, PairMismatchError
from core.models.catalogue import ModelEntry
from core.prompt_suites import Prompt
from core.sweep.plan import SweepPlan


class SweepChooser(QObject):
    """Fills the form, and says what its choices come to."""

    def __init__(
        self,
        form: SweepForm,
        controls: ControlsPanel,
        prompt: PromptEditor,
        reader: SweepReader,
        dialogs: Dialogs,
        view: SweepView,
    ) -> None:
        super().__init__(form)
        self._form, self._controls, self._prompt = form, controls, prompt
        self._reader, self._dialogs, self._view = reader, dialogs, view
        self._library = controls.models.library
        self._file_problem = ""
        settings = controls.settings(prompt.text())
        form.show_targets(self._targets(), settings.target)
        self._show_drafts()
        form.begin_with(settings)
        form.drafts.tick([controls.draft.ref])
        form.changed.connect(self.judge)
        form.target_chosen.connect(self._on_target_chosen)
        form.file_requested.connect(self._on_file_requested)
        reader.prompts_read.connect(self._on_prompts_read)
        reader.prompts_failed.connect(self._on_prompts_failed)
        # Models come, and verdicts on pairs; and the prompt may be the main window's.
        controls.changed.connect(self._on_window_changed)
        prompt.changed.connect(self._on_prompt_changed)
        self.judge()

    @Slot()
    def judge(self) -> SweepPlan | None:
        """The sweep that is chosen, and how large it is; None where it can't be done, which the form then says."""
        try:
            plan = self._plan()
        except OutriderError as error:
            self._form.show_judgement("", str(error))
            return None
        self._form.show_judgement(size_text(plan, self._view.seconds_each), self._file_problem)
        return plan

    def refresh(self) -> None:
        """Take over what has changed in the main window."""
        self._form.show_targets(self._targets(), self._controls.target.ref)
        self._show_drafts()
        self.judge()

    def _plan(self) -> SweepPlan:
        plan = make_plan(self._form.choices(self._controls.settings(self._prompt.text())))
        for drafter in plan.drafters:
            if drafter.draft is not None and (problem := self._library.problem(drafter.draft, plan.target)):
                raise PairMismatchError(problem)
        return plan

    # --- Models ---

    def _targets(self) -> list[ModelEntry]:
        return [entry for entry in self._library.entries if not self._library.target_problem(entry.ref)]

    def _show_drafts(self) -> None:
        target = self._form.target.currentData() or ""
        own = self._controls.draft.ref if target == self._controls.target.ref else ""
        fitting = {entry.ref for entry in self._library.fitting_drafts(target)} | {own, self._library.made_for(target)}
        entries = [
            entry
            for entry in self._library.entries
            if entry.ref in fitting and not self._library.problem(entry.ref, target)
        ]
        is_open = bool(self._library.unchecked_drafts(target))
        note = "Looking which other drafts suit…" if is_open and not entries else ""
        self._form.show_drafts(entries, note or ("" if entries else "No draft here suits this target."))

    @Slot(str)
    def _on_target_chosen(self, target: str) -> None:
        self._controls.models.ask(target)
        self._show_drafts()
        self._form.drafts.tick([self._library.best_draft(target)])

    @Slot()
    def _on_window_changed(self) -> None:
        if self._form.isVisible():
            self.refresh()

    @Slot()
    def _on_prompt_changed(self) -> None:
        if self._form.isVisible():
            self.judge()

    # --- Prompts ---

    @Slot()
    def _on_file_requested(self) -> None:
        path = self._dialogs.ask_prompts_path(self._form.window())
        if path is not None:
            self._reader.read_prompts(path)

    @Slot(object, object)
    def _on_prompts_read(self, path: Path, prompts: tuple[Prompt, ...]) -> None:
        self._file_problem = ""
        self._form.show_file(path, prompts)

    @Slot(str)
    def _on_prompts_failed(self, sentence: str) -> None:
        self._file_problem = sentence
        self.judge()
