"""The text as it comes, each token in the look of its kind; a token can be pointed at, selected and walked between."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

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

from app.run.paged_text import PagedText, Role, Span, Written
from app.run.tokens import ON_ONE_LINE, Ghost, Pending, Place, Token, TokenStream
from core.types import Coupling, TokenKind

DISCARDED_NOTE = "Behind the rejected token: never tested; it counts as drafted, not as rejected."
NO_TEXT = "(no text of its own)"
WRITTEN_NOTES = {
    Role.KEPT: "<b>kept</b><br>From the run that this one branched off.",
    Role.FORCED: "<b>forced</b><br>Put here by hand; the text behind it continues it.",
}


@dataclass(frozen=True, slots=True)
class _Notes:
    """Why a token of each fate is there."""

    accepted: str
    rejected: str
    resampled: str


_NOTES = {
    Coupling.REJECTION: _Notes(accepted="", rejected="Tested and turned down.", resampled="Drawn from the residual."),
    Coupling.GUMBEL: _Notes(
        accepted="The target's own draw under the shared noise equals the draft's.",
        rejected="The target's own draw under the shared noise differs from it.",
        resampled="The target's own draw under the shared noise; it differs from the draft's.",
    ),
}
_TITLES = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}


def tooltip(span: Span, coupling: Coupling = Coupling.REJECTION) -> str:
    """What is known about a token, as rich text; empty for the prompt."""
    if isinstance(span, Written):
        return WRITTEN_NOTES.get(span.role, "")
    rows: list[tuple[str, str]] = [("Step", str(span.step))]
    notes = _NOTES[coupling]
    if isinstance(span, Pending):
        note = "Drafted; waits for the target's verdict."
    elif isinstance(span, Ghost):
        note = notes.rejected if span.tested else DISCARDED_NOTE
    else:
        rows.append(("Position", str(span.position)))
        note = {
            TokenKind.ACCEPTED: notes.accepted,
            TokenKind.CORRECTION: notes.resampled,
            TokenKind.BONUS: "Drawn from the target.",
        }[span.kind]
        if span.replaced is not None:
            rows.append(("In place of", _quoted(span.replaced)))
    rows += _probabilities(span, coupling)
    rows.append(("Token id", str(span.token_id)))
    row = "<tr><td>{}&nbsp;&nbsp;</td><td align='right'>{}</td></tr>"
    cells = "".join(row.format(escape(name), value) for name, value in rows)
    return f"<b>{_title(span)}</b>&nbsp; {_quoted(span.text)}<br>{escape(note)}<table>{cells}</table>"


def in_words(span: Token | Ghost | Pending) -> str:
    """A token in a line of plain text, for assistive technology."""
    text = f"“{span.text.translate(ON_ONE_LINE)}”" if span.text else NO_TEXT
    return f"Step {span.step}, place {span.slot + 1}: {_title(span)} {text}"


def _title(span: Token | Ghost | Pending) -> str:
    if isinstance(span, Pending):
        return "drafted"
    if isinstance(span, Ghost):
        return "rejected" if span.tested else "discarded"
    return _TITLES[span.kind]


def _probabilities(span: Token | Ghost | Pending, coupling: Coupling) -> list[tuple[str, str]]:
    if isinstance(span, Pending) or span.target_prob is None or span.draft_prob is None or span.acceptance_prob is None:
        return []
    of_draft = " of the drafted token" if isinstance(span, Token) and span.replaced is not None else ""
    rows = [
        (f"Target probability{of_draft}", f"{span.target_prob:.4f}"),
        (f"Draft probability{of_draft}", f"{span.draft_prob:.4f}"),
    ]
    if coupling is Coupling.REJECTION:
        rows.append(("Acceptance probability", f"{span.acceptance_prob:.4f}"))
    return rows


def _quoted(text: str) -> str:
    visible = escape(text.translate(ON_ONE_LINE)).replace(" ", "&nbsp;")
    return f"“{visible}”" if visible else NO_TEXT


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
