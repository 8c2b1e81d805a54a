"""What is to be swept: models, methods, K, temperatures, prompts, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QLocale, QSignalBlocker, Qt, Signal, Slot
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

from app.settings import MAX_NEW_TOKENS, RunSettings
from app.view_models.sweep_form import SweepChoices
from app.widgets.fields import WheelGuard, describe, labelled, text_label
from app.widgets.tick_list import TickList
from core.drafters.methods import METHODS
from core.models.catalogue import ModelEntry
from core.prompt_suites import SUITES, Prompt
from core.types import LengthPolicy

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
        self.length = _spin("sweepTokens", 1, MAX_NEW_TOKENS, 64)
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
