"""Starts runs: from the form, a kept run, a branch, a piece of advice or the introduction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QAbstractSpinBox

from app.dialogs import Dialogs
from app.settings import RunSettings, settings_of
from app.setup.setting_fields import set_value
from core.analysis.advice import Advice
from core.draft_length import DraftLength
from core.drafters.registry import METHODS
from core.errors import OutriderError, SettingsError
from core.runlog.replay import request_from_config
from core.settings import RunRequest

if TYPE_CHECKING:
    from app.main_window import MainWindow


class RunStarter(QObject):
    """Starts runs with the window's settings or others, which the form then shows, or says why one can't start."""

    def __init__(self, window: MainWindow, dialogs: Dialogs) -> None:
        super().__init__(window)
        self._window, self._dialogs = window, dialogs
        self._controls, self._prompt, self._controller = window.controls, window.prompt, window.controller
        self._live, self._banner = window.live, window.banner
        self._failed_with: RunSettings | None = None
        """The settings that the last failure came with."""
        for changed in (self._controls.changed, self._prompt.edit.textChanged):
            changed.connect(self._on_form_changed)
        for failed in (window.models.failed, self._controller.failed):
            failed.connect(self.fail)
        for wanted in (self._prompt.run_button.clicked, window.menus.run.triggered):
            wanted.connect(self._on_run_wanted)
        self._controls.num_draft_tokens_changed.connect(self._on_draft_length_changed)
        self._controls.temperature_changed.connect(self._controller.set_temperature)
        for applied in (window.speed.applied, window.conclusion.advice.applied):
            applied.connect(self._on_advice_applied)
        window.introduction.run_wanted.connect(self.start)
        window.runs.replay_wanted.connect(self.replay)

    @Slot(object)
    def start(self, request: RunRequest) -> None:
        """Start a run, and show in the form what it has of its own."""
        if sentence := self._controller.busy_sentence():
            self.fail(sentence)
            return
        self._live.finish()
        forecast = self._window.forecast.too_large(request)
        if forecast and not self._dialogs.ask_too_large(self._window, forecast):
            return
        self.show_live_settings(request)
        # The Inspector needs the evidence, even for a run that is replayed from a log of the terminal.
        if self._controller.start(replace(request, inspect=True)):
            self._banner.dismiss()
            if self._window.conclusion.isAncestorOf(self._window.focusWidget()):  # Its button goes with it.
                self._window.transcript.view.setFocus()

    @Slot(object)
    def replay(self, request: RunRequest) -> None:
        """Start a kept run anew; why it can't be is said where it was chosen."""
        try:
            self._replay(request)
        except OutriderError as error:
            self._window.runs.show_problem(str(error))

    def _replay(self, request: RunRequest) -> None:
        """Start a run with the settings of an earlier one, all of which the form then shows."""
        if request.engine and request.engine not in self._controls.engine.servers:
            raise SettingsError(f"That run was on {request.engine}. Add that server under Engine first.")
        # The controls show the replayed settings; the request itself may hold more than they can show.
        self._prompt.set_text(request.prompt)
        self._controls.apply(settings_of(request, self._controls.settings(request.prompt)))
        self._controls.changed.emit()
        if not request.engine:
            self._window.models.recall(request.target, request.draft or "")
        self.start(request)

    @Slot(object)
    def show_live_settings(self, request: RunRequest) -> None:
        """Show the settings that can change during a run, and the seed: a branch has those of its token."""
        names = ["seed", "temperature", *(("num_draft_tokens", "length_policy") if self._is_of_kind(request) else ())]
        shown = settings_of(request, self._controls.settings(request.prompt))
        with self._controls.filling():
            for name in names:
                set_value(self._controls.fields[name], getattr(shown, name))

    @Slot(str)
    def fail(self, sentence: str) -> None:
        """Say why nothing started, until the settings or the prompt are changed."""
        self._failed_with = self._controls.settings(self._prompt.text())
        self._banner.show_until_changed(sentence)

    @Slot()
    def _on_form_changed(self) -> None:
        # The form also reports what was found out about models in the background, which mends nothing.
        if self._controls.settings(self._prompt.text()) != self._failed_with:
            self._banner.dismiss_if_changed()
            self._live.forget_refusal()

    @Slot()
    def _on_run_wanted(self) -> None:
        if isinstance(typing := self._window.focusWidget(), QAbstractSpinBox):
            typing.interpretText()
        # The reason why it can't be run stands beside Run.
        if self._controls.problem(self._prompt.text()) is None:
            self.start(self._controls.request(self._prompt.text()))

    @Slot(object)
    def _on_draft_length_changed(self, length: DraftLength) -> None:
        if self.takes_k:
            self._controller.set_num_draft_tokens(length)

    @property
    def takes_k(self) -> bool:
        """Whether a change of K on screen changes the run."""
        request = self._controller.request
        # A run that begins at 0 has no drafter.
        return request is None or (request.draft_length != 0 and self._is_of_kind(request))

    def _is_of_kind(self, request: RunRequest) -> bool:
        """Whether the K on screen means what a request's does: a tree's counts nodes, a chain's tokens."""
        method = METHODS.get(request.method)
        return method is None or method.proposes_trees == self._controls.method.method.proposes_trees

    @Slot(object)
    def _on_advice_applied(self, advice: Advice) -> None:
        if advice.repeats and (sentence := self._controller.busy_sentence()):
            self.fail(sentence)
            return
        settings = dict(advice.settings)
        if pace := settings.pop("pace", None):
            self._window.playback.set_pace(pace)
        if settings.get("draft", "") is None:  # Its list is opened.
            self._window.columns.show_settings()
        if settings:
            self._controls.change(settings)
        if advice.repeats:
            try:
                self._replay(request_from_config(self._window.run_view.config))
            except OutriderError as error:
                self._banner.show_sentence(str(error))
