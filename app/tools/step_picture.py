"""The picture of one step: drafted tokens as chips, q and p as bars, and u against min(1, p / q)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPolygonF

from app.theme import RESOURCES, Theme, mono_font, scaled, ui_font
from core.runlog.replay import step_from_record
from core.types import Step, TokenKind

# --- What is shown ---

MAX_SLOTS = 5
"""Maximum number of drafted tokens in a picture."""
EXAMPLE = RESOURCES / "help" / "example_step.json"
VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", " ": "·"})


class Verdict(StrEnum):
    """The outcome of a drafted token, as shown."""

    KEPT = "accepted"
    REJECTED = "rejected"
    UNTESTED = "not tested"


MARKS = {Verdict.KEPT: "✓", Verdict.REJECTED: "✗", Verdict.UNTESTED: "–"}


@dataclass(frozen=True, slots=True)
class Slot:
    """A drafted token with its test. `uniform` is None if the coupling draws none."""

    text: str
    draft_prob: float
    target_prob: float
    acceptance: float
    uniform: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StepPicture:
    """A step to draw.

    Attributes:
        caption: which step it is.
        num_hidden: number of drafted tokens that don't fit into the picture.
        next_text, next_kind: the token that followed; None if the text ended within the block.
    """

    caption: str
    slots: tuple[Slot, ...]
    num_hidden: int
    next_text: str | None
    next_kind: TokenKind

    @property
    def words(self) -> str:
        """The picture as a sentence, for assistive technology."""
        said = [f"{slot.text!r} {slot.verdict.value}" for slot in self.slots]
        if self.next_text is not None:
            kind = "resampled" if self.next_kind is TokenKind.CORRECTION else "bonus"
            said.append(f"then {self.next_text!r}, {kind}")
        return f"{self.caption}: {', '.join(said)}."


def picture_of(steps: Sequence[Step]) -> StepPicture:
    """The latest step that shows the whole method; else the latest that can be drawn; else a recorded one."""
    whole = [step for step in reversed(steps) if _is_whole(step)]
    shown = next((step for step in whole if _shows_all(step)), whole[0] if whole else None)
    return example() if shown is None else _picture(shown, f"Step {shown.index} of this run")


def example() -> StepPicture:
    """A recorded step of the embedded pair."""
    step = step_from_record(json.loads(EXAMPLE.read_text("utf-8"))["step"])
    if step is None:
        raise ValueError(f"{EXAMPLE} holds no step.")
    return _picture(step, "A step of the pair that comes with Outrider")


def _is_whole(step: Step) -> bool:
    figures = (*step.draft_probs, *step.target_probs, *step.acceptance_probs)
    return bool(step.drafted) and len(figures) == 3 * len(step.drafted) and all(map(math.isfinite, figures))


def _shows_all(step: Step) -> bool:
    is_resampled = bool(step.emitted_kinds) and step.emitted_kinds[-1] is TokenKind.CORRECTION
    return is_resampled and step.num_accepted > 0 and len(step.drafted) <= MAX_SLOTS


def _picture(step: Step, caption: str) -> StepPicture:
    rejected = step.num_accepted if TokenKind.CORRECTION in step.emitted_kinds else -1
    slots = tuple(
        Slot(
            text=step.drafted_texts[place].translate(VISIBLE),
            draft_prob=step.draft_probs[place],
            target_prob=step.target_probs[place],
            acceptance=step.acceptance_probs[place],
            uniform=step.uniforms[place] if step.uniforms else None,
            verdict=Verdict.KEPT
            if place < step.num_accepted
            else (Verdict.REJECTED if place == rejected else Verdict.UNTESTED),
        )
        for place in range(min(len(step.drafted), MAX_SLOTS))
    )
    last = step.emitted_kinds[-1] if step.emitted_kinds else TokenKind.ACCEPTED
    return StepPicture(
        caption=caption,
        slots=slots,
        num_hidden=len(step.drafted) - len(slots),
        next_text=None if last is TokenKind.ACCEPTED else step.emitted_texts[-1].translate(VISIBLE),
        next_kind=last,
    )


# --- Drawing ---

LABELS = 74
"""Width of the labels on the left."""
CHIP, BARS, TRACK = 26, 52, 8
MIN_COLUMN, MAX_COLUMN = 56, 128
CENTRE = Qt.AlignmentFlag.AlignCenter


def picture_size(picture: StepPicture, width: int) -> QSize:
    """The picture's size for this available width, but never too small to read."""
    count = len(picture.slots) + (picture.next_text is not None)
    least, most = (scaled(LABELS) + count * scaled(column) for column in (MIN_COLUMN, MAX_COLUMN))
    return QSize(max(least, min(width, most)), round(_rows()[-1]))


