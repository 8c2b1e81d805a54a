"""Auto and adaptive K against a machine whose costs and acceptance are made up, in its own time: no clock is read."""

import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.drafters.estimates import LONG_GAP, Calibration, StepCosts
from core.drafters.length_policy import DraftLengthPolicy
from core.settings import MAX_DRAFT_TOKENS, LengthPolicy
from core.types import TokenKind
from tests import policy_machine
from tests.policy_machine import COSTS, PLAIN_MS, Costs, Machine, TreeMachine, make_step


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize(("alpha", "share"), [(0.5, 0.95), (0.7, 0.95), (0.8, 0.95), (0.95, 0.93)])
@pytest.mark.parametrize("costs", ["cheap", "embedded", "middling"])
def test_a_good_draft_does_nearly_as_well_as_at_its_best_fixed_length(costs, alpha, share, is_greedy):
    machines = [Machine(COSTS[costs], lambda _: alpha, seed, is_greedy, noise=0.05) for seed in range(12)]
    taken = sum(machine.run(DraftLengthPolicy(PLAIN_MS), 512) for machine in machines)
    mean_moment = 1.0 + 0.02 * 0.75
    assert sum(machine.text for machine in machines) / taken >= share * COSTS[costs].best_rate(alpha) / mean_moment


@pytest.mark.parametrize("plain_ms", [0.58, 1.1])
def test_on_a_gpu_where_drafting_takes_as_long_for_any_length_a_good_draft_is_found(plain_ms, monkeypatch):
    """As with the embedded pair on an H200: plain steps of .58 to 1.1 ms, drafted ones 2.2 times as long."""
    monkeypatch.setattr(policy_machine, "PLAIN_MS", plain_ms)
    costs, spent, text = Costs(0.02, call=1.2, position=0.0, catch_up=0.0), 0.0, 0
    for seed in range(12):
        machine = Machine(costs, lambda _: 0.8, seed, noise=0.05)
        spent += machine.run(DraftLengthPolicy(plain_ms, is_asynchronous=True), 256)
        text += machine.text
    assert text / spent > 1.3 / plain_ms
    useless = Machine(Costs(0.5), lambda _: 0.0)
    assert useless.run(DraftLengthPolicy(plain_ms, is_asynchronous=True), 256) < 1.04 * 256 * plain_ms


def test_a_good_draft_on_a_slow_first_moment_is_not_given_up():
    machine = Machine(COSTS["embedded"], lambda _: 0.9, seed=1)
    policy = DraftLengthPolicy(PLAIN_MS)
    slow = machine.step(policy.plan(LengthPolicy.AUTO).most)
    policy.record(make_step(slow.uniforms, slow.expected_acceptance, slow.num_accepted, slow.emitted_kinds, 90.0, 20.0))
    machine.run(policy, 512)
    assert statistics.mean(machine.chosen[-20:]) > 2


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_bad_start_does_not_end_drafting_for_the_rest_of_a_short_text(is_greedy):
    """Two blocks are rejected early in texts of 64 tokens, of which most would be accepted."""
    chosen, spent = [], 0.0
    for seed in range(20):
        machine = Machine(COSTS["cheap"], lambda at: 0.0 if 6 <= at < 8 else 0.85, seed, is_greedy)
        spent += machine.run(DraftLengthPolicy(PLAIN_MS), 64)
        chosen.append(sum(k > 0 for k in machine.chosen) / len(machine.chosen))
    assert min(chosen) > 0.35, "of the steps draft"
    assert spent / 20 < 64 * PLAIN_MS / 2.2


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("slow", [1.3, 1.6])
def test_a_first_plain_step_that_was_slow_does_not_let_a_hopeless_draft_seem_to_pay(slow, alpha):
    spent = 0.0
    for seed in range(12):
        machine, policy = Machine(Costs(0.4, position=0.0), lambda _: alpha, seed, True), DraftLengthPolicy()
        first = machine.step(policy.plan(LengthPolicy.AUTO).most)
        policy.record(replace(first, verify_ms=slow * first.verify_ms, total_ms=slow * first.total_ms))
        spent += machine.run(policy, 199)
    assert spent / 12 < 1.06 * 199 * PLAIN_MS


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_draft_that_becomes_hopeless_is_dropped(is_greedy):
    for seed in range(10):
        machine, policy = (
            Machine(COSTS["embedded"], lambda at: 0.9 if at < 400 else 0.0, seed, is_greedy),
            DraftLengthPolicy(PLAIN_MS),
        )
        assert machine.run(policy, 400) < 0.75 * 400 * PLAIN_MS
        # What it saved before lets it go on a little longer, and that is all.
        assert machine.run(policy, 400) < (1.05 * 400 + 8) * PLAIN_MS
        assert sum(k > 0 for k in machine.chosen[-100:]) <= 10


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_draft_that_becomes_good_is_found(is_greedy):
    gained = []
    for seed in range(10):
        machine, policy = (
            Machine(COSTS["embedded"], lambda at: 0.0 if at < 400 else 0.9, seed, is_greedy),
            DraftLengthPolicy(PLAIN_MS),
        )
        machine.run(policy, 400)
        machine.run(policy, 200)
        gained.append(200 * PLAIN_MS / machine.run(policy, 200))
    assert statistics.median(gained) > 1.5
    assert min(gained) > 0.95


