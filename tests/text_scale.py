"""All of a window at another size of text at once, as `Look` does it window by window."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.look import windows_of
from app.theme import follow_scale, put_scale_in_force


def set_text_scale(window: QWidget, scale: float) -> None:
    """Take all text of a window and of its dialogs to a scale. No style sheet follows."""
    windows = windows_of(window)
    put_scale_in_force(scale, windows)
    for each in windows:
        follow_scale(each)
