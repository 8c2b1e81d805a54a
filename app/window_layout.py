"""Pieces of a window's layout, and its state as text for the settings file."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QSplitter, QWidget

from app.theme import scaled


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


LEAST_HEIGHT = 640
GAPS = 48


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
