"""Form fields for declared settings; range, label and help come from the declaration."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import Field
from decimal import Decimal
from enum import Enum
from typing import Any

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QLineEdit, QSpinBox, QToolButton, QWidget

from app.theme import hold
from app.widgets.compound_fields import NumberSpin, SliderSpin
from app.widgets.fields import EnumCombo, describe, grid, guard_wheel, labelled, named, set_flag
from core.errors import SettingsError
from core.settings import MAX_SEED, SAME_TEXT, SETTINGS, Coupling

OFF = "off"
LARGEST_INT = 2**31 - 1
"""The largest number that Qt's field for whole numbers holds, and the longest text."""
SEED_SENTENCE = "The seed must be a whole number from 0 to 2^63\u00a0\u2212\u00a01."
COUPLING_HELP = (
    "The same seed gives the text of plain sampling, token for token, whatever the draft, the method and K: "
    "draft and target share noise that is keyed by seed and position (Gumbel coupling). Exact either way. It "
    "costs a little acceptance; the run shows how much. At temperature 0 there is no difference."
)


class CouplingCheck(QCheckBox):
    """The coupling as a check box: whether the text depends only on the seed."""

    def __init__(self) -> None:
        super().__init__(SAME_TEXT)
        describe(self, SAME_TEXT, COUPLING_HELP)

    def member(self) -> Coupling:
        """The chosen coupling."""
        return Coupling.GUMBEL if self.isChecked() else Coupling.REJECTION

    def choose(self, coupling: Coupling) -> None:
        """Choose a coupling."""
        self.setChecked(coupling is Coupling.GUMBEL)


class PlainSpin(NumberSpin):
    """A field for a number, without zeros at its end.

    Attributes:
        off: the number that is shown as "off", as Qt shows a minimum; it can be typed, too.
    """

    off: float | None = None

    def textFromValue(self, value: float) -> str:
        """The number's shortest form."""
        if value == self.off:
            return OFF
        text, point = super().textFromValue(value), self.locale().decimalPoint()
        return text.rstrip("0").rstrip(point) if point in text else text

    def valueFromText(self, text: str) -> float:
        """The number that is typed."""
        return self.off if self.off is not None and text == OFF else super().valueFromText(text)

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        """Let the word be shown and typed."""
        if self.off is None or not text or not OFF.startswith(text):
            return super().validate(text, position)
        state = QValidator.State
        return (state.Acceptable if text == OFF else state.Intermediate), text, position


