"""The form for a sweep: models, methods, K, temperatures, prompts and repeats, from which it makes the plan."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QLocale, QSignalBlocker, Slot
from PySide6.QtWidgets import QCheckBox, QComboBox, QSizePolicy, QSpinBox, QWidget

from app.dialogs import Dialogs
from app.jobs import Jobs
from app.menus import key_text
from app.settings import RunSettings
from app.setup.model_library import titles_of
from app.setup.prompt import PromptEditor
from app.setup.settings_panel import SettingsPanel
from app.tools.sweep.sweep_view import POLICIES, WINDOW_SUITE, SweepView
from app.widgets.compound_fields import TickList
from app.widgets.fields import (
    boxed,
    column,
    describe,
    guard_wheel,
    hint_label,
    labelled,
    line_edit,
    named,
    offer,
    plain_tip,
    push_button,
    quiet_button,
    row,
    scrolled,
    text_label,
    wrapped_label,
)
from core.analysis.probe import ProbeRequest, ProbeText
from core.draft_length import DraftLength, parse_draft_lengths
from core.drafters.registry import METHODS, DraftTreeOptions, TreeRule, get_method
from core.errors import OutriderError, PairMismatchError, PromptError, SettingsError
from core.experiments.prompt_suites import SUITES, Prompt, find_prompts, first_of_each, joined, read_prompts
from core.experiments.sweep_plan import DrafterChoice, SweepPlan
from core.experiments.sweep_results import FEWEST_RUNS
from core.settings import SETTINGS, LengthPolicy, declared
from core.text import count_text, duration_text

FEW_PROMPTS = 6
GENERATED = 64
"""Tokens that the target writes before an estimate: acceptance depends on the text that it is measured on."""
K_HELP = "Tokens to draft per step: numbers and ranges separated by commas, such as 1-4, 6, 8"
T_HELP = "One or several, separated by commas"
NO_FILE, NO_FILE_HELP = "No file", "Measure without the prompts of this file"
FILE_HELP = "One prompt per line: plain text, JSON Lines with a text or prompt each, or Spec-Bench's question.jsonl"
WINDOW_PROMPT = "the window's prompt"
FROM_WINDOW = ("coupling", "verification", "top_k", "top_p", "min_p", "chat", "system", "device", "dtype")
TREE = declared(DraftTreeOptions)
_RULE = TREE["rule"]
SHAPE_HELP = "Numbers and ranges separated by commas, such as 2-4, 6: every combination is a shape."


class SweepForm(QWidget):
    """Chooses what to sweep, starting from the main window's settings."""

    def __init__(
        self, controls: SettingsPanel, prompt: PromptEditor, view: SweepView, jobs: Jobs, dialogs: Dialogs
    ) -> None:
        super().__init__()
        self.setObjectName("sweepForm")
        self._controls, self._prompt, self._view, self._jobs, self._dialogs = controls, prompt, view, jobs, dialogs
        self._library = controls.models.library
        self._own: tuple[Prompt, ...] = ()
        self._file_problem = ""
        self._make_fields()
        self._lay_out()
        self.begin_with(self._settings())
        self._show_targets()
        self._show_drafts()
        self.drafts.tick([controls.draft.ref])
        self._connect()
        self.judge()

    def _make_fields(self) -> None:
        self.target = QComboBox()
        self.target.setObjectName("sweepTarget")
        self.target.setMinimumContentsLength(12)
        self.target.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.drafts = TickList("sweepDrafts", "Drafts")
        self.drafts_note = wrapped_label("sweepDraftsNote", "hint")
        self.methods = TickList("sweepMethods", "Methods", columns=2)
        self.methods.show_items({name: (method.title, method.summary) for name, method in METHODS.items()})
        self.lengths = line_edit("sweepLengths", "1-8")
        self.shapes = {name: line_edit(f"sweep{name.capitalize()}", "2-4, 6") for name in ("depth", "branching")}
        self.rules = TickList("sweepRules", "Candidates", columns=2)
        self.rules.show_items(
            {rule: (title, _RULE.metadata["help"]) for rule, title in _RULE.metadata["titles"].items()}
        )
        self.policies = TickList("sweepPolicies", "K chosen during the run", columns=2)
        self.policies.show_items(POLICIES)
        self.temperatures = line_edit("sweepTemperatures", "0, 0.5, 1")
        self.suites = TickList("sweepSuites", "Prompt suites", columns=2)
        suite_help = "The {} prompts that ship with Outrider"
        self.suites.show_items({name: (name.capitalize(), suite_help.format(name)) for name in SUITES})
        title = "The main window's prompt"
        self.own_prompt = named(QCheckBox(title), "sweepOwnPrompt", title, "As it is when the sweep starts")
        self.file_button = push_button("File…", "sweepFileButton", FILE_HELP, self._on_file_requested)
        describe(self.file_button, "Prompts of a file", FILE_HELP)
        self.file_note = hint_label("sweepFileNote", NO_FILE)
        self.no_file_button = quiet_button("Remove", "sweepNoFile", "Remove the file", NO_FILE_HELP)
        self.no_file_button.clicked.connect(lambda: self._show_file((), NO_FILE, ""))
        self.no_file_button.hide()
        self.file_note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.prompts_each = _spin("sweepPromptsEach", 0, 10_000, FEW_PROMPTS)
        self.prompts_each.setSpecialValueText("All")
        self.repeats = _spin("sweepRepeats", 1, 1000, FEWEST_RUNS)
        self.length = _spin("sweepTokens", 1, SETTINGS["max_new_tokens"].metadata["window_max"], 64)
        self.seed = _spin("sweepSeed", 0, 2**31 - 1, 0)
        self.extent = wrapped_label("sweepExtent", "hint")
        self.extent.setIndent(0)  # Else its line above it, a frame to Qt, gives it one.
        self.problem = wrapped_label("sweepProblem", "problem")
        start_help = f"Measure every cell of the grid, in shuffled order ({key_text('Ctrl+Enter')})"
        self.start_button = push_button("Start sweep", "runButton", start_help)
        quick_help = (
            "Estimate, within seconds, the speedup of every draft on this computer with K from 1 to 16, at the first "
            "temperature: the models read the main window's prompt once, and draft nothing."
        )
        self.quick_button = push_button("Quick estimate of speedups", "sweepQuickButton", quick_help)
        stop_help = "End it and keep its results so far (Esc)"
        self.stop_button = push_button("Stop", "sweepStopButton", stop_help)

    def _lay_out(self) -> None:
        repeats_help = "Runs of each cell on each prompt, each with different random numbers."
        counts = row(
            (labelled("Prompts per suite", self.prompts_each, "The first prompts of each suite; 0 uses all."), 1),
            (labelled("Repeats", self.repeats, repeats_help), 1),
        )
        runs = row(
            (labelled("New tokens", self.length, "The maximum length of a run."), 1),
            (labelled("Seed", self.seed, "Sets the order and the first run's random numbers."), 1),
        )
        shapes = row(
            *((labelled(TREE[name].metadata["label"], line, SHAPE_HELP), 1) for name, line in self.shapes.items())
        )
        self._tree_box = boxed(
            column(text_label("Draft tree; K counts its nodes", "hint"), shapes, self.rules, spacing=7)
        )
        form = column(
            text_label("Models", "section"),
            labelled("Target", self.target, "The model whose distribution the text is drawn from."),
            labelled("Drafts", self.drafts, spacing=2),
            self.drafts_note,
            labelled("Methods", self.methods, spacing=2),
            text_label("Grid", "section"),
            row((labelled("K", self.lengths, K_HELP), 1), (labelled("Temperatures", self.temperatures, T_HELP), 1)),
            labelled("K chosen during the run", self.policies, spacing=2),
            self._tree_box,
            text_label("Prompts", "section"),
            labelled("Suites", self.suites, spacing=2),
            self.own_prompt,
            row(self.file_button, (self.file_note, 1), self.no_file_button),
            counts,
            runs,
            None,
            spacing=4,
        )
        self._body = boxed(form)
        form.setContentsMargins(0, 0, 4, 0)
        self._body.setLocale(QLocale.c())
        scroll = scrolled(self._body, "sidebarScroll")
        scroll.setAccessibleName("What to sweep")
        buttons = (self.start_button, self.quick_button, self.stop_button)
        boxed(column((scroll, 1), self.extent, self.problem, *buttons), self)

    def _connect(self) -> None:
        spins = (self.prompts_each, self.repeats, self.length, self.seed)
        guard_wheel(self.target, *spins)
        for line in (self.lengths, *self.shapes.values(), self.temperatures):
            line.returnPressed.connect(self.start_button.click)
            line.textChanged.connect(self.judge)
        for spin in spins:
            spin.valueChanged.connect(self.judge)
        for ticks in (self.drafts, self.methods, self.policies, self.rules, self.suites):
            ticks.changed.connect(self.judge)
        self.own_prompt.toggled.connect(self.judge)
        self.target.activated.connect(self._on_target_chosen)
        # The main window may get new models, and its prompt may be part of the sweep.
        self._controls.changed.connect(self._on_window_changed)
        self._prompt.edit.textChanged.connect(self._on_window_changed)

    # --- The plan ---

    def _settings(self) -> RunSettings:
        return self._controls.settings(self._prompt.text())

    def plan(self) -> SweepPlan:
        """The chosen sweep; filters, coupling, verification, device and method options come from the main
        window.

        Raises:
            OutriderError: it can't be run; the message says why.
        """
        settings, target = self._settings(), self.target.currentData()
        if not target:
            raise SettingsError("There is no target model yet. Open or get one in the main window.")
        plan = SweepPlan(
            target=target,
            drafters=_drafters(self.methods.ticked(), self.drafts.ticked(), settings.method_options, self._swept()),
            num_draft_tokens=self._lengths(),
            temperatures=parse_temperatures(self.temperatures.text()),
            prompts=self._prompts(settings.prompt),
            repeats=self.repeats.value(),
            max_new_tokens=self.length.value(),
            seed=self.seed.value(),
            **{name: getattr(settings, name) for name in FROM_WINDOW},
        )
        for drafter in plan.drafters:
            if drafter.draft is not None and (problem := self._library.problem(drafter.draft, target)):
                raise PairMismatchError(problem)
        return plan

    def quick_request(self) -> ProbeRequest:
        """The quick estimate for the chosen target, at the first temperature; its drafts are found later.

        Raises:
            OutriderError: it can't be run; the message says why.
        """
        first = parse_temperatures(self.temperatures.text())[0]
        settings, target = replace(self._settings(), temperature=first), self.target.currentData()
        if not target:
            raise SettingsError("Choose a target first.")
        if not settings.prompt.strip():
            raise PromptError("The main window's prompt is empty: write a few words there for the models to read.")
        return ProbeRequest(
            target=target,
            drafts=(),
            texts=(ProbeText("the prompt", prompt=settings.prompt),),
            generate=GENERATED,
            **{name: getattr(settings, name) for name in ("sampling", "chat", "system", "device", "dtype")},
        )

    def _swept(self) -> dict[str, tuple[Any, ...]]:
        """The values of each option of a tree."""
        if "draft-tree" not in self.methods.ticked():
            return {}
        numbers = {
            name: parse_draft_lengths(line.text(), TREE[name].metadata["label"]) for name, line in self.shapes.items()
        }
        if not (rules := self.rules.ticked()):
            raise SettingsError("Tick at least one way to choose a tree's candidates.")
        return {**numbers, "rule": tuple(map(TreeRule, rules))}

    def _lengths(self) -> tuple[DraftLength, ...]:
        text = self.lengths.text().strip()
        numbers = parse_draft_lengths(text) if text else ()
        found = tuple(dict.fromkeys((*numbers, *map(LengthPolicy, self.policies.ticked()))))
        if not found:
            raise SettingsError("Enter at least one K, such as 4 or 1-8, or tick Auto.")
        return found

    def _prompts(self, prompt: str) -> tuple[Prompt, ...]:
        windows = [Prompt(WINDOW_PROMPT, prompt, suite=WINDOW_SUITE)] if self.own_prompt.isChecked() else []
        if windows and not prompt.strip():
            raise SettingsError("The main window's prompt is empty: write one there, or untick it.")
        found = joined([windows, find_prompts(self.suites.ticked()), self._own])
        if not found:
            raise SettingsError("Tick at least one prompt suite, choose a file, or use the main window's prompt.")
        most_each = self.prompts_each.value()
        return tuple(first_of_each(found, most_each) if most_each else found)

    @Slot()
    def judge(self) -> SweepPlan | None:
        """Show how large the chosen sweep is, or why it can't be run, and return None."""
        self._tree_box.setVisible("draft-tree" in self.methods.ticked())
        plan, size, problem = None, "", self._file_problem
        try:
            plan = self.plan()
            size = size_text(plan, self._view.seconds_each)
        except OutriderError as error:
            problem = str(error)
        self.prompts_each.setEnabled(bool(self.suites.ticked() or self._own))
        self.extent.setText(size)
        self.extent.setVisible(bool(size))
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.start_button.setAccessibleDescription(problem or size)
        return plan

    # --- Filling the form ---

    def begin_with(self, settings: RunSettings) -> None:
        """Copy the main window's settings."""
        self.methods.tick([settings.method])
        self.lengths.setText("1-8")
        tree = settings.method_options["draft-tree"]
        for name, line in self.shapes.items():
            line.setText(str(tree[name]))
        self.rules.tick([tree["rule"]])
        self.temperatures.setText(f"{settings.temperature:g}")
        self.own_prompt.setChecked(bool(settings.prompt.strip()))
        self.seed.setValue(min(settings.seed, self.seed.maximum()))
        self.length.setValue(min(settings.max_new_tokens, 64))

    def refresh(self) -> None:
        """Copy what has changed in the main window."""
        self._show_targets()
        self._show_drafts()
        self.judge()

    def show_running(self, *, is_running: bool) -> None:
        """Disable the form while a sweep is running, and offer Stop where Start was."""
        self._body.setEnabled(not is_running)
        for start in (self.start_button, self.quick_button):
            offer(start, self.stop_button, is_running=is_running)

    def _show_targets(self) -> None:
        current = self.target.currentData() or self._controls.target.ref
        titles = titles_of(self._library.entries)
        with QSignalBlocker(self.target):
            self.target.clear()
            for entry in self._library.entries:
                if not self._library.target_problem(entry.ref):
                    self.target.addItem(titles[entry.ref], entry.ref)
            self.target.setCurrentIndex(max(0, self.target.findData(current)))

    def _show_drafts(self) -> None:
        library, target = self._library, self.target.currentData() or ""
        own = self._controls.draft.ref if target == self._controls.target.ref else ""
        fitting = {entry.ref for entry in library.fitting_drafts(target)} | {own, library.made_for(target)}
        entries = [
            entry for entry in library.entries if entry.ref in fitting and not library.problem(entry.ref, target)
        ]
        titles = titles_of(library.entries)
        self.drafts.show_items({entry.ref: (titles[entry.ref], entry.ref) for entry in entries})
        is_open = bool(library.unchecked_drafts(target))
        note = "Looking for other drafts…" if is_open else "No draft on this computer fits this target."
        self.drafts_note.setText(note)
        self.drafts_note.setVisible(not entries)

    @Slot()
    def _on_target_chosen(self) -> None:
        target = self.target.currentData() or ""
        self._controls.models.ask(target)
        self._show_drafts()
        self.drafts.tick([self._library.best_draft(target)])
        self.judge()

    @Slot()
    def _on_window_changed(self) -> None:
        if self.isVisible():
            self.refresh()

    # --- Prompts of a file ---

    @Slot()
    def _on_file_requested(self) -> None:
        path = self._dialogs.ask_prompts_path(self.window())
        if path is not None:
            self._jobs.submit(
                lambda _job: tuple(read_prompts(path)),
                lambda found: self._show_file(found, f"{path.name}: {count_text(len(found), 'prompt')}", str(path)),
                failed=self._on_file_failed,
                what="The prompts could not be read",
            )

    def _show_file(self, prompts: tuple[Prompt, ...], note: str, tip: str) -> None:
        """Measure with the prompts of a file, or without any."""
        self._own, self._file_problem = prompts, ""
        self.file_note.setText(note)
        self.file_note.setToolTip(plain_tip(tip))
        self.no_file_button.setVisible(bool(prompts))
        self.judge()

    def _on_file_failed(self, sentence: str) -> None:
        self._file_problem = sentence
        self.no_file_button.show()
        self.judge()


