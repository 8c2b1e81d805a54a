"""What theory expects of a pair: block efficiency, speedup, and the draft length that pays best.

Leviathan et al., 2211.17192, section 3, for tokens accepted independently with probability alpha. Their form takes
scoring K + 1 positions to cost as much as scoring one; `verify_cost` says by how much it really does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


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
