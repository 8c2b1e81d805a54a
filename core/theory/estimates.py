"""Figures with their intervals. No numpy here, for the command line reads these before it knows its command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval over resampled steps; without one where there are too few of them."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure for each K from 0 to 16, with its 95 % interval where there is one."""

    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def at(self, num_draft_tokens: int) -> Estimate:
        """The figure at a K."""
        k = num_draft_tokens
        return Estimate(self.values[k], self.low[k], self.high[k]) if self.low else Estimate(self.values[k])

    @property
    def best(self) -> int:
        """The K with the highest value, the smallest of several."""
        return max(range(len(self.values)), key=lambda k: (self.values[k], -k))
