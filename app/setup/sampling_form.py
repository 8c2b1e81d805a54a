"""How tokens are drawn: temperature, filters, seed."""

from __future__ import annotations

import random

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QDoubleSpinBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QSpinBox,
    QToolButton,
    QWidget,
)

from app.widgets.fields import SliderSpin, WheelGuard, describe, labelled, set_flag, text_label
from core.errors import SettingsError
from core.settings import MAX_SEED
from core.types import SETTINGS, Coupling

SEED_SENTENCE = "The seed must be a whole number from 0 to 2^63\u00a0-\u00a01."


class CouplingCheck(QCheckBox):
    """Whether draft and target share their noise, which makes the text depend on the seed alone."""

    def __init__(self) -> None:
        super().__init__("Reproducible")
        self.setObjectName("couplingCheck")
        describe(
            self,
            "Reproducible",
            "The same seed gives the text of plain sampling, token for token, whatever the draft, the method and K: "
            "draft and target share noise that is keyed by seed and position (Gumbel coupling). Exact either way. It "
            "costs a little acceptance; the run shows how much. At temperature 0 there is no difference.",
        )

    def member(self) -> Coupling:
        """The coupling that is chosen."""
        return Coupling.GUMBEL if self.isChecked() else Coupling.REJECTION

    def choose(self, coupling: Coupling) -> None:
        """Choose a coupling."""
        self.setChecked(coupling is Coupling.GUMBEL)


class SamplingForm(QWidget):
    """Temperature, top-k, top-p, min-p, seed, and whether it alone decides the text.

    Signals:
        changed: some value is new.
        temperature_changed: the temperature is new; it is live during a run.
    """

    changed = Signal()
    temperature_changed = Signal(float)

    def __init__(self) -> None:
        super().__init__()
        self.temperature = SliderSpin(
            "Temperature",
            "0 always takes the likeliest token; 1 leaves the model's distribution as it is. Live during a run.",
            name="temperature",
            low=0.0,
            high=SETTINGS["temperature"].metadata["window_max"],
            step=0.05,
            decimals=2,
        )
        self.top_k = QSpinBox()
        self.top_k.setObjectName("topKSpin")
        self.top_k.setRange(0, 1_000_000)
        self.top_k.setSpecialValueText("off")
        self.top_p = _unit_spin("topPSpin", low=0.01)
        self.min_p = _unit_spin("minPSpin", low=0.0)
        self.min_p.setSpecialValueText("off")
        self.seed = QLineEdit()
        self.seed.setObjectName("seedEdit")
        self.new_seed = QToolButton()
        self.new_seed.setObjectName("newSeedButton")
        self.new_seed.setText("New")
        self.new_seed.setToolTip("Draw a new seed")
        self.new_seed.setAccessibleName("Draw a new seed")
        self.coupling = CouplingCheck()
        self.problem_label = text_label("", "problem")
        self.problem_label.setObjectName("seedProblem")
        self.problem_label.setWordWrap(True)
        self.problem_label.hide()
        self._lay_out()
        for field in (self.top_k, self.top_p, self.min_p, self.seed):
            field.setMinimumWidth(48)  # or the widest value, which hardly anyone needs, would set the panel's width
        self._guard = WheelGuard(self)
        self._guard.watch(self.top_k, self.top_p, self.min_p)
        self.temperature.value_changed.connect(self._on_temperature_changed)
        for spin in (self.top_k, self.top_p, self.min_p):
            spin.valueChanged.connect(self._on_changed)
        self.coupling.toggled.connect(self._on_changed)
        self.seed.textChanged.connect(self._on_seed_edited)
        self.new_seed.clicked.connect(self._on_new_seed)

    def _lay_out(self) -> None:
        seed_row = QWidget()
        row = QHBoxLayout(seed_row)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        row.addWidget(self.seed, 1)
        row.addWidget(self.new_seed)
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setHorizontalSpacing(8)
        layout.setVerticalSpacing(8)
        layout.addWidget(self.temperature, 0, 0, 1, 6)
        layout.addWidget(labelled("Top-k", self.top_k, "Only the k likeliest tokens stay; off keeps all."), 1, 0, 1, 2)
        top_p_help = "Only the likeliest tokens whose probabilities add up to this stay; 1 keeps all."
        layout.addWidget(labelled("Top-p", self.top_p, top_p_help), 1, 2, 1, 2)
        min_p_help = "Only tokens at least this fraction as likely as the likeliest stay; off keeps all."
        layout.addWidget(labelled("Min-p", self.min_p, min_p_help), 1, 4, 1, 2)
        seed_help = (
            "The same seed and settings give the same text. With Auto, K follows this machine's timing, and the text "
            "with it, unless Reproducible is ticked or the temperature is 0."
        )
        # In one row with the seed, or the tick would not stand on the middle of its line.
        seeded = QWidget()
        halves = QGridLayout(seeded)
        halves.setContentsMargins(0, 0, 0, 0)
        halves.setHorizontalSpacing(8)
        for column, half in enumerate((seed_row, self.coupling)):
            halves.addWidget(half, 0, column)
            halves.setColumnStretch(column, 1)
        layout.addWidget(labelled("Seed", seeded, seed_help), 2, 0, 1, 6)
        describe(seed_row, "Seed", seed_help)
        self.seed.setAccessibleName("Seed")
        layout.addWidget(self.problem_label, 3, 0, 1, 6)
        for column in range(6):
            layout.setColumnStretch(column, 1)

    def seed_value(self) -> int:
        """The seed.

        Raises:
            SettingsError: if the field holds no such number.
        """
        text = self.seed.text().strip()
        # isdecimal alone would let other scripts' digits and very long numbers through to int().
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_SEED):
            raise SettingsError(SEED_SENTENCE)
        return int(text)

    @Slot(float)
    def _on_temperature_changed(self, value: float) -> None:
        self.temperature_changed.emit(value)
        self.changed.emit()

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()

    @Slot()
    def _on_seed_edited(self) -> None:
        try:
            self.seed_value()
        except SettingsError as error:
            problem = str(error)
        else:
            problem = ""
        self.problem_label.setText(problem)
        self.problem_label.setVisible(bool(problem))
        set_flag(self.seed, "invalid", bool(problem))
        self.changed.emit()

    @Slot()
    def _on_new_seed(self) -> None:
        # Short enough to read out to someone; any seed is as good as another.
        self.seed.setText(str(random.SystemRandom().randrange(1_000_000)))


def _unit_spin(name: str, *, low: float) -> QDoubleSpinBox:
    spin = QDoubleSpinBox()
    spin.setObjectName(name)
    spin.setRange(low, 1.0)
    spin.setDecimals(2)
    spin.setSingleStep(0.05)
    return spin
