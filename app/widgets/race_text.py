"""One racer's text, as far as it was written by the clock: forwards it grows, backwards it shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit

from app.text_size import hold
from app.theme import Theme, mono_font
from core.types import TokenKind

MOST_TOKENS = 1000
"""How many tokens one frame adds at most, so that no jump of the clock holds the window up; the rest follow."""


class RaceText(QPlainTextEdit):
    """Shows the first so many of a text's tokens."""

    def __init__(self, object_name: str, name: str, *, in_kinds: bool) -> None:
        """Say who it is.

        Args:
            object_name: for the style sheet and for tests.
            name: for assistive technology.
            in_kinds: whether tokens are drawn in the look of their kind; plain text otherwise.
        """
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(name)
        self.setProperty("role", "raceText")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        hold(self, least_height=60)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._in_kinds = in_kinds
        self._texts: Sequence[str] = ()
        self._kinds: Sequence[TokenKind] = ()
        self._ends: list[int] = []
        """Where those tokens end that have been shown; no more, since all at once would take long."""
        self._formats: dict[TokenKind, QTextCharFormat] = {}
        self.num_shown = 0

    def sizeHint(self) -> QSize:
        """No more than the least: it takes whatever room there is."""
        return QSize(self.minimumWidth(), self.minimumHeight())

    def set_tokens(self, texts: Sequence[str], kinds: Sequence[TokenKind]) -> None:
        """Take another text, of which nothing is shown yet."""
        self._texts = texts
        self._kinds = kinds
        self._ends = []
        self.num_shown = 0
        self.clear()

    def set_theme(self, theme: Theme) -> None:
        """Start anew in a theme's colours; the tokens are to be shown again."""
        self.setFont(mono_font(13))
        self._formats = {kind: theme.token_format(kind) for kind in TokenKind} if self._in_kinds else {}
        self.num_shown = 0
        self.clear()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stay at the end where the end was in view: a text that is shown for the first time is given its room late."""
        follows = self._is_at_end()
        super().resizeEvent(event)
        if follows:
            self._to_end()

    def show_count(self, count: int) -> bool:
        """Show the first `count` tokens, or come nearer to it; whether that many are shown now."""
        if count == self.num_shown:
            return True
        follows = self._is_at_end()
        if count < self.num_shown:
            self._take_away(count)
        else:
            self._add(min(count, self.num_shown + MOST_TOKENS))
        if follows:
            self._to_end()
        return self.num_shown == count

    def _is_at_end(self) -> bool:
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 1

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())

    def _take_away(self, count: int) -> None:
        cursor = QTextCursor(self.document())
        cursor.setPosition(self._ends[count - 1] if count else 0)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        self.num_shown = count

    def _add(self, count: int) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        while self.num_shown < count:
            last = self._run_of_a_kind(count)
            kind = self._kinds[self.num_shown]
            texts = [_shown(text) for text in self._texts[self.num_shown : last]]
            cursor.insertText("".join(texts), self._formats.get(kind, QTextCharFormat()))
            del self._ends[self.num_shown :]
            before = self._ends[-1] if self._ends else 0
            self._ends.extend(before + length for length in accumulate(map(_units, texts)))
            self.num_shown = last
        cursor.endEditBlock()

    def _run_of_a_kind(self, count: int) -> int:
        """Behind how many tokens the first that isn't shown, and those like it, end."""
        if not self._in_kinds:
            return count
        kind, last = self._kinds[self.num_shown], self.num_shown
        while last < count and self._kinds[last] is kind:
            last += 1
        return last


def _shown(text: str) -> str:
    """As a document has it, which counts any end of a line as one position."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _units(text: str) -> int:
    """Length as a document counts it: in units of UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
