"""A choice between a few things, as buttons side by side."""

from __future__ import annotations

from typing import Generic, TypeVar

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QAbstractButton, QButtonGroup, QHBoxLayout, QToolButton, QWidget

T = TypeVar("T")


class ChoiceRow(QWidget, Generic[T]):
    """One of the buttons is always down; arrow keys and Tab reach all of them.

    Signals:
        chosen: what was chosen by hand.
    """

    chosen = Signal(object)

    def __init__(self, titles: dict[T, str], object_name: str, title: str) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._members = list(titles)
        self.group = QButtonGroup(self)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        for index, text in enumerate(titles.values()):
            button = QToolButton()
            button.setText(text)
            button.setObjectName(f"{object_name}{index}")
            button.setAccessibleName(f"{title}: {text}")
            button.setCheckable(True)
            button.setProperty("role", "quiet")
            button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            self.group.addButton(button, index)
            layout.addWidget(button)
        layout.addStretch(1)
        self.group.button(0).setChecked(True)
        self.group.buttonClicked.connect(self._on_clicked)

    def choice(self) -> T:
        """What is chosen."""
        return self._members[self.group.checkedId()]

    @Slot(QAbstractButton)
    def _on_clicked(self, _button: QAbstractButton) -> None:
        self.chosen.emit(self.choice())
