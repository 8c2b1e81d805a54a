"""The drafting methods' options, with fields made from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import QComboBox, QWidget

from app.setup.setting_fields import SettingsForm, set_value
from app.widgets.fields import boxed, column, named, plain_tip, wrapped_label
from core.drafters.registry import METHODS, Method, get_method
from core.errors import SettingsError
from core.settings import declared, is_valid


def _options_form(method: Method, *, is_switches: bool) -> SettingsForm:
    """A field for each of a method's options that can be on or off, or for each of the others."""
    items = {
        name: item for name, item in declared(method.options).items() if isinstance(item.default, bool) is is_switches
    }
    return SettingsForm(items, {name: f"option_{name}" for name in items})


class MethodForm(QWidget):
    """The options that shape what the chosen method drafts.

    Signals:
        method_changed: another method was chosen.
        changed: some option has changed.

    Attributes:
        combo: the methods by name, for programs only: Drafts from offers them.
        options: each method's options that are not on or off, by the method's name.
        advanced: the options that can be on or off.
    """

    method_changed = Signal()
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.combo = named(QComboBox(self), "methodCombo", "Method", "How the next K tokens are proposed.")
        self.combo.hide()
        self.options: dict[str, SettingsForm] = {}
        self._switches: dict[str, SettingsForm] = {}
        for method in METHODS.values():
            self.combo.addItem(method.title, method.name)
            self.combo.setItemData(self.combo.count() - 1, plain_tip(method.summary), Qt.ItemDataRole.ToolTipRole)
            self.options[method.name] = _options_form(method, is_switches=False)
            self._switches[method.name] = _options_form(method, is_switches=True)
        left_out = [wrapped_label("methodLeftOut", "problem", problem) for problem in METHODS.problems]
        boxed(column(*left_out, *self.options.values()), self)
        self.advanced = boxed(column(*self._switches.values()))
        self._show_options()
        self.combo.currentIndexChanged.connect(self._on_method_chosen)
        for form in (*self.options.values(), *self._switches.values()):
            form.changed.connect(self.changed)

    @property
    def method(self) -> Method:
        """The chosen method."""
        return get_method(self.combo.currentData())

    def values(self) -> dict[str, Any]:
        """The options of the chosen method, whether or not they are consistent."""
        return self.option_values()[self.method.name]

    def num_changed_switches(self) -> int:
        """How many switches of the chosen method differ from their defaults."""
        values, options = self._switches[self.method.name].values(), declared(self.method.options)
        return sum(value != options[name].default for name, value in values.items())

    def option_values(self) -> dict[str, dict[str, Any]]:
        """The options of every method, by method."""
        return {name: form.values() | self._switches[name].values() for name, form in self.options.items()}

    def apply(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Show a method, and the options of all methods; what isn't valid is shown as its default."""
        for each, form in self.options.items():
            fields, saved = form.fields | self._switches[each].fields, options.get(each, {})
            for key, item in declared(get_method(each).options).items():
                set_value(fields[key], saved[key] if key in saved and is_valid(item, saved[key]) else item.default)
        with QSignalBlocker(self.combo):
            self.choose(name)
        self._show_options()

    @Slot(str)
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

    def _show_options(self) -> None:
        for forms in (self.options, self._switches):
            for name, form in forms.items():
                form.setVisible(name == self.method.name and bool(form.fields))
