"""Plots as SVG, made of a few numbers: axes with units, round ticks, a title and a description for who can't see them.

Colours are the page's: each mark names a token of the palette, and has a line style or a shape beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from core.export.page import attribute, escaped

WIDTH, HEIGHT = 760, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 46
MAX_POINTS = 400
"""No line has more: that is more than a screen shows of it, and keeps a long run's report small."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """How a series looks: a token of the palette, and a dash pattern that is its sign without colour."""

    name: str
    color: str
    dash: str = ""
    is_area: bool = False
    is_dots: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A title with its unit, the range, and how a tick is written."""

    title: str
    low: float = 0.0
    high: float = 1.0
    text: Callable[[float], str] = "{:,.6g}".format
    is_whole: bool = False
    num_ticks: int = 6

    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        return nice_ticks(self.low, self.high, self.num_ticks, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class Words:
    """What a plot is, for everybody: the title, and what can be read off it."""

    id: str
    title: str
    description: str


# --- Numbers ----------------------------------------------------------------------------------------------------


def nice_ticks(low: float, high: float, count: int = 6, *, is_whole: bool = False) -> list[float]:
    """About so many multiples of 1, 2 or 5 times a power of ten within a range; whole ones if need be."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    if is_whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def percent(value: float) -> str:
    """A share."""
    return f"{value * 100:.0f}"


def headroom(values: Sequence[float], least: float = 0.0) -> float:
    """An axis's end a little beyond the largest value; what is no number does not count."""
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    return max(largest * 1.06, least) or 1.0


