"""Writes the transcript's tooltips and legend."""

from __future__ import annotations

from html import escape

from app.run.tokens import ON_ONE_LINE, Ghost, Pending, Role, Span, Token, Written
from core.settings import Coupling
from core.types import TokenKind

NO_TEXT = "(no text)"
TITLES = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
DISCARDED_NOTE = "After the rejected token, and never tested; it counts as drafted, not as rejected."
WRITTEN_NOTES = {
    Role.KEPT: "<b>kept</b><br>From the run this one branched off.",
    Role.FORCED: "<b>forced</b><br>Inserted by you; the generated text continues it.",
}
REJECTED_NOTES = {
    Coupling.REJECTION: "Tested and rejected.",
    Coupling.GUMBEL: "The target's own draw under the shared noise differs from it.",
}
NOTES = {
    Coupling.REJECTION: {
        TokenKind.ACCEPTED: "",
        TokenKind.CORRECTION: "Drawn from the residual.",
        TokenKind.BONUS: "Drawn from the target.",
    },
    Coupling.GUMBEL: {
        TokenKind.ACCEPTED: "The target's own draw under the shared noise equals the draft's.",
        TokenKind.CORRECTION: "The target's own draw under the shared noise; it differs from the draft's.",
        TokenKind.BONUS: "Drawn from the target.",
    },
}
BONUS_MEANING = "Drawn from the target itself, after a fully accepted block or with no draft."
LEGEND = {
    Coupling.REJECTION: {
        TokenKind.ACCEPTED: "Drafted, and accepted by the target.",
        TokenKind.CORRECTION: "The draft's token was rejected; this one was drawn from the residual instead.",
        TokenKind.BONUS: BONUS_MEANING,
    },
    Coupling.GUMBEL: {
        TokenKind.ACCEPTED: "Drafted, and accepted: the target draws the same token under the shared noise.",
        TokenKind.CORRECTION: "The target's own draw under the shared noise, which differs from the draft's.",
        TokenKind.BONUS: BONUS_MEANING,
    },
}
GHOST_HELP = "A drafted token that was not accepted. It is shown, but never copied."


def tooltip(span: Span, coupling: Coupling = Coupling.REJECTION) -> str:
    """Describe a token as rich text; empty for the prompt."""
    if isinstance(span, Written):
        return WRITTEN_NOTES.get(span.role, "")
    rows: list[tuple[str, str]] = [("Step", str(span.step))]
    if isinstance(span, Pending):
        note = "Drafted, and not yet verified by the target."
    elif isinstance(span, Ghost):
        note = REJECTED_NOTES[coupling] if span.tested else DISCARDED_NOTE
    else:
        rows.append(("Position", str(span.position)))
        note = NOTES[coupling][span.kind]
        if span.replaced is not None:
            rows.append(("In place of", _quoted(span.replaced)))
    if not isinstance(span, Pending) and span.target_prob is not None:
        of_draft = " of the drafted token" if isinstance(span, Token) and span.replaced is not None else ""
        rows.append((f"Target probability{of_draft}", f"{span.target_prob:.4f}"))
        rows.append((f"Draft probability{of_draft}", f"{span.draft_prob:.4f}"))
        if coupling is Coupling.REJECTION:
            rows.append(("Acceptance probability", f"{span.acceptance_prob:.4f}"))
    rows.append(("Token id", str(span.token_id)))
    row = "<tr><td>{}&nbsp;&nbsp;</td><td align='right'>{}</td></tr>"
    cells = "".join(row.format(escape(name), value) for name, value in rows)
    return f"<b>{_title(span)}</b>&nbsp; {_quoted(span.text)}<br>{escape(note)}<table>{cells}</table>"


def spoken(span: Token | Ghost) -> str:
    """A token in a line of plain text, for assistive technology."""
    text = f"“{span.text.translate(ON_ONE_LINE)}”" if span.text else NO_TEXT
    return f"Step {span.step}, place {span.slot + 1}: {_title(span)} {text}"


def _title(span: Token | Ghost | Pending) -> str:
    if isinstance(span, Pending):
        return "drafted"
    if isinstance(span, Ghost):
        return "rejected" if span.tested else "discarded"
    return TITLES[span.kind]


def _quoted(text: str) -> str:
    visible = escape(text.translate(ON_ONE_LINE)).replace(" ", "&nbsp;")
    return f"“{visible}”" if visible else NO_TEXT
