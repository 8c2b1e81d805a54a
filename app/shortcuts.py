"""All keys in one list: those of the menus, read from the menus themselves, and those that single panels have."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QMenuBar


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What is done, and by which keys; none where the menu is the only way."""

    title: str
    keys: tuple[str, ...]


PANEL_KEYS = (
    KeyRow("To the next control, and back", ("Tab", "Shift+Tab")),
    KeyRow("Change a number, a slider or a choice", ("↑", "↓")),
    KeyRow("From token to token, in the transcript and the inspector", ("←", "→")),
    KeyRow("From step to step there", ("↑", "↓")),
    KeyRow("Zoom a plot, and show all of it", ("+", "−", "Home")),
    KeyRow("Move along a plot", ("Shift+←", "Shift+→")),
    KeyRow("Another page of the right-hand column", ("←", "→")),
    KeyRow("Name and delete a kept run, and bring it back", ("F2", "Del", "Ctrl+Z")),
    KeyRow("From cell to cell of a sweep, and to a cell's runs", ("←", "→", "↑", "↓", "Enter")),
    KeyRow("Open a menu", ("Alt", "F10")),
    KeyRow("Leave a window such as this one", ("Esc",)),
)
"""Keys that belong to no menu: they work where the focus is."""


def menu_actions(bar: QMenuBar) -> list[tuple[str, list[QAction]]]:
    """Each menu's title and its actions, submenus taken in."""
    found = []
    for entry in bar.actions():
        menu = entry.menu()
        if isinstance(menu, QMenu):
            found.append((_plain(entry.text()), _flat(menu)))
    return found


def _flat(menu: QMenu) -> list[QAction]:
    found = []
    for action in menu.actions():
        below = action.menu()
        if isinstance(below, QMenu):
            found += _flat(below)
        elif not action.isSeparator():
            found.append(action)
    return found


def key_groups(bar: QMenuBar) -> list[tuple[str, list[KeyRow]]]:
    """What the menus offer, menu by menu, and the panels' own keys behind them."""
    groups = [
        (title, [KeyRow(_plain(action.text()), _keys(action)) for action in actions])
        for title, actions in menu_actions(bar)
        if actions
    ]
    return [*groups, ("Where the focus is", list(PANEL_KEYS))]


def _keys(action: QAction) -> tuple[str, ...]:
    form = QKeySequence.SequenceFormat.NativeText
    return tuple(dict.fromkeys(keys.toString(form) for keys in action.shortcuts() if not keys.isEmpty()))


def _plain(text: str) -> str:
    return text.replace("&", "")
