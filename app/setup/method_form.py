"""The drafting method and its parameters, whose form is made from the fields of the method's options dataclass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from PySide6.QtCore import QSignalBlocker, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QGridLayout, QSpinBox, QVBoxLayout, QWidget

from app.widgets.fields import WheelGuard, describe, labelled, text_label
from core.drafters.registry import METHODS, Method, get_method
from core.errors import SettingsError

OptionWidget = QSpinBox | QDoubleSpinBox | QCheckBox


class OptionsForm(QWidget):
    """One field for each of a method's options, two in a row."""

    changed = Signal()

    def __init__(self, method: Method, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._method = method
        self._widgets: dict[str, OptionWidget] = {}
        self._guard = WheelGuard(self)
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for index, item in enumerate(fields(method.options)):
            widget = _option_widget(item, values.get(item.name))
            widget.setObjectName(f"option_{item.name}")
            self._connect(widget)
            self._guard.watch(widget)
            self._widgets[item.name] = widget
            label, help_text = item.metadata.get("label", item.name), item.metadata.get("help", "")
            if isinstance(widget, QCheckBox):  # It carries its label beside it.
                widget.setText(label)
                describe(widget, label, help_text)
                box: QWidget = widget
            else:
                box = labelled(label, widget, help_text)
            layout.addWidget(box, index // 2, index % 2)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self.setVisible(bool(self._widgets))

    def follow(self, before: QWidget) -> None:
        """Come behind this field when a person goes from field to field; new fields would come last of all."""
        for widget in self._widgets.values():
            QWidget.setTabOrder(before, widget)
            before = widget

    def values(self) -> dict[str, Any]:
        """What the fields hold, whether or not it fits together."""
        return {
            name: widget.isChecked() if isinstance(widget, QCheckBox) else widget.value()
            for name, widget in self._widgets.items()
        }

    def problem(self) -> str | None:
        """What is wrong with the values, in the words of the options dataclass itself."""
        try:
            self._method.options(**self.values())
        except SettingsError as error:
            return str(error)
        return None

    def _connect(self, widget: OptionWidget) -> None:
        if isinstance(widget, QCheckBox):
            widget.toggled.connect(self._on_changed)
        else:
            widget.valueChanged.connect(self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()


class MethodForm(QWidget):
    """The method's dropdown with its options beneath.

    Signals:
        method_changed: the name of the method that a person chose.
        changed: some option has a new value.
    """

    method_changed = Signal(str)
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._remembered: dict[str, dict[str, Any]] = {}
        self.combo = QComboBox()
        self.combo.setObjectName("methodCombo")
        for method in METHODS.values():
            self.combo.addItem(method.title, method.name)
            self.combo.setItemData(self.combo.count() - 1, method.summary, 3)
        self._problem = text_label("", "problem")
        self._problem.setObjectName("methodProblem")
        self._problem.setWordWrap(True)
        self._problem.hide()
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(8)
        self._layout.addWidget(labelled("Method", self.combo, "How the next K tokens are proposed."))
        self.options = OptionsForm(self.method, {})
        self._layout.addWidget(self.options)
        self._layout.addWidget(self._problem)
        self.options.changed.connect(self._on_option_changed)
        self._guard = WheelGuard(self)
        self._guard.watch(self.combo)
        self.combo.currentIndexChanged.connect(self._on_method_chosen)

    @property
    def method(self) -> Method:
        """The chosen method."""
        return get_method(self.combo.currentData())

    def option_values(self) -> dict[str, dict[str, Any]]:
        """The options of every method that was looked at, by method."""
        return {**self._remembered, self.method.name: self.options.values()}

    def apply(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Show a method and remember the options of all."""
        self._remembered = {method: dict(values) for method, values in options.items()}
        with QSignalBlocker(self.combo):
            self.combo.setCurrentIndex(max(0, self.combo.findData(name)))
        self._show_options()

    def problem(self) -> str | None:
        """What is wrong with the options; None if nothing is."""
        return self.options.problem()

    @Slot()
    def _on_method_chosen(self) -> None:
        self._show_options()
        self.method_changed.emit(self.method.name)

    @Slot()
    def _on_option_changed(self) -> None:
        self._remembered[self.method.name] = self.options.values()
        self._show_problem()
        self.changed.emit()

    def _show_options(self) -> None:
        form = OptionsForm(self.method, self._remembered.get(self.method.name, {}))
        form.changed.connect(self._on_option_changed)
        self._layout.replaceWidget(self.options, form)
        self.options.hide()
        self.options.deleteLater()
        self.options = form
        form.follow(self.combo)
        self._show_problem()

    def _show_problem(self) -> None:
        problem = self.problem()
        self._problem.setText(problem or "")
        self._problem.setVisible(problem is not None)


def _option_widget(item: Field[Any], value: Any) -> OptionWidget:
    default = item.default if item.default is not MISSING else 0
    if not isinstance(value, bool if isinstance(default, bool) else int | float) or not math.isfinite(value):
        value = default
    if isinstance(default, bool):
        box = QCheckBox()
        box.setChecked(bool(value))
        return box
    spin: QSpinBox | QDoubleSpinBox
    low, high, step = (item.metadata.get(key, fallback) for key, fallback in (("min", 0), ("max", 100), ("step", 1)))
    if isinstance(default, float):
        spin = QDoubleSpinBox()
        spin.setDecimals(max(2, len(f"{step:g}".partition(".")[2])))
        spin.setRange(low, high)
        spin.setSingleStep(step)
        spin.setValue(float(min(max(value, low), high)))
    else:
        spin = QSpinBox()
        spin.setRange(int(low), int(high))
        spin.setSingleStep(int(step))
        spin.setValue(int(min(max(value, low), high)))
    return spin
