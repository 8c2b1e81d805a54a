"""The prompt as the target reads it: its chat template filled in, with the special tokens set apart."""

from __future__ import annotations

import re

from PySide6.QtCore import QEvent
from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QApplication, QPlainTextEdit

from app.model_questions import RenderedPrompt
from app.theme import mono_font
from app.widgets.fields import describe

WAITING = "Reading the target's tokenizer…"


class PromptReading(QPlainTextEdit):
    """A read-only view of a rendered prompt."""

    _rendered: RenderedPrompt | None = None

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("promptReading")
        self.setReadOnly(True)
        self.setFont(mono_font())
        self.setTabChangesFocus(True)
        describe(self, "The prompt as the target reads it")

    def show_rendered(self, rendered: RenderedPrompt) -> None:
        """Show what a model reads; nothing where there was a problem."""
        self._rendered = rendered
        self.setPlainText(rendered.text)
        if not rendered.special_tokens:
            return
        special = QTextCharFormat()
        palette = QApplication.palette()
        special.setBackground(QColor(palette.color(palette.ColorRole.Highlight)))
        longest_first = sorted(rendered.special_tokens, key=len, reverse=True)
        text = self.toPlainText()
        for match in re.finditer("|".join(map(re.escape, longest_first)), text):
            cursor = QTextCursor(self.document())
            # Qt counts in units of UTF-16.
            start = len(text[: match.start()].encode("utf-16-le")) // 2
            cursor.setPosition(start)
            cursor.setPosition(start + len(match.group().encode("utf-16-le")) // 2, QTextCursor.MoveMode.KeepAnchor)
            cursor.setCharFormat(special)

    def changeEvent(self, event: QEvent) -> None:
        """Mark the special tokens in the colours of a new theme."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.PaletteChange and self._rendered is not None and self.toPlainText():
            self.show_rendered(self._rendered)


def reading_note(rendered: RenderedPrompt) -> str:
    """How many tokens it is, and whether a template was applied."""
    tokens = f"{rendered.num_tokens:,} token{'' if rendered.num_tokens == 1 else 's'}"
    return f"{tokens} · {'chat template applied' if rendered.is_chat else 'raw, no chat template'}"
