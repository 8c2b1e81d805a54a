"""How the window looks: theme and size of text, as a person chose them in the menu."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

from PySide6.QtCore import QChildEvent, QObject, Signal, Slot
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QMainWindow,
    QSplitter,
    QSplitterHandle,
    QStackedWidget,
    QTabWidget,
    QWidget,
)
from shiboken6 import isValid

from app.menus import Menus
from app.theme import (
    DEFAULT_SCALE,
    RESOURCES,
    Theme,
    ThemeMode,
    choose_color_scheme,
    follow_scale,
    next_scale,
    palette,
    put_scale_in_force,
    resolve_theme,
    style_sheet,
    text_scale,
    ui_font,
)
from app.turns import Turns, at_once, freeze, thaw

IN_FORCE = "sheetInForce"
IN_PARTS = "dressedInParts"
"""Property of a dialog, or of what is in one, whose parts have a sheet each, as the main window's have."""


def put_in_force(theme: Theme) -> None:
    """Have the application draw in a theme, as far as no style sheet is needed, and keep its sheet for `dress`."""
    application = QApplication.instance()
    if not isinstance(application, QApplication):
        return
    if application.style().objectName() != "fusion":
        application.setStyle("Fusion")
    application.setProperty(IN_FORCE, style_sheet(theme))
    application.setPalette(palette(theme))
    application.setFont(ui_font())


def dress(widget: QWidget) -> None:
    """Give a part, or a dialog, the sheet in force. What stands alone, outside any window, keeps the plain look."""
    application = QApplication.instance()
    sheet = str(application.property(IN_FORCE) or "") if application is not None else ""
    if widget.parent() is not None and widget.styleSheet() != sheet:
        widget.setStyleSheet(sheet)


def hold_parts(*widgets: QWidget) -> None:
    """Have each part of what these contain given a sheet of its own, since one would take too long to reach all.

    What they draw themselves, the sheet for containers says. What is put into them later is to be dressed then.
    """
    for widget in widgets:
        widget.setProperty(IN_PARTS, True)


def dress_in_parts(dialog: QDialog) -> None:
    """Give each part of a large dialog the sheet in force: one sheet would take too long to reach all of it."""
    at_once(dressing(dialog))


def dressing(dialog: QDialog) -> Generator[None]:
    """As `dress_in_parts`, in pieces, for a dialog of which even that takes long."""
    hold_parts(dialog)
    for container in containers_of(dialog):
        dress_container(container)
    for part in parts_of(dialog):
        yield
        dress(part)


class DressingWindow(QMainWindow):
    """Has dialogs that are not of our making, such as one that asks for a path, look as it does."""

    def childEvent(self, event: QChildEvent) -> None:
        """Dress a dialog once it has all that is in it."""
        super().childEvent(event)
        _dress_dialog(event)


class DressingDialog(QDialog):
    """The same, for a dialog whose parts have a sheet each: none would reach what opens out of it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        hold_parts(self)

    def childEvent(self, event: QChildEvent) -> None:
        """Dress a dialog once it has all that is in it."""
        super().childEvent(event)
        _dress_dialog(event)


def _dress_dialog(event: QChildEvent) -> None:
    child = event.child()
    if event.polished() and isinstance(child, QDialog) and not child.property(IN_PARTS):
        dress(child)


def dress_container(widget: QWidget) -> None:
    """Have a container look at the palette again. What it contains has sheets of its own."""
    if widget.isWindow() and not widget.styleSheet():
        widget.setStyleSheet((RESOURCES / "containers.qss").read_text("utf-8"))
    else:
        widget.style().polish(widget)


def windows_of(window: QWidget) -> list[QWidget]:
    """A window, and all dialogs, menus and lists that open out of it; the window first."""
    return [window, *(widget for widget in QApplication.topLevelWidgets() if _opens_out_of(widget, window))]


def _opens_out_of(widget: QWidget, window: QWidget) -> bool:
    parent = widget.parentWidget()
    return parent is not None and (parent == window or _opens_out_of(parent, window))


def containers_of(window: QWidget) -> list[QWidget]:
    """What only holds parts: the window itself, and what lies between it and them."""
    has_parts = isinstance(window, QMainWindow) or window.property(IN_PARTS)
    return [window, *_containers(window)] if has_parts else []


def parts_of(window: QWidget) -> list[QWidget]:
    """What has a sheet of its own: a dialog as a whole, and of the main window each panel."""
    containers = containers_of(window)
    if not containers:
        return [window]
    return [
        child
        for container in containers
        for child in _children(container)
        if child not in containers and not isinstance(child, QSplitterHandle)
    ]


def _containers(widget: QWidget) -> Iterator[QWidget]:
    for child in _children(widget):
        is_plain = isinstance(child, QSplitter | QTabWidget | QStackedWidget) or type(child) is QWidget
        if is_plain or child.property(IN_PARTS):
            yield child
            yield from _containers(child)


def _children(widget: QWidget) -> list[QWidget]:
    return [child for child in widget.children() if isinstance(child, QWidget) and not child.isWindow()]


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
