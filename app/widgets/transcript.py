"""The text as it comes, each token in the look of its kind; a token can be pointed at, selected and walked between."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QTextCursor,
)
from PySide6.QtWidgets import QMenu, QTextEdit, QToolTip, QWidget

from app.view_models.selection import Place
from app.view_models.token_stream import Ghost, Token, TokenStream
from app.widgets.paged_text import PagedText
from app.widgets.token_tooltip import in_words, tooltip
from app.widgets.transcript_page import Span

_MOVES = {
    Qt.Key.Key_Left: (-1, False),
    Qt.Key.Key_Right: (1, False),
    Qt.Key.Key_Up: (-1, True),
    Qt.Key.Key_Down: (1, True),
}
"""Which way an arrow key goes, and whether by steps."""


class TranscriptView(PagedText):
    """The transcript: tokens can be pointed at, selected and walked between.

    Signals:
        place_chosen: the `Place` of a token that was clicked, or walked to with the arrow keys.
        place_clicked: behind that, once a token was clicked with the mouse.
        step_pointed: the step under the pointer, or -1.
        menu_opening: the context menu, before it is shown.
    """

    place_chosen = Signal(object)
    place_clicked = Signal()
    step_pointed = Signal(int)
    menu_opening = Signal(QMenu)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transcript")
        self.setAccessibleName("Transcript")
        self.setPlaceholderText("The text appears here, token by token.")
        self.setMouseTracking(True)
        self.viewport().setMouseTracking(True)
        self._pointed: Span | None = None
        self._selected: Place | None = None
        self._marked_step = -1

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._pointed, self._selected, self._marked_step = None, None, -1
        super().set_stream(stream)

    # --- Pointing and selecting ---

    def mark(self, place: Place | None) -> None:
        """Frame a place, mark its step, and bring it into sight."""
        self._selected = place
        self._show_marks()
        found = self.place_range(place) if place is not None else None
        if found is not None and not self.rectangles(*found):
            self._scroll_to(found[0], lines_above=3)

    def mark_step(self, step: int) -> None:
        """Mark a step lightly, as one that is pointed at elsewhere; -1: none."""
        if step != self._marked_step:
            self._marked_step = step
            self._show_marks()

    def choose(self, place: Place) -> None:
        """Select a place, as if it had been clicked."""
        self.mark(place)
        span = self.selected_span()
        if span is not None:
            self.setAccessibleDescription(in_words(span))
        self.place_chosen.emit(place)

    def selected_span(self) -> Token | Ghost | None:
        """What is selected: the token that was emitted at the selected place, or the draft that was not kept there."""
        place = self._selected
        indices = self._page.indices(place.step) if place is not None else range(0)
        spans = [self._page.spans[index] for index in indices]
        found = [span for span in spans if isinstance(span, Token | Ghost) and span.place == place]
        return found[-1] if found else None

    def _walk(self, offset: int, *, by_steps: bool) -> None:
        last = self._page.last_token
        if last is None:
            return
        place = self._selected
        if place is None or not self._page.slots(place.step):
            self._walk_to(last.place)
            return
        slots = self._page.slots(place.step)
        if not by_steps:
            beside = [slot for slot in slots if (slot - place.slot) * offset > 0]
            if beside:
                self._walk_to(Place(place.step, beside[0] if offset > 0 else beside[-1]))
                return
        step = self._page.step_number(place.step, offset)
        if step is not None:
            slots = self._page.slots(step)
            self._walk_to(Place(step, slots[0] if by_steps or offset > 0 else slots[-1]))

    def _walk_to(self, place: Place) -> None:
        self.choose(place)
        found = self.place_range(place)
        if found is not None:
            # A text selection that is extended from here starts at the token.
            cursor = self.textCursor()
            cursor.setPosition(found[0])
            self.setTextCursor(cursor)

    def _show_marks(self) -> None:
        is_bare = self._selected is None and self._pointed is None and self._marked_step < 0
        if is_bare and not self.extraSelections():
            return  # What is there is drawn already; what is new draws itself.
        steps = {self._marked_step} if self._selected is None else {self._marked_step, self._selected.step}
        found = [self._page.step_range(step) for step in sorted(steps)]
        marks = [self._mark(place, self._theme.hover) for place in found if place is not None]
        pointed = self._range_of(self._pointed) if self._pointed is not None else None
        if pointed is not None:
            marks.append(self._mark(pointed, self._theme.selection))
        self.setExtraSelections(marks)
        self.viewport().update()

    def _mark(self, place: tuple[int, int], color: str) -> QTextEdit.ExtraSelection:
        mark = QTextEdit.ExtraSelection()
        mark.cursor = QTextCursor(self.document())
        mark.cursor.setPosition(place[0])
        mark.cursor.setPosition(place[1], QTextCursor.MoveMode.KeepAnchor)
        mark.format.setBackground(QColor(color))
        return mark

    def _point(self, span: Span | None) -> None:
        if span is not self._pointed:
            self._pointed = span
            self._show_marks()
            self.step_pointed.emit(span.step if isinstance(span, Token | Ghost) else -1)

    # --- Qt ---

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the text, and the frame around what is selected."""
        super().paintEvent(event)
        found = self.place_range(self._selected) if self._selected is not None else None
        if found is None:
            return
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._theme.accent), 1.5))
        for rectangle in self.rectangles(*found):
            painter.drawRoundedRect(rectangle.adjusted(-0.75, 0.75, 0.75, -0.75), 2.5, 2.5)
        painter.end()

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a token's tooltip; take the highlight away when the pointer leaves."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            span = self.span_at(event.pos())
            text = tooltip(span, self._stream.coupling) if span is not None else ""
            QToolTip.showText(event.globalPos(), text, self.viewport())
            return True
        if event.type() is QEvent.Type.Leave:
            self._point(None)
        return super().viewportEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Highlight the token under the pointer, so that its extent is seen."""
        super().mouseMoveEvent(event)
        self._point(self.span_at(event.position().toPoint()))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Select the token that was clicked, unless text was selected."""
        super().mouseReleaseEvent(event)
        is_click = event.button() is Qt.MouseButton.LeftButton and not self.textCursor().hasSelection()
        if is_click and self._choose_at(event.position().toPoint()):
            self.place_clicked.emit()

    def _choose_at(self, point: QPoint) -> bool:
        span = self.span_at(point)
        if not isinstance(span, Token | Ghost):
            return False
        self.choose(span.place)
        return True

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Arrow keys walk from token to token, up and down from step to step; with Shift they select text."""
        plain = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier == Qt.KeyboardModifier.NoModifier
        move = _MOVES.get(Qt.Key(event.key())) if plain else None
        if plain and event.key() == Qt.Key.Key_Space:
            event.ignore()  # Space is the window's.
        elif move is not None and self._page.num_steps:
            self._walk(move[0], by_steps=move[1])
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Offer what can be done with the text, and with the token that is pointed at or selected."""
        if event.reason() is QContextMenuEvent.Reason.Mouse:
            self._choose_at(self.viewport().mapFromGlobal(event.globalPos()))
        menu = self.createStandardContextMenu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.menu_opening.emit(menu)
        menu.popup(event.globalPos())
