"""Between the sweep's form and what it chooses from: models, the main window's settings, files of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QLocale, QObject, QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.dialogs import Dialogs
from app.settings import RunSettings
from app.setup.controls import ControlsPanel
from app.setup.prompt import PromptEditor
from app.tools.sweep.sweep_view import SweepChoices, SweepView, make_plan, size_text
from app.tools.sweep.work import SweepReader
from app.widgets.fields import TickList, WheelGuard, describe, labelled, text_label
from core.drafters.registry import METHODS
from core.errors import OutriderError, PairMismatchError
from core.experiments.prompt_suites import SUITES, Prompt
from core.experiments.sweep_plan import SweepPlan
from core.models.catalogue import ModelEntry
from core.types import SETTINGS, LengthPolicy

FEW_PROMPTS = 6
FILE_HELP = "One prompt a line: plain text, JSON Lines with a text or prompt each, or Spec-Bench's question.jsonl"


class SweepForm(QWidget):
    """Signals:
    changed: something is chosen otherwise.
    target_chosen: another target; its drafts are to be found out.
    file_requested: a file of prompts is wanted.
    start_requested: the sweep is to begin.
    """

    changed = Signal()
    target_chosen = Signal(str)
    file_requested = Signal()
    start_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sweepForm")
        self._own: tuple[Prompt, ...] = ()
        self.target = QComboBox()
        self.target.setObjectName("sweepTarget")
        self.target.setMinimumContentsLength(12)
        self.target.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.drafts = TickList("sweepDrafts", "Drafts")
        self.drafts_note = text_label("", "hint")
        self.drafts_note.setObjectName("sweepDraftsNote")
        self.drafts_note.setWordWrap(True)
        self.methods = TickList("sweepMethods", "Methods", columns=2)
        self.methods.show_items({name: (method.title, method.summary) for name, method in METHODS.items()})
        self.lengths = _line("sweepLengths", "1-8")
        self.policies = TickList("sweepPolicies", "K chosen as the run goes", columns=2)
        self.policies.show_items(
            {
                LengthPolicy.AUTO: ("Auto", "K chosen before each step from what steps cost and how much is accepted"),
                LengthPolicy.ADAPTIVE: ("Adaptive", "As Auto, and it stops drafting where the draft is unsure"),
            }
        )
        self.temperatures = _line("sweepTemperatures", "0, 0.5, 1")
        self.suites = TickList("sweepSuites", "Prompt suites", columns=2)
        self.suites.show_items(
            {name: (name.capitalize(), f"The prompts about {name} that come with Outrider") for name in SUITES}
        )
        self.own_prompt = QCheckBox("The main window's prompt")
        self.own_prompt.setObjectName("sweepOwnPrompt")
        describe(self.own_prompt, "The main window's prompt", "As it stands there when the sweep is started")
        self.file_button = QPushButton("File…")
        self.file_button.setObjectName("sweepFileButton")
        self.file_button.setAutoDefault(False)
        describe(self.file_button, "Prompts of a file", FILE_HELP)
        self.file_note = text_label("No file", "hint")
        self.file_note.setObjectName("sweepFileNote")
        self.file_note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.prompts_each = _spin("sweepPromptsEach", 0, 10_000, FEW_PROMPTS)
        self.prompts_each.setSpecialValueText("All")
        self.repeats = _spin("sweepRepeats", 1, 1000, 3)
        self.length = _spin("sweepTokens", 1, SETTINGS["max_new_tokens"].metadata["window_max"], 64)
        self.seed = _spin("sweepSeed", 0, 2**31 - 1, 0)
        self.extent = text_label("", "hint")
        self.extent.setObjectName("sweepExtent")
        self.problem = text_label("", "problem")
        self.problem.setObjectName("sweepProblem")
        for label in (self.extent, self.problem):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
        self.start_button = QPushButton("Start sweep")
        self.start_button.setObjectName("runButton")
        self.start_button.setAutoDefault(False)
        describe(self.start_button, "Start sweep", "Measure every cell of the grid, in shuffled order (Ctrl+Enter)")
        self._lay_out()
        self._connect()

    def _lay_out(self) -> None:
        self._body = body = QWidget()
        body.setObjectName("sidebarBody")
        body.setLocale(QLocale.c())
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 10, 0)
        column.setSpacing(7)
        column.addWidget(text_label("Models", "section"))
        column.addWidget(labelled("Target", self.target, "The model whose distribution the text is drawn from."))
        column.addWidget(_titled("Drafts", self.drafts))
        column.addWidget(self.drafts_note)
        column.addWidget(_titled("Methods", self.methods))
        column.addWidget(text_label("Grid", "section"))
        k_help = "Tokens to draft a step: numbers and ranges with commas between them, such as 1-4, 6, 8"
        column.addWidget(labelled("K", self.lengths, k_help))
        column.addWidget(self.policies)
        column.addWidget(labelled("Temperatures", self.temperatures, "One or several, with commas between them"))
        column.addWidget(text_label("Prompts", "section"))
        column.addWidget(self.suites)
        column.addWidget(self.own_prompt)
        own = QHBoxLayout()
        own.setSpacing(8)
        own.addWidget(self.file_button)
        own.addWidget(self.file_note, 1)
        column.addLayout(own)
        numbers = QGridLayout()
        numbers.setColumnStretch(0, 1)
        numbers.setColumnStretch(1, 1)
        numbers.setSpacing(8)
        for place, (title, spin, help_text) in enumerate(
            (
                ("Prompts a suite", self.prompts_each, "The first ones of each suite; 0 takes all."),
                ("Repeats", self.repeats, "Runs of each cell on each prompt, with other random numbers each."),
                ("New tokens", self.length, "A run ends after this many, or earlier."),
                ("Seed", self.seed, "Of the order and of the first run."),
            )
        ):
            numbers.addWidget(labelled(title, spin, help_text), place // 2, place % 2)
        column.addLayout(numbers)
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setObjectName("sidebarScroll")
        scroll.setAccessibleName("What to sweep")
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setWidget(body)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.viewport().setAutoFillBackground(False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(scroll, 1)
        for widget in (self.extent, self.problem, self.start_button):
            layout.addWidget(widget)

    def _connect(self) -> None:
        self._guard = WheelGuard(self)
        self._guard.watch(self.target, self.prompts_each, self.repeats, self.length, self.seed)
        for spin in (self.prompts_each, self.repeats, self.length, self.seed):
            spin.valueChanged.connect(self.changed)
        for line in (self.lengths, self.temperatures):
            line.textChanged.connect(self.changed)
            line.returnPressed.connect(self.start_button.click)
        for ticks in (self.drafts, self.methods, self.policies, self.suites):
            ticks.changed.connect(self.changed)
        self.own_prompt.toggled.connect(self.changed)
        self.target.activated.connect(self._on_target_activated)
        self.file_button.clicked.connect(self.file_requested)
        self.start_button.clicked.connect(self.start_requested)

    # --- What it holds ---

    def choices(self, settings: RunSettings) -> SweepChoices:
        """What is chosen, with the main window's settings for the rest."""
        return SweepChoices(
            target=self.target.currentData() or "",
            drafts=self.drafts.ticked(),
            methods=self.methods.ticked(),
            lengths=self.lengths.text(),
            policies=tuple(LengthPolicy(name) for name in self.policies.ticked()),
            temperatures=self.temperatures.text(),
            suites=self.suites.ticked(),
            own=self._own,
            prompt=settings.prompt if self.own_prompt.isChecked() else None,
            prompts_each=self.prompts_each.value(),
            repeats=self.repeats.value(),
            max_new_tokens=self.length.value(),
            seed=self.seed.value(),
            settings=settings,
        )

    def begin_with(self, settings: RunSettings) -> None:
        """Take over the main window's choice."""
        with QSignalBlocker(self):
            self.methods.tick([settings.method])
            self.drafts.tick([settings.draft])
            self.lengths.setText("1-8")
            self.temperatures.setText(f"{settings.temperature:g}")
            self.own_prompt.setChecked(bool(settings.prompt.strip()))
            self.seed.setValue(min(settings.seed, self.seed.maximum()))
            self.length.setValue(min(settings.max_new_tokens, 64))

    def show_targets(self, entries: Sequence[ModelEntry], chosen: str) -> None:
        """Offer these targets; `chosen` is taken where nothing was chosen here."""
        current = self.target.currentData() or chosen
        with QSignalBlocker(self.target):
            self.target.clear()
            for entry in entries:
                self.target.addItem(entry.title, entry.ref)
            self.target.setCurrentIndex(max(0, self.target.findData(current)))

    def show_drafts(self, entries: Sequence[ModelEntry], note: str) -> None:
        """Offer these drafts, and say what is to be said of them."""
        self.drafts.show_items({entry.ref: (entry.title, entry.ref) for entry in entries})
        self.drafts_note.setText(note)
        self.drafts_note.setVisible(bool(note))

    def show_file(self, path: Path, prompts: tuple[Prompt, ...]) -> None:
        """Take over the prompts of a file."""
        self._own = prompts
        self.file_note.setText(f"{path.name}: {len(prompts):,} prompt{'' if len(prompts) == 1 else 's'}")
        self.file_note.setToolTip(str(path))
        self.changed.emit()

    # --- What is said of it ---

    def show_judgement(self, size: str, problem: str) -> None:
        """Say how large the sweep is, or what is wrong."""
        self.extent.setText(size)
        self.extent.setVisible(bool(size))
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.start_button.setAccessibleDescription(problem or size)

    def show_going(self, *, is_going: bool) -> None:
        """While a sweep goes, what it measures can't be chosen otherwise."""
        self._body.setEnabled(not is_going)
        self.start_button.setEnabled(not is_going)

    @Slot()
    def _on_target_activated(self) -> None:
        self.target_chosen.emit(self.target.currentData() or "")
        self.changed.emit()


def _line(name: str, placeholder: str) -> QLineEdit:
    line = QLineEdit()
    line.setObjectName(name)
    line.setPlaceholderText(placeholder)
    return line


def _spin(name: str, low: int, high: int, value: int) -> QSpinBox:
    spin = QSpinBox()
    spin.setObjectName(name)
    spin.setRange(low, high)
    spin.setValue(value)
    # Of one width, whatever the longest number of each.
    spin.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
    return spin


def _titled(title: str, widget: QWidget) -> QWidget:
    box = QWidget()
    layout = QVBoxLayout(box)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(2)
    layout.addWidget(text_label(title, "field"))
    layout.addWidget(widget)
    return box


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
