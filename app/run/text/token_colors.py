"""Colours tokens: the text format of each fate, from a theme's colours and line styles."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetrics, QLinearGradient, QPainter, QTextCharFormat, QTextLayout
from PySide6.QtWidgets import QSizePolicy

from app.run.text.certainty import HIGHEST_NATS
from app.run.text.tokens import GHOSTS, KINDS, Fate, fate_help, num_units
from app.theme import ColorBy, Theme, current_theme, mixed, mono_font, scaled, ui_font
from app.widgets.fields import plain_tip
from app.widgets.painted import LEFT, PaintedWidget, draw_box, draw_text
from core.settings import Coupling

UnderlineStyle = QTextCharFormat.UnderlineStyle
LEVEL = frozenset("\n\r\t\u2028\u2029↵⇥-–—=~+←→")
"""Signs that are or have a horizontal line, and ends of lines, which are shown as such signs."""


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


def token_formats() -> dict[Fate, QTextCharFormat]:
    """Colour, line style and background of every fate."""
    return _token_formats(current_theme())


@lru_cache
def _token_formats(theme: Theme) -> dict[Fate, QTextCharFormat]:
    found = {fate: text_format(theme.muted) for fate in (Fate.PROMPT, Fate.GAP)}
    found[Fate.KEPT] = text_format(theme.muted, background=theme.hover)
    found[Fate.FORCED] = text_format(theme.accent, underline=UnderlineStyle.DashDotLine)
    dashes = UnderlineStyle.DashUnderline
    found[Fate.DRAFTED] = text_format(theme.faint, underline=dashes, underline_color=theme.accepted)
    for fate, kind in KINDS.items():
        style = theme.kind(kind)
        found[fate] = text_format(style.color, background=style.tint, underline=style.underline)
    for fate in GHOSTS:
        found[fate] = text_format(theme.faint)
        # What was never tested was not turned down.
        found[fate].setFontStrikeOut(fate is Fate.REJECTED)
        found[fate].setFontItalic(fate is Fate.UNTESTED)
    return found


def is_level(text: str) -> bool:
    """Whether a token, if struck through, would look like another sign, as ⇥ would like ⇄."""
    signs = text.strip(" ␣")
    return bool(signs) and LEVEL.issuperset(signs)


def hatching() -> QBrush:
    """The background that stands for a line through a token."""
    theme = current_theme()
    return QBrush(mixed(theme.surface, theme.faint, 0.4), Qt.BrushStyle.BDiagPattern)


def token_format(fate: Fate, text: str) -> QTextCharFormat:
    """The format of a token: its fate's, but a rejected one that a line would disguise is hatched."""
    found = token_formats()[fate]
    if fate is Fate.REJECTED and is_level(text):
        found = text_format(current_theme().faint)
        found.setBackground(hatching())
    return found


def doubt_format(fate: Fate, doubt: float | None) -> QTextCharFormat:
    """The format of an emitted token that is coloured by a figure: the line still shows its kind.

    Args:
        doubt: as in `app.run.text.certainty`; None leaves the background as it is.
    """
    theme = current_theme()
    style = theme.kind(KINDS[fate])
    found = text_format(theme.text, underline=style.underline, underline_color=style.color)
    if doubt is not None:
        found.setBackground(mixed(theme.surface, theme.heat, doubt))
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


class LegendWord(PaintedWidget):
    """A fate in its own format, drawn as in the text."""

    def __init__(self, fate: Fate) -> None:
        super().__init__("")
        self._fate, self._by = fate, ColorBy.KIND
        self.explain(Coupling.REJECTION)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def explain(self, coupling: Coupling) -> None:
        """Say what the fate means in a run."""
        meaning = fate_help(self._fate, coupling)
        self.setToolTip(plain_tip(meaning))
        self.setAccessibleName(f"{self._fate.value}: {meaning}")

    def color_by(self, by: ColorBy) -> None:
        """Follow what the text is coloured by."""
        self._by = by
        self.update()

    def sizeHint(self) -> QSize:
        """Room for the word and its line."""
        metrics = QFontMetrics(mono_font(12))
        return QSize(metrics.horizontalAdvance(self._fate.value) + 2, metrics.height() + 4)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)  # Lines as sharp as those in the text.
        is_lined = self._by is not ColorBy.KIND and self._fate in KINDS
        chosen = doubt_format(self._fate, None) if is_lined else token_formats()[self._fate]
        draw_token(painter, self._fate.value, chosen, QRectF(self.rect()).adjusted(1, 1, 1, 0), mono_font(12))


ENDS = {
    ColorBy.PROBABILITY: ("100 %", "0 %"),
    ColorBy.ENTROPY: ("0", f"≥ {HIGHEST_NATS[ColorBy.ENTROPY]:g} nats"),
    ColorBy.SURPRISE: ("0", f"≥ {HIGHEST_NATS[ColorBy.SURPRISE]:g} nats"),
}
SCALE_HELP = {
    ColorBy.PROBABILITY: "The target's probability of each token, after temperature and filters.",
    ColorBy.ENTROPY: "How open the choice was: the entropy of the target's distribution at each token.",
    ColorBy.SURPRISE: "How unexpected each token was: -ln of the target's probability of it.",
}
SCALE_NOTE = (
    " At temperature 0, colours are those at temperature 1. A token has no colour until its evidence arrives: when "
    "the run is paused or over, or at once while the Inspector is open. The line below a token still shows its kind."
)
SCALE_PX = 96


class ColorScale(PaintedWidget):
    """The legend of a text that is coloured by a figure: a scale between its two ends."""

    def __init__(self) -> None:
        super().__init__("colorScale")
        self._by = ColorBy.PROBABILITY
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def color_by(self, by: ColorBy) -> None:
        """Show the scale of a figure; none for the kinds."""
        self.setVisible(by is not ColorBy.KIND)
        if by is not ColorBy.KIND:
            self._by = by
            self.setToolTip(plain_tip(SCALE_HELP[by] + SCALE_NOTE))
            low, high = ENDS[by]
            self.setAccessibleName(f"Colours by {by.value}: from {low}, without colour, to {high}")
            self.update()

    def sizeHint(self) -> QSize:
        """Room for one line."""
        return QSize(200, QFontMetrics(ui_font(12)).height() + 4)

    def _paint(self, painter: QPainter) -> None:
        theme, height, (low, high) = current_theme(), self.height(), ENDS[self._by]
        words = f"{self._by.value}   {low}"
        scale = QRectF(QFontMetrics(ui_font(12)).horizontalAdvance(words) + 8, 3, scaled(SCALE_PX), height - 6)
        draw_text(painter, QRectF(0, 0, scale.left(), height), words, theme.muted, LEFT)
        draw_text(painter, QRectF(scale.right() + 8, 0, self.width(), height), high, theme.muted, LEFT)
        shades = QLinearGradient(scale.topLeft(), scale.topRight())
        shades.setColorAt(0, QColor(theme.surface))
        shades.setColorAt(1, QColor(theme.heat))
        draw_box(painter, scale.adjusted(0.5, 0.5, -0.5, -0.5), fill=shades, line=QColor(theme.field_border))
