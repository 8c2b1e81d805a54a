"""What theory expects of a pair: block efficiency, speedup, and the draft length that pays best.

Leviathan et al., 2211.17192, section 3, for tokens accepted independently with probability alpha. Their form takes
scoring K + 1 positions to cost as much as scoring one; `verify_cost` says by how much it really does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


def expected_tokens(alpha: float, num_draft_tokens: float) -> float:
    """tau, tokens emitted per step: (1 - alpha^(K+1)) / (1 - alpha), equation 1.

    Raises:
        ValueError: alpha outside [0, 1], or a negative K.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, not {alpha!r}.")
    if num_draft_tokens < 0:
        raise ValueError(f"K can't be negative, as {num_draft_tokens!r} is.")
    if alpha == 1.0:
        return num_draft_tokens + 1.0
    return (1.0 - alpha ** (num_draft_tokens + 1)) / (1.0 - alpha)


def predicted_speedup(alpha: float, num_draft_tokens: float, cost: float, verify_cost: float = 1.0) -> float:
    """tau / (K c + v), theorem 3.8 with v = 1.

    Args:
        alpha: acceptance probability of a tested token.
        num_draft_tokens: K.
        cost: c, one draft step's time / one target step's.
        verify_cost: v(K+1), the time to score K + 1 positions / the time to score one.
    """
    return expected_tokens(alpha, num_draft_tokens) / (num_draft_tokens * cost + verify_cost)


def expected_accepted(acceptance_probs: Sequence[float], expected_acceptance: Sequence[float]) -> float:
    """How many of a block's tokens rejection sampling keeps, to be expected.

    A place's sum(min(p, q)) is the chance that the token drafted there is kept, given the tokens before it; it counts
    only if those are kept, which for the tokens that were drafted has the probability of their own tests. The mean
    over blocks is the mean number of accepted tokens, exactly. A draft follows its own law under every coupling, so
    that this says of a Gumbel-coupled block what rejection sampling would have kept of one.

    Args:
        acceptance_probs: (K,) min(1, p / q) of each drafted token.
        expected_acceptance: (K,) sum(min(p, q)) at each place.
    """
    kept, total = 1.0, 0.0
    for own, overlap in zip(acceptance_probs, expected_acceptance, strict=True):
        total += kept * overlap
        kept *= own
    return total


def best_num_draft_tokens(
    alpha: float, cost: float, *, verify_cost: Callable[[int], float] = lambda positions: 1.0, longest: int = 32
) -> int:
    """The K from 0 to `longest` with the highest predicted speedup; 0 says: don't speculate.

    Args:
        alpha: acceptance probability of a tested token.
        cost: c.
        verify_cost: v(n) for n positions; v(1) is 1.
        longest: greatest K considered.
    """
    candidates = range(longest + 1)
    return max(candidates, key=lambda k: (predicted_speedup(alpha, k, cost, verify_cost(k + 1)) if k else 1.0, -k))


@dataclass(slots=True)
class BlockSums:
    """Running sums over drafted blocks, from which the acceptance rate and how sure it is follow at any moment.

    The tokens of a block are no independent trials: behind a rejection all count as not accepted. Blocks are what is
    sampled, so that the rate accepted / drafted is a ratio of two block totals, and its variance is that between
    blocks (Cochran, Sampling Techniques, section 6.3).

    Attributes:
        blocks: how many blocks held at least one token.
        drafted, accepted: tokens.
        drafted_squared, accepted_squared, product: sums over the blocks of K^2, A^2 and A K, where A of K were kept.
    """

    blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    accepted_squared: int = 0
    product: int = 0

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count a block; an empty one says nothing."""
        if num_drafted:
            self.blocks += 1
            self.drafted += num_drafted
            self.accepted += num_accepted
            self.drafted_squared += num_drafted * num_drafted
            self.accepted_squared += num_accepted * num_accepted
            self.product += num_drafted * num_accepted

    @property
    def effective_tokens(self) -> float:
        """How many independent trials would tell the rate as surely as these blocks do.

        r (1 - r) over the variance between blocks. Where the blocks don't differ there is no variance to see, and a
        block counts as one trial; and no block counts for more trials than it has tokens.
        """
        if self.blocks < 2:
            return float(self.blocks)
        rate = self.accepted / self.drafted
        # Sum over the blocks of (A - r K)^2; r is accepted / drafted, so that these add up to nothing.
        squares = self.accepted_squared - 2 * rate * self.product + rate * rate * self.drafted_squared
        if squares <= 1e-9 * self.drafted_squared:
            return float(self.blocks)
        variance = squares * self.blocks / (self.blocks - 1) / self.drafted**2
        return min(float(self.drafted), rate * (1 - rate) / variance)

    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the acceptance rate; None before there are two blocks.

        Wilson's score interval over the effective number of tokens, made smaller by (z / t)^2 for the few blocks that
        the variance was estimated from (Korn and Graubard, 1998). It takes blocks for independent of each other: a
        text that turns harder half way is not foreseen.
        """
        if self.blocks < 2:
            return None
        t = _t95(self.blocks - 1)
        return wilson(self.accepted / self.drafted, self.effective_tokens * (Z95 / t) ** 2)


def wilson(rate: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a rate that was seen in so many independent trials.

    Args:
        rate: from 0 to 1.
        trials: more than 0; need not be whole.
        z: quantile of the normal distribution.
    """
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    middle = rate + z * z / (2 * trials)
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


_FEW = {1: 12.706205, 2: 4.302653}
"""Where the expansion falls short by more than a hundredth."""


def _t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t, by its expansion around the normal's (Abramowitz and Stegun, 26.7.5)."""
    if degrees in _FEW:
        return _FEW[degrees]
    z, n = Z95, degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
