"""Makes form fields for declared settings; range, label and help come from the declaration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field
from typing import Any

from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QGridLayout, QSpinBox, QWidget

from app.widgets.fields import EnumCombo, SliderSpin, describe, labelled

SettingField = QSpinBox | QDoubleSpinBox | QCheckBox | EnumCombo[Any] | SliderSpin


def setting_field(item: Field[Any], object_name: str) -> Any:
    """A field for a setting, without its label."""
    rules, default = item.metadata, item.default
    field: SettingField
    if "titles" in rules:
        field = EnumCombo(dict(rules["titles"]), object_name)
    elif isinstance(default, bool):
        field = QCheckBox(rules["label"])
    else:
        field = _spin(item)
    field.setObjectName(object_name)
    describe(field, rules["label"], rules["help"])
    return field


def setting_slider(item: Field[Any], name: str) -> SliderSpin:
    """A slider and a number for a setting that can change during a run, with its label."""
    rules = item.metadata
    return SliderSpin(
        rules["label"],
        f"{rules['help']} Live during a run.",
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
        spin = QDoubleSpinBox()
        decimals = max(2, len(f"{step:g}".partition(".")[2]))
        spin.setDecimals(decimals)
        spin.setRange(low + 10**-decimals if rules.get("above") else low, high)
        spin.setSingleStep(step)
    else:
        spin = QSpinBox()
        spin.setRange(int(low), int(high))
        spin.setSingleStep(int(step))
    if rules.get("off") == low:
        spin.setSpecialValueText("off")
    set_value(spin, item.default)
    return spin


def value_of(field: SettingField) -> Any:
    """The value that a field shows."""
    if isinstance(field, QCheckBox):
        return field.isChecked()
    return field.member() if isinstance(field, EnumCombo) else field.value()


def set_value(field: SettingField, value: Any) -> None:
    """Show a value; a number outside the range becomes the nearest."""
    if isinstance(field, QCheckBox):
        field.setChecked(value)
    elif isinstance(field, EnumCombo):
        field.choose(value)
    elif isinstance(field, SliderSpin):
        field.set_value(value)
    elif isinstance(field, QSpinBox):
        field.setValue(max(field.minimum(), min(int(value), field.maximum())))
    elif math.isfinite(value):
        field.setValue(value)


def on_change(field: SettingField, slot: Callable[..., Any]) -> None:
    """Connect a slot that is called whenever the field's value changes."""
    if isinstance(field, QCheckBox):
        field.toggled.connect(slot)
    elif isinstance(field, EnumCombo):
        field.currentIndexChanged.connect(slot)
    elif isinstance(field, SliderSpin):
        field.value_changed.connect(slot)
    else:
        field.valueChanged.connect(slot)


def two_columns(*fields: QWidget) -> QGridLayout:
    """Fields in rows of two, each under its label; a check box has its own."""
    layout = QGridLayout()
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(8)
    for index, field in enumerate(fields):
        box = field if isinstance(field, QCheckBox) else labelled(field.accessibleName(), field, field.toolTip())
        layout.addWidget(box, index // 2, index % 2)
    for column in range(2):
        layout.setColumnStretch(column, 1)
    return layout
