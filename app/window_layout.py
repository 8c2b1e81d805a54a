"""Pieces of a window's layout, and its state as text for the settings file."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QSplitter, QVBoxLayout, QWidget

from app.theme import scaled

LEAST_HEIGHT = 640
GAPS = 48
MOST_WIDTH, MOST_HEIGHT = 1240, 740
"""On 1280 x 800, with the title and a bar of the desktop."""


def splitter(orientation: Qt.Orientation, name: str, *parts: tuple[QWidget, int]) -> QSplitter:
    """Widgets side by side, each with its stretch; none can be dragged shut."""
    result = QSplitter(orientation)
    result.setObjectName(name)
    result.setHandleWidth(8)
    result.setChildrenCollapsible(False)
    for index, (widget, stretch) in enumerate(parts):
        result.addWidget(widget)
        result.setStretchFactor(index, stretch)
    return result


def open_at(window: QWidget, width: int, height: int) -> None:
    """A size to open with, in pixels at the scale of 1: larger with larger text, and never more than a small screen."""
    window.resize(min(scaled(width), MOST_WIDTH), min(scaled(height), MOST_HEIGHT))


def bring_forward(window: QWidget) -> None:
    """Show a window above the others, with the keys."""
    window.show()
    window.raise_()
    window.activateWindow()


def centre(panels: tuple[QWidget, ...], foot: QWidget) -> QWidget:
    """Panels above each other, the last of which takes the room that is left, and a foot from edge to edge."""
    result = QWidget()
    layout = QVBoxLayout(result)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(0)
    inside = QVBoxLayout()
    inside.setContentsMargins(16, 12, 16, 12)
    inside.setSpacing(8)
    for panel in panels:
        inside.addWidget(panel)
    inside.setStretch(len(panels) - 1, 1)
    layout.addLayout(inside, 1)
    layout.addWidget(foot)
    return result


def below(head: QWidget, rest: QWidget) -> QWidget:
    """One widget over another, which has the room that the first leaves."""
    result = QWidget()
    layout = QVBoxLayout(result)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(8)
    layout.addWidget(head)
    layout.addWidget(rest, 1)
    return result


def fit_columns(window: QWidget, settings: QWidget, text: QWidget, side: QWidget) -> None:
    """Least widths of the three columns: the settings need what their text does, the others something of it."""
    widths = (scaled(272), 380, 180 + scaled(160))
    for column, width in zip((settings, text, side), widths, strict=True):
        column.setMinimumWidth(width)
    window.setMinimumSize(sum(widths) + GAPS, LEAST_HEIGHT)


def to_text(data: QByteArray) -> str:
    """Qt's own state as base64."""
    return bytes(data.toBase64().data()).decode("ascii")


def from_text(text: str) -> QByteArray:
    """The inverse of `to_text`; nonsense becomes bytes that Qt refuses."""
    return QByteArray.fromBase64(text.encode("ascii", "ignore"))
