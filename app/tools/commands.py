"""The command palette: every action of the menus, every pace and every preset, found by a few letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtCore import QEvent, QObject, Qt, Slot
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QDialog, QListView, QMainWindow, QMenu

from app.menus import menu_actions
from app.theme import scaled
from app.widgets.fields import boxed, column, line_edit, named
from app.widgets.title_delegate import NOTE_ROLE, TitleDelegate
from app.window_layout import fit_screen

RUN_ROLE = Qt.ItemDataRole.UserRole
Command = tuple[str, str, Callable[[], object]]
"""Title; keys and, for a setting, whether it is on; what it does."""
MOVES = {Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown}


class CommandPalette(QDialog):
    """Lists what the window can do now; Enter does it.

    Args:
        presets: the menu of the prompt's presets.
        is_hidden: whether an action isn't listed now, though it is enabled.
        others: what no menu offers, by title.
    """

    def __init__(
        self,
        window: QMainWindow,
        presets: QMenu,
        is_hidden: Callable[[QAction], bool],
        others: Mapping[str, Callable[[], object]],
    ) -> None:
        super().__init__(window)
        self._window, self._presets, self._is_hidden, self._others = window, presets, is_hidden, others
        self.setObjectName("commandPalette")
        self.setWindowTitle("Commands")
        self.search = line_edit("commandSearch", "What do you want to do?", "Search the commands")
        self._known: list[Command] = []
        self._found = QStandardItemModel(self)
        self.list = named(QListView(), "commandList", "Commands")
        self.list.setModel(self._found)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setUniformItemSizes(True)
        self.list.setItemDelegate(TitleDelegate(self.list))
        boxed(column(self.search, (self.list, 1)), self, margins=(12, 12, 12, 12))
        self.search.textChanged.connect(self._on_searched)
        self.search.returnPressed.connect(self._on_chosen)
        self.search.installEventFilter(self)
        self.list.clicked.connect(self._on_chosen)

    @Slot()
    def open(self) -> None:
        """Show what can be done now."""
        self._known = self._commands()
        self.search.clear()
        self._on_searched("")
        self.resize(scaled(560), scaled(440))  # In front of the main window each time, so not `open_at`.
        fit_screen(self)
        self.show()
        self.search.setFocus()

    def _commands(self) -> list[Command]:
        found: list[Command] = []
        for menu, actions in menu_actions(self._window.menuBar()):
            for action in actions:
                keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
                switch = ("off", "on")[action.isChecked()] if action.isCheckable() else ""
                note = " · ".join(filter(None, (switch, keys)))
                if action.isEnabled() and not self._is_hidden(action):
                    found.append((f"{menu}: {action.text().replace('&', '')}", note, action.trigger))
        found += [(title, "", run) for title, run in self._others.items()]
        presets = (action for action in self._presets.actions() if action.isEnabled() and not action.isSeparator())
        return [*found, *((f"Preset: {action.text()}", "", action.trigger) for action in presets)]

    @Slot(str)
    def _on_searched(self, words: str) -> None:
        self._found.clear()
        for title, note, run in self._known:
            if all(word in title.casefold() for word in words.casefold().split()):
                item = QStandardItem(title)
                item.setEditable(False)
                item.setData(run, RUN_ROLE)
                item.setData(note, NOTE_ROLE)
                item.setData(f"{title}, {note}" if note else title, Qt.ItemDataRole.AccessibleTextRole)
                self._found.appendRow(item)
        self.list.setCurrentIndex(self._found.index(0, 0))

    @Slot()
    def _on_chosen(self) -> None:
        run = self.list.currentIndex().data(RUN_ROLE)
        if run is not None:
            self.accept()
            run()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The arrow keys move in the list while the focus is in the search."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress and event.key() in MOVES:
            self.list.keyPressEvent(event)
            return True
        return super().eventFilter(watched, event)