class SeedEdit(QLineEdit):
    """A seed, which may be too large for a spin box, with a button for a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.setMinimumWidth(48)  # The widest seed must not set the panel's width.
        self.new_button = named(QToolButton(), "newSeedButton", "Draw a new seed")
        self.new_button.setToolTip("Draw a new seed")
        self.new_button.setText("New")
        self.textChanged.connect(self._on_edited)
        self.new_button.clicked.connect(self._on_new)

    def value(self) -> int:
        """The seed.

        Raises:
            SettingsError: if the field holds no such number.
        """
        text = self.text().strip()
        # isdecimal alone would pass digits of other scripts and very long numbers to int().
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_SEED):
            raise SettingsError(SEED_SENTENCE)
        return int(text)

    @Slot()
    def _on_edited(self) -> None:
        try:
            self.value()
            is_invalid = False
        except SettingsError:
            is_invalid = True
        set_flag(self, "invalid", is_invalid)

    @Slot()
    def _on_new(self) -> None:
        # Short enough to read aloud; any seed is as good as another.
        self.setText(str(random.SystemRandom().randrange(1_000_000)))


SettingField = QSpinBox | QDoubleSpinBox | QCheckBox | EnumCombo[Any] | SliderSpin | SeedEdit | QLineEdit


def setting_field(item: Field[Any], object_name: str) -> Any:
    """A field for a setting, without its label; one named "…Slider" can change during a run, and has its label."""
    rules, default = item.metadata, item.default
    field: SettingField
    if object_name.endswith("Slider"):
        return _slider(item, object_name.removesuffix("Slider"))
    # The run's own: a drafter may have options of these names.
    if item is SETTINGS["coupling"]:
        field = CouplingCheck()
    elif item is SETTINGS["seed"]:
        field = SeedEdit()
    elif "titles" in rules:
        field = EnumCombo(dict(rules["titles"]), object_name)
    elif isinstance(default, bool):
        field = QCheckBox(rules["label"])
        field.setChecked(default)
    elif isinstance(default, str):
        field = QLineEdit(default)
        field.setMaxLength(LARGEST_INT)  # Qt would cut a longer text than 32,767 characters without a word.
        field.setPlaceholderText(rules.get("placeholder", ""))
    else:
        field = _spin(item)
    field.setObjectName(object_name)
    if not isinstance(field, CouplingCheck):
        describe(field, rules["label"], rules["help"])
    return field


def _slider(item: Field[Any], name: str) -> SliderSpin:
    rules = item.metadata
    return SliderSpin(
        rules["label"],
        f"{rules['help']} Adjustable mid-run.",
        name=name,
        low=rules["min"],
        high=rules.get("window_max", rules.get("max")),
        step=rules.get("step", 1.0),
        decimals=2 if isinstance(item.default, float) else 0,
    )


def _spin(item: Field[Any]) -> QSpinBox | QDoubleSpinBox:
    rules = item.metadata
    low, high, step = rules["min"], rules.get("window_max", rules.get("max")), rules.get("step", 1)
    spin: QSpinBox | QDoubleSpinBox
    if isinstance(item.default, float):
        places = (len(f"{Decimal(str(number)):f}".partition(".")[2]) for number in (step, low, item.default))
        spin, decimals = PlainSpin(), max(4, *places)
        spin.setDecimals(decimals)
        spin.setRange(low + 10**-decimals if rules.get("above") else low, high)
        spin.setSingleStep(step)
    else:
        spin = QSpinBox()
        spin.setRange(*(int(max(-LARGEST_INT - 1, min(bound, LARGEST_INT))) for bound in (low, high)))
        spin.setSingleStep(min(int(step), LARGEST_INT))
    if rules.get("off") == low:
        spin.setSpecialValueText(OFF)
    elif isinstance(spin, PlainSpin):
        spin.off = rules.get("off")
    set_value(spin, item.default)
    return spin


def value_of(field: SettingField) -> Any:
    """The value that a field shows.

    Raises:
        SettingsError: it shows none.
    """
    if isinstance(field, EnumCombo | CouplingCheck):
        return field.member()
    if isinstance(field, QLineEdit) and not isinstance(field, SeedEdit):
        return field.text().strip()
    return field.isChecked() if isinstance(field, QCheckBox) else field.value()


def set_value(field: SettingField, value: Any) -> None:
    """Show a value; a number outside the range becomes the nearest."""
    if isinstance(field, EnumCombo | CouplingCheck):
        field.choose(value)
    elif isinstance(field, QCheckBox):
        field.setChecked(value)
    elif isinstance(field, SliderSpin):
        field.set_value(min(value, field.spin.maximum()))
    elif isinstance(field, QLineEdit):
        field.setText(str(value))
    elif isinstance(field, QSpinBox):
        field.setValue(max(field.minimum(), min(int(value), field.maximum())))
    elif math.isfinite(value):
        field.setValue(value)


def on_change(field: SettingField, slot: Any) -> None:
    """Connect a slot that is called whenever the field's value changes."""
    if isinstance(field, QCheckBox):
        field.toggled.connect(slot)
    elif isinstance(field, EnumCombo):
        field.currentIndexChanged.connect(slot)
    elif isinstance(field, SliderSpin):
        field.value_changed.connect(slot)
    elif isinstance(field, QLineEdit):
        field.textChanged.connect(slot)
    else:
        field.valueChanged.connect(slot)


FIELD_HEIGHT = 30


class SettingsForm(QWidget):
    """Fields for settings in columns, each under its label; a check box has its own.

    Signals:
        changed: some value has changed.
    """

    changed = Signal()

    def __init__(self, items: Mapping[str, Field[Any]], names: Mapping[str, str], *, columns: int = 2) -> None:
        """
        Args:
            items: the declared settings, by name.
            names: the object name of each setting's field, in order.
            columns: fields per row.
        """
        super().__init__()
        self.fields: dict[str, Any] = {name: setting_field(items[name], names[name]) for name in names}
        layout = grid(self, across=8, down=8)
        place = 0
        for name, field in self.fields.items():
            is_check = isinstance(field, QCheckBox)
            box = field if is_check else labelled(field.accessibleName(), field, field.toolTip())
            # A path has a row of its own; a check box at the end has the rest of its row.
            is_long = isinstance(default := items[name].default, str) and not isinstance(default, Enum)
            place += -place % columns if is_long else 0
            has_rest = is_long or (is_check and name == [*names][-1])
            span = columns - place % columns if has_rest else 1
            layout.addWidget(box, place // columns, place % columns, 1, span)
            if is_check and place % columns:
                # Level with the field beside it, below that one's label.
                layout.setAlignment(box, Qt.AlignmentFlag.AlignBottom)
                hold(field, least_height=FIELD_HEIGHT)
            place += span
            if not is_check:
                field.setMinimumWidth(48)  # The widest value is rarely needed and must not set the panel's width.
                guard_wheel(field)
            on_change(field, self.changed)
        for index in range(columns):
            layout.setColumnStretch(index, 1)

    def values(self) -> dict[str, Any]:
        """The fields' values, whether or not they are consistent."""
        return {name: value_of(field) for name, field in self.fields.items()}
