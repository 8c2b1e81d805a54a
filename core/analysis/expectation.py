"""What theory expects of a pair: block efficiency, accepted tokens, and intervals of rates.

Leviathan et al., 2211.17192, section 3, for tokens accepted independently with probability alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.types import Step


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % bootstrap interval, where there are enough steps for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A value for each K from 0 on, with its 95 % interval where there is one."""

    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def at(self, num_draft_tokens: int) -> Estimate:
        """The value at a K."""
        k = num_draft_tokens
        return Estimate(self.values[k], self.low[k], self.high[k]) if self.low else Estimate(self.values[k])

    @property
    def best(self) -> int:
        """The K with the highest value, the smallest of several."""
        return max(range(len(self.values)), key=lambda k: (self.values[k], -k))


def expected_tokens(alpha: float, num_draft_tokens: float) -> float:
    """tau, tokens emitted per step: (1 - alpha^(K+1)) / (1 - alpha), equation 1, for alpha from 0 to 1."""
    if alpha == 1.0:
        return num_draft_tokens + 1.0
    return (1.0 - alpha ** (num_draft_tokens + 1)) / (1.0 - alpha)


def expected_accepted(
    acceptance_probs: Sequence[float], expected_acceptance: Sequence[float], parents: Sequence[int] = ()
) -> float:
    """How many tokens of a block rejection sampling is expected to accept; its mean over blocks is exact.

    A token counts only if all before it are accepted and its earlier siblings are not, so each position's
    sum(min(p, q)) is weighted by the probability that its token is tested.

    Args:
        acceptance_probs: (N,) the probability that each drafted token is accepted if it is tested.
        expected_acceptance: (N,) sum(min(p, q)) at each position.
        parents: (N,) of a tree; empty for a chain.
    """
    total = 0.0
    # The probability that the next child behind a node is tested.
    reached = {-1: 1.0}
    for node, (own, overlap) in enumerate(zip(acceptance_probs, expected_acceptance, strict=True)):
        parent = parents[node] if parents else node - 1
        tested = reached[parent]
        total += tested * overlap
        reached[node] = tested * own
        reached[parent] = tested * (1.0 - own)
    return total


def expected_of(step: Step) -> float:
    """How many of a step's tokens are expected to be accepted by its way of testing; NaN where that is unknown.

    Block verification accepts at least i tokens with the probability w_i, whose mean before the i-th is drawn is
    sum(min(w p, q)) (Sun et al., 2403.10444); these add up.
    """
    if step.block:
        return math.fsum(step.expected_acceptance)
    return expected_accepted(step.acceptance_probs, step.expected_acceptance, step.parents)


Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


def wilson(rate: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a rate observed in a number of independent trials, which need not be whole."""
    z = Z95
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    middle = rate + z * z / (2 * trials)
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


@dataclass(slots=True)
class BlockSums:
    """Running sums over drafted blocks: the acceptance rate and its confidence interval at any moment.

    The tokens of a block are not independent: after a rejection none is accepted. Blocks are the sampling unit, so
    the variance of accepted / drafted is that between blocks (Cochran, Sampling Techniques, section 6.3).

    Attributes:
        blocks: blocks with at least one token.
        drafted, accepted: tokens.
        drafted_squared, accepted_squared, product: sums over the blocks of K^2, A^2 and A K, A of K being accepted.
    """

    blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    accepted_squared: int = 0
    product: int = 0

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count a block; empty blocks are ignored."""
        if num_drafted:
            self.blocks += 1
            self.drafted += num_drafted
            self.accepted += num_accepted
            self.drafted_squared += num_drafted * num_drafted
            self.accepted_squared += num_accepted * num_accepted
            self.product += num_drafted * num_accepted

    @property
    def effective_tokens(self) -> float:
        """The number of independent trials that would be as informative as these blocks.

        At most one for each token; and one for each block where the blocks show no variance.
        """
        if self.blocks < 2:
            return float(self.blocks)
        rate = self.accepted / self.drafted
        # Sum over the blocks of (A - r K)^2.
        squares = self.accepted_squared - 2 * rate * self.product + rate * rate * self.drafted_squared
        if squares <= 1e-9 * self.drafted_squared:
            return float(self.blocks)
        variance = squares * self.blocks / (self.blocks - 1) / self.drafted**2
        return min(float(self.drafted), rate * (1 - rate) / variance)

    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the acceptance rate; None below two blocks.

        Wilson's interval over the effective tokens, reduced by (z / t)^2 for a variance estimated from few blocks
        (Korn and Graubard, 1998).
        """
        if self.blocks < 2:
            return None
        t = t95(self.blocks - 1)
        return wilson(self.accepted / self.drafted, self.effective_tokens * (Z95 / t) ** 2)


def t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t, by its expansion around the normal's (Abramowitz and Stegun, 26.7.5)."""
    if degrees <= 2:  # Exact values where the expansion is off by more than 0.01.
        return (12.706205, 4.302653)[degrees - 1]
    z, n = Z95, degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
