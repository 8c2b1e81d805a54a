"""The two tests of a law: Pearson's chi-squared, and how far it leans towards the draft."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_EXPECTED = 5.0
"""Cells that are expected less often are joined with others: below this the chi-squared law is a poor approximation."""


def chi_squared_p_value(statistic: float, degrees: int) -> float:
    """Survival function: how often a chi-squared variable of so many degrees of freedom is at least this large."""
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def normal_p_value(deviations: float) -> float:
    """How often a normal variable is at least this many standard deviations off, either way."""
    return math.erfc(abs(deviations) / math.sqrt(2.0))


@dataclass(frozen=True, slots=True)
class Fit:
    """Counts held against one distribution.

    Attributes:
        statistic, degrees: Pearson's.
        num_impossible: counts where the distribution has no mass.
    """

    statistic: float
    degrees: int
    num_impossible: int


def fit(counts: Mapping[int, int], law: Tensor, favoured: Tensor) -> Fit:
    """Goodness of fit, every token that is expected often enough in a cell of its own.

    Args:
        counts: how often each token came.
        law: (V,) float64 probabilities.
        favoured: (V,) bool, tokens that the draft likes better than the target does. The rare ones of these make one
            cell and the others another, because what a broken verifier moves, it moves between the two.
    """
    total = sum(counts.values())
    observed = torch.zeros_like(law)
    observed[list(counts)] = torch.tensor([float(count) for count in counts.values()], dtype=law.dtype)
    expected = total * law
    num_impossible = int(observed[law == 0].sum())
    often = expected >= LEAST_EXPECTED
    cells = [(float(seen), float(mean)) for seen, mean in zip(observed[often], expected[often], strict=True)]
    spare = (0.0, 0.0)
    for rare in (favoured & ~often & (law > 0), ~favoured & ~often & (law > 0)):
        cell = (spare[0] + float(observed[rare].sum()), spare[1] + float(expected[rare].sum()))
        spare = (0.0, 0.0)
        if cell[1] >= LEAST_EXPECTED:
            cells.append(cell)
        else:
            spare = cell
    if spare[1] > 0 and cells:
        least = min(range(len(cells)), key=lambda index: cells[index][1])
        cells[least] = (cells[least][0] + spare[0], cells[least][1] + spare[1])
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return Fit(statistic, max(len(cells) - 1, 0), num_impossible)


class Lean:
    """How much of the draft's own law shows in what was emitted.

    Tokens that the draft likes better than the target does come as often as the target says, in an exact engine; where
    the share x of the tokens were the draft's own, they would come more often by x times what the two differ there.
    """

    def __init__(self) -> None:
        self._surplus = 0.0
        self._difference = 0.0
        self._variance = 0.0
        self.num_samples = 0

    def add(self, counts: Mapping[int, int], law: Tensor, draft_law: Tensor) -> None:
        """Take in the tokens that came after one text.

        Args:
            counts: how often each token came.
            law: (V,) float64, the target's.
            draft_law: (V,) float64, the draft's.
        """
        favoured = draft_law > law
        mass = float(law[favoured].sum().clamp(0.0, 1.0))
        total = sum(counts.values())
        self.num_samples += total
        self._surplus += sum(count for token, count in counts.items() if favoured[token]) - total * mass
        self._difference += total * float((draft_law - law)[favoured].sum())
        self._variance += total * mass * (1.0 - mass)

    @property
    def is_known(self) -> bool:
        """Whether draft and target differ enough, and enough came, for an approximation by the normal law."""
        return self._variance >= 10.0 and self._difference > 0.01 * self.num_samples

    @property
    def deviations(self) -> float:
        """The lean in standard errors."""
        return self._surplus / math.sqrt(self._variance)

    @property
    def share(self) -> float:
        return self._surplus / self._difference

    @property
    def error(self) -> float:
        """The share's standard error."""
        return math.sqrt(self._variance) / self._difference
