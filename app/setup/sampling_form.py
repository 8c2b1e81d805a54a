"""How tokens are drawn: temperature, filters, seed."""

from __future__ import annotations

import random

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLineEdit, QToolButton, QWidget

from app.setup.setting_fields import on_change, setting_field, setting_slider
from app.widgets.fields import WheelGuard, boxed, describe, labelled, row, set_flag, text_label
from core.errors import SettingsError
from core.settings import MAX_SEED, SETTINGS, Coupling

SEED_SENTENCE = "The seed must be a whole number from 0 to 2^63\u00a0-\u00a01."


class CouplingCheck(QCheckBox):
    """The coupling as a check box: whether the text depends only on the seed."""

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
        """The chosen coupling."""
        return Coupling.GUMBEL if self.isChecked() else Coupling.REJECTION

    def choose(self, coupling: Coupling) -> None:
        """Choose a coupling."""
        self.setChecked(coupling is Coupling.GUMBEL)


class SamplingForm(QWidget):
    """Temperature, top-k, top-p, min-p, seed, and whether the text depends only on the seed.

    Signals:
        changed: some value has changed.
        temperature_changed: the new temperature; also during a run.
    """

    changed = Signal()
    temperature_changed = Signal(float)

    def __init__(self) -> None:
        super().__init__()
        self.temperature = setting_slider(SETTINGS["temperature"], "temperature")
        self.top_k = setting_field(SETTINGS["top_k"], "topKSpin")
        self.top_p = setting_field(SETTINGS["top_p"], "topPSpin")
        self.min_p = setting_field(SETTINGS["min_p"], "minPSpin")
        self.seed = QLineEdit()
        self.seed.setObjectName("seedEdit")
        self.new_seed = QToolButton()
        self.new_seed.setObjectName("newSeedButton")
        self.new_seed.setText("New")
        describe(self.new_seed, "Draw a new seed")
        self.new_seed.setToolTip("Draw a new seed")
        self.coupling = CouplingCheck()
        self.problem_label = text_label("", "problem")
        self.problem_label.setObjectName("seedProblem")
        self.problem_label.setWordWrap(True)
        self.problem_label.hide()
        self._lay_out()
        for field in (self.top_k, self.top_p, self.min_p, self.seed):
            field.setMinimumWidth(48)  # The widest value is rarely needed and must not set the panel's width.
        self._guard = WheelGuard(self)
        self._guard.watch(self.top_k, self.top_p, self.min_p)
        self.temperature.value_changed.connect(self._on_temperature_changed)
        for field in (self.top_k, self.top_p, self.min_p, self.coupling):
            on_change(field, self._on_changed)
        self.seed.textChanged.connect(self._on_seed_edited)
        self.new_seed.clicked.connect(self._on_new_seed)

    def _lay_out(self) -> None:
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setHorizontalSpacing(8)
        layout.setVerticalSpacing(8)
        layout.addWidget(self.temperature, 0, 0, 1, 3)
        for column, field in enumerate((self.top_k, self.top_p, self.min_p)):
            layout.addWidget(labelled(field.accessibleName(), field, field.toolTip()), 1, column)
            layout.setColumnStretch(column, 1)
        seeded = boxed(row((boxed(row((self.seed, 1), self.new_seed, spacing=4)), 1), (self.coupling, 1)))
        layout.addWidget(labelled("Seed", seeded, SETTINGS["seed"].metadata["help"]), 2, 0, 1, 3)
        describe(self.seed, "Seed", SETTINGS["seed"].metadata["help"])
        layout.addWidget(self.problem_label, 3, 0, 1, 3)

    def seed_value(self) -> int:
        """The seed.

        Raises:
            SettingsError: if the field holds no such number.
        """
        text = self.seed.text().strip()
        # isdecimal alone would pass digits of other scripts and very long numbers to int().
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
        # Short enough to read aloud; any seed is as good as another.
        self.seed.setText(str(random.SystemRandom().randrange(1_000_000)))
