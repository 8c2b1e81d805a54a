"""The menu bar: every action of the window, with its shortcut."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QMenuBar

from app.dialogs import OPEN_TITLES, OpenKind
from app.theme import DEFAULT_SCALE, SCALES, ThemeMode


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An action and its keys; none if it is only in the menu."""

    title: str
    keys: tuple[str, ...]


PANEL_KEYS = (
    KeyRow("Move to the next control, and back", ("Tab", "Shift+Tab")),
    KeyRow("Change a number, a slider or a choice", ("↑", "↓")),
    KeyRow("Move between tokens in the transcript and the inspector", ("←", "→")),
    KeyRow("Move between steps there", ("↑", "↓")),
    KeyRow("Zoom a plot, and show all of it", ("+", "−", "Home")),
    KeyRow("Move along a plot", ("Shift+←", "Shift+→")),
    KeyRow("Switch pages in the right-hand column", ("←", "→")),
    KeyRow("Rename and delete a kept run, and restore it", ("F2", "Del", "Ctrl+Z")),
    KeyRow("Move between the cells of a sweep, and open a cell's runs", ("←", "→", "↑", "↓", "Enter")),
    KeyRow("Open a menu", ("Alt", "F10")),
    KeyRow("Close a window such as this one", ("Esc",)),
)
"""Keys that belong to no menu and act on the widget with the focus."""


def menu_actions(bar: QMenuBar) -> list[tuple[str, list[QAction]]]:
    """Each menu's title and its actions, submenus included."""
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
    """The actions of each menu, followed by the panels' own keys."""
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


THEME_TITLES = {ThemeMode.SYSTEM: "System theme", ThemeMode.LIGHT: "Light theme", ThemeMode.DARK: "Dark theme"}


class Menus:
    """Builds the menus of a window and holds their actions; the window connects them."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        self.open_actions = {
            kind: self._action(f"open{kind.value.capitalize()}Action", title) for kind, title in OPEN_TITLES.items()
        }
        # Ctrl+O opens a run; models are opened far less often.
        self.open_actions[OpenKind.FOLDER].setShortcut("Ctrl+Shift+O")
        self.models = self._action("modelsAction", "Models…", "Ctrl+M")
        self.get_models = self._action("getModelsAction", "Get models…", "Ctrl+Shift+M")
        self.runs = self._action("runsAction", "Runs…", "Ctrl+O")
        self.runs.setShortcuts([QKeySequence("Ctrl+O"), QKeySequence("Ctrl+Shift+R")])
        self.export = self._action("exportAction", "Export run…", "Ctrl+E")
        # Every run is kept automatically; Ctrl+S writes a separate file.
        self.export.setShortcuts([QKeySequence("Ctrl+E"), QKeySequence("Ctrl+S")])
        self.export.setEnabled(False)
        self.quit = self._action("quitAction", "Quit", "Ctrl+Q")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.run = self._action("runAction", "Run", "Ctrl+Return")
        self.run.setShortcuts([QKeySequence("Ctrl+Return"), QKeySequence("Ctrl+Enter")])
        self.stop = self._action("stopAction", "Stop", "Esc")
        self.pause = self._action("pauseAction", "Pause", "Space")
        # Shown, but inactive: a window shortcut would take Space from buttons. The window handles the key.
        self.pause.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        self.next_step = self._action("nextStepAction", "Next step", "F8")
        self.branch = self._action("branchAction", "Branch from here…", "Ctrl+B")
        for action in (self.pause, self.next_step, self.branch):
            action.setEnabled(False)
        # Tools that answer a question about a pair instead of writing a text; each opens its own window.
        self.check = self._action("checkAction", "Check exactness…", "Ctrl+Shift+X")
        self.probe = self._action("probeAction", "Probe drafts…", "Ctrl+Shift+D")
        self.sweep = self._action("sweepAction", "Sweep…", "Ctrl+Shift+W")
        self.production = self._action("productionAction", "Take to production…", "Ctrl+Shift+P")
        self.show_ghosts = self._action("showGhostsAction", "Show rejected drafts", "Ctrl+G")
        self.show_ghosts.setCheckable(True)
        self.show_reading = self._action("showReadingAction", "Prompt as the model reads it", "Ctrl+R")
        self.show_reading.setCheckable(True)
        self.larger = self._action("largerTextAction", "Larger text", "Ctrl++")
        self.larger.setShortcuts([QKeySequence("Ctrl++"), QKeySequence("Ctrl+=")])
        self.smaller = self._action("smallerTextAction", "Smaller text", "Ctrl+-")
        self.default_size = self._action("defaultTextAction", "Default text size", "Ctrl+0")
        self.help = self._action("helpAction", "How it works", "F1")
        self.formulas = self._action("formulasAction", "Formulas", "Shift+F1")
        self.keys = self._action("keysAction", "Keyboard shortcuts", "Ctrl+/")
        self.about = self._action("aboutAction", "About Outrider")
        self.about.setMenuRole(QAction.MenuRole.AboutRole)
        self.themes = QActionGroup(window)
        self.theme_actions = {mode: self._theme_action(mode) for mode in ThemeMode}
        self._fill()

    def _fill(self) -> None:
        file = self._menu("&File")
        file.addAction(self.runs)
        file.addSeparator()
        file.addActions([self.models, self.get_models])
        file.addSeparator()
        file.addActions(list(self.open_actions.values()))
        file.addSeparator()
        file.addAction(self.export)
        file.addSeparator()
        file.addAction(self.quit)
        self._menu("&Run").addActions([self.run, self.stop, self.pause, self.next_step, self.branch])
        view = self._menu("&View")
        view.addActions([self.show_reading, self.show_ghosts])
        view.addSeparator()
        view.addActions([self.larger, self.smaller, self.default_size])
        view.addSeparator()
        view.addActions(self.themes.actions())
        tools = self._menu("&Tools")
        tools.addActions([self.probe, self.sweep, self.check])
        tools.addSeparator()
        tools.addAction(self.production)
        help_menu = self._menu("&Help")
        help_menu.addActions([self.help, self.formulas, self.keys])
        help_menu.addSeparator()
        help_menu.addAction(self.about)

    def show_scale(self, scale: float) -> None:
        """Show the text size, and enable only the actions that change it."""
        self.larger.setEnabled(scale < SCALES[-1])
        self.smaller.setEnabled(scale > SCALES[0])
        self.default_size.setEnabled(scale != DEFAULT_SCALE)

    def _menu(self, title: str) -> QMenu:
        return self._window.menuBar().addMenu(title)

    def _action(self, name: str, title: str, shortcut: str | QKeySequence = "") -> QAction:
        action = QAction(title, self._window)
        action.setObjectName(name)
        if shortcut:
            action.setShortcut(shortcut)
        return action

    def _theme_action(self, mode: ThemeMode) -> QAction:
        action = self._action(f"{mode.value}ThemeAction", THEME_TITLES[mode])
        action.setCheckable(True)
        action.setData(mode)
        self.themes.addAction(action)
        return action
