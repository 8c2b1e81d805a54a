"""A read-only text of tokens, each in its own format: the base of the transcript and of the race's two texts."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from PySide6.QtCore import QMimeData, QPoint, QRectF, Qt, QTextBoundaryFinder, Slot
from PySide6.QtGui import QFontMetricsF, QResizeEvent, QTextCharFormat, QTextCursor, QTextLine
from PySide6.QtWidgets import QPlainTextEdit

from app.run.text.token_colors import token_format
from app.run.text.tokens import GHOSTS, KINDS, NOT_COPIED, Fate, Place, Span, TokenStream, block, num_units
from app.theme import hold_font

TAB_SPACES = 4
_RIGHT_TO_LEFT = frozenset({"R", "AL", "RLE", "RLO", "RLI"})
_EMPTY_WIDTH = 4.0
"""Pixels of a token without text."""
_SHOWN = str.maketrans(
    {code: chr(0x2400 + code) for code in range(32) if code not in {9, 10}}
    | {0x7F: "\u2421", 0xFFFC: "\ufffd", 0xFDD0: "\ufffd", 0xFDD1: "\ufffd"}
)
"""Control characters as symbols, one for one, so that positions in the document equal those in the text."""
ON_ONE_LINE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Rejected drafts were never emitted, so they must not break lines."""
FIRST_JOINING = "\u0300"
"""Characters below this one never join the previous character."""
TAIL = 16
"""Characters that may belong to one grapheme, such as a family of emoji."""


