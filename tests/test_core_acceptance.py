"""The band around the running acceptance rate says how sure the rate is: held against simulated blocks."""

from __future__ import annotations

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


@pytest.mark.parametrize("num_blocks", [6, 30, 100])
@pytest.mark.parametrize("k", [1, 5, 12])
@pytest.mark.parametrize(
    "draw_alpha",
    [lambda source: 0.7, lambda source: 0.95, lambda source: source.betavariate(3.0, 1.3)],
    ids=["even", "good", "uneven"],
)
def test_the_band_holds_the_true_rate_in_95_of_100_runs(k, num_blocks, draw_alpha):
    source = random.Random(f"{k} {num_blocks}")
    rate = sum(block(source, k, draw_alpha) for _ in range(40_000)) / 40_000 / k
    held = 0
    for _ in range(RUNS):
        low, high = sums_of((k, block(source, k, draw_alpha)) for _ in range(num_blocks)).interval()
        held += low <= rate <= high
    assert held / RUNS >= 0.917, "three standard errors of 400 runs are .033"


def test_effective_tokens_follow_from_the_variance_between_blocks():
    source = random.Random(3)
    blocks = [(k, source.randint(0, k)) for k in (source.randint(1, 9) for _ in range(50))]
    sums = sums_of(blocks)
    drafted, accepted = (sum(part) for part in zip(*blocks, strict=True))
    rate = accepted / drafted
    squares = sum((a - rate * k) ** 2 for k, a in blocks)
    expected = rate * (1 - rate) / (squares * 50 / 49 / drafted**2)
    assert sums.effective_tokens == pytest.approx(min(expected, drafted))


def test_there_is_no_band_before_two_blocks_and_an_empty_block_says_nothing():
    assert BlockSums().interval() is None
    assert sums_of([(4, 2), (0, 0), (0, 0)]).interval() is None
    assert sums_of([(4, 2), (0, 0), (4, 1)]).interval() == sums_of([(4, 2), (4, 1)]).interval()


def test_wilsons_interval_computed_by_hand():
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=5e-4)
    assert wilson(0.0, 4) == pytest.approx((0.0, Z95**2 / (4 + Z95**2)))
    assert wilson(0.3, 1e9)[0] == pytest.approx(0.3, abs=1e-4)


def test_blocks_that_are_all_alike_count_as_one_trial_each():
    assert sums_of([(8, 8)] * 10).effective_tokens == 10
    assert sums_of([(8, 0)] * 10).effective_tokens == 10
    low, high = sums_of([(8, 8)] * 10).interval()
    assert high == pytest.approx(1.0)
    assert low < 0.7


def test_two_or_three_blocks_count_for_as_little_as_students_quantile_says():
    # 12.706 and 4.303 are the quantiles for one and two degrees of freedom, from a table.
    for blocks, quantile in (([(4, 2), (4, 1)], 12.706), ([(4, 2), (4, 1), (4, 3)], 4.303)):
        sums = sums_of(blocks)
        rate = sums.accepted / sums.drafted
        assert sums.interval() == pytest.approx(wilson(rate, sums.effective_tokens * (Z95 / quantile) ** 2), rel=1e-3)
