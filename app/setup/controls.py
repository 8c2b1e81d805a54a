"""The settings of a run, in the left-hand column."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from PySide6.QtCore import QLocale, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.settings import ChatTemplate, RunSettings
from app.setup.method_form import MethodForm
from app.setup.model_library import ModelLibrary
from app.setup.models_form import ModelPicker, ModelsForm
from app.setup.pair import PairQuestion
from app.setup.sampling_form import SamplingForm
from app.setup.setting_fields import on_change, set_value, setting_field, setting_slider, two_columns, value_of
from app.theme import hold
from app.widgets.fields import SPIN_WIDTH, EnumCombo, WheelGuard, describe, text_label
from core.draft_shape import DraftLength, request_fields
from core.drafters.registry import METHODS
from core.errors import OutriderError, PairMismatchError, SettingsError
from core.settings import SETTINGS, LengthPolicy, RunRequest, SamplingParams


class DraftLengthForm(QWidget):
    """K as a slider and a spin box, and the policy that chooses it.

    Signals:
        changed: the new K, or the policy that chooses it; also during a run.
    """

    changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.number = setting_slider(SETTINGS["num_draft_tokens"], "k")
        policy = SETTINGS["length_policy"]
        self.policy = EnumCombo[LengthPolicy](policy.metadata["titles"], "kPolicyCombo")
        hold(self.policy, width=SPIN_WIDTH)
        describe(self.policy, policy.metadata["label"], f"{policy.metadata['help']}\n{REPEATABLE}")
        for index, line in enumerate(policy.metadata["help"].splitlines()):
            self.policy.setItemData(index, line, Qt.ItemDataRole.ToolTipRole)
        self._guard = WheelGuard(self)
        self._guard.watch(self.policy)
        self.number.add_above_number(self.policy)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.number)
        self.number.value_changed.connect(self._on_number_changed)
        self.policy.currentIndexChanged.connect(self._on_policy_changed)

    def value(self) -> DraftLength:
        """K, or the policy that chooses it."""
        policy = self.policy.member()
        return int(self.number.value()) if policy is LengthPolicy.FIXED else policy

    @Slot(float)
    def _on_number_changed(self, _value: float) -> None:
        self.changed.emit(self.value())

    @Slot(int)
    def _on_policy_changed(self, _index: int) -> None:
        is_fixed = self.policy.member() is LengthPolicy.FIXED
        self.number.slider.setEnabled(is_fixed)
        self.number.spin.setEnabled(is_fixed)
        self.changed.emit(self.value())


class RunForm(QWidget):
    """Length, chat template, device, number format, baseline."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.length = setting_field(SETTINGS["max_new_tokens"], "lengthSpin")
        self.chat = EnumCombo({ChatTemplate.AUTO: "Auto", ChatTemplate.ON: "On", ChatTemplate.OFF: "Off"}, "chatCombo")
        describe(self.chat, SETTINGS["chat"].metadata["label"], SETTINGS["chat"].metadata["help"])
        self.device = setting_field(SETTINGS["device"], "deviceCombo")
        self.dtype = setting_field(SETTINGS["dtype"], "dtypeCombo")
        self.baseline = setting_field(SETTINGS["baseline"], "baselineCheck")
        layout = two_columns(self.length, self.chat, self.device, self.dtype)
        layout.addWidget(self.baseline, 2, 0, 1, 2)
        self.setLayout(layout)
        self._guard = WheelGuard(self)
        self._guard.watch(self.length, self.chat, self.device, self.dtype)
        for field in (self.length, self.chat, self.device, self.dtype, self.baseline):
            on_change(field, self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()


REPEATABLE = (
    "With Auto and Adaptive, K depends on this machine's timing: a seed repeats its text only with Reproducible, or at "
    "temperature 0."
)
CONTEXT_STEP = 256
NO_TARGET = "There is no target model yet. Open a model folder or a .gguf file, or get one under Models."


class ControlsPanel(QScrollArea):
    """Models, drafting, sampling, run.

    Signals:
        changed: some setting has changed.
        num_draft_tokens_changed, temperature_changed: also during a run.
    """

    changed = Signal()
    num_draft_tokens_changed = Signal(object)
    temperature_changed = Signal(float)

    def __init__(self, library: ModelLibrary) -> None:
        super().__init__()
        self.setObjectName("sidebarScroll")
        self.setAccessibleName("Settings")
        # Its fields take the focus, and scroll into view by themselves.
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._kept = RunSettings()
        self.models = ModelsForm(library)
        self.method = MethodForm()
        self.draft_length = DraftLengthForm()
        self.sampling = SamplingForm()
        self.run = RunForm()
        self._fields: dict[str, Any] = {
            "num_draft_tokens": self.draft_length.number,
            "length_policy": self.draft_length.policy,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "min_p": self.sampling.min_p,
            "max_new_tokens": self.run.length,
            "chat": self.run.chat,
            "device": self.run.device,
            "dtype": self.run.dtype,
            "baseline": self.run.baseline,
        }
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
        # Numbers are written as on the command line and in the log, whatever the desktop's language.
        body.setLocale(QLocale.c())
        self.setWidget(body)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)

    def _connect(self) -> None:
        self.models.changed.connect(self.changed)
        self.method.method_changed.connect(self._on_method_changed)
        self.method.changed.connect(self.changed)
        self.draft_length.changed.connect(self._on_draft_length_changed)
        self.sampling.temperature_changed.connect(self.temperature_changed)
        self.sampling.changed.connect(self.changed)
        self.run.changed.connect(self.changed)

    def settings(self, prompt: str) -> RunSettings:
        """The controls' values, for the settings file; an unusable seed keeps its old value."""
        try:
            seed = self.sampling.seed_value()
        except SettingsError:
            seed = self._kept.seed
        values = {name: value_of(field) for name, field in self._fields.items()}
        return RunSettings(
            target=self.target.wanted,
            draft=self.draft.wanted,
            method=self.method.method.name,
            method_options=self.method.option_values(),
            **{**values, "num_draft_tokens": int(values["num_draft_tokens"])},
            seed=seed,
            coupling=self.sampling.coupling.member(),
            prompt=prompt,
        )

    def apply(self, settings: RunSettings) -> None:
        """Show settings."""
        self._kept = settings
        self.method.apply(settings.method, settings.method_options)
        for name, field in self._fields.items():
            set_value(field, getattr(settings, name))
        self.sampling.seed.setText(str(settings.seed))
        self.sampling.coupling.choose(settings.coupling)
        self.target.want(settings.target)
        self.draft.want(settings.draft)
        self._show_models()

    def pair_question(self, prompt: str) -> PairQuestion | None:
        """The question to forecast for the chosen pair; None without a pair."""
        if not (self.target.ref and self.draft.ref and self.method.method.needs_draft_model):
            return None
        return PairQuestion(
            self.draft.ref,
            self.target.ref,
            str(value_of(self.run.device)),
            str(value_of(self.run.dtype)),
            # Three bytes per token roughly bounds the prompt's length; rounded, so that typing rarely asks again.
            value_of(self.run.length) + CONTEXT_STEP * (1 + len(prompt.encode()) // (3 * CONTEXT_STEP)),
        )

    def request(self, prompt: str) -> RunRequest:
        """The settings as a request.

        Raises:
            OutriderError: they can't be run; the message says why.
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


def settings_of(request: RunRequest, current: RunSettings) -> RunSettings:
    """Show a request's settings; a control that can't hold a value takes the nearest, or keeps its own."""
    k = request.num_draft_tokens
    is_known = request.method in METHODS
    options = {**current.method_options, request.method: dict(request.method_options)}
    same = ("seed", "coupling", "device", "dtype", "baseline", "prompt", "target")
    return replace(
        current,
        **{name: getattr(request, name) for name in same},
        **asdict(request.sampling) | {"temperature": min(request.sampling.temperature, _window_max("temperature"))},
        draft=request.draft or current.draft,
        method=request.method if is_known else current.method,
        method_options=options if is_known else current.method_options,
        num_draft_tokens=current.num_draft_tokens if k is None else k,
        length_policy=request.length_policy if k is None else LengthPolicy.FIXED,
        max_new_tokens=min(request.max_new_tokens, _window_max("max_new_tokens")),
        chat={None: ChatTemplate.AUTO, True: ChatTemplate.ON, False: ChatTemplate.OFF}[request.chat],
    )


def _window_max(name: str) -> Any:
    return SETTINGS[name].metadata["window_max"]
