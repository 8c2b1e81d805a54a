"""The settings of a run, in the left-hand column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QLocale, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QScrollArea, QWidget

from app.jobs import Jobs
from app.settings import RunSettings
from app.setup.engine_form import EngineForm
from app.setup.method_form import MethodForm
from app.setup.model_library import ModelLibrary
from app.setup.models_form import ModelsForm
from app.setup.pair import PairQuestion
from app.setup.setting_fields import SettingsForm, on_change, set_value, setting_field, value_of
from app.theme import hold
from app.widgets.compound_fields import SPIN_WIDTH, Fold
from app.widgets.fields import (
    boxed,
    column,
    describe,
    guard_wheel,
    labelled,
    plain_tip,
    row,
    scrolled,
    set_flag,
    text_label,
)
from core.draft_length import DraftLength, request_fields
from core.drafters.registry import rule_problem
from core.errors import OutriderError, PairMismatchError, SettingsError
from core.models.catalogue import usual_draft_length
from core.models.fit import nodes_of
from core.settings import LONGEST_CHAIN, SAME_TEXT, SETTINGS, LengthPolicy, RunRequest

SINGLE_FIELDS = {
    "num_draft_tokens": "kSlider",
    "length_policy": "kPolicyCombo",
    "temperature": "temperatureSlider",
    "max_new_tokens": "lengthSpin",
    "seed": "seedEdit",
    "baseline": "baselineCheck",
}
FILTER_FIELDS = {"top_k": "topKSpin", "top_p": "topPSpin", "min_p": "minPSpin"}
RARE_FIELDS = {
    "verification": "verificationCombo",
    "chat": "chatCombo",
    "device": "deviceCombo",
    "dtype": "dtypeCombo",
    "system": "systemEdit",
    "coupling": "couplingCheck",
}
REPEATABLE = (
    f"With Auto and Adaptive, K depends on this machine's timing: a seed repeats its text only with “{SAME_TEXT}”, or "
    "at temperature 0."
)
NODES_TITLE = "K, nodes"
NODES_HELP = (
    "The largest number of nodes in the drafted tree, which the target scores in one forward pass. Depth and branching "
    "shape the tree."
)
CONTEXT_STEP = 256
SECTION_GAP = 6
"""Extra pixels above a section's title, on top of the usual row spacing."""
HERE_ONLY = {
    "device": "The server's device is set when it is started.",
    "dtype": "The server's precision is set when it is started.",
    "verification": "A server verifies by its own rule.",
    "coupling": "A server draws with its own random numbers.",
    "baseline": "The baseline needs the models on this machine: a server can't switch off drafting for one request.",
}
"""Settings that a server doesn't take, and why."""
DEFAULTS = RunSettings()
NO_TARGET = "There is no target model yet. Add a model, or get one, under File > Models."


