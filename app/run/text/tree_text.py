"""A text of tokens that also shows trees: how many candidates each position had, and one step's paths in a strip."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from PySide6.QtCore import QEasingCurve, QPoint, QPointF, QRectF, QVariantAnimation, Slot
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QStyle

from app.run.text.token_text import TAIL, TokenText, num_joined
from app.run.text.tokens import GHOSTS, Fate, Place, Span, TokenStream, emitted_spans, first_path, num_alternatives
from app.run.text.tree_lanes import LINES, LanePicture, lanes_of
from app.theme import current_theme, mono_font, ui_font

FORK_FONT = 9
"""Pixels of the numbers above the tokens of a tree's path."""
FORK_RISE = 125
"""How far the numbers are raised, as a percentage of their height."""
TALL = 1.55
"""Height of a line with numbers above its tokens, relative to other lines."""
MANY = "+"
"""More than nine."""
_NO_BREAK = "\u2060"
"""A character without width, at which no line is broken."""
FADE_MS = 350
STILL_S = 0.4
"""Verdicts that follow each other faster don't fade."""
FOLLOWED = 32
"""How many of the last steps are searched for a tree."""


class TreeText(TokenText):
    """Shows the path of each tree in the text, and above it how many other candidates there were.

    With the rejected drafts shown, a strip below one step has the paths of its tree: of the pending block, else of the
    step that `show_tree` was called with, else of the latest tree.
    """

    _selected: Place | None = None
    _sees_selected = False
    """Whether the selected place was in view when the text was last written or scrolled."""
    _pointed: Span | None = None
    _strip: int | None = None
    """Index of the strip's span."""
    _picture: LanePicture | None = None
    _focus: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self._changed_at = 0.0
        easing = QEasingCurve(QEasingCurve.Type.OutCubic)
        self._fade = QVariantAnimation(self, startValue=0.0, endValue=1.0, duration=FADE_MS, easingCurve=easing)
        self._fade.valueChanged.connect(self._on_faded)

    # --- The text ---

    def _shown_block(self, number: int) -> Sequence[Span]:
        step = self._stream.steps[number]
        if not step.parents:
            return super()._shown_block(number)
        return _with_forks(emitted_spans(step, number), step.parents, step.path)

    def _shown_pending(self) -> Sequence[Span]:
        parents, pending = self._stream.pending_parents, self._stream.pending
        if not parents or not pending:
            return pending
        path = first_path(parents)
        return _with_forks([pending[node] for node in path], parents, path)

    def _insert(self, spans: Sequence[Span]) -> None:
        super()._insert(_without_cuts(spans, self._tail))

    def _insert_text(self, cursor: QTextCursor, span: Span, text: str) -> None:
        if span.fate is not Fate.FORK:
            super()._insert_text(cursor, span, text)
            return
        # The number takes no width, so that the text stands as without it; its line is higher instead.
        number, space, font = QTextCharFormat(), QTextCharFormat(), ui_font(FORK_FONT)
        font.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, -QFontMetricsF(font).horizontalAdvance(text[0]))
        number.setFont(font)
        number.setBaselineOffset(FORK_RISE)
        number.setForeground(QColor(current_theme().muted))
        space.setFont(mono_font(round(TALL * self._font_size)))
        cursor.insertText(text[0], number)
        cursor.insertText(text[1:], space)
        self._length += len(text)

    def _spans_of(self, step: int) -> list[Span]:
        """A step's tokens: those that the strip shows in other lanes, then those in the text."""
        others = [cell.span for cell in self._picture.lanes.cells] if self._shown_tree == step and self._picture else []
        in_text = [self._spans[index] for index in self._indices(step)]
        return [
            *(span for span in others if span.fate in GHOSTS),
            *(span for span in in_text if span.fate not in {Fate.FORK, Fate.STRIP}),
        ]

    # --- The strip ---

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._focus = None
        super().set_stream(stream)

    def show_tree(self, step: int | None) -> None:
        """Show a step's tree, if rejected drafts are shown; None: the latest."""
        self._focus = step
        if not self._shows_ghosts or self._wanted_tree() == self._shown_tree:
            return
        top, is_at_end = self._spans[self._index_at(self.cursorForPosition(QPoint(0, 0)).position())], self.is_at_end
        self._close_strip()
        self._open_strip()
        place = self._span_range(top)
        if place is not None and not is_at_end:
            self._scroll_to(place[0], lines_above=0)  # What stood at the top stays there.
        area, height = self._strip_area(), self.fontMetrics().height()
        below = area.bottom() - self.viewport().height()
        if below > 0:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + min(round(below / height + 0.5), max(0, int(area.top() / height))))

    def _start(self) -> None:
        self._strip, self._picture = None, None
        super()._start()

    def _update(self, *, follows: bool) -> None:
        # A single edit, since each lays out the last paragraph again, which may be the whole text.
        edit = QTextCursor(self.document())
        edit.beginEditBlock()
        self._close_strip()
        super()._update(follows=False)
        if self._num_pending:
            self._focus = None
        self._open_strip()
        edit.endEditBlock()
        if follows:
            self.to_end()
            self._note_view()

    @property
    def _shown_tree(self) -> int | None:
        return self._picture.lanes.step if self._picture is not None and self._strip is not None else None

    def _wanted_tree(self) -> int | None:
        """The step whose tree belongs in the strip; after all steps, the pending block's."""
        count, steps = len(self._firsts), self._stream.steps
        if self._num_pending:
            return count if self._stream.pending_parents else None
        if self._focus is not None:
            return self._focus if self._focus < count and steps[self._focus].parents else None
        latest = range(count - 1, max(-1, count - 1 - FOLLOWED), -1)
        return next((step for step in latest if steps[step].parents), None)

    def _open_strip(self) -> None:
        wanted = self._wanted_tree() if self._shows_ghosts else None
        lanes = None if wanted is None else lanes_of(self._stream, wanted)
        if wanted is None or lanes is None:
            self._picture = None
            return
        before = self._picture
        if before is None or (before.lanes.step, before.lanes.is_pending) != (wanted, lanes.is_pending):
            is_verdict = before is not None and before.lanes.step == wanted
            self._picture = LanePicture(lanes, before if is_verdict else None)
            self._begin_fade(is_slow=is_verdict or (before is not None and self._focus is None))
        is_last = wanted >= len(self._firsts) - 1
        index = len(self._spans) if is_last else self._firsts[wanted + 1]
        self._insert_strip(index, Span(Fate.STRIP, "", wanted))
        self._num_pending += bool(self._num_pending)

    def _insert_strip(self, index: int, span: Span) -> None:
        position = self._starts[index] if index < len(self._starts) else self._length
        after = position < self._length and self.document().characterAt(position) != "\u2029"
        text = "\n" * (LINES - self._is_line_start(position) + after)
        self._spans.insert(index, span)
        self._starts.insert(index, position)
        cursor = QTextCursor(self.document())
        cursor.setPosition(position)
        cursor.insertText(text, QTextCharFormat())
        self._strip = index  # Not before: to move a cursor may lay out lines, and scroll the view.
        self._move_after(index, len(text), 1)

    def _close_strip(self) -> None:
        if self._strip is None:
            return
        index, self._strip = self._strip, None
        first, last = self._extent(index)
        self._cursor_over(first, last).removeSelectedText()
        self._move_after(index, first - last, -1)
        del self._spans[index], self._starts[index]
        self._num_pending -= bool(self._num_pending)

    def _move_after(self, index: int, num_characters: int, num_spans: int) -> None:
        """What follows the strip has moved by this much."""
        self._starts[index + 1 :] = [start + num_characters for start in self._starts[index + 1 :]]
        later = bisect_left(self._firsts, index + (num_spans < 0))
        self._firsts[later:] = [first + num_spans for first in self._firsts[later:]]
        self._length += num_characters

    def _is_line_start(self, position: int) -> bool:
        return position == 0 or self.document().characterAt(position - 1) == "\u2029"

    def _strip_start(self, strip: int) -> int:
        """The position of the strip's first line; `strip` is the index of its span."""
        first = self._starts[strip]
        return first + (not self._is_line_start(first))

    def _end(self) -> int:
        """The line at the top of the view when the end is in view: not one within the strip."""
        end = super()._end()
        top = end if self._strip is None else self._line_at(self._strip_start(self._strip))
        return top if top < end < top + LINES else end

    def _strip_area(self) -> QRectF:
        """The strip in the viewport's coordinates; empty if it is out of view."""
        if self._strip is None:
            return QRectF()
        first = self._strip_start(self._strip)
        lines = [self.document().findBlock(position) for position in (first, first + LINES - 1)]
        top, bottom = (self.blockBoundingGeometry(line).translated(self.contentOffset()) for line in lines)
        # A line far out of view has no geometry, and the document's last one its margin.
        height = LINES * min(filter(None, (top.height(), bottom.height())), default=0.0)
        start = bottom.bottom() - height if top.isEmpty() else top.top()
        margin = self.document().documentMargin()
        return QRectF(margin, start, self.viewport().width() - 2 * margin, height)

    def _begin_fade(self, *, is_slow: bool) -> None:
        """Let lost paths fade, unless the next verdict follows immediately or the desktop shows no animations."""
        now, hint = time.monotonic(), QStyle.StyleHint.SH_Widget_Animation_Duration
        is_still, self._changed_at = now - self._changed_at > STILL_S, now
        self._fade.stop()
        if is_slow and is_still and self._picture is not None and self.style().styleHint(hint, None, self) > 0:
            self._picture.progress = 0.0
            self._fade.start()

    @Slot(object)
    def _on_faded(self, progress: float) -> None:
        if self._picture is not None:
            self._picture.progress = progress
            self.viewport().update()

    # --- Qt ---

    def span_at(self, point: QPoint) -> Span | None:
        """The token under a point of the viewport, in the text or in the strip."""
        area = self._strip_area()
        if self._picture is not None and area.contains(QPointF(point)):
            return self._picture.span_at(QPointF(point), area)
        span = super().span_at(point)
        if span is not None and span.fate is Fate.FORK:
            return next(token for token in reversed(self._spans_of(span.step)) if token.place == span.place)
        return span

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the text, and the strip in its lines."""
        super().paintEvent(event)
        area = self._strip_area()
        if self._picture is None or not area.intersects(QRectF(event.rect())):
            return
        with QPainter(self.viewport()) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._picture.paint(painter, area, self._selected, self._pointed)


def _with_forks(tokens: Sequence[Span], parents: Sequence[int], path: Sequence[int]) -> list[Span]:
    """The tokens of a path, each after the number of other candidates for its place, if there were any."""
    found: list[Span] = []
    for depth, token in enumerate(tokens):
        if others := num_alternatives(parents, path, depth):
            text = f"{others if others < 10 else MANY}{_NO_BREAK}"
            found.append(Span(Fate.FORK, text, token.step, token.slot))
        found.append(token)
    return found


def _without_cuts(spans: Sequence[Span], tail: str) -> list[Span]:
    """Leave no number within a character that several tokens make up."""
    found: list[Span] = []
    for index, span in enumerate(spans):
        if span.fate is Fate.FORK:
            found.append(span._replace(text="") if num_joined(tail, spans[index + 1].text) else span)
        else:
            tail = (tail + span.text)[-TAIL:]
            found.append(span)
    return found
