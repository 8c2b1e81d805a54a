"""The band around the running acceptance rate says how sure the rate is: held against simulated blocks."""

from __future__ import annotations

import math
import random

import pytest

from core.analysis.expectation import Z95, BlockSums, wilson

RUNS = 400


def block(source: random.Random, k: int, draw_alpha) -> int:
    """How many of K tokens are kept where each tested one is kept with a chance that the block draws for itself."""
    alpha = draw_alpha(source)
    return next((i for i in range(k) if source.random() >= alpha), k)


def sums_of(blocks) -> BlockSums:
    sums = BlockSums()
    for drafted, accepted in blocks:
        sums.add(drafted, accepted)
    return sums


def coverage(k: int, num_blocks: int, draw_alpha) -> tuple[float, float]:
    """How often the interval holds the true rate: by blocks, and as if all tokens were independent."""
    source = random.Random(f"{k} {num_blocks}")
    rate = sum(block(source, k, draw_alpha) for _ in range(40_000)) / 40_000 / k
    by_blocks = by_tokens = 0
    for _ in range(RUNS):
        sums = sums_of((k, block(source, k, draw_alpha)) for _ in range(num_blocks))
        low, high = sums.interval()
        by_blocks += low <= rate <= high
        low, high = wilson(sums.accepted / sums.drafted, sums.drafted)
        by_tokens += low <= rate <= high
    return by_blocks / RUNS, by_tokens / RUNS


@pytest.mark.parametrize("num_blocks", [6, 30, 100])
@pytest.mark.parametrize("k", [1, 5, 12])
@pytest.mark.parametrize(
    "draw_alpha",
    [
        pytest.param(lambda source: 0.7, id="even"),
        pytest.param(lambda source: 0.95, id="good"),
        pytest.param(lambda source: source.betavariate(3.0, 1.3), id="uneven"),
    ],
)
def test_the_band_holds_the_true_rate_in_95_of_100_runs(k, num_blocks, draw_alpha):
    by_blocks, _ = coverage(k, num_blocks, draw_alpha)
    # Three standard errors of 400 runs are .033.
    assert by_blocks >= 0.917


def test_tokens_taken_for_independent_would_promise_too_much():
    by_blocks, by_tokens = coverage(12, 60, lambda source: 0.7)
    assert by_tokens < 0.8 < by_blocks


def test_the_sums_say_what_the_blocks_do():
    source = random.Random(3)
    blocks = [(k, source.randint(0, k)) for k in (source.randint(1, 9) for _ in range(50))]
    sums = sums_of(blocks)
    drafted, accepted = (sum(part) for part in zip(*blocks, strict=True))
    rate = accepted / drafted
    squares = sum((a - rate * k) ** 2 for k, a in blocks)
    expected = rate * (1 - rate) / (squares * 50 / 49 / drafted**2)
    assert sums.effective_tokens == pytest.approx(min(expected, drafted))
    assert sums.blocks == 50


def test_blocks_that_are_all_alike_count_as_one_trial_each():
    assert sums_of([(8, 8)] * 10).effective_tokens == 10
    assert sums_of([(8, 0)] * 10).effective_tokens == 10
    low, high = sums_of([(8, 8)] * 10).interval()
    assert high == pytest.approx(1.0)
    assert low < 0.7


def test_there_is_no_band_before_two_blocks_and_an_empty_block_says_nothing():
    assert BlockSums().interval() is None
    assert sums_of([(4, 2), (0, 0), (0, 0)]).interval() is None
    assert sums_of([(4, 2), (0, 0), (4, 1)]).interval() == sums_of([(4, 2), (4, 1)]).interval()


def test_wilsons_interval_computed_by_hand():
    low, high = wilson(0.5, 10)
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=5e-4)
    assert wilson(0.0, 4)[0] == 0.0
    assert wilson(0.0, 4)[1] == pytest.approx(Z95**2 / (4 + Z95**2))
    assert math.isclose(wilson(0.3, 1e9)[0], 0.3, abs_tol=1e-4)


def test_two_or_three_blocks_count_for_as_little_as_students_quantile_says():
    # 12.706 and 4.303 are the quantiles for one and two degrees of freedom, from a table.
    for blocks, quantile in (([(4, 2), (4, 1)], 12.706), ([(4, 2), (4, 1), (4, 3)], 4.303)):
        sums = sums_of(blocks)
        rate = sums.accepted / sums.drafted
        assert sums.interval() == pytest.approx(wilson(rate, sums.effective_tokens * (Z95 / quantile) ** 2), rel=1e-3)