@pytest.mark.parametrize("catch_up", [0.01, 0.03, 0.06])
def test_a_draft_that_reads_slowly_is_used_again_after_a_hard_passage(catch_up):
    """Each token that it missed takes it more than the share of the time that trials may cost."""
    costs, spent = Costs(0.35, catch_up=catch_up), 0.0
    for seed in range(6):
        machine = Machine(costs, lambda at: 0.9 if at < 150 else 0.05 if at < 450 else 0.95, seed)
        machine.run(DraftLengthPolicy(), 1500)
        spent += machine.time_ms
    assert spent / 6 < 0.87 * 1500 * PLAIN_MS


@pytest.mark.parametrize("catch_up", [0.01, 0.03, 0.06, 0.1])
def test_a_useless_draft_that_reads_slowly_costs_next_to_nothing(catch_up):
    machine = Machine(Costs(0.35, catch_up=catch_up), lambda _: 0.05, 1, True)
    assert machine.run(DraftLengthPolicy(), 3000) < 1.02 * 3000 * PLAIN_MS


def test_a_look_at_a_draft_that_has_long_been_silent_is_short():
    machine, policy = Machine(COSTS["cheap"], lambda at: 0.95 if at < 300 else 0.0), DraftLengthPolicy(PLAIN_MS)
    machine.run(policy, 1500)
    gaps = "".join("-" if k == 0 else "x" for k in machine.chosen)
    first_looks = [k for k, before in zip(machine.chosen[LONG_GAP:], range(len(gaps)), strict=False)
                   if k and gaps[before : before + LONG_GAP] == "-" * LONG_GAP]  # fmt: skip
    assert first_looks
    assert set(first_looks) == {1}


def test_a_draft_that_took_its_time_to_read_on_is_not_taken_to_be_dear():
    dear_to_wake = Costs(0.05, catch_up=0.01)
    machine, policy = Machine(dear_to_wake, lambda at: 0.0 if at < 300 else 0.9), DraftLengthPolicy(PLAIN_MS)
    machine.run(policy, 900)
    assert statistics.mean(machine.chosen[-20:]) > 3


def test_a_length_set_by_hand_is_learnt_from_but_not_held_against_it():
    machine, policy = Machine(COSTS["embedded"], lambda at: 0.0 if at < 60 else 0.9), DraftLengthPolicy(PLAIN_MS)
    for _ in range(60):
        policy.record(machine.step(8))
    machine.run(policy, 400)
    assert statistics.mean(machine.chosen[-20:]) > 2


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


@pytest.mark.parametrize("wanted", [LengthPolicy.AUTO, LengthPolicy.ADAPTIVE])
@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("costs", COSTS)
def test_a_hopeless_draft_costs_at_most_a_twentieth_however_sure_it_is(costs, is_greedy, wanted):
    for seed in range(6):
        machine, chosen = DraftingMachine(COSTS[costs], lambda _: 0.02, seed, is_greedy=is_greedy), policy()
        for length in (64, 256, 1024):
            machine.run(chosen, length - machine.text, wanted)
            assert machine.time_ms <= 1.05 * PLAIN_MS * length


