"""The drafting method and its options, with fields made from their declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import QComboBox, QWidget

from app.setup.setting_fields import SettingsForm, problem_label, set_value, show_problem
from app.widgets.fields import WheelGuard, column, labelled, wrapped_label
from core.drafters.registry import METHODS, Method, get_method
from core.errors import SettingsError
from core.settings import declared


def options_form(method: Method, values: Mapping[str, Any]) -> SettingsForm:
    """A field for each of a method's options, which shows the saved values of the right type."""
    # Switches come last, after what shapes the draft.
    items = dict(sorted(declared(method.options).items(), key=lambda item: isinstance(item[1].default, bool)))
    form = SettingsForm(items, {name: f"option_{name}" for name in items})
    for name, item in items.items():
        if _is_same_kind(item, values.get(name)):
            set_value(form.fields[name], values[name])
    form.setVisible(bool(items))
    return form


def _is_same_kind(item: Field[Any], value: Any) -> bool:
    """Whether a saved value has the setting's type, so that its field can show it or the nearest one."""
    if isinstance(item.default, bool) or isinstance(value, bool):
        return isinstance(item.default, bool) and isinstance(value, bool)
    if isinstance(item.default, str) or isinstance(value, str):
        return isinstance(item.default, str) and isinstance(value, str)
    return isinstance(value, int | float) and math.isfinite(value)


class MethodForm(QWidget):
    """The dropdown of methods, with the options of the chosen one below.

    Signals:
        method_changed: another method was chosen.
        changed: some option has changed.
    """

    method_changed = Signal()
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._remembered: dict[str, dict[str, Any]] = {}
        self.combo = QComboBox()
        self.combo.setObjectName("methodCombo")
        for method in METHODS.values():
            self.combo.addItem(method.title, method.name)
            self.combo.setItemData(self.combo.count() - 1, method.summary, Qt.ItemDataRole.ToolTipRole)
        self._problem = problem_label("methodProblem")
        self.options = options_form(self.method, {})
        self._layout = column(
            labelled("Method", self.combo, "How the next K tokens are proposed."),
            *(wrapped_label("methodLeftOut", "problem", problem) for problem in METHODS.problems),
            self.options,
            self._problem,
        )
        self._layout.setContentsMargins(0, 0, 0, 0)
        self.setLayout(self._layout)
        WheelGuard(self).watch(self.combo)
        self._show_options()
        self.combo.currentIndexChanged.connect(self._on_method_chosen)

    @property
    def method(self) -> Method:
        """The chosen method."""
        return get_method(self.combo.currentData())

    def values(self) -> dict[str, Any]:
        """The options of the chosen method, whether or not they are consistent."""
        return self.options.values()

    def option_values(self) -> dict[str, dict[str, Any]]:
        """The options of every method shown so far, by method."""
        return {**self._remembered, self.method.name: self.values()}

    def apply(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Show a method, and store the options of all methods."""
        self._remembered = {method: dict(values) for method, values in options.items()}
        with QSignalBlocker(self.combo):
            self.combo.setCurrentIndex(max(0, self.combo.findData(name)))
        self._show_options()

    def choose(self, name: str) -> None:
        """Choose a method, as the user would."""
        self.combo.setCurrentIndex(max(0, self.combo.findData(name)))

    def problem(self) -> str | None:
        """What is wrong with the options, in the words of their own dataclass; None if nothing is."""
        try:
            self.method.parse(self.values())
        except SettingsError as error:
            return str(error)
        return None

    @Slot()
    def _on_method_chosen(self) -> None:
        self._show_options()
        self.method_changed.emit()

    @Slot()
    def _on_option_changed(self) -> None:
        self._remembered[self.method.name] = self.values()
        show_problem(self._problem, self.problem())
        self.changed.emit()

    def _show_options(self) -> None:
        form = options_form(self.method, self._remembered.get(self.method.name, {}))
        form.changed.connect(self._on_option_changed)
        self._layout.replaceWidget(self.options, form)
        self.options.hide()
        self.options.deleteLater()
        self.options = form
        # New fields would come last in the tab order.
        before: QWidget = self.combo
        for field in form.fields.values():
            QWidget.setTabOrder(before, field)
            before = field
        show_problem(self._problem, self.problem())