class SettingsPanel(QScrollArea):
    """Models, the settings of a run, and those that few people need, folded.

    Signals:
        changed: some setting has changed.
        num_draft_tokens_changed: K, or the policy that chooses it; also during a run.
        temperature_changed: also during a run.

    Attributes:
        fields: the field of each setting that is declared in `core.settings`.
        target, draft: the dropdowns of both models.
    """

    changed = Signal()
    num_draft_tokens_changed = Signal(object)
    temperature_changed = Signal(float)

    def __init__(self, library: ModelLibrary, jobs: Jobs) -> None:
        super().__init__()
        self._kept = RunSettings()
        self._is_filling = False
        self.engine = EngineForm(jobs)
        self.models = ModelsForm(library)
        self.target, self.draft = self.models.target, self.models.draft
        self.method = MethodForm()
        single = {name: setting_field(SETTINGS[name], field) for name, field in SINGLE_FIELDS.items()}
        self._filters = SettingsForm(SETTINGS, FILTER_FIELDS, columns=3)
        self._rare = SettingsForm(SETTINGS, RARE_FIELDS)
        self.advanced = Fold("Advanced", "advancedButton", self.method.advanced, self._filters, self._rare)
        self.fields: dict[str, Any] = {**single, **self._filters.fields, **self._rare.fields}
        self._lay_out()
        self._tips = {name: self.fields[name].toolTip() for name in HERE_ONLY}
        self.engine.changed.connect(self._on_engine_changed)
        for name in ("num_draft_tokens", "length_policy"):
            on_change(self.fields[name], self._on_draft_length_changed)
        self.fields["temperature"].value_changed.connect(self._on_temperature_changed)
        for name in SINGLE_FIELDS:
            on_change(self.fields[name], self.changed)
        for form in (self.models, self.method, self._filters, self._rare):
            form.changed.connect(self.changed)
        self.advanced.button.toggled.connect(self._on_advanced_toggled)
        self.changed.connect(self._show_advanced)
        self.method.method_changed.connect(self._on_method_changed)
        self.models.method_chosen.connect(self._on_method_chosen)
        self.models.draft_chosen.connect(self._start_length)

    def _lay_out(self) -> None:
        k, policy, seed = (self.fields[name] for name in ("num_draft_tokens", "length_policy", "seed"))
        rules = SETTINGS["length_policy"].metadata
        hold(policy, width=SPIN_WIDTH)
        describe(policy, rules["label"], f"{rules['help']}\n{REPEATABLE}")
        for index, line in enumerate(rules["help"].splitlines()):
            policy.setItemData(index, plain_tip(line), Qt.ItemDataRole.ToolTipRole)
        guard_wheel(policy)
        k.add_above_number(policy)
        length = self.fields["max_new_tokens"]
        guard_wheel(length)
        size = labelled(length.accessibleName(), length, length.toolTip())
        seeded = labelled("Seed", boxed(row((seed, 1), seed.new_button, spacing=4)), seed.toolTip())
        run_title = text_label("Decoding", "section")
        run_title.setContentsMargins(0, SECTION_GAP, 0, 0)
        layout = column(
            text_label("Models", "section"),
            self.engine,
            self.models,
            self.method,
            run_title,
            k,
            self.fields["temperature"],
            row((size, 1), (seeded, 1)),
            self.fields["baseline"],
            self.advanced,
            None,
        )
        self._form = boxed(layout, margins=(0, 0, 8, 0))
        self._parts = column(self._form)
        body = boxed(self._parts)
        # Numbers are written as on the command line and in the log, whatever the desktop's language.
        body.setLocale(QLocale.c())
        scrolled(body, "sidebarScroll", self)
        self.setAccessibleName("Settings")

    def settings(self, prompt: str) -> RunSettings:
        """The controls' values, for the settings file; an unusable seed keeps its old value."""
        values = {name: value_of(field) for name, field in self.fields.items() if name != "seed"}
        values["num_draft_tokens"] = int(values["num_draft_tokens"])
        try:
            seed = self.fields["seed"].value()
        except SettingsError:
            seed = self._kept.seed
        return RunSettings(
            target=self.target.wanted,
            draft=self.draft.wanted,
            method=self.method.method.name,
            method_options={**self._kept.method_options, **self.method.option_values()},
            seed=seed,
            engine=self.engine.url,
            engine_model=self.models.served_model,
            prompt=prompt,
            **values,
        )

    def apply(self, settings: RunSettings) -> None:
        """Show settings."""
        self._kept = settings
        self.method.apply(settings.method, settings.method_options)
        self._show_length()
        with self.filling():
            for name, field in self.fields.items():
                set_value(field, getattr(settings, name))
        self.target.wanted = settings.target
        self.draft.wanted = settings.draft
        self.models.is_draft_free = False
        self.models.served_model = settings.engine_model
        self.engine.choose(settings.engine)
        self._show_models()
        self._show_engine()
        self._show_advanced()

    @Slot(object)
    def change(self, settings: Mapping[str, Any]) -> None:
        """Show some settings, by name, as the user would choose them; where a draft is to be chosen, open its list."""
        if settings.get("draft", "") is None:
            self.draft.combo.setFocus()
            self.draft.combo.showPopup()
            return
        current = self.settings(self._kept.prompt)
        options = dict(current.method_options)
        for method, changed in settings.get("method_options", {}).items():
            options[method] = {**options.get(method, {}), **changed}
        self.apply(replace(current, **{**settings, "method_options": options}))
        self.changed.emit()

    def show_instead(self, panel: QWidget, *, shown: bool) -> None:
        """Show a panel in place of the form, or the form again."""
        if self._parts.indexOf(panel) < 0:
            self._parts.addWidget(panel, 0, Qt.AlignmentFlag.AlignTop)
            panel.setContentsMargins(0, 0, 8, 0)
        self._form.setHidden(shown)
        panel.setVisible(shown)

    def draft_length(self) -> DraftLength:
        """K, or the policy that chooses it."""
        policy = self.fields["length_policy"].member()
        return int(self.fields["num_draft_tokens"].value()) if policy is LengthPolicy.FIXED else policy

    def pair_question(self, prompt: str) -> PairQuestion | None:
        """The question to forecast for the chosen pair; None without one that can work, or at K = 0."""
        if self.engine.url or not (self.target.ref and self.draft.ref and self.method.method.needs_draft_model):
            return None
        if self.draft_length() == 0 or self.models.problem():  # Which stands beside Run.
            return None
        return PairQuestion(
            self.draft.ref,
            self.target.ref,
            str(self.fields["device"].member()),
            str(self.fields["dtype"].member()),
            # Three bytes per token roughly bounds the prompt's length; rounded, so that typing rarely asks again.
            self.fields["max_new_tokens"].value() + CONTEXT_STEP * (1 + len(prompt.encode()) // (3 * CONTEXT_STEP)),
            num_nodes=nodes_of(
                self.method.method.name, length if isinstance(length := self.draft_length(), int) else None
            ),
            method=self.method.method.name,
            method_options=self.method.values(),
        )

    def request(self, prompt: str) -> RunRequest:
        """The settings as a request.

        Raises:
            OutriderError: they can't be run; the message says why.
        """
        if self.engine.url:
            if refusal := self.engine.problem():
                raise SettingsError(refusal)
            return RunRequest(
                self.target.ref, None, num_draft_tokens=None, engine=self.engine.url, **self._values(prompt)
            )
        if not self.target.ref:
            raise SettingsError(NO_TARGET)
        if problem := self.models.problem():
            raise PairMismatchError(problem)
        if problem := self.method.problem() or self._verification_problem():
            raise SettingsError(problem)
        method = self.method.method
        return RunRequest(
            self.target.ref,
            self.draft.ref if method.needs_draft_model else None,
            method=method.name,
            method_options=self.method.values(),
            **request_fields(self.draft_length()),
            **self._values(prompt, *HERE_ONLY),
        )

    def _values(self, prompt: str, *more: str) -> dict[str, Any]:
        """The fields of a request that are the controls' values, and `more` of them by name."""
        settings = self.settings(prompt)
        values = {name: getattr(settings, name) for name in ("prompt", "sampling", "max_new_tokens", "chat", "system")}
        return {**values, **{name: getattr(settings, name) for name in more}, "seed": self.fields["seed"].value()}

    def request_here(self, prompt: str, what: str, instead: str = "") -> RunRequest:
        """`request`, for work that needs this machine, such as "Check"; `instead`: what does it on a server.

        Raises:
            OutriderError: as `request`, or a server is chosen.
        """
        if self.engine.url:
            raise SettingsError(f"{what} needs the models on this machine: choose This machine under Engine{instead}.")
        return self.request(prompt)

    def problem(self, prompt: str) -> str | None:
        """Why the settings can't be run; None if they can."""
        try:
            self.request(prompt)
        except OutriderError as error:
            return str(error)
        return None

    def _show_length(self) -> None:
        """K counts tokens in a row, or the nodes of a tree, which may be more."""
        rules, is_tree = SETTINGS["num_draft_tokens"].metadata, self.method.method.proposes_trees
        title, help_text = (NODES_TITLE, NODES_HELP) if is_tree else (rules["label"], rules["help"])
        most = rules["max"] if is_tree else LONGEST_CHAIN
        help_text += " Adjustable mid-run, unless Auto or Adaptive chooses it. 0 is plain decoding; a run that starts"
        help_text += " with 0 stays plain."
        with self.filling():
            self.fields["num_draft_tokens"].set_meaning(title, help_text, most)

    def _verification_problem(self) -> str:
        coupling, rule = (self.fields[name].member() for name in ("coupling", "verification"))
        return rule_problem(self.method.method.name, coupling, rule)

    def _show_models(self) -> None:
        self.models.method = self.method.method
        self.models.show_models()

    @Slot()
    def _on_engine_changed(self) -> None:
        self._show_engine()
        self.changed.emit()

    def _show_engine(self) -> None:
        """Offer what the chosen engine takes; what it doesn't take is off, and says why, or isn't shown."""
        server, is_here = self.engine.server, not self.engine.url
        self.models.set_served(None if is_here else server.models if server is not None else (), self.engine.drafting())
        for part in (self.method, self.method.advanced):
            part.setVisible(is_here)
        self.fields["num_draft_tokens"].setVisible(server is None)
        for name in ("baseline", "coupling"):  # A tick is kept for this machine, and untrue for a server.
            self.fields[name].setVisible(is_here)
        for name, why in HERE_ONLY.items():
            field = self.fields[name]
            field.setEnabled(is_here)
            field.setToolTip(self._tips[name] if is_here else plain_tip(why))

    @Slot(bool)
    def _on_advanced_toggled(self, is_open: bool) -> None:
        if is_open:  # Once it is laid out.
            QTimer.singleShot(0, self, lambda: self.verticalScrollBar().setValue(self.advanced.y()))

    @Slot()
    def _show_advanced(self) -> None:
        """Say how many of the folded settings differ from their defaults, and mark a rule that can't act."""
        shown = {**self._filters.values(), **self._rare.values()}
        if self.engine.url:
            del shown["coupling"]  # Not shown there.
        count = sum(value != getattr(DEFAULTS, name) for name, value in shown.items())
        count += 0 if self.engine.url else self.method.num_changed_switches()
        self.advanced.show_note(f"{count} changed" if count else "")
        set_flag(self.fields["verification"], "invalid", bool(self._verification_problem()))

    @Slot(str)
    def _on_method_chosen(self, name: str) -> None:
        with self.filling():
            self.method.choose(name)
        self._start_length()

    @Slot()
    def _start_length(self) -> None:
        """Start what was chosen with the K that was measured to pay for it."""
        method = self.method.method
        draft = self.draft.ref if method.needs_draft_model else None
        length = LengthPolicy.AUTO if method.proposes_trees else usual_draft_length(draft)
        is_fixed = isinstance(length, int)
        with self.filling():
            set_value(self.fields["length_policy"], LengthPolicy.FIXED if is_fixed else length)
            if is_fixed:
                set_value(self.fields["num_draft_tokens"], length)

    @Slot()
    def _on_method_changed(self) -> None:
        self._show_length()
        self._show_models()
        self.changed.emit()
        self._on_draft_length_changed()

    @Slot()
    def _on_draft_length_changed(self) -> None:
        length, number = self.draft_length(), self.fields["num_draft_tokens"]
        for part in (number.slider, number.spin):
            part.setEnabled(isinstance(length, int))
        if not self._is_filling:
            self.num_draft_tokens_changed.emit(length)

    @Slot(float)
    def _on_temperature_changed(self, temperature: float) -> None:
        if not self._is_filling:
            self.temperature_changed.emit(temperature)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """While the next run's settings are filled in, the current run keeps its K and temperature."""
        was_filling, self._is_filling = self._is_filling, True
        try:
            yield
        finally:
            self._is_filling = was_filling
