"""Adaptive K against the made-up machine: it ends blocks where the draft is unsure, and never costs more than auto."""

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.draft_shape import AutoDraftLength, Calibration, DraftLengthPolicy
from core.settings import MAX_DRAFT_TOKENS, LengthPolicy
from core.types import TokenKind
from tests.policy_machine import COSTS, PLAIN_MS, Costs, Machine, make_step

SEEDS = range(4)
SURE, UNSURE = 0.95, 0.15


class DraftingMachine(Machine):
    """Half of the tokens come out sure; how many of either kind stand is given."""

    def __init__(
        self, costs: Costs, stands: Callable[[float], float], seed: int = 0, *, is_greedy: bool = False
    ) -> None:
        super().__init__(costs, lambda _: 0.0, seed, is_greedy)
        self.stands = stands
        self.confidences: list[tuple[float, ...]] = []
        self.mood = random.Random(1000 + seed)

    def run(self, policy: DraftLengthPolicy, length: int, wanted: int | LengthPolicy = LengthPolicy.ADAPTIVE) -> float:
        began, goal = self.time_ms, self.text + length
        while self.text < goal:
            plan, drawn = policy.plan(wanted), []
            while len(drawn) < min(plan.most, goal - self.text - 1):
                drawn.append(self.mood.choice((SURE, UNSURE)))
                if plan.keep_drafting is not None and not plan.keep_drafting(drawn[-1]):
                    break
            self.confidences.append(tuple(drawn))
            policy.record(self.step(len(drawn), [self.stands(confidence) for confidence in drawn]))
        return self.time_ms - began


def telling(confidence: float) -> float:
    return 0.98 if confidence == SURE else 0.45


def policy() -> DraftLengthPolicy:
    return DraftLengthPolicy(PLAIN_MS)


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.02])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("length", [64, 512])
def test_a_hopeless_draft_costs_at_most_a_twentieth_however_sure_it_is(costs, alpha, is_greedy, length):
    for seed in SEEDS:
        machine = DraftingMachine(COSTS[costs], lambda _: alpha, seed, is_greedy=is_greedy)
        assert machine.run(policy(), length) <= 1.05 * PLAIN_MS * length


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("costs", ["cheap", "middling"])
def test_where_sureness_tells_it_beats_auto_and_every_fixed_length(costs, is_greedy):
    def taken(wanted: int | LengthPolicy) -> float:
        machines = [DraftingMachine(COSTS[costs], telling, seed, is_greedy=is_greedy) for seed in SEEDS]
        return sum(machine.run(policy(), 512, wanted) for machine in machines)

    adaptive = taken(LengthPolicy.ADAPTIVE)
    assert adaptive < 0.97 * taken(LengthPolicy.AUTO)
    assert adaptive < min(taken(count) for count in (1, 2, 3, 4, 6))


@pytest.mark.parametrize("alpha", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("costs", ["cheap", "embedded", "middling"])
def test_where_sureness_tells_nothing_it_does_as_well_as_auto(costs, alpha):
    def taken(wanted: LengthPolicy) -> float:
        machines = [DraftingMachine(COSTS[costs], lambda _: alpha, seed) for seed in range(12)]
        return sum(machine.run(policy(), 400, wanted) for machine in machines)

    assert taken(LengthPolicy.ADAPTIVE) < 1.04 * taken(LengthPolicy.AUTO)


def test_a_block_ends_behind_an_unsure_token_once_such_tokens_have_failed():
    machine = DraftingMachine(COSTS["embedded"], lambda c: 0.99 if c == SURE else 0.05)
    machine.run(policy(), 800)
    blocks = [block for block in machine.confidences[-60:] if block]
    assert len(blocks) > 40
    assert all(UNSURE not in block[:-1] for block in blocks)
    assert statistics.mean(block[-1] == UNSURE for block in blocks) > 0.6


def test_a_token_that_made_it_stop_is_of_the_block():
    machine = DraftingMachine(COSTS["cheap"], telling)
    machine.run(policy(), 200)
    assert [len(block) for block in machine.confidences] == machine.chosen


def test_a_drafter_that_says_nothing_is_drafted_with_as_auto_does():
    silent, auto = policy(), AutoDraftLength(PLAIN_MS)
    one, other = Machine(COSTS["embedded"], lambda _: 0.7), Machine(COSTS["embedded"], lambda _: 0.7)
    for _ in range(200):
        silent.record(one.step(silent.plan(LengthPolicy.ADAPTIVE).most))
        auto.record(other.step(auto.choose()))
    assert one.chosen == other.chosen


def test_only_the_adaptive_policy_asks_for_a_look_at_each_token():
    machine, planner = DraftingMachine(COSTS["cheap"], telling), policy()
    for wanted in (LengthPolicy.AUTO, 5, LengthPolicy.ADAPTIVE, 3, LengthPolicy.AUTO):
        plan = planner.plan(wanted)
        assert (plan.keep_drafting is None) is (wanted is not LengthPolicy.ADAPTIVE)
        assert not isinstance(wanted, LengthPolicy) or plan.most <= MAX_DRAFT_TOKENS
        assert isinstance(wanted, LengthPolicy) or plan.most == wanted
        machine.run(planner, 40, wanted)


def test_what_a_length_by_hand_has_shown_is_known_when_the_policy_takes_over():
    machine, planner = DraftingMachine(COSTS["embedded"], lambda _: 0.95), policy()
    machine.run(planner, 200, 6)
    assert planner.plan(LengthPolicy.ADAPTIVE).most > 3


def test_a_probability_that_is_no_number_ends_the_block():
    machine, planner = DraftingMachine(COSTS["cheap"], telling), policy()
    machine.run(planner, 100)
    plan = planner.plan(LengthPolicy.ADAPTIVE)
    assert plan.keep_drafting is not None
    assert not plan.keep_drafting(float("nan"))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(st.floats(0, 1), max_size=16), st.floats(0, 1), st.floats(0, 100)), max_size=40))
def test_any_history_leads_to_a_block_that_can_be_drafted(history):
    planner = policy()
    for confidences, share, milliseconds in history:
        plan = planner.plan(LengthPolicy.ADAPTIVE)
        assert 0 <= plan.most <= MAX_DRAFT_TOKENS
        count = 0
        for confidence in confidences[: plan.most]:
            count += 1
            if plan.keep_drafting is None or not plan.keep_drafting(confidence):
                break
        accepted = round(share * count)
        kinds = (TokenKind.ACCEPTED,) * accepted + (TokenKind.BONUS,)
        planner.record(make_step((0.5,) * count, (share,) * count, accepted, kinds, milliseconds, milliseconds))


# --- Calibration -------------------------------------------------------------------------------------------------


def test_the_line_is_the_one_that_tests_lie_on():
    calibration = Calibration()
    for index in range(400):
        confidence = (index * 7 % 100) / 100
        calibration.add(confidence, 0.3 + 0.6 * confidence)
    assert [calibration.chance(c) for c in (0.0, 0.5, 1.0)] == pytest.approx([0.3, 0.6, 0.9], abs=0.02)
