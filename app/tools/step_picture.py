"""The picture of one step: drafted tokens as chips, q and p as bars, and u against min(1, p / q)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPen, QPolygonF

from app.run.inspector.shares import VISIBLE
from app.run.inspector.verdicts import TEST_WORDS
from app.run.text.token_colors import is_level
from app.run.text.tokens import EMITTED, Fate, fate_of, is_corrected
from app.theme import RESOURCES, current_theme, mono_font, scaled, ui_font
from app.widgets.painted import CENTRE, LEFT, draw_box, draw_text
from core.runlog.replay import step_from_record
from core.types import Step, TokenKind

# --- What is shown ---

MAX_SLOTS = 5
"""Maximum number of drafted tokens in a picture."""
LEAST_BAR = 0.1
"""The least height of a token's higher bar, as a share of the highest."""
EXAMPLE = RESOURCES / "help" / "example_step.json"
MARKS = {Fate.ACCEPTED: "✓", Fate.REJECTED: "✗", Fate.UNTESTED: "–"}


class Slot(NamedTuple):
    """A drafted token with its test. `uniform` is None if the coupling draws none."""

    text: str
    draft_prob: float
    target_prob: float
    acceptance: float
    uniform: float | None
    fate: Fate


@dataclass(frozen=True, slots=True)
class StepPicture:
    """A step to draw, and which it is."""

    caption: str
    step: Step

    @property
    def slots(self) -> list[Slot]:
        """The drafted tokens that fit into the picture."""
        step = self.step
        texts = (text.translate(VISIBLE) for text in step.drafted_texts)
        uniforms = step.uniforms or (None,) * len(step.drafted)
        fates = (fate_of(step, slot) for slot in range(len(step.drafted)))
        values = zip(texts, step.draft_probs, step.target_probs, step.acceptance_probs, uniforms, fates, strict=True)
        return [Slot(*each) for each in values][:MAX_SLOTS]

    @property
    def next_kind(self) -> TokenKind | None:
        """How the token came about that followed; None if the text ended within the block."""
        last = self.step.emitted_kinds[-1:]
        return None if last in {(), (TokenKind.ACCEPTED,)} else last[0]

    @property
    def num_columns(self) -> int:
        """One for each token that is drawn."""
        return len(self.slots) + (self.next_kind is not None)

    @property
    def words(self) -> str:
        """The picture as a sentence, for assistive technology."""
        said = [f"{slot.text!r} {TEST_WORDS[slot.fate]}" for slot in self.slots]
        if self.next_kind is not None:
            said.append(f"then {self.next_text!r}, {EMITTED[self.next_kind]}")
        return f"{self.caption}: {', '.join(said)}."

    @property
    def next_text(self) -> str:
        """The token that followed."""
        return self.step.emitted_texts[-1].translate(VISIBLE)


def picture_of(steps: Sequence[Step]) -> StepPicture:
    """The latest step that shows the whole method; else the latest that can be drawn; else a recorded one."""
    whole = [step for step in reversed(steps) if _is_whole(step)]
    shown = next((step for step in whole if _shows_all(step)), whole[0] if whole else None)
    return example() if shown is None else StepPicture(f"Step {shown.index + 1} of this run", shown)


def example() -> StepPicture:
    """A recorded step of the embedded pair."""
    step = step_from_record(json.loads(EXAMPLE.read_text("utf-8"))["step"])
    assert step is not None, "it ships with Outrider"
    return StepPicture("A step of the pair that ships with Outrider", step)


def _is_whole(step: Step) -> bool:
    """Whether it shows the method as Help explains it: a chain, tested token by token, with bars that can be seen."""
    figures = (*step.draft_probs, *step.target_probs, *step.acceptance_probs)
    is_plain = bool(step.drafted) and not step.parents and not step.block
    if not is_plain or len(figures) != 3 * len(step.drafted) or not all(map(math.isfinite, figures)):
        return False
    bars = [max(pair) for pair in zip(step.draft_probs, step.target_probs, strict=True)]
    return min(bars) >= LEAST_BAR * max(bars)


def _shows_all(step: Step) -> bool:
    return is_corrected(step) and step.num_accepted > 0 and len(step.drafted) <= MAX_SLOTS


# --- Drawing ---

LABELS = 74
"""Width of the labels on the left."""
CHIP, BARS, TRACK = 26, 52, 8
MIN_COLUMN, MAX_COLUMN = 84, 128
SMALL = 11
"""Pixels of the text."""


def picture_size(picture: StepPicture, width: int) -> QSize:
    """The picture's size for this available width, but never too small to read."""
    least, most = (scaled(LABELS) + picture.num_columns * scaled(column) for column in (MIN_COLUMN, MAX_COLUMN))
    return QSize(max(least, min(width, most)), round(_rows()[-1]))


def _rows() -> tuple[float, float, float, float, float]:
    """The height of a line, and the vertical positions of bars, tests and verdicts, and of the end."""
    line = QFontMetrics(ui_font(SMALL)).height()
    bars = scaled(CHIP) + 12
    test = bars + scaled(BARS) + line + 14
    verdict = test + scaled(TRACK) + line + 14
    return line, bars, test, verdict, verdict + 2 * line + 4


