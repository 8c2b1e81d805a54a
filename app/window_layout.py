"""Pieces of a window's layout, and its state as text for the settings file."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QSplitter, QWidget


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


def to_text(data: QByteArray) -> str:
    """Qt's own state as base64."""
    return bytes(data.toBase64().data()).decode("ascii")


def from_text(text: str) -> QByteArray:
    """The inverse of `to_text`; nonsense becomes bytes that Qt refuses."""
    return QByteArray.fromBase64(text.encode("ascii", "ignore"))
