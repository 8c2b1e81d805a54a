"""A read-only editor over pages: it shows one, grows it, and puts another in its place when that is whole."""

from __future__ import annotations

import math
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from PySide6.QtCore import QMimeData, QObject, QPoint, QRectF, Qt, Slot
from PySide6.QtGui import QFont, QFontMetricsF, QTextCharFormat, QTextCursor, QTextDocument, QTextLine
from PySide6.QtWidgets import QPlainTextDocumentLayout, QPlainTextEdit, QWidget

from app.run.tokens import (
    FIRST_JOINING,
    ON_ONE_LINE,
    SHOWN,
    TAIL,
    Ghost,
    Pending,
    Place,
    StepText,
    Token,
    TokenStream,
    num_joined,
    num_units,
)
from app.theme import LIGHT, Theme, hold_font
from app.turns import next_turn_timer
from core.types import TokenKind

SLICE_MS = 6.0
"""How long building may take at a time."""
CHUNK = 24
"""Steps between two looks at the clock."""
TAB_SPACES = 4


class Role(Enum):
    """What stands before the tokens."""

    PROMPT = auto()
    GAP = auto()
    KEPT = auto()
    FORCED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Text that this run did not write."""

    role: Role
    text: str


Span = Written | Token | Ghost | Pending


class PageFormats:
    """The look of every kind of text in a theme."""

    def __init__(self, theme: Theme) -> None:
        self.tokens = {kind: theme.token_format(kind) for kind in TokenKind}
        self.ghost = theme.ghost_format()
        self.pending = theme.pending_format()
        prompt = theme.prompt_format()
        self.written = {
            Role.PROMPT: prompt,
            Role.GAP: prompt,
            Role.KEPT: theme.kept_format(),
            Role.FORCED: theme.forced_format(),
        }


class TranscriptPage:
    """A document of a stream's first steps, and its spans: contiguous, in order, one for each token.

    A token without text of its own has an empty span.
    """

    def __init__(
        self, stream: TokenStream, formats: PageFormats, font: QFont, *, shows_ghosts: bool, parent: QObject
    ) -> None:
        self.document = QTextDocument(parent)
        self.document.setUndoRedoEnabled(False)
        self.document.setDefaultFont(font)
        option = self.document.defaultTextOption()
        option.setTabStopDistance(TAB_SPACES * QFontMetricsF(font).horizontalAdvance(" "))
        self.document.setDefaultTextOption(option)
        self._stream = stream
        self._formats = formats
        self._shows_ghosts = shows_ghosts
        self._starts: list[int] = []
        self._spans: list[Span] = []
        self._firsts: list[int] = []
        """Index of each step's first span."""
        self._ordinals: dict[int, int] = {}
        """Which step in the page has a number."""
        self._length = 0
        self._tail = ""
        self._last_format = QTextCharFormat()
        self._has_opening = False
        self._num_pending = 0
        self._insert(self._cursor(), Written(Role.PROMPT, stream.prompt), formats.written[Role.PROMPT])

    # --- Growing and shrinking ---

    @property
    def num_steps(self) -> int:
        """Steps in the page."""
        return len(self._firsts)

    def advance(self, num_steps: int, *, milliseconds: float = SLICE_MS) -> bool:
        """Have this many steps, as far as time allows; true when that is so."""
        self.drop_pending()
        if num_steps < self.num_steps:
            self._truncate(num_steps)
        deadline = time.perf_counter() + milliseconds / 1000
        if not self._has_opening and (num_steps or self._stream.kept or self._stream.forced):
            self._insert_opening()
        if self.num_steps < num_steps:
            cursor = self._cursor()
            # One edit for the whole slice: a paragraph that grows is laid out again with each.
            cursor.beginEditBlock()
            while self.num_steps < num_steps and time.perf_counter() < deadline:
                for step in self._stream.steps[self.num_steps : min(num_steps, self.num_steps + CHUNK)]:
                    self._append(cursor, step)
            cursor.endEditBlock()
        return self.num_steps >= num_steps

    def show_pending(self) -> None:
        """Show the draft that waits for its verdict, if there is one, behind all steps."""
        self.drop_pending()
        if not self._stream.pending:
            return
        if not self._has_opening:
            self._insert_opening()
        cursor = self._cursor()
        cursor.beginEditBlock()
        for span in self._stream.pending:
            self._insert(cursor, span, self._formats.pending)
        cursor.endEditBlock()
        self._num_pending = len(self._stream.pending)

    def drop_pending(self) -> None:
        """Take the draft away that waited."""
        if self._num_pending:
            self._cut(len(self._spans) - self._num_pending)
            self._num_pending = 0

    def _insert_opening(self) -> None:
        self._has_opening = True
        stream, cursor = self._stream, self._cursor()
        for role, text in ((Role.GAP, stream.gap), (Role.KEPT, stream.kept), (Role.FORCED, stream.forced)):
            if text:
                self._insert(cursor, Written(role, text), self._formats.written[role])

    def _append(self, cursor: QTextCursor, step: StepText) -> None:
        self._ordinals[step.tokens[0].step] = len(self._firsts)
        self._firsts.append(len(self._spans))
        for token in step.accepted:
            self._insert(cursor, token, self._formats.tokens[token.kind])
        if self._shows_ghosts:
            for ghost in step.ghosts:
                self._insert(cursor, ghost, self._formats.ghost)
        for token in step.following:
            self._insert(cursor, token, self._formats.tokens[token.kind])

    def _insert(self, cursor: QTextCursor, span: Span, text_format: QTextCharFormat) -> None:
        self._starts.append(self._length)
        self._spans.append(span)
        text = _shown(span)
        if not text:
            return
        if text[0] >= FIRST_JOINING and self._tail:
            # A character in two formats would be drawn as two; what completes one looks like its beginning.
            joined = num_joined(self._tail, text)
            cursor.insertText(text[:joined], self._last_format)
            cursor.insertText(text[joined:], text_format)
            text_format = text_format if joined < len(text) else self._last_format
        else:
            cursor.insertText(text, text_format)
        self._length += num_units(text)
        self._tail, self._last_format = (self._tail + text)[-TAIL:], text_format
        if isinstance(span, Ghost):
            self._tail = ""

    def _truncate(self, num_steps: int) -> None:
        first = self._firsts[num_steps]
        for span in self._spans[first:]:
            if isinstance(span, Token):
                self._ordinals.pop(span.step, None)
        del self._firsts[num_steps:]
        self._cut(first)

    def _cut(self, first: int) -> None:
        """Take away all spans from one on."""
        cursor = self._cursor()
        cursor.setPosition(self._starts[first], QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        self._length = self._starts[first]
        del self._spans[first:], self._starts[first:]
        self._tail = ""

    def _cursor(self) -> QTextCursor:
        cursor = QTextCursor(self.document)
        cursor.setPosition(self._length)
        return cursor

    # --- Asking ---

    @property
    def spans(self) -> list[Span]:
        """All spans, in order."""
        return self._spans

    def extent(self, index: int) -> tuple[int, int]:
        """Where a span stands: first position and last + 1."""
        is_last = index + 1 == len(self._starts)
        return self._starts[index], self._length if is_last else self._starts[index + 1]

    def index_at(self, position: int) -> int | None:
        """The span that covers a position of the document; an empty one only at the end."""
        index = bisect_right(self._starts, position) - 1
        return index if index >= 0 else None

    def indices(self, step: int) -> range:
        """The spans of a step, by its number; none where the page does not have it."""
        ordinal = self._ordinals.get(step)
        if ordinal is None:
            return range(0)
        is_last = ordinal + 1 == len(self._firsts)
        end = len(self._spans) - self._num_pending if is_last else self._firsts[ordinal + 1]
        return range(self._firsts[ordinal], end)

    def step_range(self, step: int) -> tuple[int, int] | None:
        """Where a step's spans stand, by its number."""
        indices = self.indices(step)
        return (self._starts[indices[0]], self.extent(indices[-1])[1]) if indices else None

    def slots(self, step: int) -> list[int]:
        """The places of a step's block that are shown, by its number."""
        spans = (self._spans[index] for index in self.indices(step))
        return sorted({span.slot for span in spans if not isinstance(span, Written)})

    def step_number(self, step: int, offset: int) -> int | None:
        """The number of the step that comes so many behind one; None beyond either end."""
        ordinal = self._ordinals.get(step, -1) + offset
        if step not in self._ordinals or not 0 <= ordinal < len(self._firsts):
            return None
        return self._spans[self._firsts[ordinal]].step  # type: ignore[union-attr]

    @property
    def last_token(self) -> Token | None:
        """The last one emitted, as far as the page goes."""
        return next((span for span in reversed(self._spans) if isinstance(span, Token)), None)

    def moved(self, position: int, other: TranscriptPage) -> int:
        """A position of this page in another one of the same stream."""
        index = self.index_at(position)
        if index is None:
            return 0
        span, offset = self._spans[index], position - self._starts[index]
        if isinstance(span, Written):
            return min(position, other._length)
        for place in other.indices(span.step):
            if other._spans[place] is span:
                return min(other._starts[place] + offset, other._length)
        found = other.step_range(span.step)
        return found[0] if found is not None else other._length

    def plain_text(self, first: int, last: int) -> str:
        """What was written between two positions, exactly: without drafts that were not kept, or not yet."""
        return "".join(self._pieces(first, last))

    def _pieces(self, first: int, last: int) -> Iterator[str]:
        for index in range(max(0, bisect_right(self._starts, first) - 1), len(self._spans)):
            start, end = self.extent(index)
            if start >= last:
                break
            span = self._spans[index]
            if isinstance(span, Ghost | Pending):
                continue
            if first <= start and end <= last:
                yield span.text
            else:
                units = span.text.encode("utf-16-le", "surrogatepass")
                part = units[2 * max(0, first - start) : 2 * (last - start)]
                yield part.decode("utf-16-le", "replace")


def _shown(span: Span) -> str:
    text = span.text
    if isinstance(span, Ghost | Pending):
        return text.translate(ON_ONE_LINE).translate(SHOWN)
    return text if text.isprintable() else text.translate(SHOWN)


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
        hold_font(self, 14, is_mono=True)
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
