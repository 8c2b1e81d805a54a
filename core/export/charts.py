"""Draws the reports' SVG charts, with units, round ticks, and a title and description for screen readers.

Colours are names from the style sheet's palette; every series also has a dash pattern or a shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from core.export.templates import escaped

WIDTH, HEIGHT = 760, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 46
MAX_POINTS = 400
"""Most points in a line, which keeps a long run's report small."""
DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "1 3")
COLOURS = ("run_1", "run_2", "run_3", "run_4", "run_5", "run_6")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """How a series looks: a colour of the palette, and a dash pattern or shape that identifies it without colour."""

    name: str
    color: str
    dash: str = ""
    is_area: bool = False
    is_dots: bool = False


def series_mark(name: str, index: int) -> Mark:
    """The mark of one of several similar series."""
    return Mark(name, COLOURS[index % len(COLOURS)], DASHES[(index + index // len(COLOURS)) % len(DASHES)])


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title with the unit, its range, and its ticks' format."""

    title: str
    low: float = 0.0
    high: float = 1.0
    text: Callable[[float], str] = "{:,.6g}".format
    is_whole: bool = False
    num_ticks: int = 6


# --- Numbers ----------------------------------------------------------------------------------------------------


def nice_ticks(low: float, high: float, count: int = 6, *, is_whole: bool = False) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten within a range; only whole ones if `is_whole`."""
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
    """A share in per cent, without the sign."""
    return f"{value * 100:.0f}"


def headroom(values: Sequence[float], least: float = 0.0) -> float:
    """The end of an axis, a little beyond the largest finite value."""
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    return max(largest * 1.06, least) or 1.0


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Every n-th point, and the last."""
    every = max(1, math.ceil(len(points) / limit))
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


# --- Drawing ----------------------------------------------------------------------------------------------------


class Plot:
    """An SVG picture, drawn mark by mark over two axes. `id` is unique within the page."""

    def __init__(self, id: str, title: str, description: str, x: Axis, y: Axis) -> None:
        self._id, self._title, self._description = id, escaped(title), escaped(description)
        self._x, self._y = x, y
        self._parts: list[str] = []
        self._axes()

    def line(self, points: Sequence[Point], mark: Mark) -> None:
        """A line with gaps at non-finite values."""
        runs = [list(run) for known, run in itertools.groupby(points, lambda p: math.isfinite(p[0] + p[1])) if known]
        path = " ".join(self._path(run) for run in runs if len(run) > 1)
        if path:
            self._parts.append(
                f'<path d="{path}" fill="none" stroke="var(--{mark.color})" stroke-width="2" '
                f'stroke-linejoin="round"{_dash(mark)}/>'
            )
        for run in runs:
            if len(run) == 1:
                self.dots(run, mark)

    def level(self, y: float, mark: Mark) -> None:
        """A horizontal line across the whole plot."""
        self.line([(self._x.low, y), (self._x.high, y)], mark)

    def dots(self, points: Sequence[Point], mark: Mark, tips: Sequence[str] = ()) -> None:
        """One dot per point, each with a tooltip if there are tips."""
        for index, (x, y) in enumerate(points):
            tip = tips[index] if tips else ""
            if math.isfinite(y):
                across, down = self._at(x, y)
                circle = f'<circle cx="{_short(across)}" cy="{_short(down)}" r="3" fill="var(--{mark.color})"'
                self._parts.append(f"{circle}><title>{escaped(tip)}</title></circle>" if tip else f"{circle}/>")

    def stairs(self, lower: Sequence[float], upper: Sequence[float], width: float, mark: Mark) -> None:
        """The area between two staircases whose steps have this width, starting at 0."""
        for is_finite, stretch in itertools.groupby(range(len(upper)), lambda index: math.isfinite(upper[index])):
            if not is_finite:
                continue
            ends = [(index, index * width, min((index + 1) * width, self._x.high)) for index in stretch]
            over = [(x, upper[index]) for index, left, right in ends for x in (left, right)]
            under = [(x, lower[index]) for index, left, right in reversed(ends) for x in (right, left)]
            self._parts.append(f'<path d="{self._path([*over, *under])}Z" fill="var(--{mark.color})"/>')

    def bar(self, x: float, height: float, width: float, mark: Mark, tip: str) -> None:
        """A bar centred at x."""
        left, top = self._at(x - width / 2, max(height, 0.0))
        right, base = self._at(x + width / 2, self._y.low)
        size = f'width="{_short(right - left)}" height="{_short(max(base - top, 0.0))}"'
        self._parts.append(
            f'<rect x="{_short(left)}" y="{_short(top)}" {size} fill="var(--{mark.color})">'
            f"<title>{escaped(tip)}</title></rect>"
        )

    def whisker(self, x: float, low: float, high: float) -> None:
        """An interval."""
        (across, bottom), (_, top) = self._at(x, low), self._at(x, high)
        beams = "".join(f"M{_short(across - 4)} {_short(end)}h8" for end in (top, bottom))
        self._parts.append(f'<path d="M{_pair(across, top)}V{_short(bottom)}{beams}" class="axis" fill="none"/>')

    def figure(self, marks: Sequence[Mark]) -> Markup:
        """The picture with its title, description and legend."""
        keys = "".join(f'<span class="key">{_sample(mark)}{escaped(mark.name)}</span>' for mark in marks)
        parts = "\n".join(self._parts)
        return Markup(
            f'<figure>\n<figcaption><b>{self._title}</b>{self._description}<div class="legend">{keys}</div>'
            f'</figcaption>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{self._id}-t '
            f'{self._id}-d">\n<title id="{self._id}-t">{self._title}</title>\n'
            f'<desc id="{self._id}-d">{self._description}</desc>\n{parts}\n</svg>\n</figure>'
        )

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(_pair(*self._at(x, y)) for x, y in points)

    def _at(self, x: float, y: float) -> Point:
        across = (x - self._x.low) / ((self._x.high - self._x.low) or 1.0)
        up = (y - self._y.low) / ((self._y.high - self._y.low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def _axes(self) -> None:
        right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
        x, y = self._x, self._y
        for tick in nice_ticks(y.low, y.high, y.num_ticks, is_whole=y.is_whole):
            _, down = self._at(x.low, tick)
            self._parts.append(f'<path d="M{LEFT} {_short(down)}H{right}" class="grid"/>')
            self._text(LEFT - 7, down + 4, y.text(tick), "end")
        for tick in nice_ticks(x.low, x.high, x.num_ticks, is_whole=x.is_whole):
            across, _ = self._at(tick, y.low)
            self._parts.append(f'<path d="M{_short(across)} {base}v4" class="axis"/>')
            self._text(across, base + 18, x.text(tick), "middle")
        self._parts.append(f'<path d="M{LEFT} {base}H{right}" class="axis"/>')
        self._text((LEFT + right) / 2, HEIGHT - 8, x.title, "middle")
        self._parts.append(
            f'<text transform="translate(13 {_short((TOP + base) / 2)}) rotate(-90)" text-anchor="middle">'
            f"{escaped(y.title)}</text>"
        )

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self._parts.append(f'<text x="{_short(x)}" y="{_short(y)}" text-anchor="{anchor}">{escaped(text)}</text>')


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
    return f' stroke-dasharray="{mark.dash}"' if mark.dash else ""


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _pair(x: float, y: float) -> str:
    return f"{_short(x)} {_short(y)}"
