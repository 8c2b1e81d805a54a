"""What the bench computes: spreads, ratios by round, an order that favours nobody, and overhead."""

from dataclasses import replace

import pytest
from scipy.stats import binom

from core.experiments.bench import first_difference, median_interval, order, ratios, spread
from core.experiments.benching import overhead, usual_steps
from tests.fakes_cli import step


def test_a_spread_is_median_quartiles_and_extremes():
    found = spread([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.median, found.quartiles, found.extremes) == (3.0, (2.0, 4.0), (1.0, 10.0))
    assert spread([2.0]).quartiles == (2.0, 2.0)
    with pytest.raises(ValueError, match="median"):
        spread([])


def test_ratios_are_taken_round_by_round():
    """A machine that is slower in one round slows both: the ratio stays, as that of the medians would not."""
    found = ratios([20.0, 2.0, 40.0], [10.0, 1.0, 20.0])
    assert found.values == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("ids", "reference", "at"),
    [((1, 2), (1, 2), None), ((1, 3), (1, 2), 1), ((1,), (1, 2), 1), ((1, 2, 3), (1, 2), 2), ((), (), None)],
)
def test_the_first_difference(ids, reference, at):
    assert first_difference(ids, reference) == at


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_everyone_stands_at_every_place_equally_often(count):
    turns = [order(count, turn) for turn in range(2 * count)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    for place in range(count):
        assert sorted(turn[place] for turn in turns) == sorted(2 * list(range(count)))
    assert order(0, 3) == []


def test_neighbours_change_sides():
    pairs = {pair for turn in range(10) for pair in zip(order(5, turn), order(5, turn)[1:], strict=False)}
    assert all((right, left) in pairs for left, right in pairs)


def test_overhead_is_a_median_step_over_the_bare_forwards():
    assert overhead([10.5, 11.0, 99.0], 10.0) == pytest.approx(0.1)
    assert overhead([9.0], 10.0) == pytest.approx(-0.1)
    for steps, bare in (([], 1.0), ([1.0], 0.0)):
        with pytest.raises(ValueError, match="overhead"):
            overhead(steps, bare)


def test_the_usual_steps_are_those_of_the_commonest_draft():
    def of(*lengths):
        return [replace(step("a"), index=index, num_draft_tokens=k) for index, k in enumerate(lengths)]

    assert [item.index for item in usual_steps(of(4, 2, 4, 0, 0, 0, 4))] == [0, 2]
    assert [item.num_draft_tokens for item in usual_steps(of(0, 0, 0))] == [0, 0]
    assert usual_steps(of(4)) == []


@pytest.mark.parametrize("count", [1, 5, 6, 9, 30, 101])
def test_a_medians_interval_leaves_out_as_many_values_as_still_cover_it(count):
    values = [float(value) for value in range(count)]
    low, high = median_interval(values[::-1])
    assert low + high == count - 1
    num_beyond = int(low)
    assert count < 6 or 2 * binom.cdf(num_beyond, count, 0.5) <= 0.05
    assert count < 6 or 2 * binom.cdf(num_beyond + 1, count, 0.5) > 0.05
    assert count >= 6 or num_beyond == 0


def test_a_surer_interval_is_wider_and_one_of_nothing_is_none():
    values = [float(value) for value in range(30)]
    assert median_interval(values) == (9.0, 20.0)
    assert median_interval(values, 0.99) == (7.0, 22.0)
    with pytest.raises(ValueError, match="No values"):
        median_interval([])
