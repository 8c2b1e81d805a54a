"""A read-only editor over pages: it shows one, grows it, and puts another in its place when that is whole."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from PySide6.QtCore import QMimeData, QPoint, QRectF, Qt, Slot
from PySide6.QtGui import QTextCursor, QTextLine
from PySide6.QtWidgets import QPlainTextDocumentLayout, QPlainTextEdit, QWidget

from app.theme import LIGHT, Theme, mono_font
from app.turns import next_turn_timer
from app.view_models.selection import Place
from app.view_models.token_stream import TokenStream
from app.widgets.transcript_page import PageFormats, Role, Span, TranscriptPage, Written

_RIGHT_TO_LEFT = frozenset({"R", "AL", "RLE", "RLO", "RLI"})
_EMPTY_WIDTH = 4.0
"""Of a token that has no text of its own."""


class PagedText(QPlainTextEdit):
    """Shows a `TokenStream`, or its first steps. What is new is added in `refresh`; the rest stays as it is laid out.

    A subclass draws marks on the text, in `_show_marks`.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setReadOnly(True)
        self.setFont(mono_font(14))
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._stream = TokenStream()
        self._theme = LIGHT
        self._page_formats = PageFormats(LIGHT)
        self._shows_ghosts = False
        self._limit: int | None = None
        self._slices = next_turn_timer(self)
        self._slices.timeout.connect(self._on_slice)
        self._next: TranscriptPage | None = None
        self._page = self._new_page()
        self._attach(self._page)

    def _show_marks(self) -> None:
        """Draw marks anew: the text has changed, or has moved."""

    # --- What is shown ---

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._stream = stream
        self._limit = None
        self._drop_next()
        self._show_page(self._new_page())
        self.refresh()

    def set_theme(self, theme: Theme) -> None:
        """Draw everything in a theme's colours."""
        self._theme = theme
        self._page_formats = PageFormats(theme)
        self.setFont(mono_font(14))
        self._rebuild()

    def set_ghosts_shown(self, shown: bool) -> None:
        """Show or hide the drafted tokens that were not kept."""
        if shown != self._shows_ghosts:
            self._shows_ghosts = shown
            self._rebuild()

    def set_limit(self, num_steps: int | None) -> None:
        """Show the text as it was after so many steps; None: all of it."""
        if num_steps == self._limit:
            return
        self._limit = num_steps
        self._catch_up(follows=True)

    def refresh(self) -> None:
        """Add the steps that have come since the last time; follow the end unless the reader scrolled away from it."""
        bar = self.verticalScrollBar()
        self._catch_up(follows=bar.value() >= bar.maximum() - 1)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to be built."""
        return not self._slices.isActive()

    @property
    def _num_wanted(self) -> int:
        count = len(self._stream.steps)
        return count if self._limit is None else min(self._limit, count)

    def _catch_up(self, *, follows: bool) -> None:
        if self.textCursor().hasSelection():
            # A selection that reaches the end must not grow with the text.
            cursor = self.textCursor()
            cursor.setKeepPositionOnInsert(True)
            self.setTextCursor(cursor)
        is_done = self._page.advance(self._num_wanted)
        if is_done and self._num_wanted == len(self._stream.steps):
            self._page.show_pending()
        if not is_done:
            self._slices.start()
        if follows:
            self._to_end()
        self._show_marks()

    @Slot()
    def _on_slice(self) -> None:
        if self._next is None:
            self.refresh()
        elif self._next.advance(self._num_wanted):
            self._swap(self._next)
        else:
            self._slices.start()

    def _rebuild(self) -> None:
        """Build the page anew, and show it when it is whole: at once, unless the text is long."""
        self._drop_next()
        self._next = self._new_page()
        if self._next.advance(self._num_wanted):
            self._slices.stop()
            self._swap(self._next)
        else:
            self._slices.start()

    def _drop_next(self) -> None:
        """Give up a page that is being built: its document would stay as long as this widget."""
        if self._next is not None:
            self._next.document.deleteLater()
            self._next = None

    def _swap(self, page: TranscriptPage) -> None:
        bar, old, cursor = self.verticalScrollBar(), self._page, self.textCursor()
        follows = bar.value() >= bar.maximum() - 1
        top = old.moved(self.cursorForPosition(QPoint(0, 0)).position(), page)
        anchor, position = old.moved(cursor.anchor(), page), old.moved(cursor.position(), page)
        self._next = None
        self._show_page(page)
        if anchor or position:
            cursor = QTextCursor(page.document)
            cursor.setPosition(anchor)
            cursor.setPosition(position, QTextCursor.MoveMode.KeepAnchor)
            self.setTextCursor(cursor)
        if follows:
            self._to_end()
        else:
            self._scroll_to(top, lines_above=0)
        self.refresh()

    def _new_page(self) -> TranscriptPage:
        return TranscriptPage(
            self._stream, self._page_formats, self.font(), shows_ghosts=self._shows_ghosts, parent=self
        )

    def _show_page(self, page: TranscriptPage) -> None:
        old = self._page
        self._page = page
        self.setExtraSelections([])
        self._attach(page)
        old.document.deleteLater()

    def _attach(self, page: TranscriptPage) -> None:
        # Not before: a document that is not laid out is built several times faster.
        page.document.setDocumentLayout(QPlainTextDocumentLayout(page.document))
        self.setDocument(page.document)

    # --- Where things are ---

    def span_at(self, point: QPoint) -> Span | None:
        """What is under a point of the viewport; None for the prompt, and where there is no text."""
        block = self.cursorForPosition(point).block()
        place = self.blockBoundingGeometry(block).translated(self.contentOffset()).topLeft()
        x, y = point.x() - place.x(), point.y() - place.y()
        for number in range(block.layout().lineCount()):
            line = block.layout().lineAt(number)
            if line.y() <= y < line.y() + line.height():
                text = line.naturalTextRect()
                if not text.left() <= x <= text.right() + 2:
                    return None
                return self.span_at_position(block.position() + _character_at(line, x))
        return None

    def span_at_position(self, position: int) -> Span | None:
        """What covers a position of the document; None for the prompt."""
        index = self._page.index_at(position)
        span = self._page.spans[index] if index is not None else None
        return None if isinstance(span, Written) and span.role in {Role.PROMPT, Role.GAP} else span

    def token_range(self, position: int) -> tuple[int, int] | None:
        """Where in the document the token at an absolute token position stands: first and last + 1."""
        token = self._stream.at(position)
        return self._range_of(token) if token is not None else None

    def place_range(self, place: Place) -> tuple[int, int] | None:
        """Where a place of a block stands in the document: its emitted token, or else the draft that was not kept."""
        found = [
            index
            for index in self._page.indices(place.step)
            if not isinstance(span := self._page.spans[index], Written) and span.slot == place.slot
        ]
        # Where a token was rejected, the one that was drawn instead comes last.
        return self._page.extent(found[-1]) if found else None

    def _range_of(self, span: Span) -> tuple[int, int] | None:
        if isinstance(span, Written):
            return None
        for index in self._page.indices(span.step):
            if self._page.spans[index] is span:
                return self._page.extent(index)
        return None

    def rectangles(self, first: int, last: int) -> list[QRectF]:
        """Where on the viewport the text between two positions is drawn; what is out of sight is left out."""
        found: list[QRectF] = []
        block = self.firstVisibleBlock()
        top = self.blockBoundingGeometry(block).translated(self.contentOffset()).topLeft()
        while block.isValid() and top.y() < self.viewport().height() and block.position() <= last:
            begin, end = first - block.position(), last - block.position()
            layout = block.layout()
            for number in range(layout.lineCount()):
                line = layout.lineAt(number)
                start, stop = line.textStart(), line.textStart() + line.textLength()
                is_last = number + 1 == layout.lineCount()
                if begin > stop or end < start or (begin == stop and not is_last) or (end == start and begin < start):
                    continue
                left, right = _ends(line, block.text(), max(begin, start), min(end, stop))
                width = max(right - left, _EMPTY_WIDTH)
                found.append(QRectF(top.x() + left, top.y() + line.y(), width, line.height()))
            top.setY(top.y() + self.blockBoundingRect(block).height())
            block = block.next()
        return found

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())

    def _scroll_to(self, position: int, *, lines_above: int) -> None:
        block = self.document().findBlock(position)
        self.blockBoundingRect(block)  # Lays it out, so that its lines count.
        line = block.layout().lineForTextPosition(position - block.position())
        number = block.firstLineNumber() + (line.lineNumber() if line.isValid() else 0)
        self.verticalScrollBar().setValue(max(0, number - lines_above))

    # --- Copying ---

    def createMimeDataFromSelection(self) -> QMimeData:
        """Copy what was written, exactly; drafts that were not kept are only shown."""
        cursor = self.textCursor()
        data = QMimeData()
        data.setText(self.plain_text(cursor.selectionStart(), cursor.selectionEnd()))
        return data

    def plain_text(self, first: int, last: int) -> str:
        """What was written between two positions of the document."""
        return self._page.plain_text(first, last)


def _character_at(line: QTextLine, x: float) -> int:
    """The character of a line that is drawn at an x, whichever way the text runs."""
    return int(line.xToCursor(x, QTextLine.CursorPosition.CursorOnCharacter))


def _ends(line: QTextLine, text: str, first: int, last: int) -> tuple[float, float]:
    """The left and right end of some characters of a line."""
    if first < last and any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text):
        # Where text turns round, a place between characters is at two ends; so each pixel is asked what is there.
        whole = line.naturalTextRect()
        pixels = range(math.floor(whole.left()), math.ceil(whole.right()))
        there = [x for x in pixels if first <= _character_at(line, x + 0.5) < last]
        if there:
            return there[0], there[-1] + 1
    left, right = sorted((_x_of(line, first), _x_of(line, last)))
    return left, right


def _x_of(line: QTextLine, position: int) -> float:
    # The binding gives the position back beside the x.
    found: Any = line.cursorToX(position)
    return float(found[0] if isinstance(found, tuple) else found)