def binned(values: Sequence[float], limit: int = MAX_POINTS) -> tuple[int, list[float]]:
    """Means over equal bins, so few that a plot can show each; how wide a bin is, and the means (NaN of none)."""
    width = max(1, math.ceil(len(values) / limit))
    means = []
    for begin in range(0, len(values), width):
        known = [value for value in values[begin : begin + width] if math.isfinite(value)]
        means.append(sum(known) / len(known) if known else math.nan)
    return width, means


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Every so many of the points, and the last."""
    every = max(1, math.ceil(len(points) / limit))
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


# --- Drawing ----------------------------------------------------------------------------------------------------


class Plot:
    """An SVG that is drawn mark by mark over two axes."""

    def __init__(self, words: Words, x: Axis, y: Axis) -> None:
        self._words, self._x, self._y = words, x, y
        self._parts: list[str] = []
        self._axes()

    def at(self, x: float, y: float) -> Point:
        """Where a point of the data lies, in the picture's units."""
        across = (x - self._x.low) / ((self._x.high - self._x.low) or 1.0)
        up = (y - self._y.low) / ((self._y.high - self._y.low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[Point], mark: Mark) -> None:
        """A line that is broken where a value is no number."""
        path = " ".join("M" + "L".join(_pair(*self.at(x, y)) for x, y in run) for run in _runs(points) if len(run) > 1)
        if path:
            self._parts.append(
                f'<path d="{path}" fill="none" stroke="var(--{mark.color})" stroke-width="2" '
                f'stroke-linejoin="round"{_dash(mark)}/>'
            )
        for run in _runs(points):
            if len(run) == 1:
                self.dots(run, mark)

    def level(self, y: float, mark: Mark) -> None:
        """A line right across."""
        self.line([(self._x.low, y), (self._x.high, y)], mark)

    def dots(self, points: Sequence[Point], mark: Mark, tips: Sequence[str] = ()) -> None:
        """A dot a point."""
        for place, (x, y) in enumerate(points):
            tip = tips[place] if place < len(tips) else ""
            if math.isfinite(y):
                across, down = self.at(x, y)
                circle = f'cx="{_short(across)}" cy="{_short(down)}" r="3" fill="var(--{mark.color})"'
                self._parts.append(f"<circle {circle}>{_tip(tip)}</circle>" if tip else f"<circle {circle}/>")

    def stairs(self, lower: Sequence[float], upper: Sequence[float], width: float, mark: Mark) -> None:
        """The area between two staircases of steps of this width, from 0 on."""
        for first, last in _spans(upper):
            over = "".join(
                f"{'L' if place > first else 'M'}{_pair(*self.at(place * width, upper[place]))}"
                f"H{_short(self.at(min((place + 1) * width, self._x.high), 0)[0])}"
                for place in range(first, last)
            )
            under = "".join(
                f"L{_pair(*self.at(min((place + 1) * width, self._x.high), lower[place]))}"
                f"H{_short(self.at(place * width, 0)[0])}"
                for place in reversed(range(first, last))
            )
            self._parts.append(f'<path d="{over}{under}Z" fill="var(--{mark.color})"/>')

    def bar(self, x: float, height: float, width: float, mark: Mark, tip: str) -> None:
        """A bar around a place of the x axis."""
        left, top = self.at(x - width / 2, max(height, 0.0))
        right, base = self.at(x + width / 2, self._y.low)
        size = f'width="{_short(right - left)}" height="{_short(max(base - top, 0.0))}"'
        self._parts.append(
            f'<rect x="{_short(left)}" y="{_short(top)}" {size} fill="var(--{mark.color})">{_tip(tip)}</rect>'
        )

    def whisker(self, x: float, low: float, high: float) -> None:
        """An interval."""
        (across, bottom), (_, top) = self.at(x, low), self.at(x, high)
        at, ends = _short(across), (_short(top), _short(bottom))
        beams = "".join(f"M{_short(across - 4)} {end}h8" for end in ends)
        self._parts.append(f'<path d="M{at} {ends[0]}V{ends[1]}{beams}" class="axis" fill="none"/>')

    def svg(self) -> str:
        """The picture."""
        words = self._words
        return "\n".join(
            (
                f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{words.id}-t {words.id}-d">',
                f'<title id="{words.id}-t">{escaped(words.title)}</title>',
                f'<desc id="{words.id}-d">{escaped(words.description)}</desc>',
                *self._parts,
                "</svg>",
            )
        )

    def _axes(self) -> None:
        left, right = LEFT, WIDTH - RIGHT
        base = HEIGHT - BOTTOM
        for tick in self._y.ticks():
            _, down = self.at(self._x.low, tick)
            self._parts.append(f'<path d="M{left} {_short(down)}H{right}" class="grid"/>')
            self._text(left - 7, down + 4, self._y.text(tick), "end")
        for tick in self._x.ticks():
            across, _ = self.at(tick, self._y.low)
            self._parts.append(f'<path d="M{_short(across)} {base}v4" class="axis"/>')
            self._text(across, base + 18, self._x.text(tick), "middle")
        self._parts.append(f'<path d="M{left} {base}H{right}" class="axis"/>')
        self._text((left + right) / 2, HEIGHT - 8, self._x.title, "middle")
        middle = (TOP + base) / 2
        self._parts.append(
            f'<text transform="translate(13 {_short(middle)}) rotate(-90)" text-anchor="middle">'
            f"{escaped(self._y.title)}</text>"
        )

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self._parts.append(f'<text x="{_short(x)}" y="{_short(y)}" text-anchor="{anchor}">{escaped(text)}</text>')


def figure(plot: Plot, words: Words, marks: Sequence[Mark]) -> str:
    """A plot with its title, its legend and what it says, as a part of a page."""
    keys = "".join(f'<span class="key">{_sample(mark)}{escaped(mark.name)}</span>' for mark in marks)
    return (
        f"<figure>\n<figcaption><b>{escaped(words.title)}</b>{escaped(words.description)}"
        f'<div class="legend">{keys}</div></figcaption>\n{plot.svg()}\n</figure>'
    )


def _sample(mark: Mark) -> str:
    color = f"var(--{mark.color})"
    if mark.is_area:
        inside = f'<rect width="22" height="10" rx="2" fill="{color}"/>'
    elif mark.is_dots:
        inside = f'<circle cx="11" cy="5" r="3.5" fill="{color}"/>'
    else:
        inside = f'<path d="M0 5H22" stroke="{color}" stroke-width="2"{_dash(mark)}/>'
    return f'<svg viewBox="0 0 22 10" aria-hidden="true">{inside}</svg>'


def _dash(mark: Mark) -> str:
    return f' stroke-dasharray="{attribute(mark.dash)}"' if mark.dash else ""


def _tip(text: str) -> str:
    return f"<title>{escaped(text)}</title>"


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    for is_there, run in itertools.groupby(points, key=lambda point: math.isfinite(point[0] + point[1])):
        if is_there:
            yield list(run)


def _spans(values: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Where values stand without a gap, from and up to."""
    for is_there, run in itertools.groupby(range(len(values)), key=lambda place: math.isfinite(values[place])):
        places = list(run)
        if is_there:
            yield places[0], places[-1] + 1


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _pair(x: float, y: float) -> str:
    return f"{_short(x)} {_short(y)}"
