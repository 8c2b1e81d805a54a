"""A run's request as what the controls hold, so that they show what is replayed."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QLocale, Qt, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QFrame, QGridLayout, QScrollArea, QSpinBox, QVBoxLayout, QWidget

from app.settings import ChatTemplate, RunSettings
from app.setup.method_form import MethodForm
from app.setup.model_library import ModelLibrary
from app.setup.models_form import ModelPicker, ModelsForm
from app.setup.pair import PairQuestion
from app.setup.sampling_form import SamplingForm
from app.theme import hold
from app.widgets.fields import SPIN_WIDTH, EnumCombo, SliderSpin, WheelGuard, describe, labelled, text_label
from core.draft_shape import DraftLength, request_fields
from core.drafters.registry import METHODS
from core.errors import OutriderError, PairMismatchError, SettingsError
from core.types import MAX_DRAFT_TOKENS, SETTINGS, Device, DType, LengthPolicy, RunRequest, SamplingParams

TITLES = {LengthPolicy.FIXED: "Fixed", LengthPolicy.AUTO: "Auto", LengthPolicy.ADAPTIVE: "Adaptive"}
HELP = (
    "Fixed: K as it is set here, in every step.\n"
    "Auto: before each step, from what forwards cost here and how much was accepted lately; 0, plain decoding, where "
    "drafting doesn't pay.\n"
    "Adaptive: as Auto, and a block ends early where the draft is unsure of its own tokens.\n"
    "With the last two K follows this machine's timing: a seed repeats its text only with Reproducible, or at "
    "temperature 0."
)


class DraftLengthForm(QWidget):
    """K as a slider and a spin box, and who chooses it.

    Signals:
        changed: the new K, or the policy that chooses it; live during a run.
    """

    changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.number = SliderSpin(
            "K, draft tokens",
            "How many tokens are drafted before the target tests them in one forward. Live during a run.",
            name="k",
            low=1,
            high=MAX_DRAFT_TOKENS,
        )
        self.policy = EnumCombo(TITLES, "kPolicyCombo")
        hold(self.policy, width=SPIN_WIDTH)
        describe(self.policy, "How K is chosen", HELP)
        for index, line in enumerate(HELP.splitlines()[: len(TITLES)]):
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
        self.length = QSpinBox()
        self.length.setObjectName("lengthSpin")
        self.length.setRange(1, SETTINGS["max_new_tokens"].metadata["window_max"])
        self.length.setSingleStep(16)
        self.chat = EnumCombo({ChatTemplate.AUTO: "Auto", ChatTemplate.ON: "On", ChatTemplate.OFF: "Off"}, "chatCombo")
        self.device = EnumCombo(
            {Device.AUTO: "Auto", Device.CPU: "CPU", Device.CUDA: "CUDA", Device.MPS: "MPS"}, "deviceCombo"
        )
        self.dtype = EnumCombo(
            {DType.AUTO: "Auto", DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"},
            "dtypeCombo",
        )
        self.baseline = QCheckBox("Measure the baseline")
        self.baseline.setObjectName("baselineCheck")
        describe(
            self.baseline,
            "Measure the baseline",
            "The target alone, with the same settings and the same limit of new tokens, after the run.",
        )
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(labelled("New tokens", self.length, "The run ends after this many, or earlier."), 0, 0)
        chat_help = "Put the prompt through the target's chat template. Auto: if the target has one."
        layout.addWidget(labelled("Chat template", self.chat, chat_help), 0, 1)
        layout.addWidget(labelled("Device", self.device, "Where the models run. Auto: the fastest there is."), 1, 0)
        dtype_help = "The number format of the weights. Auto: what suits the device."
        layout.addWidget(labelled("Number format", self.dtype, dtype_help), 1, 1)
        layout.addWidget(self.baseline, 2, 0, 1, 2)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self._guard = WheelGuard(self)
        self._guard.watch(self.length, self.chat, self.device, self.dtype)
        self.length.valueChanged.connect(self._on_changed)
        for combo in (self.chat, self.device, self.dtype):
            combo.currentIndexChanged.connect(self._on_changed)
        self.baseline.toggled.connect(self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()


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

    def _connect(self) -> None:
        self.models.changed.connect(self.changed)
        self.method.method_changed.connect(self._on_method_changed)
        self.method.changed.connect(self.changed)
        self.draft_length.changed.connect(self._on_draft_length_changed)
        self.sampling.temperature_changed.connect(self.temperature_changed)
        self.sampling.changed.connect(self.changed)
        self.run.changed.connect(self.changed)

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

    def pair_question(self, prompt: str) -> PairQuestion | None:
        """What there is to forecast about the chosen pair; None without a pair."""
        if not (self.target.ref and self.draft.ref and self.method.method.needs_draft_model):
            return None
        return PairQuestion(
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


def settings_of(request: RunRequest, current: RunSettings) -> RunSettings:
    """The settings of a request; where a control can't hold a value, the nearest, or what it holds now."""
    k = request.num_draft_tokens
    sampling = request.sampling
    is_known = request.method in METHODS
    options = {**current.method_options, request.method: dict(request.method_options)}
    return replace(
        current,
        target=request.target,
        draft=request.draft or current.draft,
        method=request.method if is_known else current.method,
        method_options=options if is_known else current.method_options,
        num_draft_tokens=current.num_draft_tokens if k is None else k,
        length_policy=request.length_policy if k is None else LengthPolicy.FIXED,
        temperature=min(sampling.temperature, SETTINGS["temperature"].metadata["window_max"]),
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=request.seed,
        coupling=request.coupling,
        max_new_tokens=min(request.max_new_tokens, SETTINGS["max_new_tokens"].metadata["window_max"]),
        chat={None: ChatTemplate.AUTO, True: ChatTemplate.ON, False: ChatTemplate.OFF}[request.chat],
        device=request.device,
        dtype=request.dtype,
        baseline=request.baseline,
        prompt=request.prompt,
    )
