"""Auto K against a machine whose costs and acceptance are made up, in its own time: no clock is read."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.draft_shape import LONG_GAP, AutoDraftLength, StepCosts
from core.settings import MAX_DRAFT_TOKENS
from core.types import TokenKind
from tests.policy_machine import COSTS, PLAIN_MS, Costs, Machine, make_step

SEEDS = range(10)


def auto() -> AutoDraftLength:
    return AutoDraftLength(PLAIN_MS)


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.02])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("length", [64, 256, 1024])
def test_a_hopeless_draft_costs_at_most_a_twentieth(costs, alpha, is_greedy, length):
    for seed in SEEDS:
        taken = Machine(COSTS[costs], lambda _: alpha, seed, is_greedy).run(auto(), length)
        assert taken <= 1.05 * PLAIN_MS * length


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize(("alpha", "share"), [(0.5, 0.95), (0.7, 0.95), (0.8, 0.95), (0.95, 0.93)])
@pytest.mark.parametrize("costs", ["cheap", "embedded", "middling"])
def test_a_good_draft_does_nearly_as_well_as_at_its_best_fixed_length(costs, alpha, share, is_greedy):
    machines = [Machine(COSTS[costs], lambda _: alpha, seed, is_greedy, noise=0.05) for seed in range(20)]
    taken = sum(machine.run(auto(), 512) for machine in machines)
    mean_moment = 1.0 + 0.02 * 0.75
    assert sum(machine.text for machine in machines) / taken >= share * COSTS[costs].best_rate(alpha) / mean_moment


def test_a_good_draft_on_a_slow_first_moment_is_not_given_up():
    machine = Machine(COSTS["embedded"], lambda _: 0.9, seed=1)
    policy = auto()
    slow = machine.step(policy.choose())
    policy.record(make_step(slow.uniforms, slow.expected_acceptance, slow.num_accepted, slow.emitted_kinds, 90.0, 20.0))
    machine.run(policy, 512)
    assert statistics.mean(machine.chosen[-20:]) > 2


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_draft_that_becomes_hopeless_is_dropped(is_greedy):
    for seed in SEEDS:
        machine, policy = Machine(COSTS["embedded"], lambda at: 0.9 if at < 400 else 0.0, seed, is_greedy), auto()
        assert machine.run(policy, 400) < 0.75 * 400 * PLAIN_MS
        # What it saved before lets it go on a little longer, and that is all.
        assert machine.run(policy, 400) < (1.05 * 400 + 8) * PLAIN_MS
        assert sum(k > 0 for k in machine.chosen[-100:]) <= 10


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_draft_that_becomes_good_is_found(is_greedy):
    gained = []
    for seed in SEEDS:
        machine, policy = Machine(COSTS["embedded"], lambda at: 0.0 if at < 400 else 0.9, seed, is_greedy), auto()
        machine.run(policy, 400)
        machine.run(policy, 200)
        gained.append(200 * PLAIN_MS / machine.run(policy, 200))
    assert statistics.median(gained) > 1.5
    assert min(gained) > 0.95


def test_a_look_at_a_draft_that_has_long_been_silent_is_short():
    machine, policy = Machine(COSTS["cheap"], lambda at: 0.95 if at < 300 else 0.0), auto()
    machine.run(policy, 1500)
    gaps = "".join("-" if k == 0 else "x" for k in machine.chosen)
    first_looks = [k for k, before in zip(machine.chosen[LONG_GAP:], range(len(gaps)), strict=False)
                   if k and gaps[before : before + LONG_GAP] == "-" * LONG_GAP]  # fmt: skip
    assert first_looks
    assert set(first_looks) == {1}


def test_a_draft_that_took_its_time_to_read_on_is_not_taken_to_be_dear():
    dear_to_wake = Costs(0.05, catch_up=0.01)
    machine, policy = Machine(dear_to_wake, lambda at: 0.0 if at < 300 else 0.9), auto()
    machine.run(policy, 900)
    assert statistics.mean(machine.chosen[-20:]) > 3


def test_a_length_set_by_hand_is_learnt_from_but_not_held_against_it():
    machine, policy = Machine(COSTS["embedded"], lambda at: 0.0 if at < 60 else 0.9), auto()
    for _ in range(60):
        policy.record(machine.step(8))
    machine.run(policy, 400)
    assert statistics.mean(machine.chosen[-20:]) > 2


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=60))
def test_any_history_leads_to_a_length_that_can_be_drafted(history):
    policy = AutoDraftLength(1.0)
    for share, draft_ms, verify_ms, is_silent in history:
        k = policy.choose()
        assert 0 <= k <= MAX_DRAFT_TOKENS
        k = 0 if is_silent else k
        accepted = round(share * k)
        kinds = (TokenKind.ACCEPTED,) * accepted + (TokenKind.BONUS if accepted == k else TokenKind.CORRECTION,)
        policy.record(make_step((0.5,) * k, (share,) * k, accepted, kinds, draft_ms, verify_ms))


def test_the_choice_rests_on_earlier_steps_alone():
    def run(outcomes: list[int]) -> list[int]:
        policy, chosen = auto(), []
        for accepted in outcomes:
            chosen.append(policy.choose())
            k = chosen[-1]
            accepted = min(accepted, k)
            kinds = (TokenKind.ACCEPTED,) * accepted + (TokenKind.BONUS if accepted == k else TokenKind.CORRECTION,)
            policy.record(make_step((0.5,) * k, (0.6,) * k, accepted, kinds, float(k), 10.0))
        return chosen

    one, other = run([1, 1, 2, 3, 0, 0]), run([1, 1, 2, 3, 9, 9])
    assert one[:5] == other[:5]


# --- What steps cost ---------------------------------------------------------------------------------------------


def test_a_single_slow_moment_does_not_count():
    costs = StepCosts(10.0)
    for lap in (12.0, 60.0, 12.0):
        costs.record(1, lap, 0)
    assert costs.table()[1] == 12.0
    costs.record(2, 90.0, 0)
    assert costs.table()[2] == 90.0
    assert costs.table(hopeful=True)[2] == pytest.approx(13.0)
    costs.record(3, 16.0, 0)
    assert costs.table()[2] == 16.0  # A longer block that took less says what the shorter one can't have needed.


def test_times_between_and_beyond_are_on_lines():
    costs = StepCosts(10.0)
    assert costs.table()[5] == pytest.approx(15.0)
    for count, lap in ((1, 12.0), (3, 20.0)):
        costs.record(count, lap, 0)
    assert costs.table()[2] == pytest.approx(16.0)
    # The gentlest stretch so far, 2 a token: the step from 1 to 3 is behind us.
    assert costs.table()[5] == pytest.approx(24.0)
    assert len(costs.table()) == MAX_DRAFT_TOKENS + 1
