"""The drafting method and its options, with fields made from their declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from PySide6.QtCore import QSignalBlocker, Signal, Slot
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from app.setup.setting_fields import SettingField, on_change, set_value, setting_field, two_columns, value_of
from app.widgets.fields import WheelGuard, labelled, text_label
from core.drafters.registry import METHODS, Method, get_method
from core.errors import SettingsError
from core.settings import declared


class OptionsForm(QWidget):
    """One field for each of a method's options, two per row."""

    changed = Signal()

    def __init__(self, method: Method, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._method = method
        self._fields: dict[str, SettingField] = {}
        guard = WheelGuard(self)
        for name, item in declared(method.options).items():
            field = self._fields[name] = setting_field(item, f"option_{name}")
            value = values.get(name)
            set_value(field, value if value is not None and is_same_kind(item, value) else item.default)
            on_change(field, self._on_changed)
            guard.watch(field)
        self.setLayout(two_columns(*self._fields.values()))
        self.setVisible(bool(self._fields))

    def follow(self, before: QWidget) -> None:
        """Put these fields after another one in the tab order; new fields would come last."""
        for field in self._fields.values():
            QWidget.setTabOrder(before, field)
            before = field

    def values(self) -> dict[str, Any]:
        """The fields' values, whether or not they are consistent."""
        return {name: value_of(field) for name, field in self._fields.items()}

    def problem(self) -> str | None:
        """What is wrong with the values, in the words of the options dataclass itself."""
        try:
            self._method.options(**self.values())
        except SettingsError as error:
            return str(error)
        return None

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()


def is_same_kind(item: Field[Any], value: Any) -> bool:
    """Whether a saved value has the setting's type, so that its field can show it or the nearest one."""
    if isinstance(item.default, bool) or isinstance(value, bool):
        return isinstance(item.default, bool) and isinstance(value, bool)
    return isinstance(value, int | float) and math.isfinite(value)


class MethodForm(QWidget):
    """The dropdown of methods, with the options of the chosen one below.

    Signals:
        method_changed: the name of the chosen method.
        changed: some option has changed.
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
        """The options of every method shown so far, by method."""
        return {**self._remembered, self.method.name: self.options.values()}

    def apply(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Show a method, and store the options of all methods."""
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
