"""Which figure a heatmap shows, and which shade a value of it gets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from core.bench.statistics import Spread
from core.figures import percent_text
from core.sweep.types import CellResult


class SweepFigure(StrEnum):
    """The value is the attribute of a `CellResult`."""

    SPEEDUP = "speedup"
    ACCEPTANCE = "draft_acceptance_rate"
    TOKENS = "tokens_per_second"
    BLOCK = "block_efficiency"


FIGURE_TITLES = {
    SweepFigure.SPEEDUP: "Speedup",
    SweepFigure.ACCEPTANCE: "Acceptance",
    SweepFigure.TOKENS: "Tokens/s",
    SweepFigure.BLOCK: "Block efficiency",
}
FIGURE_HELP = {
    SweepFigure.SPEEDUP: "Tokens per second against plain decoding of the same prompt and temperature, the run nearest "
    "in time. Above 1× drafting pays. Median over prompts and repeats.",
    SweepFigure.ACCEPTANCE: "Accepted / drafted tokens. Median over prompts and repeats.",
    SweepFigure.TOKENS: "New tokens / seconds of model work, the prompt's forward left out. Median over prompts and "
    "repeats.",
    SweepFigure.BLOCK: "New tokens / forwards of the target; 1 is plain decoding, K + 1 the most there can be. Median "
    "over prompts and repeats.",
}
LEGENDS = {
    SweepFigure.SPEEDUP: "Speedup over plain decoding, logarithmic",
    SweepFigure.ACCEPTANCE: "Accepted / drafted tokens",
    SweepFigure.TOKENS: "Tokens per second",
    SweepFigure.BLOCK: "Tokens per target forward",
}
_ENDS = {
    SweepFigure.SPEEDUP: (" slower", " faster"),
    SweepFigure.ACCEPTANCE: ("", ""),
    SweepFigure.TOKENS: ("", " tokens/s"),
    SweepFigure.BLOCK: ("", " tokens/forward"),
}
"""What stands behind the figures at the ends of a scale."""
_LIMITS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
"""Ends of the scale of speedups, on both sides of 1."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to shades.

    Attributes:
        figure: of which.
        low, high: values at its ends.
    """

    figure: SweepFigure
    low: float
    high: float

    @property
    def is_diverging(self) -> bool:
        """Whether it has a middle, from which it goes two ways."""
        return self.figure is SweepFigure.SPEEDUP

    def level(self, value: float) -> float:
        """The shade of a value: from 0 to 1, or from -1 to 1 where the scale goes two ways."""
        if self.is_diverging:
            share = math.log(max(value, 1e-9)) / math.log(self.high)
            return min(max(share, -1.0), 1.0)
        if self.high <= self.low:
            return 0.5
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """What stands along it: shades and values."""
        values = (self.low, 1.0, self.high) if self.is_diverging else (self.low, self.high)
        low, *rest = [figure_text(self.figure, value) for value in dict.fromkeys(values)]
        first, last = _ENDS[self.figure]
        texts = [f"{low}{first if rest else last}", *(f"{text}{last if text is rest[-1] else ''}" for text in rest)]
        return tuple(zip((self.level(value) for value in dict.fromkeys(values)), texts, strict=True))


def make_scale(figure: SweepFigure, results: Iterable[CellResult]) -> Scale:
    """The scale that all these fit on."""
    values = [spread.median for result in results if (spread := spread_of(figure, result)) is not None]
    if figure is SweepFigure.SPEEDUP:
        most = max((abs(math.log(value)) for value in values if value > 0), default=0.0)
        limit = next((limit for limit in _LIMITS if math.log(limit) >= most), _LIMITS[-1])
        return Scale(figure, 1 / limit, limit)
    if figure is SweepFigure.ACCEPTANCE:
        return Scale(figure, 0.0, 1.0)
    low = 1.0 if figure is SweepFigure.BLOCK else min(values, default=0.0)
    return Scale(figure, low, max(values, default=low))


def spread_of(figure: SweepFigure, result: CellResult) -> Spread | None:
    """What a cell has of a figure."""
    found: Spread | None = getattr(result, figure.value)
    return found


def figure_text(figure: SweepFigure, value: float) -> str:
    """A figure as it is written, with its unit where that is short."""
    if figure is SweepFigure.SPEEDUP:
        return f"{value:.2f}×"
    if figure is SweepFigure.ACCEPTANCE:
        return percent_text(value)
    return f"{value:.1f}" if figure is SweepFigure.TOKENS else f"{value:.2f}"


def spread_text(figure: SweepFigure, spread: Spread) -> str:
    """A median with its quartiles."""
    low, high = (figure_text(figure, value) for value in spread.quartiles)
    return f"{figure_text(figure, spread.median)} ({low} to {high})"
