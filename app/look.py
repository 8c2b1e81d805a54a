"""How the window looks: theme and size of text, as a person chose them in the menu."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QWidget

from app.menus import Menus
from app.text_size import DEFAULT_SCALE, next_scale, set_text_scale
from app.theme import ThemeMode, apply_theme, choose_color_scheme, resolve_theme, text_scale


class Look(QObject):
    """Keeps a window in its theme, follows the desktop's, and takes its text up and down.

    Signals:
        changed: the `Theme` to draw in; also after the text's size is another one.
    """

    changed = Signal(object)

    def __init__(self, window: QWidget, menus: Menus) -> None:
        super().__init__(window)
        self._window = window
        self._menus = menus
        self.mode = ThemeMode.SYSTEM
        menus.themes.triggered.connect(self._on_theme_chosen)
        menus.larger.triggered.connect(self._on_larger)
        menus.smaller.triggered.connect(self._on_smaller)
        menus.default_size.triggered.connect(self._on_default_size)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_color_scheme_changed)

    def restore(self, mode: ThemeMode, scale: float) -> None:
        """Look as it was left."""
        self.mode = mode
        self._menus.theme_actions[mode].setChecked(True)
        set_text_scale(self._window, scale)
        self._apply()

    def _apply(self) -> None:
        choose_color_scheme(self.mode)
        theme = resolve_theme(self.mode)
        apply_theme(self._window, theme)
        self._menus.show_scale(text_scale())
        self.changed.emit(theme)

    def _scale(self, scale: float) -> None:
        set_text_scale(self._window, scale)
        self._apply()

    @Slot()
    def _on_larger(self) -> None:
        self._scale(next_scale(text_scale(), 1))

    @Slot()
    def _on_smaller(self) -> None:
        self._scale(next_scale(text_scale(), -1))

    @Slot()
    def _on_default_size(self) -> None:
        self._scale(DEFAULT_SCALE)

    @Slot(QAction)
    def _on_theme_chosen(self, action: QAction) -> None:
        self.mode = ThemeMode(action.data())
        self._apply()

    @Slot()
    def _on_color_scheme_changed(self) -> None:
        if self.mode is ThemeMode.SYSTEM:
            self._apply()