def _rows() -> tuple[float, float, float, float, float]:
    """Vertical positions of chips, bars, tests and verdicts, and of the end."""
    line = QFontMetrics(ui_font(11)).height()
    bars = scaled(CHIP) + 12
    test = bars + scaled(BARS) + line + 14
    verdict = test + scaled(TRACK) + line + 14
    return 0, bars, test, verdict, verdict + 2 * line + 4


def draw_step(painter: QPainter, picture: StepPicture, width: int, theme: Theme) -> None:
    """Draw a column for each token and a row for each stage of the method."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    _Drawing(painter, picture, width, theme).draw()


class _Drawing:
    def __init__(self, painter: QPainter, picture: StepPicture, width: int, theme: Theme) -> None:
        self._painter, self._picture, self._theme = painter, picture, theme
        count = len(picture.slots) + (picture.next_text is not None)
        self._width = (width - scaled(LABELS)) / max(1, count)
        self._chips, self._bars, self._test, self._verdict, self._end = _rows()
        self._line = QFontMetrics(ui_font(11)).height()
        # If all tokens are improbable, bars on a scale up to 1 would be too low to compare.
        self._most = max((max(slot.draft_prob, slot.target_prob) for slot in picture.slots), default=1.0) or 1.0

    def draw(self) -> None:
        left = scaled(LABELS)
        for top, height, text in (
            (self._chips, scaled(CHIP), "drafted"),
            (self._bars, scaled(BARS), "q and p"),
            (self._test - 5, scaled(TRACK) + 10, "p / q and u"),
            (self._verdict, self._line, "verdict"),
        ):
            place = QRectF(0, top, left, height)
            self._write(place, text, self._theme.muted, Qt.AlignmentFlag.AlignVCenter)
        for index, slot in enumerate(self._picture.slots):
            self._draw_slot(slot, left + index * self._width)
        if self._picture.next_text is not None:
            self._draw_next(self._picture.next_text, left + len(self._picture.slots) * self._width)

    def _draw_slot(self, slot: Slot, left: float) -> None:
        theme = self._theme
        colors = {Verdict.KEPT: theme.accepted, Verdict.REJECTED: theme.correction, Verdict.UNTESTED: theme.faint}
        ink = colors[slot.verdict]
        self._draw_chip(left, slot.text, ink, slot.verdict)
        self._draw_bars(slot, left)
        self._draw_test(slot, QRectF(left + 8, self._test, self._width - 16, scaled(TRACK)), ink)
        place = QRectF(left, self._verdict, self._width, self._line)
        self._write(place, f"{MARKS[slot.verdict]} {slot.verdict.value}", ink, is_strong=True)
        if slot.uniform is not None and slot.verdict is not Verdict.UNTESTED:
            relation = "<" if slot.verdict is Verdict.KEPT else "≥"
            place.translate(0, self._line + 2)
            self._write(place, f"u {relation} {_share(slot.acceptance)}", theme.muted)

    def _draw_chip(self, left: float, text: str, ink: str, verdict: Verdict | None) -> None:
        place = QRectF(left + 3, self._chips + 1, self._width - 6, scaled(CHIP) - 2)
        style = Qt.PenStyle.DashLine if verdict is Verdict.UNTESTED else Qt.PenStyle.SolidLine
        self._painter.setBrush(QColor(self._theme.field))
        self._painter.setPen(QPen(QColor(ink), 1, style))
        self._painter.drawRoundedRect(place, 5, 5)
        font = mono_font(13)
        font.setStrikeOut(verdict is Verdict.REJECTED)
        self._painter.setFont(font)
        shown = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, int(place.width() - 8))
        self._painter.setPen(QColor(ink))
        self._painter.drawText(place, CENTRE, shown)

    def _draw_bars(self, slot: Slot, left: float) -> None:
        theme, half, bar = self._theme, self._width / 2, scaled(14)
        bottom = self._bars + scaled(BARS)
        self._painter.setPen(QPen(QColor(theme.border), 1))
        self._painter.drawLine(QPointF(left + 6, bottom), QPointF(left + self._width - 6, bottom))
        for name, share, color, x in (
            ("q", slot.draft_prob, theme.draft_bar, left),
            ("p", slot.target_prob, theme.target_bar, left + half),
        ):
            filled = max(1.0, scaled(BARS) * share / self._most)
            self._fill(QRectF(x + half / 2 - bar / 2, bottom - filled, bar, filled), QColor(color), 2)
            self._write(QRectF(x, bottom + 2, half, self._line), f"{name} {_share(share)}", theme.text)

    def _draw_test(self, slot: Slot, track: QRectF, ink: str) -> None:
        theme, is_tested = self._theme, slot.verdict is not Verdict.UNTESTED
        self._fill(track, QColor(theme.track), 3)
        color = QColor(ink)
        color.setAlphaF(0.8 if is_tested else 0.35)
        self._fill(QRectF(track.left(), track.top(), track.width() * slot.acceptance, track.height()), color, 3)
        if slot.uniform is None or not is_tested:
            return
        x, tip, size = track.left() + track.width() * slot.uniform, track.bottom() - 1, scaled(5)
        self._painter.setBrush(QColor(theme.text))
        corners = [QPointF(x, tip - 2), QPointF(x - size, tip + size), QPointF(x + size, tip + size)]
        self._painter.drawPolygon(QPolygonF(corners))
        place = QRectF(track.left() - 8, tip + size, track.width() + 16, self._line)
        self._write(place, f"u = {_share(slot.uniform)}", theme.text)

    def _draw_next(self, text: str, left: float) -> None:
        style = self._theme.kind(self._picture.next_kind)
        self._draw_chip(left, text, style.color, None)
        is_resampled = self._picture.next_kind is TokenKind.CORRECTION
        said = "drawn in its place, from max(0, p − q)" if is_resampled else "drawn from p, after a whole block"
        flags = Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap
        place = QRectF(left + 4, self._bars, self._width - 8, self._verdict - self._bars)
        self._write(place, said, self._theme.text, flags)
        place = QRectF(left, self._verdict, self._width, self._end - self._verdict)
        self._write(place, f"+ {style.label}", style.color, flags, is_strong=True)

    def _fill(self, place: QRectF, color: QColor, radius: float) -> None:
        self._painter.setPen(Qt.PenStyle.NoPen)
        self._painter.setBrush(color)
        self._painter.drawRoundedRect(place, radius, radius)

    def _write(self, place: QRectF, text: str, ink: str, flags: int = CENTRE, *, is_strong: bool = False) -> None:
        self._painter.setFont(ui_font(11, weight=QFont.Weight.DemiBold if is_strong else QFont.Weight.Normal))
        self._painter.setPen(QColor(ink))
        self._painter.drawText(place, flags, text)


def _share(value: float) -> str:
    """A probability as text of three or four characters."""
    if 0 < value < 0.005:
        return "<.01"
    if 0.995 <= value < 1:
        return ">.99"
    return f"{value:.2f}".removeprefix("0") if value < 1 else "1"