class TokenText(QPlainTextEdit):
    """Shows a `TokenStream`, or its first steps. `refresh` adds what is new, without a new layout of the rest.

    The document is a sequence of contiguous spans, one per token in order; a token without text has an empty one. A
    subclass draws marks on the text in `_show_marks`.

    Attributes:
        follows_end: whether the end was in view when the text was last written or scrolled; a larger font hides it.
    """

    def __init__(self, *, font_size: int = 14) -> None:
        """`font_size`: in pixels."""
        super().__init__(readOnly=True, undoRedoEnabled=False)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._stream = TokenStream()
        self._font_size = font_size
        self._shows_ghosts = False
        self._limit: int | None = None
        self.follows_end = True
        self._set_fonts()
        self._start()
        self.verticalScrollBar().valueChanged.connect(self._note_view)
        # Queued: Qt sends it while it lays out lines, and then sets the value itself.
        self.verticalScrollBar().rangeChanged.connect(self._follow, Qt.ConnectionType.QueuedConnection)

    def _show_marks(self) -> None:
        """Redraw the marks: the text has changed or moved."""

    # --- What is shown ---

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._stream = stream
        self._limit = None
        self._start()
        self._update(follows=True)

    def restyle(self) -> None:
        """Draw everything in the theme's colours."""
        self._set_fonts()
        self._rebuild()

    def set_ghosts_shown(self, shown: bool) -> None:
        """Show or hide the drafted tokens that were not accepted."""
        if shown != self._shows_ghosts:
            self._shows_ghosts = shown
            self._rebuild()

    def set_limit(self, num_steps: int | None, *, follows: bool = True) -> None:
        """Show the text as it was after this many steps; None: all of it."""
        if num_steps != self._limit:
            self._limit = num_steps
            self._update(follows=follows)

    def refresh(self) -> None:
        """Add new steps; follow the end unless the user scrolled away from it."""
        self._update(follows=self.follows_end)

    @property
    def is_at_end(self) -> bool:
        """Whether the end of the text is in view."""
        return self.verticalScrollBar().value() >= self._end() - 1

    def _end(self) -> int:
        """The line at the top of the view when the end is in view."""
        return self.verticalScrollBar().maximum()

    @Slot()
    def _note_view(self) -> None:
        """Note what is in view, before another font or size moves it."""
        self.follows_end = self.is_at_end

    @Slot()
    def _follow(self) -> None:
        """The end moved: lines are laid out after they are written, and again at a new width or font."""
        if self.follows_end:
            self.to_end()

    def to_end(self) -> None:
        """Bring the end into view."""
        bar = self.verticalScrollBar()
        bar.setValue(max(bar.value(), self._end()))

    def _set_fonts(self) -> None:
        hold_font(self, self._font_size, is_mono=True)
        self.setTabStopDistance(TAB_SPACES * QFontMetricsF(self.font()).horizontalAdvance(" "))

    def _start(self) -> None:
        """Show the prompt alone."""
        self.setExtraSelections([])
        self.clear()
        self._starts: list[int] = []
        self._spans: list[Span] = []
        self._firsts: list[int] = []
        """Index of each step's first span."""
        self._length = 0
        self._tail = ""
        self._last_format = QTextCharFormat()
        self._num_pending = 0
        self._insert([Span(Fate.PROMPT, self._stream.prompt)])

    def _update(self, *, follows: bool) -> None:
        if self.textCursor().hasSelection():
            # A selection that reaches the end must not grow with the text.
            cursor = self.textCursor()
            cursor.setKeepPositionOnInsert(True)
            self.setTextCursor(cursor)
        stream = self._stream
        count = len(stream.steps)
        wanted = count if self._limit is None else min(self._limit, count)
        if self._num_pending:
            self._cut(len(self._spans) - self._num_pending)
            self._num_pending = 0
        if wanted < len(self._firsts):
            first = self._firsts[wanted]
            del self._firsts[wanted:]
            self._cut(first)
        pending = self._shown_pending() if wanted == count else ()
        new = list(self._opening()) if wanted or pending or stream.kept or stream.forced else []
        for number in range(len(self._firsts), wanted):
            self._firsts.append(len(self._spans) + len(new))
            new += self._shown_block(number)
        self._insert([*new, *pending])
        self._num_pending = len(pending)
        if follows:
            self.to_end()
        self._note_view()
        self._show_marks()

    def _format_of(self, span: Span) -> QTextCharFormat:
        return token_format(span.fate, span.text)

    def _shown_block(self, number: int) -> Sequence[Span]:
        """What is shown of a step's block."""
        spans = block(self._stream.steps[number], number)
        # If the text ended within the block, the rest of the block was neither tested nor rejected.
        shows_ghosts = self._shows_ghosts and bool(spans) and spans[-1].fate in KINDS
        return spans if shows_ghosts else [span for span in spans if span.fate not in GHOSTS]

    def _shown_pending(self) -> Sequence[Span]:
        """What is shown of the draft that awaits verification."""
        return self._stream.pending

    def _opening(self) -> Iterator[Span]:
        """The spans between the prompt and the first step."""
        if len(self._spans) == 1:
            for fate in (Fate.GAP, Fate.KEPT, Fate.FORCED):
                if text := getattr(self._stream, fate):
                    yield Span(fate, text)

    def _insert(self, spans: Sequence[Span]) -> None:
        """Append spans in one edit, because each edit lays out the paragraph again."""
        if not spans:
            return
        cursor = QTextCursor(self.document())
        cursor.setPosition(self._length)
        cursor.beginEditBlock()
        line_break = ""
        for span in spans:
            self._starts.append(self._length)
            self._spans.append(span)
            text = _shown(span)
            if span.fate in NOT_COPIED:  # The indent of a line that isn't there would be a gap in this one.
                text = re.sub("↵[ ⇥]+", "↵⇥", line_break + text)[len(line_break) :]
            line_break = "↵" if span.fate in NOT_COPIED and text.endswith("↵") else ""
            if text:
                self._insert_text(cursor, span, text)
        cursor.endEditBlock()

    def _insert_text(self, cursor: QTextCursor, span: Span, text: str) -> None:
        # A grapheme in two formats would be drawn as two, so its end has the format of its beginning.
        text_format, joined = self._format_of(span), num_joined(self._tail, text)
        if joined:
            cursor.insertText(text[:joined], self._last_format)
        if joined < len(text):
            self._last_format = text_format
            blank = text[: len(text) - len(text.lstrip())]
            is_indent = "\n" in blank or not self._length or self._tail.endswith("\n")
            indented = max(joined, len(blank) if is_indent else 0)
            if indented > joined:  # Underlined, indented code would look like a form to fill in.
                bare = QTextCharFormat(text_format)
                bare.setUnderlineStyle(QTextCharFormat.UnderlineStyle.NoUnderline)
                cursor.insertText(text[joined:indented], bare)
            cursor.insertText(text[indented:], text_format)
        self._length += num_units(text)
        self._tail = "" if span.fate in GHOSTS else (self._tail + text)[-TAIL:]

    def _cut(self, first: int) -> None:
        self._cursor_over(self._starts[first], self._length).removeSelectedText()
        self._length = self._starts[first]
        del self._spans[first:], self._starts[first:]
        self._tail = ""

    def _cursor_over(self, first: int, last: int) -> QTextCursor:
        cursor = QTextCursor(self.document())
        cursor.setPosition(first)
        cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
        return cursor

    def _rebuild(self) -> None:
        """Rebuild the text; the step at the top stays there."""
        top, follows = self.cursorForPosition(QPoint(0, 0)).position(), self.follows_end
        span = self._spans[self._index_at(top)]
        self._start()
        self._update(follows=follows)
        if not follows:
            place = self._step_range(span.step)
            self._scroll_to(top if place is None else place[0], lines_above=0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stay at the end if it was in view."""
        follows = self.follows_end
        super().resizeEvent(event)
        if follows:
            self.to_end()

    # --- Where things are ---

    def span_at(self, point: QPoint) -> Span | None:
        """The span under a point of the viewport; None for the prompt, or if there is no text."""
        block = self.cursorForPosition(point).block()
        place = self.blockBoundingGeometry(block).translated(self.contentOffset()).topLeft()
        x, y = point.x() - place.x(), point.y() - place.y()
        for number in range(block.layout().lineCount()):
            line = block.layout().lineAt(number)
            if line.y() <= y < line.y() + line.height():
                text = line.naturalTextRect()
                if not text.left() <= x <= text.right() + 2:
                    return None
                span = self._spans[self._index_at(block.position() + _character_at(line, x))]
                return None if span.fate in {Fate.PROMPT, Fate.GAP, Fate.STRIP} else span
        return None

    def place_range(self, place: Place) -> tuple[int, int] | None:
        """First position and last + 1 of a place of a block: of its emitted token, or of the rejected draft."""
        # After a rejected token comes the one drawn in its place.
        found = [index for index in self._indices(place.step) if self._spans[index].slot == place.slot]
        return self._extent(found[-1]) if found else None

    def _extent(self, index: int) -> tuple[int, int]:
        is_last = index + 1 == len(self._starts)
        return self._starts[index], self._length if is_last else self._starts[index + 1]

    def _index_at(self, position: int) -> int:
        """The span that covers a position of the document; an empty one only at the end."""
        return max(0, bisect_right(self._starts, position) - 1)

    def _indices(self, step: int) -> range:
        if not 0 <= step < len(self._firsts):
            return range(0)
        is_last = step + 1 == len(self._firsts)
        return range(self._firsts[step], len(self._spans) - self._num_pending if is_last else self._firsts[step + 1])

    def _step_range(self, step: int) -> tuple[int, int] | None:
        indices = self._indices(step)
        return (self._starts[indices[0]], self._extent(indices[-1])[1]) if indices else None

    def _span_range(self, span: Span) -> tuple[int, int] | None:
        return next((self._extent(index) for index in self._indices(span.step) if self._spans[index] is span), None)

    def rectangles(self, first: int, last: int) -> list[QRectF]:
        """The visible rectangles of the text between two positions, in viewport coordinates."""
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

    def rectangles_of(self, place: Place) -> list[QRectF]:
        """Where a place is visible in the viewport; its whole step, or pending draft, if the slot is -1."""
        if self._num_pending and place.step == len(self._firsts):
            return self.rectangles(self._starts[-self._num_pending], self._length)
        found = self._step_range(place.step) if place.slot < 0 else self.place_range(place)
        return [] if found is None else self.rectangles(*found)

    def _scroll_to(self, position: int, *, lines_above: int) -> None:
        self.verticalScrollBar().setValue(max(0, self._line_at(position) - lines_above))

    def _line_at(self, position: int) -> int:
        block = self.document().findBlock(position)
        self.blockBoundingRect(block)  # Lays it out, so that its lines exist.
        line = block.layout().lineForTextPosition(position - block.position())
        return block.firstLineNumber() + (line.lineNumber() if line.isValid() else 0)

    # --- Copying ---

    def createMimeDataFromSelection(self) -> QMimeData:
        """Copy exactly the emitted text, without rejected drafts."""
        cursor = self.textCursor()
        data = QMimeData()
        data.setText(self.plain_text(cursor.selectionStart(), cursor.selectionEnd()))
        return data

    def plain_text(self, first: int, last: int) -> str:
        """Exactly the emitted text between two positions, without rejected or pending drafts."""
        pieces: list[str] = []
        for index in range(self._index_at(first), len(self._spans)):
            start, end = self._extent(index)
            if start >= last:
                break
            span = self._spans[index]
            if span.fate in NOT_COPIED:
                continue
            if first <= start and end <= last:
                pieces.append(span.text)
            else:
                units = span.text.encode("utf-16-le", "surrogatepass")
                pieces.append(units[2 * max(0, first - start) : 2 * (last - start)].decode("utf-16-le", "replace"))
        return "".join(pieces)


def _shown(span: Span) -> str:
    text = span.text
    if span.fate in NOT_COPIED:
        return text.translate(ON_ONE_LINE).translate(_SHOWN)
    return text if text.isprintable() else text.translate(_SHOWN)


def num_joined(tail: str, text: str) -> int:
    """How many characters at the start of `text` belong to a grapheme that began in `tail`."""
    if not tail or text[:1] < FIRST_JOINING:
        return 0
    tail = tail[-TAIL:]
    finder = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Grapheme, tail + text)
    seam = num_units(tail)
    finder.setPosition(seam)
    if finder.isAtBoundary():
        return 0
    end = finder.toNextBoundary()
    if end < 0:
        return len(text)
    joined = text.encode("utf-16-le", "surrogatepass")[: 2 * (end - seam)]
    return len(joined.decode("utf-16-le", "replace"))


def _character_at(line: QTextLine, x: float) -> int:
    """The character of a line that is drawn at an x, in either writing direction."""
    return int(line.xToCursor(x, QTextLine.CursorPosition.CursorOnCharacter))


def _ends(line: QTextLine, text: str, first: int, last: int) -> tuple[float, float]:
    """The left and right end of a range of characters in a line."""
    if first < last and any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text):
        # Where the writing direction changes, a position has two x; so look up each pixel.
        whole = line.naturalTextRect()
        pixels = range(math.floor(whole.left()), math.ceil(whole.right()))
        there = [x for x in pixels if first <= _character_at(line, x + 0.5) < last]
        if there:
            return there[0], there[-1] + 1
    left, right = sorted((_x_of(line, first), _x_of(line, last)))
    return left, right


def _x_of(line: QTextLine, position: int) -> float:
    # The binding returns x and the position.
    found: Any = line.cursorToX(position)
    return float(found[0] if isinstance(found, tuple) else found)
