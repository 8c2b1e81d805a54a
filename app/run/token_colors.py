"""Colours tokens: the text format of each kind, from a theme's colours and line styles."""

from __future__ import annotations

from PySide6.QtGui import QColor, QTextCharFormat

from app.run.tokens import Ghost, Role, Span, Token, Written
from app.theme import Theme
from core.types import TokenKind

UnderlineStyle = QTextCharFormat.UnderlineStyle


def text_format(color: str, *, background: str | None = None, underline: UnderlineStyle | None = None,
                underline_color: str | None = None) -> QTextCharFormat:  # fmt: skip
    """A text format; the line has the text's colour unless it has its own."""
    found = QTextCharFormat()
    found.setForeground(QColor(color))
    if background is not None:
        found.setBackground(QColor(background))
    if underline is not None:
        found.setUnderlineStyle(underline)
        found.setUnderlineColor(QColor(underline_color or color))
    return found


def token_format(theme: Theme, kind: TokenKind) -> QTextCharFormat:
    """An emitted token, by its kind: in the transcript, the legend and the inspector."""
    style = theme.kind(kind)
    return text_format(style.color, background=style.tint, underline=style.underline)


def ghost_format(theme: Theme) -> QTextCharFormat:
    """A drafted token that was not accepted."""
    found = text_format(theme.faint)
    found.setFontStrikeOut(True)
    return found


class TokenFormats:
    """The text format of every span in a theme; `by_kind` False shows tokens as plain text."""

    def __init__(self, theme: Theme, *, by_kind: bool = True) -> None:
        self._tokens = {kind: token_format(theme, kind) if by_kind else QTextCharFormat() for kind in TokenKind}
        self._ghost = ghost_format(theme)
        self._pending = text_format(theme.faint, underline=UnderlineStyle.DashUnderline, underline_color=theme.accepted)
        prompt = text_format(theme.muted)
        self._written = {
            Role.PROMPT: prompt,
            Role.GAP: prompt,
            Role.KEPT: text_format(theme.muted, background=theme.hover),
            Role.FORCED: text_format(theme.accent, underline=UnderlineStyle.DashDotLine),
        }

    def of(self, span: Span) -> QTextCharFormat:
        """Colour, line style and background of a span."""
        if isinstance(span, Token):
            return self._tokens[span.kind]
        if isinstance(span, Written):
            return self._written[span.role]
        return self._ghost if isinstance(span, Ghost) else self._pending
