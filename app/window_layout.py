"""Pieces of a window's layout, and its state as text for the settings file."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QSplitter, QWidget

from app.theme import scaled

LEAST_HEIGHT = 640
GAPS = 48
MOST_WIDTH, MOST_HEIGHT = 1240, 740
"""Fits a screen of 1280 x 800 with a title bar and a desktop panel."""


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


def open_at(window: QWidget, width: int, height: int) -> None:
    """Initial size, given in pixels at a scale of 1; it grows with the text, but never beyond a small screen."""
    window.resize(min(scaled(width), MOST_WIDTH), min(scaled(height), MOST_HEIGHT))


def bring_forward(window: QWidget) -> None:
    """Show a window above the others, with the keyboard focus."""
    window.show()
    window.raise_()
    window.activateWindow()


def fit_columns(window: QWidget, settings: QWidget, text: QWidget, side: QWidget) -> None:
    """Set the columns' minimum widths: the settings' scales with the text, the others less or not at all."""
    widths = (scaled(272), 380, 180 + scaled(160))
    for column, width in zip((settings, text, side), widths, strict=True):
        column.setMinimumWidth(width)
    window.setMinimumSize(sum(widths) + GAPS, LEAST_HEIGHT)


def to_text(data: QByteArray) -> str:
    """Qt's own state as base64."""
    return bytes(data.toBase64().data()).decode("ascii")


def from_text(text: str) -> QByteArray:
    """The inverse of `to_text`; invalid text becomes bytes that Qt rejects."""
    return QByteArray.fromBase64(text.encode("ascii", "ignore"))
