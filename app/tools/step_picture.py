"""The picture of one step: drafted tokens as chips, q and p as bars, and u against min(1, p / q)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme import LIGHT, RESOURCES, Theme, mono_font, scaled, ui_font
from core.runlog.replay import step_from_record
from core.types import Step, TokenKind

MOST_SLOTS = 5
"""Drafted tokens that a picture has room for; what lies behind is said in a word."""
EXAMPLE = RESOURCES / "help" / "example_step.json"
VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", " ": "·"})


class Verdict(StrEnum):
    """What became of a drafted token. On screen as it stands."""

    KEPT = "kept"
    REJECTED = "rejected"
    UNTESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Slot:
    """A drafted token with its test. `uniform` is None where the coupling draws none."""

    text: str
    draft_prob: float
    target_prob: float
    acceptance: float
    uniform: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StepPicture:
    """A step.

    Attributes:
        caption: where it is from.
        num_hidden: drafted tokens beyond the picture's room.
        next_text, next_kind: the token that followed; None where the text ended within the block.
    """

    caption: str
    slots: tuple[Slot, ...]
    num_hidden: int
    next_text: str | None
    next_kind: TokenKind

    @property
    def words(self) -> str:
        """The picture for who can't see it."""
        said = [f"{slot.text!r} {slot.verdict.value}" for slot in self.slots]
        if self.next_text is not None:
            kind = "resampled" if self.next_kind is TokenKind.CORRECTION else "bonus"
            said.append(f"then {self.next_text!r}, {kind}")
        return f"{self.caption}: {', '.join(said)}."


def picture_of(steps: Sequence[Step]) -> StepPicture:
    """The latest step that shows most; a recorded one where there is none."""
    shown = next((step for step in reversed(steps) if _shows_all(step)), None)
    shown = shown or next((step for step in reversed(steps) if _is_whole(step)), None)
    if shown is None:
        return example()
    return _picture(shown, f"Step {shown.index} of this run")


def example() -> StepPicture:
    """A step of the embedded pair, recorded."""
    step = step_from_record(json.loads(EXAMPLE.read_text("utf-8"))["step"])
    if step is None:
        raise ValueError(f"{EXAMPLE} holds no step.")
    return _picture(step, "A step of the pair that ships with Outrider")


def _is_whole(step: Step) -> bool:
    figures = (*step.draft_probs, *step.target_probs, *step.acceptance_probs)
    return bool(step.drafted) and len(figures) == 3 * len(step.drafted) and all(map(math.isfinite, figures))


def _shows_all(step: Step) -> bool:
    """Whether it has a kept, a rejected and a resampled token, and fits."""
    is_resampled = bool(step.emitted_kinds) and step.emitted_kinds[-1] is TokenKind.CORRECTION
    return is_resampled and step.num_accepted > 0 and len(step.drafted) <= MOST_SLOTS and _is_whole(step)


def _picture(step: Step, caption: str) -> StepPicture:
    is_rejected = TokenKind.CORRECTION in step.emitted_kinds
    slots = tuple(
        Slot(
            text=step.drafted_texts[place].translate(VISIBLE),
            draft_prob=step.draft_probs[place],
            target_prob=step.target_probs[place],
            acceptance=step.acceptance_probs[place],
            uniform=step.uniforms[place] if step.uniforms else None,
            verdict=_verdict(place, step.num_accepted, is_rejected=is_rejected),
        )
        for place in range(min(len(step.drafted), MOST_SLOTS))
    )
    has_next = bool(step.emitted_kinds) and step.emitted_kinds[-1] is not TokenKind.ACCEPTED
    return StepPicture(
        caption=caption,
        slots=slots,
        num_hidden=len(step.drafted) - len(slots),
        next_text=step.emitted_texts[-1].translate(VISIBLE) if has_next else None,
        next_kind=step.emitted_kinds[-1] if step.emitted_kinds else TokenKind.BONUS,
    )


def _verdict(place: int, num_accepted: int, *, is_rejected: bool) -> Verdict:
    if place < num_accepted:
        return Verdict.KEPT
    return Verdict.REJECTED if is_rejected and place == num_accepted else Verdict.UNTESTED


