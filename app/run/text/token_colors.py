"""Colours tokens: the text format of each fate, from a theme's colours and line styles."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QTextCharFormat, QTextLayout
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.run.text.tokens import GHOSTS, KINDS, Fate, num_units
from app.theme import current_theme, mono_font
from app.widgets.fields import plain_tip

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


def token_formats(*, by_kind: bool = True) -> dict[Fate, QTextCharFormat]:
    """Colour, line style and background of every fate; `by_kind` False shows emitted tokens as plain text."""
    theme = current_theme()
    found = {fate: text_format(theme.muted) for fate in (Fate.PROMPT, Fate.GAP)}
    found[Fate.KEPT] = text_format(theme.muted, background=theme.hover)
    found[Fate.FORCED] = text_format(theme.accent, underline=UnderlineStyle.DashDotLine)
    dashes = UnderlineStyle.DashUnderline
    found[Fate.DRAFTED] = text_format(theme.faint, underline=dashes, underline_color=theme.accepted)
    for fate, kind in KINDS.items():
        style = theme.kind(kind)
        shown = text_format(style.color, background=style.tint, underline=style.underline)
        found[fate] = shown if by_kind else QTextCharFormat()
    for fate in GHOSTS:
        found[fate] = text_format(theme.faint)
        found[fate].setFontStrikeOut(True)
    return found


def draw_token(painter: QPainter, text: str, chosen: QTextCharFormat, place: QRectF, font: QFont) -> None:
    """Draw a token's text at a rectangle's top left, in a format, elided to the width."""
    shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, int(place.width()))
    layout = QTextLayout(shown, font)
    span = QTextLayout.FormatRange()
    span.start, span.length, span.format = 0, num_units(shown), chosen
    layout.setFormats([span])
    layout.beginLayout()
    layout.createLine()
    layout.endLayout()
    layout.draw(painter, place.topLeft())


class LegendWord(QWidget):
    """A fate in its own format, drawn as in the text."""

    def __init__(self, fate: Fate, meaning: str) -> None:
        super().__init__()
        self._fate = fate
        self.set_meaning(meaning)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def set_meaning(self, meaning: str) -> None:
        """Set the tooltip."""
        self.setToolTip(plain_tip(meaning))
        self.setAccessibleName(f"{self._fate.value}: {meaning}")

    def sizeHint(self) -> QSize:
        """Room for the word and its line."""
        metrics = QFontMetrics(mono_font(12))
        return QSize(metrics.horizontalAdvance(self._fate.value) + 2, metrics.height() + 4)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the word."""
        with QPainter(self) as painter:
            place = QRectF(self.rect()).adjusted(1, 1, 1, 0)
            draw_token(painter, self._fate.value, token_formats()[self._fate], place, mono_font(12))
