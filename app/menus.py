"""The menu bar: every action of the window, with its shortcut."""

from __future__ import annotations

import sys

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QMenuBar

from app.theme import DEFAULT_SCALE, SCALES, ThemeMode

KeyRow = tuple[str, tuple[str, ...]]
"""An action's title and its keys; none if it is only in the menu."""


def key_text(keys: str | QKeySequence) -> str:
    """A shortcut as this system writes it: a Mac's Ctrl is ⌘."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


PANEL_KEYS: tuple[KeyRow, ...] = (
    ("Move to the next control", ("Tab",)),
    ("Move to the previous control", ("Shift+Tab",)),
    ("Change a value", ("↑", "↓")),
    ("Search the runs or models", (key_text("Ctrl+F"),)),
    ("Move between tokens in the transcript and the inspector", ("←", "→")),
    ("Move between steps, or between the candidates of a tree", ("↑", "↓")),
    ("Zoom a plot", ("+", "−")),
    ("Show a whole plot", ("Home",)),
    ("Move along a plot", ("Shift+←", "Shift+→")),
    ("Switch pages in the right-hand column", ("←", "→")),
    ("Rename a kept run", ("F2",)),
    ("Delete a kept run or a model", (key_text("Del"), key_text("Backspace"))),
    ("Restore the last deleted run", (key_text("Ctrl+Z"),)),
    ("Move between the cells of a sweep", ("←", "→", "↑", "↓")),
    ("List the runs of a sweep cell", ("Enter",)),
    *(() if sys.platform == "darwin" else (("Open a menu", ("Alt",)),)),
    ("Close a window such as this one", ("Esc",)),
)
"""Keys that belong to no menu and act on the widget with the focus."""


def menu_actions(bar: QMenuBar) -> list[tuple[str, list[QAction]]]:
    """Each menu's title and its actions."""
    menus = [(entry.text(), entry.menu()) for entry in bar.actions()]
    return [
        (_plain(title), [action for action in menu.actions() if not action.isSeparator() and action.menu() is None])
        for title, menu in menus
        if isinstance(menu, QMenu)
    ]


def key_groups(bar: QMenuBar) -> list[tuple[str, list[KeyRow]]]:
    """The actions of each menu, followed by the panels' own keys."""
    groups = [
        (title, [(_plain(action.text()), _keys(action)) for action in actions])
        for title, actions in menu_actions(bar)
        if actions
    ]
    return [*groups, ("Elsewhere", list(PANEL_KEYS))]


def _keys(action: QAction) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key_text(keys) for keys in action.shortcuts() if not keys.isEmpty()))


def _plain(text: str) -> str:
    return text.replace("&", "")


THEME_TITLES = {ThemeMode.SYSTEM: "System theme", ThemeMode.LIGHT: "Light theme", ThemeMode.DARK: "Dark theme"}


class Menus:
    """Builds the menus of a window and holds their actions; the window connects them."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        file, run, view, tools, help_menu = (
            window.menuBar().addMenu(title) for title in ("&File", "&Run", "&View", "&Tools", "&Help")
        )
        self.file = file
        self.runs = self._action(file, "runsAction", "Runs…", "Ctrl+O", "Ctrl+Shift+R")
        # Every run is kept automatically; Ctrl+S writes a separate file.
        self.export = self._action(file, "exportAction", "Export run…", "Ctrl+E", "Ctrl+S")
        file.addSeparator()
        self.models = self._action(file, "modelsAction", "Models…", "Ctrl+M")
        file.addSeparator()
        self.quit = self._action(file, "quitAction", "Quit", "Ctrl+Q")
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.run = self._action(run, "runAction", "Run", "Ctrl+Enter", "Ctrl+Return")
        self.stop = self._action(run, "stopAction", "Stop", "Esc")
        self.pause = self._action(run, "pauseAction", "Pause", "Space")
        # Shown, but inactive: a window shortcut would take Space from buttons. The window handles the key.
        self.pause.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        self.next_step = self._action(run, "nextStepAction", "Next step", "F8")
        self.branch = self._action(run, "branchAction", "Branch from here…", "Ctrl+B")
        self.undo_branch = self._action(run, "undoBranchAction", "Undo branch", "Ctrl+Shift+B")
        for action in (self.export, self.pause, self.next_step, self.branch, self.undo_branch):
            action.setEnabled(False)
        self.show_reading = self._action(
            view, "showReadingAction", "Model input: the prompt as the model reads it", "Ctrl+R"
        )
        self.show_ghosts = self._action(view, "showGhostsAction", "Show rejected drafts", "Ctrl+G")
        self.show_previous = self._action(view, "showPreviousAction", "Previous run in the plots")
        for action in (self.show_reading, self.show_ghosts, self.show_previous):
            action.setCheckable(True)
        view.addSeparator()
        self.pages = [
            self._action(view, f"{title.partition(' ')[0].lower()}PageAction", title, f"Ctrl+{number}")
            for number, title in enumerate(("Run page", "Inspector page", "Speed page"), 1)
        ]
        self.apart = self._action(view, "pageApartAction", "This page in its own window", "Ctrl+Shift+D")
        self.commands = self._action(view, "commandsAction", "Commands…", "Ctrl+K")
        view.addSeparator()
        self.larger = self._action(view, "largerTextAction", "Larger text", "Ctrl++", "Ctrl+=")
        self.smaller = self._action(view, "smallerTextAction", "Smaller text", "Ctrl+-")
        self.default_size = self._action(view, "defaultTextAction", "Default text size", "Ctrl+0")
        view.addSeparator()
        self.themes = QActionGroup(window)
        self.theme_actions = {mode: self._action(view, f"{mode}ThemeAction", THEME_TITLES[mode]) for mode in ThemeMode}
        for mode, action in self.theme_actions.items():
            action.setCheckable(True)
            action.setData(mode)
            self.themes.addAction(action)
        # Tools that answer a question about a pair instead of writing a text; each opens its own window.
        self.sweep = self._action(tools, "sweepAction", "Sweep…", "Ctrl+Shift+W")
        self.check = self._action(tools, "checkAction", "Check exactness…", "Ctrl+Shift+X")
        self.race = self._action(tools, "raceAction", "Race…", "Ctrl+Shift+E")
        self.server = self._action(tools, "serverAction", "Server…", "Ctrl+Shift+V")
        tools.addSeparator()
        self.production = self._action(tools, "productionAction", "Deploy…", "Ctrl+Shift+P")
        self.help = self._action(help_menu, "helpAction", "How it works", "F1")
        self.formulas = self._action(help_menu, "formulasAction", "Formulas", "Shift+F1")
        self.keys = self._action(help_menu, "keysAction", "Keyboard shortcuts", "Ctrl+/")
        self.introduction = self._action(help_menu, "introductionAction", "Show the introduction")
        help_menu.addSeparator()
        self.about = self._action(help_menu, "aboutAction", "About Outrider")
        self.about.setMenuRole(QAction.MenuRole.AboutRole)

    def show_scale(self, scale: float) -> None:
        """Show the text size, and enable only the actions that change it."""
        self.larger.setEnabled(scale < SCALES[-1])
        self.smaller.setEnabled(scale > SCALES[0])
        self.default_size.setEnabled(scale != DEFAULT_SCALE)

    def _action(self, menu: QMenu, name: str, title: str, *shortcuts: str) -> QAction:
        action = QAction(title, self._window)
        action.setObjectName(name)
        action.setShortcuts([QKeySequence(keys) for keys in shortcuts])
        menu.addAction(action)
        return action