def _spin(name: str, low: int, high: int, value: int) -> QSpinBox:
    spin = QSpinBox()
    spin.setObjectName(name)
    spin.setRange(low, high)
    spin.setValue(value)
    # All are as wide as their column, however long their numbers.
    spin.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
    return spin


def _drafters(
    methods: Sequence[str],
    drafts: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    swept: Mapping[str, Sequence[Any]],
) -> tuple[DrafterChoice, ...]:
    """Each method with each draft, if it needs one, and with the options that differ from their defaults; a tree with
    every combination of the `swept` values."""
    if not methods:
        raise SettingsError("Tick at least one method.")
    found: list[DrafterChoice] = []
    for name in methods:
        method = get_method(name)
        if method.needs_draft_model and not drafts:
            raise SettingsError(f"The method {method.title} needs a draft model: tick one, or leave the method out.")
        default = method.parse()
        changed = {key: value for key, value in options[name].items() if value != getattr(default, key)}
        varied = swept if name == "draft-tree" else {}
        for values in itertools.product(*varied.values()):
            each = {**changed, **dict(zip(varied, values, strict=True))}
            method.parse(each)
            found += [DrafterChoice(name, draft, each) for draft in (drafts if method.needs_draft_model else (None,))]
    return tuple(found)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Parse temperatures separated by commas or spaces, without duplicates.

    Raises:
        SettingsError: the text is not a list of numbers.
    """
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        values = ()
    if not values:
        shown = f", not {text[:60]!r}" if parts else ""
        raise SettingsError(f"Temperatures are numbers separated by commas, such as 0, 0.5, 1{shown}.")
    return tuple(dict.fromkeys(values))


def size_text(plan: SweepPlan, seconds_each: float | None) -> str:
    """How large a sweep is, and how long it will take if the mean time of a run is known."""
    cells, baselines = count_text(plan.num_cells, "cell"), count_text(len(plan.temperatures), "baseline")
    prompts, repeats = count_text(len(plan.prompts), "prompt"), count_text(plan.repeats, "repeat")
    text = f"{count_text(plan.num_runs, 'run')}: {cells} and {baselines}, each on {prompts}, {repeats}."
    if len(plan.prompts) * plan.repeats < FEWEST_RUNS:
        text += f" A verdict needs {FEWEST_RUNS} runs of each cell: raise Repeats, or add prompts."
    if seconds_each is not None:
        return f"{text} About {duration_text(seconds_each * plan.num_runs)} at the speed of the last sweep."
    return f"{text} You are asked to confirm after the first run." if plan.is_long() else text
