"""A run's text as a document that knows which token each position belongs to.

Built in slices of a few milliseconds, so that the longest text holds nothing up; a page that is drawn anew, such as in
another theme, is built out of sight and shown when it is whole.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from PySide6.QtCore import QObject
from PySide6.QtGui import QFont, QFontMetricsF, QTextCharFormat, QTextCursor, QTextDocument

from app.theme import Theme
from app.view_models.token_stream import Ghost, Pending, StepText, Token, TokenStream
from app.widgets.shown_text import FIRST_JOINING, ON_ONE_LINE, SHOWN, TAIL, num_joined, num_units
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