@pytest.mark.parametrize("costs", COSTS)
def test_noise_does_not_pay_for_more_trials_of_a_hopeless_draft(costs):
    def num_drafted(noise: float) -> int:
        machines = [Machine(COSTS[costs], lambda _: 0.0, seed, noise=noise) for seed in range(6)]
        for machine in machines:
            machine.run(policy(), 512)
        return sum(count > 0 for machine in machines for count in machine.chosen)

    assert num_drafted(0.2) <= 1.05 * num_drafted(0.0)


@pytest.mark.parametrize("is_greedy", [False, True])
@pytest.mark.parametrize("costs", ["cheap", "middling"])
def test_where_sureness_tells_it_beats_auto_and_every_fixed_length(costs, is_greedy):
    def taken(wanted: int | LengthPolicy) -> float:
        machines = [DraftingMachine(COSTS[costs], telling, seed, is_greedy=is_greedy) for seed in range(4)]
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
    machine, planner = DraftingMachine(COSTS["embedded"], lambda c: 0.99 if c == SURE else 0.05), policy()
    machine.run(planner, 800)
    blocks = [block for block in machine.confidences[-60:] if block]
    assert len(blocks) > 40
    assert all(UNSURE not in block[:-1] for block in blocks)
    assert statistics.mean(block[-1] == UNSURE for block in blocks) > 0.6
    assert [len(block) for block in machine.confidences] == machine.chosen, "the token it stops at is of the block"
    keep_drafting = planner.plan(LengthPolicy.ADAPTIVE).keep_drafting
    assert not keep_drafting(float("nan"))


def test_a_drafter_that_says_nothing_is_drafted_with_as_auto_does():
    silent, auto = policy(), DraftLengthPolicy(PLAIN_MS)
    one, other = Machine(COSTS["embedded"], lambda _: 0.7), Machine(COSTS["embedded"], lambda _: 0.7)
    for _ in range(200):
        silent.record(one.step(silent.plan(LengthPolicy.ADAPTIVE).most))
        auto.record(other.step(auto.plan(LengthPolicy.AUTO).most))
    assert one.chosen == other.chosen


def test_only_the_adaptive_policy_asks_for_a_look_at_each_token():
    machine, planner = DraftingMachine(COSTS["cheap"], telling), policy()
    for wanted in (LengthPolicy.AUTO, 5, LengthPolicy.ADAPTIVE, 3, LengthPolicy.AUTO):
        plan = planner.plan(wanted)
        assert (plan.keep_drafting is None) is (wanted is not LengthPolicy.ADAPTIVE)
        assert not isinstance(wanted, LengthPolicy) or plan.most <= MAX_DRAFT_TOKENS
        assert isinstance(wanted, LengthPolicy) or plan.most == wanted
        machine.run(planner, 40, wanted)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(st.floats(0, 1), max_size=16), st.floats(0, 1), st.floats(0, 100)), max_size=40))
def test_any_history_with_confidences_leads_to_a_block_that_can_be_drafted(history):
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


def test_the_line_is_the_one_that_tests_lie_on():
    calibration = Calibration()
    for index in range(400):
        confidence = (index * 7 % 100) / 100
        calibration.add(confidence, 0.3 + 0.6 * confidence)
    assert [calibration.chance(c) for c in (0.0, 0.5, 1.0)] == pytest.approx([0.3, 0.6, 0.9], abs=0.02)


# --- Trees ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("rates", "level", "node", "shape"),
    [
        ((0.6, 0.3, 0.2, 0.15), 0.3, 0.02, "wide"),
        ((0.8, 0.4, 0.3, 0.2), 0.02, 0.02, "deep"),
        ((0.8, 0.4, 0.3, 0.2), 0.1, 0.1, "deep"),
        ((0.4, 0.3, 0.25, 0.2), 0.3, 0.02, "wide"),
        ((0.4, 0.3, 0.25, 0.2), 0.6, 0.1, "none"),
    ],
)
def test_nodes_and_depth_of_a_tree_follow_what_they_cost_and_give(rates, level, node, shape, seed):
    machine = TreeMachine(rates, level, node, seed=seed)
    rate = machine.run(DraftLengthPolicy(PLAIN_MS, is_tree=True), 1_000)
    assert rate > 0.87 * machine.best_rate()
    usual, levels = np.median(machine.chosen[len(machine.chosen) // 2 :], axis=0)
    assert {"wide": usual > 1.5 * levels, "deep": levels >= 3, "none": usual == 0}[shape]