def draw_step(painter: QPainter, picture: StepPicture, width: int) -> None:
    """Draw a column for each token and a row for each stage of the method."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    theme, left, (line, bars, test, verdict, end) = current_theme(), scaled(LABELS), _rows()
    for top, height, text in (
        (0, scaled(CHIP), "token"),
        (bars, scaled(BARS), "q and p"),
        (test - 5, scaled(TRACK) + 10, "p / q and u"),
        (verdict, line, "verdict"),
    ):
        draw_text(painter, QRectF(0, top, left, height), text, theme.muted, LEFT, pixels=SMALL)
    column = (width - left) / max(1, picture.num_columns)
    # If all tokens are improbable, bars on a scale up to 1 would be too low to compare.
    most = max((max(slot.draft_prob, slot.target_prob) for slot in picture.slots), default=1.0) or 1.0
    colors = {Fate.ACCEPTED: theme.accepted, Fate.REJECTED: theme.muted, Fate.UNTESTED: theme.faint}
    for index, slot in enumerate(picture.slots):
        x, ink = left + index * column, colors[slot.fate]
        _draw_chip(painter, QRectF(x, 0, column, scaled(CHIP)), slot.text, ink, slot.fate)
        _draw_bars(painter, QRectF(x, bars, column, scaled(BARS)), slot, most, line)
        _draw_test(painter, QRectF(x + 8, test, column - 16, scaled(TRACK)), slot, ink, line)
        place = QRectF(x, verdict, column, line)
        words = f"{MARKS[slot.fate]} {TEST_WORDS[slot.fate]}"
        draw_text(painter, place, words, ink, pixels=SMALL, is_strong=True)
        if slot.uniform is not None and slot.fate is not Fate.UNTESTED:
            relation = "<" if slot.fate is Fate.ACCEPTED else "≥"
            place.translate(0, line + 2)
            threshold = _share(slot.acceptance)
            if threshold[0] in "<>":  # After the relation, three digits instead of another one.
                threshold = f"{min(max(slot.acceptance, 0.001), 0.999):.3f}"
            draw_text(painter, place, f"u {relation} {threshold}", theme.muted, pixels=SMALL)
    if picture.next_kind is not None:
        x, style = left + len(picture.slots) * column, theme.kind(picture.next_kind)
        _draw_chip(painter, QRectF(x, 0, column, scaled(CHIP)), picture.next_text, style.color, None)
        is_resampled = picture.next_kind is TokenKind.CORRECTION
        said = "drawn in its place, from max(0, p − q)" if is_resampled else "drawn from p, after a full block"
        flags = Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap
        draw_text(painter, QRectF(x + 4, bars, column - 8, verdict - bars), said, theme.text, flags, pixels=SMALL)
        place = QRectF(x, verdict, column, end - verdict)
        draw_text(painter, place, f"+ {style.label}", style.color, flags, pixels=SMALL, is_strong=True)


def _draw_chip(painter: QPainter, column: QRectF, text: str, ink: str, fate: Fate | None) -> None:
    place = column.adjusted(3, 1, -3, -1)
    style = Qt.PenStyle.DashLine if fate is Fate.UNTESTED else Qt.PenStyle.SolidLine
    draw_box(painter, place, 5, fill=QColor(current_theme().field), line=QPen(QColor(ink), 1, style))
    font = mono_font(13)
    # Frame and verdict say it, too.
    font.setStrikeOut(fate is Fate.REJECTED and not is_level(text))
    font.setItalic(fate is Fate.UNTESTED)
    painter.setFont(font)
    shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, int(place.width() - 8))
    painter.setPen(QColor(ink))
    painter.drawText(place, CENTRE, shown)


def _draw_bars(painter: QPainter, column: QRectF, slot: Slot, most: float, line: float) -> None:
    theme, half, bar, bottom = current_theme(), column.width() / 2, scaled(14), column.bottom()
    painter.setPen(QPen(QColor(theme.border), 1))
    painter.drawLine(QPointF(column.left() + 6, bottom), QPointF(column.right() - 6, bottom))
    for name, share, color, x in (
        ("q", slot.draft_prob, theme.draft_bar, column.left()),
        ("p", slot.target_prob, theme.target_bar, column.left() + half),
    ):
        filled = max(1.0, column.height() * share / most)
        draw_box(painter, QRectF(x + half / 2 - bar / 2, bottom - filled, bar, filled), 2, fill=QColor(color))
        draw_text(painter, QRectF(x, bottom + 2, half, line), f"{name} {_share(share)}", theme.text, pixels=SMALL)


def _draw_test(painter: QPainter, track: QRectF, slot: Slot, ink: str, line: float) -> None:
    theme, is_tested = current_theme(), slot.fate is not Fate.UNTESTED
    draw_box(painter, track, 3, fill=QColor(theme.track), line=QPen(QColor(theme.field_border), 1))
    color = QColor(ink)
    color.setAlphaF(0.8 if is_tested else 0.35)
    filled = QRectF(track.left(), track.top(), track.width() * slot.acceptance, track.height())
    draw_box(painter, filled, 3, fill=color)
    if slot.uniform is None or not is_tested:
        return
    x, tip, size = track.left() + track.width() * slot.uniform, track.bottom() - 1, scaled(5)
    painter.setBrush(QColor(theme.text))
    painter.drawPolygon(QPolygonF([QPointF(x, tip - 2), QPointF(x - size, tip + size), QPointF(x + size, tip + size)]))
    place = QRectF(track.left() - 8, tip + size, track.width() + 16, line)
    draw_text(painter, place, f"u = {_share(slot.uniform)}", theme.text, pixels=SMALL)


def _share(value: float) -> str:
    """A probability as text of at most five characters."""
    if 0 < value < 0.005:
        return "<0.01"
    if 0.995 <= value < 1:
        return ">0.99"
    return f"{value:.2f}" if value < 1 else "1"
