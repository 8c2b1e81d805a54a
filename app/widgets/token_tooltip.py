"""What is known about a piece of the transcript, in words."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from app.view_models.token_stream import Ghost, Pending, Token
from app.widgets.shown_text import ON_ONE_LINE
from app.widgets.transcript_page import Role, Span, Written
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
