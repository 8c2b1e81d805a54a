"""Where a style sheet is set: on each panel and each dialog by itself.

Set on the main window it would reach all that is in it in one call, which takes longer than a window may be kept from
its events. So the main window has only rules that never change, and each part of it a copy of the sheet in force.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from PySide6.QtCore import QChildEvent
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

from app.theme import RESOURCES, Theme, palette, style_sheet, ui_font
from app.turns import at_once

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
