"""The settings panel: all forms on one page, read out as a frozen `RunRequest`."""

from __future__ import annotations

from PySide6.QtCore import QLocale, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.dress import hold_parts
from app.model_questions import RenderQuestion, VerdictQuestion
from app.settings import RunSettings
from app.view_models.model_library import ModelLibrary
from app.widgets.draft_length import DraftLengthForm
from app.widgets.fields import text_label
from app.widgets.method_form import MethodForm
from app.widgets.model_picker import ModelPicker
from app.widgets.models_form import ModelsForm
from app.widgets.run_form import RunForm
from app.widgets.sampling_form import SamplingForm
from core.draft_length import DraftLength, request_fields
from core.errors import OutriderError, PairMismatchError, SettingsError
from core.types import RunRequest, SamplingParams

CONTEXT_STEP = 256
NO_TARGET = "There is no target model yet. Open a model folder or a .gguf file, or get one under Models."


class ControlsPanel(QScrollArea):
    """Models, drafting, sampling, run.

    Signals:
        changed: some setting is new.
        num_draft_tokens_changed, temperature_changed: live during a run.
    """

    changed = Signal()
    num_draft_tokens_changed = Signal(object)
    temperature_changed = Signal(float)

    def __init__(self, library: ModelLibrary) -> None:
        super().__init__()
        self.setObjectName("sidebarScroll")
        self.setAccessibleName("Settings")
        # Its fields take the focus, and bring themselves into view.
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._kept = RunSettings()
        self.models = ModelsForm(library)
        self.method = MethodForm()
        self.draft_length = DraftLengthForm()
        self.sampling = SamplingForm()
        self.run = RunForm()
        self._lay_out()
        self._connect()

    @property
    def target(self) -> ModelPicker:
        """The target's dropdown."""
        return self.models.target

    @property
    def draft(self) -> ModelPicker:
        """The draft's dropdown."""
        return self.models.draft

    def _lay_out(self) -> None:
        body = QWidget()
        body.setObjectName("sidebarBody")
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 8, 0)
        layout.setSpacing(8)
        sections: tuple[tuple[str, tuple[QWidget, ...]], ...] = (
            ("Models", (self.models,)),
            ("Drafting", (self.method, self.draft_length)),
            ("Sampling", (self.sampling,)),
            ("Run", (self.run,)),
        )
        for index, (title, widgets) in enumerate(sections):
            if index:
                layout.addSpacing(6)
            layout.addWidget(text_label(title, "section"))
            for widget in widgets:
                layout.addWidget(widget)
        layout.addStretch(1)
        # One way to write numbers, whatever the desktop's language: that of the command line and the log.
        body.setLocale(QLocale.c())
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        hold_parts(self)

    def _connect(self) -> None:
        self.models.changed.connect(self.changed)
        self.method.method_changed.connect(self._on_method_changed)
        self.method.changed.connect(self.changed)
        self.draft_length.changed.connect(self._on_draft_length_changed)
        self.sampling.temperature_changed.connect(self.temperature_changed)
        self.sampling.changed.connect(self.changed)
        self.run.changed.connect(self.changed)

    def render_question(self, prompt: str) -> RenderQuestion | None:
        """What there is to render of a prompt; None without a target."""
        return RenderQuestion(self.target.ref, prompt, self.run.chat.member().as_flag) if self.target.ref else None

    def settings(self, prompt: str) -> RunSettings:
        """What the controls hold, for the settings file; an unusable seed is left as it was."""
        try:
            seed = self.sampling.seed_value()
        except SettingsError:
            seed = self._kept.seed
        return RunSettings(
            target=self.target.wanted,
            draft=self.draft.wanted,
            method=self.method.method.name,
            method_options=self.method.option_values(),
            num_draft_tokens=int(self.draft_length.number.value()),
            length_policy=self.draft_length.policy.member(),
            temperature=self.sampling.temperature.value(),
            top_k=self.sampling.top_k.value(),
            top_p=self.sampling.top_p.value(),
            min_p=self.sampling.min_p.value(),
            seed=seed,
            coupling=self.sampling.coupling.member(),
            max_new_tokens=self.run.length.value(),
            chat=self.run.chat.member(),
            device=self.run.device.member(),
            dtype=self.run.dtype.member(),
            baseline=self.run.baseline.isChecked(),
            prompt=prompt,
        )

    def apply(self, settings: RunSettings) -> None:
        """Show settings."""
        self._kept = settings
        self.method.apply(settings.method, settings.method_options)
        self.draft_length.number.set_value(settings.num_draft_tokens)
        self.draft_length.policy.choose(settings.length_policy)
        self.sampling.temperature.set_value(settings.temperature)
        self.sampling.top_k.setValue(settings.top_k)
        self.sampling.top_p.setValue(settings.top_p)
        self.sampling.min_p.setValue(settings.min_p)
        self.sampling.seed.setText(str(settings.seed))
        self.sampling.coupling.choose(settings.coupling)
        self.run.length.setValue(settings.max_new_tokens)
        self.run.chat.choose(settings.chat)
        self.run.device.choose(settings.device)
        self.run.dtype.choose(settings.dtype)
        self.run.baseline.setChecked(settings.baseline)
        self.target.want(settings.target)
        self.draft.want(settings.draft)
        self._show_models()

    def verdict_question(self, prompt: str) -> VerdictQuestion | None:
        """What there is to forecast about the chosen pair; None without a pair."""
        if not (self.target.ref and self.draft.ref and self.method.method.needs_draft_model):
            return None
        return VerdictQuestion(
            self.draft.ref,
            self.target.ref,
            str(self.run.device.member()),
            str(self.run.dtype.member()),
            # Three bytes a token is a rough count from above of the prompt; rounded, so that typing asks rarely.
            self.run.length.value() + CONTEXT_STEP * (1 + len(prompt.encode()) // (3 * CONTEXT_STEP)),
        )

    def request(self, prompt: str) -> RunRequest:
        """The settings as a request.

        Raises:
            OutriderError: they can't be run as they stand, with a sentence that says why.
        """
        method = self.method.method
        if not self.target.ref:
            raise SettingsError(NO_TARGET)
        draft = self.draft.ref if method.needs_draft_model else None
        if problem := self.models.problem():
            raise PairMismatchError(problem)
        if problem := self.method.problem():
            raise SettingsError(problem)
        settings = self.settings(prompt)
        return RunRequest(
            target=self.target.ref,
            draft=draft,
            prompt=prompt,
            method=method.name,
            method_options=self.method.options.values(),
            **request_fields(self.draft_length.value()),
            sampling=SamplingParams(settings.temperature, settings.top_k, settings.top_p, settings.min_p),
            seed=self.sampling.seed_value(),
            coupling=settings.coupling,
            max_new_tokens=settings.max_new_tokens,
            chat=settings.chat.as_flag,
            device=settings.device,
            dtype=settings.dtype,
            baseline=settings.baseline,
        )

    def problem(self, prompt: str) -> str | None:
        """Why the settings can't be run; None if they can."""
        try:
            self.request(prompt)
        except OutriderError as error:
            return str(error)
        return None

    def _show_models(self) -> None:
        self.models.set_draft_needed(self.method.method.needs_draft_model)
        self.models.show_models()

    @Slot(str)
    def _on_method_changed(self, _name: str) -> None:
        self._show_models()
        self.changed.emit()

    @Slot(object)
    def _on_draft_length_changed(self, length: DraftLength) -> None:
        self.num_draft_tokens_changed.emit(length)
        self.changed.emit()
