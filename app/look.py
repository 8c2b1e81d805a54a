"""How the window looks: theme and size of text, as a person chose them in the menu."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QWidget
from shiboken6 import isValid

from app.dress import containers_of, dress, dress_container, parts_of, put_in_force, windows_of
from app.menus import Menus
from app.text_size import DEFAULT_SCALE, follow_scale, next_scale, put_scale_in_force
from app.theme import Theme, ThemeMode, choose_color_scheme, resolve_theme, text_scale
from app.turns import Turns, freeze, thaw


class Drawn(Protocol):
    """What draws in colours of its own, beside the style sheet's."""

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours, and at the text's scale."""


class Look(QObject):
    """Keeps a window in its theme, follows the desktop's, and takes its text up and down.

    A new look is put on part by part, over several turns of the event loop. Meanwhile nothing is painted, so that no
    window is ever seen half in one look and half in another.

    Signals:
        changed: the `Theme` that all of the window is now drawn in; also after the text's size is another one.
        settled: so are the dialogs that are not on screen.
    """

    changed = Signal(object)
    settled = Signal()

    def __init__(self, window: QWidget, menus: Menus) -> None:
        super().__init__(window)
        self._window = window
        self._menus = menus
        self._drawn: tuple[Drawn, ...] = ()
        self._wanted: tuple[Theme, float] | None = None
        self._turns = Turns(self)
        self.mode = ThemeMode.SYSTEM
        menus.themes.triggered.connect(self._on_theme_chosen)
        menus.larger.triggered.connect(self._on_larger)
        menus.smaller.triggered.connect(self._on_smaller)
        menus.default_size.triggered.connect(self._on_default_size)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_color_scheme_changed)

    def follow(self, *drawn: Drawn) -> None:
        """Draw these in the window's theme."""
        self._drawn = drawn

    @property
    def is_settled(self) -> bool:
        """Whether everything is in the look that was last asked for."""
        return not self._turns.is_going

    def restore(self, mode: ThemeMode, scale: float) -> None:
        """Look as it was left."""
        self.mode = mode
        self._menus.theme_actions[mode].setChecked(True)
        self._scale(scale)

    def _apply(self) -> None:
        choose_color_scheme(self.mode)
        theme = resolve_theme(self.mode)
        if self._wanted == (theme, text_scale()):
            return
        self._wanted = (theme, text_scale())
        self._menus.show_scale(text_scale())
        self._turns.stop()
        windows = windows_of(self._window)
        freeze(windows, "look")
        put_in_force(theme)
        self._turns.start(self._pieces(theme, windows))
        if not self._window.isVisible():
            self._turns.finish()

    def _pieces(self, theme: Theme, windows: list[QWidget]) -> Generator[None]:
        """Put a theme on, piece by piece: first what is on screen."""
        try:
            main, *others = windows
            follow_scale(main)
            yield
            for container in containers_of(main):
                dress_container(container)
            yield from _dress(parts_of(main))
            for drawn in self._drawn:
                drawn.set_theme(theme)
                yield
            # To paint all of a window takes as long as a turn may.
            yield from self._turns.rest()
            thaw([main], "look")
            yield from self._turns.rest()
            shown = [window for window in others if isValid(window) and window.isVisible()]
            yield from self._dress_windows(shown)
            self.changed.emit(theme)
            yield from self._dress_windows(window for window in others if window not in shown)
        finally:
            thaw(windows, "look")
        self.settled.emit()

    def _dress_windows(self, windows: Iterable[QWidget]) -> Generator[None]:
        """Each is painted as soon as it is done, in a turn of its own."""
        for window in windows:
            if not isValid(window):
                continue
            follow_scale(window)
            yield
            # What has no sheet opens out of something that has.
            if isValid(window) and window.styleSheet():
                for container in containers_of(window):
                    dress_container(container)
                yield from _dress(parts_of(window))
            if isValid(window) and window.isVisible():
                thaw([window], "look")
                yield from self._turns.rest()
            thaw([window], "look")

    def _scale(self, scale: float) -> None:
        put_scale_in_force(scale, windows_of(self._window))
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


def _dress(parts: Iterable[QWidget]) -> Generator[None]:
    for part in parts:
        if isValid(part):
            dress(part)
            yield
