"""The buttons of the window of sweeps."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu, QPushButton, QToolButton

from app.widgets.fields import describe


def push_button(text: str, name: str, help_text: str) -> QPushButton:
    """A button that Enter presses only where the focus is on it."""
    button = QPushButton(text)
    button.setObjectName(name)
    button.setAutoDefault(False)
    describe(button, text.rstrip("…"), help_text)
    return button


def menu_button(text: str, name: str, help_text: str) -> QToolButton:
    """A button with a menu, which whoever has it fills."""
    button = QToolButton()
    button.setText(text)
    button.setObjectName(name)
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    describe(button, text, help_text)
    menu = QMenu(button)
    menu.setToolTipsVisible(True)
    button.setMenu(menu)
    return button
