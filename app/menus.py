"""The menu bar: every action that the window has, with its shortcut."""

from __future__ import annotations

from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from app.theme import ThemeMode
from app.widgets.model_picker import OPEN_TITLES, OpenKind

THEME_TITLES = {ThemeMode.SYSTEM: "Same as system", ThemeMode.LIGHT: "Light", ThemeMode.DARK: "Dark"}


class Menus:
    """Builds the menus of a window and holds their actions; the window connects them."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        self.open_actions = {
            kind: self._action(f"open{kind.value.capitalize()}Action", title) for kind, title in OPEN_TITLES.items()
        }
        self.open_actions[OpenKind.FOLDER].setShortcut(QKeySequence.StandardKey.Open)
        self.models = self._action("modelsAction", "Models…", "Ctrl+M")
        self.get_models = self._action("getModelsAction", "Get models…", "Ctrl+Shift+M")
        self.export = self._action("exportAction", "Export run…", "Ctrl+E")
        self.export.setEnabled(False)
        self.quit = self._action("quitAction", "Quit", QKeySequence(QKeySequence.StandardKey.Quit))
        self.quit.setMenuRole(QAction.MenuRole.QuitRole)
        self.run = self._action("runAction", "Run", "Ctrl+Return")
        self.run.setShortcuts([QKeySequence("Ctrl+Return"), QKeySequence("Ctrl+Enter")])
        self.stop = self._action("stopAction", "Stop", "Esc")
        self.show_ghosts = self._action("showGhostsAction", "Show rejected drafts", "Ctrl+G")
        self.show_ghosts.setCheckable(True)
        self.show_reading = self._action("showReadingAction", "Prompt as the model reads it", "Ctrl+R")
        self.show_reading.setCheckable(True)
        self.about = self._action("aboutAction", "About Outrider")
        self.about.setMenuRole(QAction.MenuRole.AboutRole)
        self.themes = QActionGroup(window)
        self.theme_actions = {mode: self._theme_action(mode) for mode in ThemeMode}
        self._fill()

    def _fill(self) -> None:
        file = self._menu("&File")
        file.addActions([self.models, self.get_models])
        file.addSeparator()
        file.addActions(list(self.open_actions.values()))
        file.addSeparator()
        file.addAction(self.export)
        file.addSeparator()
        file.addAction(self.quit)
        self._menu("&Run").addActions([self.run, self.stop])
        view = self._menu("&View")
        view.addActions([self.show_reading, self.show_ghosts])
        view.addSeparator()
        view.addActions(self.themes.actions())
        self._menu("&Help").addAction(self.about)

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
