"""The transcript: shows each token in the format of its kind, with a tooltip; mouse and arrow keys select tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from PySide6.QtCore import QEvent, QPoint, Qt, Signal, Slot
from PySide6.QtGui import (
    QBrush,
    QColor,
    QContextMenuEvent,
    QGuiApplication,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCharFormat,
    QTextCursor,
)
from PySide6.QtWidgets import QMenu, QTextEdit, QToolTip

from app.run.inspector.places import siblings
from app.run.inspector.shares import percent
from app.run.text.certainty import alternatives, doubt
from app.run.text.token_colors import doubt_format, hatching, is_level
from app.run.text.token_text import ON_ONE_LINE, num_joined
from app.run.text.tokens import (
    GHOSTS,
    KINDS,
    Fate,
    Place,
    Span,
    TokenStream,
    depth_of,
    fate_help,
    num_alternatives,
    num_units,
)
from app.run.text.tree_text import TreeText
from app.theme import ColorBy, current_theme, scaled
from app.widgets.fields import tip_table
from core.settings import Coupling
from core.types import UNKNOWN_ID, Step

NO_TEXT = "(no text)"
TIP_PX = 360
NUM_ALTERNATIVES, LONGEST_ALTERNATIVE = 4, 24
SELECTABLE = GHOSTS | KINDS.keys()
_MOVES = {
    Qt.Key.Key_Left: (-1, False),
    Qt.Key.Key_Right: (1, False),
    Qt.Key.Key_Up: (-1, True),
    Qt.Key.Key_Down: (1, True),
}
"""Which way an arrow key moves, and whether by steps."""


class TranscriptView(TreeText):
    """The transcript's text.

    Signals:
        place_chosen: the `Place` of a token selected with the mouse or the arrow keys.
        place_clicked: a token was clicked with the mouse; follows `place_chosen`.
        step_pointed: the step under the pointer, or -1.
        menu_opening: the context menu, before it is shown.
    """

    place_chosen = Signal(object)
    place_clicked = Signal()
    step_pointed = Signal(int)
    menu_opening = Signal(QMenu)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("transcript")
        self.setAccessibleName("Transcript")
        self.setPlaceholderText("The text appears here, token by token.")
        self.setMouseTracking(True)
        self.viewport().setMouseTracking(True)
        self._marked_step = -1
        self._by = ColorBy.KIND
        self._num_colored = 0
        """How many entries of the stream's `inspected` the colours show."""

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._pointed, self._selected, self._marked_step = None, None, -1
        super().set_stream(stream)

    # --- Colours ---

    def color_by(self, by: ColorBy) -> None:
        """Colour the emitted tokens by their kind, or by a figure."""
        if by is not self._by:
            self._by = by
            self._rebuild()

    def _start(self) -> None:
        super()._start()
        self._num_colored = len(self._stream.inspected)

    def _format_of(self, span: Span) -> QTextCharFormat:
        if self._by is ColorBy.KIND or span.fate not in KINDS:
            return super()._format_of(span)
        return doubt_format(span.fate, doubt(self._stream.steps[span.step], span.slot, self._by))

    def _update(self, *, follows: bool) -> None:
        super()._update(follows=follows)
        news, self._num_colored = self._stream.inspected[self._num_colored :], len(self._stream.inspected)
        if self._by is ColorBy.KIND or not news:
            return
        edit = QTextCursor(self.document())
        edit.beginEditBlock()
        for index in (index for step in news for index in self._indices(step) if self._spans[index].fate in KINDS):
            span, (first, last) = self._spans[index], self._extent(index)
            joined = num_joined(self._spans[index - 1].text, span.text)
            shown = self._cursor_over(first + num_units(span.text[:joined]), last)
            shown.setCharFormat(self._format_of(span))
        edit.endEditBlock()

    # --- Pointing and selecting ---

    def mark(self, place: Place | None) -> None:
        """Frame a place, mark its step, and bring it into view."""
        self._selected = place
        self.show_tree(None if place is None else place.step)
        self._show_marks()
        self._show_selected()

    def _show_selected(self) -> None:
        """Bring the selected place into view if it isn't."""
        self._note_view()
        found = self.place_range(self._selected) if self._selected is not None else None
        if found is not None and not self._sees_selected:
            num_lines = self.viewport().height() // self.fontMetrics().height()
            self._scroll_to(found[0], lines_above=min(3, num_lines // 2))
            self._note_view()

    @Slot()
    def _note_view(self) -> None:
        super()._note_view()
        found = self.place_range(self._selected) if self._selected is not None else None
        places = self.rectangles(*found) if found is not None else []
        self._sees_selected = any(0 <= place.center().y() <= self.viewport().height() for place in places)

    def _rebuild(self) -> None:
        was_seen = self._sees_selected
        super()._rebuild()
        if was_seen:
            self._show_selected()

    def mark_step(self, step: int) -> None:
        """Lightly mark a step that is pointed at in another panel; -1: none."""
        if step != self._marked_step:
            self._marked_step = step
            self._show_marks()

    def choose(self, place: Place) -> None:
        """Select a place, as if it had been clicked."""
        self.mark(place)
        if (span := self.selected_span()) is not None:
            text = f"“{span.text.translate(ON_ONE_LINE)}”" if span.text else NO_TEXT
            self.setAccessibleDescription(f"Step {span.step + 1}, place {span.slot + 1}: {span.fate.value} {text}")
        self.place_chosen.emit(place)

    def selected_span(self) -> Span | None:
        """The token emitted at the selected place, or the draft that was not accepted there."""
        found = self._spans_of(self._selected.step) if self._selected is not None else []
        return next((span for span in reversed(found) if span.place == self._selected), None)

    def _walk(self, offset: int, *, by_steps: bool) -> None:
        place = self._selected
        slots = self._slots(place.step) if place is not None else []
        if place is None or not slots:
            last = next((span for span in reversed(self._spans) if span.fate in KINDS), None)
            if last is not None:
                self._walk_to(last.place)
            return
        beside = [slot for slot in slots if (slot - place.slot) * offset > 0]
        if beside and not by_steps:
            self._walk_to(Place(place.step, beside[0] if offset > 0 else beside[-1]))
        elif slots := self._slots(place.step + offset):
            self._walk_to(Place(place.step + offset, slots[0] if by_steps or offset > 0 else slots[-1]))

    def _slots(self, step: int) -> list[int]:
        return sorted({span.slot for span in self._spans_of(step)})

    def _walk_to(self, place: Place) -> None:
        self.choose(place)
        found = self.place_range(place)
        if found is not None:
            # A text selection extended from here starts at the token.
            cursor = self.textCursor()
            cursor.setPosition(found[0])
            self.setTextCursor(cursor)

    def _show_marks(self) -> None:
        is_bare = self._selected is None and self._pointed is None and self._marked_step < 0
        if is_bare and not self.extraSelections():
            return
        steps = {self._marked_step} if self._selected is None else {self._marked_step, self._selected.step}
        found = [self._step_range(step) for step in sorted(steps)]
        marks = [self._mark(place, QColor(current_theme().hover)) for place in found if place is not None]
        pointed = self._span_range(self._pointed) if self._pointed is not None else None
        if pointed is not None:
            marks.append(self._mark(pointed, QColor(current_theme().selection)))
        # A mark covers the background below it.
        steps.add(self._pointed.step if self._pointed is not None else -1)
        marks += [self._mark(place, hatching()) for step in steps for place in self._hatched(step)]
        self.setExtraSelections(marks)
        self.viewport().update()

    def _hatched(self, step: int) -> Iterator[tuple[int, int]]:
        for index in self._indices(step):
            span = self._spans[index]
            if span.fate is Fate.REJECTED and is_level(span.text):
                yield self._extent(index)

    def _mark(self, place: tuple[int, int], brush: QBrush | QColor) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        mark.cursor = self._cursor_over(*place)
        mark.format.setBackground(brush)
        return mark

    def _point(self, span: Span | None) -> None:
        if span is not self._pointed:
            self._pointed = span
            self._show_marks()
            self.step_pointed.emit(span.step if span is not None and span.fate in SELECTABLE else -1)

    # --- Qt ---

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the text, and a frame around the selected place."""
        super().paintEvent(event)
        found = self.place_range(self._selected) if self._selected is not None else None
        if found is None:
            return
        with QPainter(self.viewport()) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(current_theme().accent), 1.5))
            for rectangle in self.rectangles(*found):
                painter.drawRoundedRect(rectangle.adjusted(-0.75, 0.75, 0.75, -0.75), 2.5, 2.5)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the selected place in view if it was."""
        was_seen = self._sees_selected
        super().resizeEvent(event)
        if was_seen:
            self._show_selected()

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a token's tooltip; remove the highlight when the pointer leaves."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            span = self.span_at(event.pos())
            text = tooltip(span, self._stream) if span is not None else ""
            QToolTip.showText(event.globalPos(), text, self.viewport())
            return True
        if event.type() is QEvent.Type.Leave:
            self._point(None)
        return super().viewportEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Highlight the token under the pointer."""
        super().mouseMoveEvent(event)
        self._point(self.span_at(event.position().toPoint()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Select the clicked token, unless text was selected."""
        super().mouseReleaseEvent(event)
        is_click = event.button() is Qt.MouseButton.LeftButton and not self.textCursor().hasSelection()
        if is_click and self._choose_at(event.position().toPoint()):
            self.place_clicked.emit()

    def _choose_at(self, point: QPoint) -> bool:
        span = self.span_at(point)
        if span is None or span.fate not in SELECTABLE:
            return False
        self.choose(span.place)
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move with the arrow keys from token to token, or up and down from step to step; Shift selects text."""
        plain = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier == Qt.KeyboardModifier.NoModifier
        move = _MOVES.get(Qt.Key(event.key())) if plain else None
        if plain and event.key() == Qt.Key.Key_Space:
            event.ignore()  # Space belongs to the window.
        elif move is not None and self._firsts:
            self._walk(move[0], by_steps=move[1])
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Offer actions for the text, and for the token that is pointed at or selected."""
        if event.reason() is QContextMenuEvent.Reason.Mouse:
            self._choose_at(self.viewport().mapFromGlobal(event.globalPos()))
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.fill_menu(menu)
        self.menu_opening.emit(menu)
        menu.popup(event.globalPos())

    def fill_menu(self, menu: QMenu) -> None:
        """Offer to copy text and to inspect the selected token."""
        has_selection = self.textCursor().hasSelection()
        copy = menu.addAction("Copy selection" if has_selection else "Copy text", self._copy)
        copy.setObjectName("copyTextAction")
        copy.setEnabled(has_selection or bool(self._spans))
        menu.addAction("Select all", self.selectAll)
        menu.addSeparator()
        inspect = menu.addAction("Inspect", self.place_clicked.emit)
        inspect.setObjectName("inspectAction")
        inspect.setEnabled(self.selected_span() is not None)

    @Slot()
    def _copy(self) -> None:
        """Copy what is selected, or else the generated text without its prompt."""
        if self.textCursor().hasSelection():
            self.copy()
            return
        first = next((start for start, span in zip(self._starts, self._spans, strict=True)
                      if span.fate not in {Fate.PROMPT, Fate.GAP}), self._length)  # fmt: skip
        QGuiApplication.clipboard().setText(self.plain_text(first, self._length))


def tooltip(span: Span, stream: TokenStream) -> str:
    """Describe a span as rich text: what it is, its step and its probabilities."""
    is_greedy = 0 <= span.step < len(stream.steps) and stream.steps[span.step].temperature == 0
    note = escape(fate_help(span.fate, stream.coupling, is_greedy=is_greedy))
    if span.step < 0:
        return _limited(f"<b>{span.fate.value}</b><br>{note}")
    rows = [("Step", str(span.step + 1))]
    instead = ""
    if span.fate is not Fate.DRAFTED:
        instead = _alternatives(span, stream.steps[span.step])
        rows += _facts(span, stream.steps[span.step], stream.coupling)
    figures = tip_table((*rows, ("Token id", str(span.token_id))))
    return _limited(f"<b>{span.fate.value}</b>&nbsp; {_quoted(span.text)}<br>{note}{figures}{instead}")


def _limited(html: str) -> str:
    """A tooltip wrapped at a readable width; Qt would use up to the screen's."""
    return f"<table width='{scaled(TIP_PX)}'><tr><td>{html}</td></tr></table>"


def _alternatives(span: Span, step: Step) -> str:
    """What the target found most likely here, as a table; empty until it is known."""
    found = alternatives(step, span.slot, NUM_ALTERNATIVES)
    if not found:
        return ""
    rows = []
    for token, text, probability in found:
        name = _quoted(text[:LONGEST_ALTERNATIVE])
        rows.append((f"<b>{name}</b>" if token == span.token_id else name, escape(percent(probability))))
    which = ", at temperature 1" if step.temperature == 0 else ""
    return f"The target's most likely tokens here{which}:{tip_table(rows)}"


def _facts(span: Span, step: Step, coupling: Coupling) -> list[tuple[str, str]]:
    rows = [("Position", str(step.position + depth_of(step, span.slot)))] if span.fate in KINDS else []
    if span.fate in KINDS and (others := num_alternatives(step.parents, step.path, depth_of(step, span.slot))):
        rows.append(("Other candidates", str(others)))
    of_draft = ""
    if span.fate is Fate.RESAMPLED and span.slot < len(step.drafted):
        if step.drafted[span.slot] != UNKNOWN_ID:
            rows.append(("In place of", _quoted(step.drafted_texts[span.slot])))
        of_draft = " of the drafted token"
    if span.slot < len(step.drafted):
        figures = {f"Draft probability{of_draft}": step.draft_probs[span.slot]}
        # Where draws decide, a later candidate's p is of what the earlier ones leave.
        if not step.uniforms or not step.temperature or siblings(step, span.slot)[0] == span.slot:
            figures = {f"Target probability{of_draft}": step.target_probs[span.slot], **figures}
        if coupling is Coupling.REJECTION:
            figures["Acceptance probability"] = step.acceptance_probs[span.slot]
        # A server reports none, and old logs hold none.
        rows += [(title, f"{value:.4f}") for title, value in figures.items() if math.isfinite(value)]
    return rows


def _quoted(text: str) -> str:
    visible = escape(text.translate(ON_ONE_LINE)).replace(" ", "&nbsp;")
    return f"“{visible}”" if visible else NO_TEXT