LABELS = 74
"""Width of the words at the left."""
CHIP, BARS, TRACK, WIDEST = 26, 52, 8, 128
MARKS = {Verdict.KEPT: "✓", Verdict.REJECTED: "✗", Verdict.UNTESTED: "–"}
CENTRE = Qt.AlignmentFlag.AlignCenter


class StepPictureView(QWidget):
    """Paints a `StepPicture`; a column a token, a row a stage of the method."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("stepPicture")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._theme = LIGHT
        self._picture: StepPicture | None = None
        self._scale = 1.0

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.updateGeometry()
        self.update()

    def show_picture(self, picture: StepPicture) -> None:
        """Show a step."""
        self._picture = picture
        # Where all are improbable, bars of the full height would be too low to compare.
        self._scale = max((max(slot.draft_prob, slot.target_prob) for slot in picture.slots), default=1.0) or 1.0
        self.setAccessibleName("One step in a picture")
        self.setAccessibleDescription(picture.words)
        self.update()

    @property
    def picture(self) -> StepPicture | None:
        """What is shown."""
        return self._picture

    def sizeHint(self) -> QSize:
        """Room for six columns."""
        return QSize(scaled(LABELS) + 6 * scaled(84), self._rows()[-1])

    def minimumSizeHint(self) -> QSize:
        """Columns can be narrower than they like to be."""
        return QSize(scaled(LABELS) + 6 * scaled(56), self._rows()[-1])

    def _rows(self) -> tuple[int, int, int, int, int]:
        """Where chips, bars, tests and verdicts begin, and where all ends."""
        line = QFontMetrics(ui_font(11)).height()
        bars = scaled(CHIP) + 12
        test = bars + scaled(BARS) + line + 14
        verdict = test + scaled(TRACK) + line + 14
        return 0, bars, test, verdict, verdict + 2 * line + 4

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the step."""
        if self._picture is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left = scaled(LABELS)
        count = len(self._picture.slots) + (self._picture.next_text is not None)
        width = min(scaled(WIDEST), (self.width() - left) / max(1, count))
        self._draw_labels(painter)
        for index, slot in enumerate(self._picture.slots):
            self._draw_slot(painter, slot, left + index * width, width)
        if self._picture.next_text is not None:
            self._draw_next(painter, self._picture, left + len(self._picture.slots) * width, width)
        painter.end()

    def _draw_labels(self, painter: QPainter) -> None:
        chips, bars, test, verdict, _ = self._rows()
        painter.setFont(ui_font(11))
        line = painter.fontMetrics().height()
        for top, height, text in (
            (chips, scaled(CHIP), "drafted"),
            (bars, scaled(BARS), "q and p"),
            (test - 5, scaled(TRACK) + 10, "p / q and u"),
            (verdict, line, "verdict"),
        ):
            self._write(
                painter, QRectF(0, top, scaled(LABELS), height), text, self._theme.muted, Qt.AlignmentFlag.AlignVCenter
            )

    def _draw_slot(self, painter: QPainter, slot: Slot, left: float, width: float) -> None:
        theme = self._theme
        chips, bars, test, verdict, end = self._rows()
        ink = {
            Verdict.KEPT: theme.accepted,
            Verdict.REJECTED: theme.correction,
            Verdict.UNTESTED: theme.faint,
        }[slot.verdict]
        self._chip(painter, QRectF(left + 3, chips + 1, width - 6, scaled(CHIP) - 2), slot.text, ink, slot.verdict)
        self._bars(painter, slot, left, width, bars)
        self._test(painter, slot, QRectF(left + 8, test, width - 16, scaled(TRACK)), ink)
        painter.setFont(ui_font(11, weight=QFont.Weight.DemiBold))
        place = QRectF(left, verdict, width, painter.fontMetrics().height())
        self._write(painter, place, f"{MARKS[slot.verdict]} {slot.verdict.value}", ink, CENTRE)
        painter.setFont(ui_font(11))
        if slot.uniform is not None and slot.verdict is not Verdict.UNTESTED:
            relation = "<" if slot.verdict is Verdict.KEPT else "≥"
            place = QRectF(left, place.bottom() + 2, width, end - place.bottom())
            self._write(
                painter, place, f"u {relation} {_share(slot.acceptance)}", theme.muted, Qt.AlignmentFlag.AlignHCenter
            )

    def _chip(self, painter: QPainter, place: QRectF, text: str, ink: str, verdict: Verdict | None) -> None:
        painter.setBrush(QColor(self._theme.field))
        pen = QPen(QColor(ink), 1)
        if verdict is Verdict.UNTESTED:
            pen.setStyle(Qt.PenStyle.DashLine)
        painter.setPen(pen)
        painter.drawRoundedRect(place, 5, 5)
        font = mono_font(13)
        font.setStrikeOut(verdict is Verdict.REJECTED)
        painter.setFont(font)
        shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, int(place.width() - 8))
        self._write(painter, place, shown, ink, CENTRE)

    def _bars(self, painter: QPainter, slot: Slot, left: float, width: float, top: int) -> None:
        theme, height, bar = self._theme, scaled(BARS), scaled(14)
        painter.setFont(ui_font(11))
        line = painter.fontMetrics().height()
        half = width / 2
        painter.setPen(QPen(QColor(theme.border), 1))
        painter.drawLine(QPointF(left + 6, top + height), QPointF(left + width - 6, top + height))
        for name, share, color, x in (
            ("q", slot.draft_prob, theme.draft_bar, left),
            ("p", slot.target_prob, theme.target_bar, left + half),
        ):
            filled = max(1.0, height * share / self._scale)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(color))
            painter.drawRoundedRect(QRectF(x + half / 2 - bar / 2, top + height - filled, bar, filled), 2, 2)
            self._write(painter, QRectF(x, top + height + 2, half, line), f"{name} {_share(share)}", theme.text, CENTRE)

    def _test(self, painter: QPainter, slot: Slot, track: QRectF, ink: str) -> None:
        theme = self._theme
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.track))
        painter.drawRoundedRect(track, 3, 3)
        color = QColor(ink)
        color.setAlphaF(0.35 if slot.verdict is Verdict.UNTESTED else 0.8)
        painter.setBrush(color)
        painter.drawRoundedRect(
            QRectF(track.left(), track.top(), track.width() * slot.acceptance, track.height()), 3, 3
        )
        if slot.uniform is None or slot.verdict is Verdict.UNTESTED:
            return
        x = track.left() + track.width() * slot.uniform
        painter.setBrush(QColor(theme.text))
        tip, size = track.bottom() - 1, scaled(5)
        painter.drawPolygon(
            QPolygonF([QPointF(x, tip - 2), QPointF(x - size, tip + size), QPointF(x + size, tip + size)])
        )
        painter.setFont(ui_font(11))
        line = painter.fontMetrics().height()
        place = QRectF(track.left() - 8, tip + size, track.width() + 16, line)
        self._write(painter, place, f"u = {_share(slot.uniform)}", theme.text, CENTRE)

    def _draw_next(self, painter: QPainter, picture: StepPicture, left: float, width: float) -> None:
        theme = self._theme
        chips, bars, _, verdict, end = self._rows()
        is_resampled = picture.next_kind is TokenKind.CORRECTION
        style = theme.kind(picture.next_kind)
        self._chip(
            painter,
            QRectF(left + 3, chips + 1, width - 6, scaled(CHIP) - 2),
            picture.next_text or "",
            style.color,
            None,
        )
        painter.setFont(ui_font(11))
        flags = Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap
        said = "drawn in its place, from max(0, p − q)" if is_resampled else "drawn from p, behind a whole block"
        painter.setPen(QColor(theme.text))
        painter.drawText(QRectF(left + 4, bars, width - 8, verdict - bars), flags, said)
        painter.setFont(ui_font(11, weight=QFont.Weight.DemiBold))
        painter.setPen(QColor(style.color))
        painter.drawText(QRectF(left, verdict, width, end - verdict), flags, f"+ {style.label}")

    def _write(self, painter: QPainter, place: QRectF, text: str, ink: str, flags: Qt.AlignmentFlag) -> None:
        painter.setPen(QColor(ink))
        painter.drawText(place, flags, text)


def _share(value: float) -> str:
    """A probability in three characters or four."""
    if 0 < value < 0.005:
        return "<.01"
    if 0.995 <= value < 1:
        return ">.99"
    return f"{value:.2f}".removeprefix("0") if value < 1 else "1"
