"""Pieces of a window's layout, and how it is kept: the main window's in the settings file, other windows' beside it."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QEvent, QObject, QSettings, QSize, Qt
from PySide6.QtWidgets import QSplitter, QWidget

import app.settings
from app.theme import scaled

LEAST_HEIGHT = 640
GAPS = 48
TITLE_BAR = 40
"""Pixels of a window's height for its title bar, which Qt leaves out."""


def splitter(orientation: Qt.Orientation, name: str, *parts: tuple[QWidget, int]) -> QSplitter:
    """Widgets side by side, each with its stretch; none can be collapsed."""
    result = QSplitter(orientation)
    result.setObjectName(name)
    result.setHandleWidth(8)
    result.setChildrenCollapsible(False)
    for index, (widget, stretch) in enumerate(parts):
        result.addWidget(widget)
        result.setStretchFactor(index, stretch)
    return result


def hold_beside(part: QWidget, width: int) -> None:
    """Give the narrow part of two in a splitter a least width, which it also gets if that has changed."""
    pair, has_changed = part.parentWidget(), part.minimumWidth() != width
    part.setMinimumWidth(width)
    if has_changed and isinstance(pair, QSplitter):
        others = max(1, sum(pair.sizes()) - width)
        pair.setSizes([width if pair.widget(index) is part else others for index in range(pair.count())])


def open_at(window: QWidget, width: int, height: int) -> None:
    """Size, place and splitters as when the window was last closed, or else a size in pixels at a scale of 1, which
    grows with the text; never beyond the screen that there is."""
    window.resize(scaled(width), scaled(height))
    kept, name = _kept_layouts(), window.objectName()
    if isinstance(data := kept.value(f"{name}/geometry"), QByteArray):
        window.restoreGeometry(data)
    for part in window.findChildren(QSplitter):
        if isinstance(data := kept.value(f"{name}/{part.objectName()}"), QByteArray):
            part.restoreState(data)
    fit_screen(window)
    window.installEventFilter(_LayoutKeeper(window))


def _kept_layouts() -> QSettings:
    return QSettings(str(app.settings.config_file().with_name("windows.ini")), QSettings.Format.IniFormat)


class _LayoutKeeper(QObject):
    """Keeps the layout of a window that is closed, for `open_at`."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Hide and not event.spontaneous() and isinstance(watched, QWidget):
            kept, name = _kept_layouts(), watched.objectName()
            kept.setValue(f"{name}/geometry", watched.saveGeometry())
            for part in watched.findChildren(QSplitter):
                kept.setValue(f"{name}/{part.objectName()}", part.saveState())
        return False


def fit_screen(window: QWidget) -> None:
    """Shrink a window that is larger than the screen, as far as its contents allow."""
    room = window.screen().availableSize()
    window.resize(window.size().boundedTo(QSize(room.width(), room.height() - TITLE_BAR)))


def bring_forward(window: QWidget) -> None:
    """Show a window above the others, with the keyboard focus."""
    window.show()
    window.raise_()
    window.activateWindow()


def fit_columns(window: QWidget, settings: QWidget, text: QWidget, side: QWidget) -> None:
    """Set the columns' minimum widths: the settings' scales with the text, the others less or not at all."""
    widths = (max(scaled(272), 228), 372, 172 + scaled(160))
    for column, width in zip((settings, text, side), widths, strict=True):
        column.setMinimumWidth(width)
    window.setMinimumSize(sum(widths) + GAPS, LEAST_HEIGHT)


def to_text(data: QByteArray) -> str:
    """Qt's own state as base64."""
    return bytes(data.toBase64().data()).decode("ascii")


def from_text(text: str) -> QByteArray:
    """The inverse of `to_text`; invalid text becomes bytes that Qt rejects."""
    return QByteArray.fromBase64(text.encode("ascii", "ignore"))
