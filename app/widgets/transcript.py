"""The text as it comes, each token in the look of its kind."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from html import escape

from PySide6.QtCore import QEvent, QMimeData, QPoint, Qt
from PySide6.QtGui import QColor, QHelpEvent, QMouseEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QToolTip, QWidget

from app.theme import LIGHT, Theme, mono_font
from app.view_models.token_stream import Ghost, Token, TokenStream
from core.types import Coupling, TokenKind

Span = Token | Ghost
VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Ghosts are shown on one line: text that was never emitted must not break lines."""


DISCARDED_NOTE = "Behind the rejected token: never tested; it counts as drafted, not as rejected."


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


class TranscriptView(QPlainTextEdit):
    """Shows a `TokenStream`. Only what is new is added, in `refresh`; the rest stays as it is laid out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transcript")
        self.setAccessibleName("Transcript")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setFont(mono_font(14))
        self.setPlaceholderText("The text appears here, token by token.")
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setMouseTracking(True)
        self.viewport().setMouseTracking(True)
        self._stream = TokenStream()
        self._theme = LIGHT
        self._shows_ghosts = False
        self._num_steps = 0
        self._hovered: Span | None = None
        self._starts: list[int] = []
        self._spans: list[Span] = []
        self._formats: dict[TokenKind, QTextCharFormat] = {}
        self._make_formats()

    def set_stream(self, stream: TokenStream) -> None:
        """Show another stream, or the same one after it was cleared."""
        self._stream = stream
        self._rebuild()

    def set_theme(self, theme: Theme) -> None:
        """Draw everything in a theme's colours."""
        self._theme = theme
        self._make_formats()
        self._rebuild()

    def set_ghosts_shown(self, shown: bool) -> None:
        """Show or hide the drafted tokens that were not kept."""
        if shown != self._shows_ghosts:
            self._shows_ghosts = shown
            self._rebuild()

    def refresh(self) -> None:
        """Add the steps that have come since the last time; follow the end unless the reader scrolled away from it."""
        new = self._stream.steps[self._num_steps :]
        if not new:
            return
        bar = self.verticalScrollBar()
        follows = bar.value() >= bar.maximum() - 1
        if self.textCursor().hasSelection():
            # A selection that reaches the end must not grow with the text.
            cursor = self.textCursor()
            cursor.setKeepPositionOnInsert(True)
            self.setTextCursor(cursor)
        cursor = self._end()
        cursor.beginEditBlock()
        if not self._num_steps:
            cursor.insertText(self._stream.gap, self._prompt_format)
        for step in new:
            for token in step.accepted:
                self._insert(cursor, token, token.text, self._formats[token.kind])
            if self._shows_ghosts:
                for ghost in step.ghosts:
                    self._insert(cursor, ghost, ghost.text.translate(VISIBLE), self._ghost_format)
            for token in step.following:
                self._insert(cursor, token, token.text, self._formats[token.kind])
        cursor.endEditBlock()
        self._num_steps = len(self._stream.steps)
        if follows:
            bar.setValue(bar.maximum())

    def span_at(self, point: QPoint) -> Span | None:
        """The token or ghost under a point of the viewport."""
        cursor = self.cursorForPosition(point)
        position = cursor.position()
        # The cursor stands in the nearest gap between characters; the one under the point may lie before it.
        edge = self.cursorRect(cursor)
        if point.x() < edge.left() and point.y() < edge.bottom():
            position -= 1
        elif cursor.atBlockEnd() and point.x() > edge.right() + 2:
            return None
        return self.span_at_position(position)

    def span_at_position(self, position: int) -> Span | None:
        """The token or ghost that covers a position of the document."""
        index = bisect_right(self._starts, position) - 1
        return self._spans[index] if index >= 0 else None

    def token_range(self, position: int) -> tuple[int, int] | None:
        """Where in the document the token at an absolute token position stands: first and last + 1."""
        for index, span in enumerate(self._spans):
            if isinstance(span, Token) and span.position == position:
                return self._range(index)
        return None

    def createMimeDataFromSelection(self) -> QMimeData:
        """Copy what was emitted; ghosts are only shown."""
        cursor = self.textCursor()
        data = QMimeData()
        data.setText(self.plain_text(cursor.selectionStart(), cursor.selectionEnd()))
        return data

    def plain_text(self, first: int, last: int) -> str:
        """The document's text between two positions, without ghosts."""
        cursor = self._end()
        cursor.setPosition(first)
        cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
        # Positions count UTF-16 units, Python counts characters.
        units = cursor.selectedText().replace("\u2029", "\n").encode("utf-16-le", "surrogatepass")
        kept, done = b"", first
        for index in range(max(0, bisect_right(self._starts, first) - 1), len(self._starts)):
            start, end = self._range(index)
            if start >= last:
                break
            if isinstance(self._spans[index], Ghost):
                kept += units[2 * (done - first) : 2 * (max(start, first) - first)]
                done = max(done, min(end, last))
        kept += units[2 * (done - first) :]
        return kept.decode("utf-16-le", "replace")

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a token's tooltip; take the highlight away when the pointer leaves."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            span = self.span_at(event.pos())
            text = tooltip(span, self._stream.coupling) if span is not None else ""
            QToolTip.showText(event.globalPos(), text, self.viewport())
            return True
        if event.type() is QEvent.Type.Leave:
            self._hover(None)
        return super().viewportEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Highlight the token under the pointer, so that its extent is seen."""
        super().mouseMoveEvent(event)
        self._hover(self.span_at(event.position().toPoint()))

    def _hover(self, span: Span | None) -> None:
        if span is self._hovered:
            return
        self._hovered = span
        selections = []
        if span is not None:
            first, last = self._range(self._index_of(span))
            highlight = QTextEdit.ExtraSelection()
            highlight.cursor = self._end()
            highlight.cursor.setPosition(first)
            highlight.cursor.setPosition(last, QTextCursor.MoveMode.KeepAnchor)
            highlight.format.setBackground(QColor(self._theme.selection))
            selections.append(highlight)
        self.setExtraSelections(selections)

    def _index_of(self, span: Span) -> int:
        return next(index for index, known in enumerate(self._spans) if known is span)

    def _range(self, index: int) -> tuple[int, int]:
        is_last = index + 1 == len(self._starts)
        return self._starts[index], self._end().position() if is_last else self._starts[index + 1]

    def _end(self) -> QTextCursor:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        return cursor

    def _insert(self, cursor: QTextCursor, span: Span, text: str, text_format: QTextCharFormat) -> None:
        if text:
            self._starts.append(cursor.position())
            self._spans.append(span)
            cursor.insertText(text, text_format)

    def _make_formats(self) -> None:
        self._formats = {kind: self._theme.token_format(kind) for kind in TokenKind}
        self._ghost_format = self._theme.ghost_format()
        self._prompt_format = self._theme.prompt_format()

    def _rebuild(self) -> None:
        bar = self.verticalScrollBar()
        follows, place = bar.value() >= bar.maximum() - 1, bar.value()
        self._hovered = None
        self.setExtraSelections([])
        self._num_steps = 0
        self._starts, self._spans = [], []
        self.setUpdatesEnabled(False)
        self.clear()
        if self._stream.prompt:
            self._end().insertText(self._stream.prompt, self._prompt_format)
        self.refresh()
        self.setUpdatesEnabled(True)
        bar.setValue(bar.maximum() if follows else place)


def tooltip(span: Span, coupling: Coupling = Coupling.REJECTION) -> str:
    """What is known about a token, as rich text."""
    rows: list[tuple[str, str]] = [("Step", str(span.step))]
    notes = _NOTES[coupling]
    if isinstance(span, Ghost):
        title = "rejected" if span.tested else "discarded"
        note = notes.rejected if span.tested else DISCARDED_NOTE
    else:
        rows.append(("Position", str(span.position)))
        title = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}[span.kind]
        note = {
            TokenKind.ACCEPTED: notes.accepted,
            TokenKind.CORRECTION: notes.resampled,
            TokenKind.BONUS: "Drawn from the target.",
        }[span.kind]
        if span.replaced is not None:
            rows.append(("In place of", _quoted(span.replaced)))
    if span.target_prob is not None and span.draft_prob is not None and span.acceptance_prob is not None:
        of_draft = " of the drafted token" if isinstance(span, Token) and span.replaced is not None else ""
        rows += [
            (f"Target probability{of_draft}", f"{span.target_prob:.4f}"),
            (f"Draft probability{of_draft}", f"{span.draft_prob:.4f}"),
        ]
        if coupling is Coupling.REJECTION:
            rows.append(("Acceptance probability", f"{span.acceptance_prob:.4f}"))
    rows.append(("Token id", str(span.token_id)))
    row = "<tr><td>{}&nbsp;&nbsp;</td><td align='right'>{}</td></tr>"
    cells = "".join(row.format(escape(name), value) for name, value in rows)
    return f"<b>{title}</b>&nbsp; {_quoted(span.text)}<br>{escape(note)}<table>{cells}</table>"


def _quoted(text: str) -> str:
    visible = escape(text.translate(VISIBLE)).replace(" ", "&nbsp;")
    return f"“{visible}”" if visible else "(no text of its own)"
