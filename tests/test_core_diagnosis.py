"""What holds a run's speedup back, on made-up runs whose limit is known, and what is advised about it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.analysis.advice import advise, best_length
from core.analysis.diagnosis import (
    LEAST_BLOCKS,
    Limit,
    PlainStep,
    diagnose,
    plain_step,
    tokens_per_block,
    verify_costs,
)
from core.analysis.expectation import expected_tokens
from core.runlog.tally import Tally
from core.types import FinishReason, TokenKind
from tests.test_core_analysis import make_step

PLAIN = PlainStep(forward_ms=10.0, total_ms=10.5, is_measured=True)
MODEL = {"method": "draft-model", "num_draft_tokens": 4, "coupling": "rejection"}


def drawn(alpha: float, k: int, count: int = 400, seed: int = 1, **times):
    """Steps whose tokens stand independently with probability alpha; sampling takes 0.5 ms."""
    source = random.Random(seed)
    accepted = [next((i for i in range(k) if source.random() > alpha), k) for _ in range(count)]
    return [make_step(k, n, **times) for n in accepted]


LIMITED = {
    Limit.ACCEPTANCE: drawn(0.3, 4, draft_ms=0.1, verify_ms=10.5),
    Limit.DRAFT: drawn(0.95, 4, draft_ms=6.0, verify_ms=10.5),
    Limit.VERIFY: drawn(0.95, 4, draft_ms=0.1, verify_ms=31.0),
    Limit.OVERHEAD: [replace(step, total_ms=step.total_ms + 15) for step in drawn(0.95, 4, draft_ms=0.1)],
    Limit.UNDRAFTED: [make_step(4, 4, draft_ms=0.1), *[make_step(0, 0)] * 6] * 40,
}


@pytest.mark.parametrize("limit", LIMITED)
def test_the_limit_that_was_built_in_is_found_and_advice_comes_in_order(limit):
    found = diagnose(Tally(LIMITED[limit]), PLAIN)
    assert found.main_limit.limit is limit
    assert found.main_limit.speedup > 1.2 * found.speedup
    speedups = [what_if.speedup for what_if in found.what_ifs]
    assert speedups == sorted(speedups, reverse=True)
    assert min(speedups) >= found.speedup - 1e-9, "removing a limit never makes a run slower"
    advice = promises(LIMITED[limit])
    promised = [item.speedup or 0.0 for item in advice]
    assert advice
    assert promised == sorted(promised, reverse=True)
    assert all(item.text.endswith(".") for item in advice)


def test_the_figures_are_those_of_the_runs_own_summary():
    steps = drawn(0.8, 4, count=60, draft_ms=1.0, verify_ms=14.0)
    tally = Tally(steps)
    tally.target_step_ms = 10.0
    summary = tally.summary(FinishReason.LENGTH)
    baseline = Tally([make_step(0, 0, verify_ms=10.0)] * 30)
    found = diagnose(Tally(steps), plain_step(baseline, 9.0))
    assert found.alpha == pytest.approx(tally.alpha)
    assert found.tokens_per_step == pytest.approx(summary.block_efficiency)
    assert found.cost == pytest.approx(summary.cost_coefficient)
    assert found.verify_cost == pytest.approx(1.4)
    assert found.speedup == pytest.approx(summary.tokens_per_second / (1000 / 10.5))
    assert found.overhead_share == pytest.approx(0.5 / 18.5)


def test_the_what_ifs_are_the_formula_with_one_term_changed():
    found = diagnose(Tally(drawn(0.8, 4, draft_ms=1.5, verify_ms=15.0)), PLAIN)
    tau, k, c, v, o = found.tokens_per_step, 4, 0.15, 1.5, 0.05
    unit = PLAIN.total_ms / PLAIN.forward_ms
    by_limit = {what_if.limit: what_if.speedup for what_if in found.what_ifs}
    assert found.speedup == pytest.approx(unit * tau / (k * c + v + o))
    assert by_limit[Limit.ACCEPTANCE] == pytest.approx(unit * 5 / (k * c + v + o))
    assert by_limit[Limit.DRAFT] == pytest.approx(unit * tau / (v + o))
    assert by_limit[Limit.VERIFY] == pytest.approx(unit * tau / (k * c + 1 + o))
    # A plain step samples as well: overhead of its size is no limit.
    assert by_limit[Limit.OVERHEAD] == pytest.approx(found.speedup)


def test_a_few_blocks_tell_nothing():
    assert diagnose(Tally(), PLAIN) is None
    assert diagnose(Tally(drawn(0.5, 4)), None) is None
    steps = drawn(0.3, 4, count=LEAST_BLOCKS - 1)
    found = diagnose(Tally(steps), PLAIN)
    assert not found.is_enough
    assert found.main_limit is None
    (advice,) = advise(Tally(steps), found, MODEL)
    assert "Generate about 100 tokens: advice takes 20 steps that draft, and this run had 19." in advice.text
    assert advice.settings == {"max_new_tokens": 100}
    (advice,) = advise(Tally(steps), found, {**MODEL, "max_new_tokens": 128})
    assert "a prompt with a longer answer" in advice.text
    assert not advice.settings, "the setting is no limit"
    assert diagnose(Tally([*steps, steps[0]]), PLAIN).is_enough


def test_a_plain_step_is_measured_by_the_baseline_else_by_a_forward():
    assert plain_step(Tally(), 7.0) == PlainStep(7.0, 7.0, False)
    assert plain_step(Tally([make_step(0, 0)]), 7.0) == PlainStep(10.0, 10.5, True)
    summary = replace(Tally().summary(FinishReason.LENGTH), baseline_tokens_per_second=100.0)
    assert plain_step(Tally(), 7.0, summary) == PlainStep(7.0, 10.0, True)
    assert plain_step(Tally(), None, summary) == PlainStep(10.0, 10.0, True)
    stopped = replace(summary, baseline_tokens_per_second=None)
    assert plain_step(Tally([make_step(0, 0)]), 7.0, stopped) == PlainStep(7.0, 7.0, False), "one token is no estimate"
    assert plain_step(Tally([make_step(0, 0)] * 20), 7.0, stopped) == PlainStep(10.0, 10.5, False)


def test_scoring_costs_are_measured_between_and_beyond_the_lengths_that_ran():
    steps = [make_step(2, 0, verify_ms=12.0)] * 6 + [make_step(6, 0, verify_ms=20.0)] * 6 + [make_step(9, 0)] * 2
    costs, longest = verify_costs(Tally(steps), 10.0)
    assert [costs[k] for k in (0, 1, 2, 4, 6, 12)] == pytest.approx([1.0, 1.1, 1.2, 1.6, 2.0, 3.0])
    assert longest == 6, "two blocks are too few"
    assert verify_costs(Tally(), 10.0) == ([1.0] * 17, 0)


def test_a_block_is_expected_to_emit_what_its_places_kept():
    sums = Tally(drawn(0.7, 4, count=4000))
    for k in (1, 3, 4, 8):
        assert tokens_per_block(sums, k) == pytest.approx(expected_tokens(0.7, k), rel=0.04)
    # Half the blocks go wrong at once, the others never: no single alpha tells that.
    split = Tally([make_step(4, 0), make_step(4, 4)] * 50)
    assert tokens_per_block(split, 1) == pytest.approx(1.5)
    assert tokens_per_block(split, 4) == pytest.approx(3.0)


def promises(steps, config=MODEL, emitted=()):
    sums = Tally(steps)
    return advise(sums, diagnose(sums, PLAIN), config, emitted)


def test_a_block_that_is_too_long_is_shortened_unless_the_engine_chooses_k():
    steps = drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0)
    sums = Tally(steps)
    found = diagnose(sums, PLAIN)
    best = best_length(sums, found)
    assert 1 <= best.num_draft_tokens <= 3
    assert best.speedup > found.speedup
    assert any(f"Set K to {best.num_draft_tokens} instead of 10" in advice.text for advice in promises(steps))
    assert not any("Set K" in advice.text for advice in promises(steps, {**MODEL, "num_draft_tokens": "auto"}))


def test_the_forecast_of_a_length_comes_true_in_a_run_of_that_length():
    times = {"draft_ms": 0.8, "verify_ms": 13.0}
    sums = Tally(drawn(0.75, 8, count=2000, draft_ms=0.8, verify_ms=21.0))
    found = diagnose(sums, PLAIN)
    best = best_length(sums, found)
    # Scoring takes 10 ms and 1.375 ms for each position more.
    times["verify_ms"] = 10 + 1.375 * best.num_draft_tokens
    really = diagnose(Tally(drawn(0.75, best.num_draft_tokens, count=2000, seed=2, **times)), PLAIN)
    assert best.speedup == pytest.approx(really.speedup, rel=0.03)


def test_a_hopeless_pair_is_advised_not_to_speculate_and_good_settings_are_confirmed():
    assert promises(drawn(0.05, 4, draft_ms=8.0, verify_ms=12.0))[0].text.startswith("Decode plainly")
    assert not any("plainly" in item.text for item in promises(drawn(0.9, 4, draft_ms=0.5, verify_ms=12.0)))
    assert "These settings are good" in promises(drawn(0.75, 6, count=2000, draft_ms=0.1, verify_ms=16.0))[0].text


def test_a_slow_draft_should_be_smaller_and_in_int8():
    steps = drawn(0.9, 4, draft_ms=5.0, verify_ms=11.0)
    texts = [advice.text for advice in promises(steps, {**MODEL, "device": "cpu", "method_options": {"int8": False}})]
    assert any("a step of this one takes 0.50" in text for text in texts)
    assert any("int8" in text for text in texts)
    assert not any("int8" in advice.text for advice in promises(steps, {**MODEL, "device": "cuda"}))
    for method in ("prompt-lookup", "self-draft"):
        assert not any("smaller draft" in advice.text for advice in promises(steps, {**MODEL, "method": method}))


def test_prompt_lookup_is_named_where_the_text_repeats_itself_and_only_there():
    steps = drawn(0.3, 4, draft_ms=1.0, verify_ms=11.0)
    count = sum(len(step.emitted) for step in steps)
    copied = [token % 37 for token in range(count)]
    config = {**MODEL, "prompt_token_ids": list(range(37))}
    advice = promises(steps, config, copied)[0]
    assert advice.text.startswith("Use prompt lookup with K = 4")
    assert advice.settings["num_draft_tokens"] == 4, "of the forecast, where a tree's run had other ones"
    new = list(range(1000, 1000 + count))
    assert not any("lookup" in advice.text for advice in promises(steps, config, new))


def test_the_cost_of_reproducible_coupling_is_reported():
    steps = [
        replace(make_step(4, 1, draft_ms=0.2), acceptance_probs=(0.9,) * 4, expected_acceptance=(0.9,) * 4)
    ] * 40  # fmt: skip
    texts = [advice.text for advice in promises(steps, {**MODEL, "coupling": "gumbel"})]
    assert any("Without “Same text for any draft and K”" in text for text in texts)
    assert not any("Same text" in advice.text for advice in promises(steps))


def test_temperatures_are_compared_only_where_the_run_was_at_two_and_they_differ():
    cold = [replace(step, temperature=0.2) for step in drawn(0.8, 4, draft_ms=0.1, verify_ms=10.0)]
    warm = [replace(step, temperature=1.2) for step in drawn(0.3, 4, draft_ms=0.1, verify_ms=10.0)]
    assert any("At temperature 0.2" in advice.text for advice in promises(cold + warm))
    alike = [replace(step, temperature=1.2) for step in drawn(0.8, 4, seed=2, draft_ms=0.1, verify_ms=10.0)]
    for steps in (warm, cold + alike):
        assert not any("At temperature" in advice.text for advice in promises(steps))


def test_steps_that_found_nothing_are_counted():
    lookup = {"method": "prompt-lookup", "num_draft_tokens": 4}
    steps = LIMITED[Limit.UNDRAFTED]
    assert any(advice.text.startswith("86\u00a0% of the steps found nothing") for advice in promises(steps, lookup))
    opening = [make_step(0, 0, verify_ms=14.0)] * 10 + drawn(0.95, 4, draft_ms=0.1, verify_ms=14.0, count=30)
    (found,) = [advice for advice in promises(opening, lookup) if "found nothing" in advice.text]
    assert (found.text, found.settings) == ("25\u00a0% of the steps found nothing to propose.", {}), "drafting pays"
    few = [make_step(0, 0)] * 80 + [make_step(1, 1)] * 3
    (advice,) = promises(few, {**MODEL, "num_draft_tokens": "auto"})
    assert "3 of 83 steps" in advice.text
    often = [make_step(0, 0)] * 6 + [make_step(1, 1)] * 19
    (advice,) = promises(often, {**MODEL, "num_draft_tokens": "auto"})
    assert advice.text.startswith("Generate about 47 tokens"), "a verdict on drafting takes more than that"
    (advice,) = promises([make_step(0, 0)] * 2, {**MODEL, "method": "prompt-lookup"})
    assert "this run had 0" in advice.text, "two steps don't tell what the text is like"


def tree(accepted: int, *, draft_ms=2.0, verify_ms=14.0):
    """A step with seven nodes in three levels of 1, 2 and 4, of which a path of this length is accepted."""
    step = replace(make_step(7, accepted), draft_ms=3 * draft_ms, verify_ms=verify_ms)
    parents, path = (-1, 0, 0, 1, 1, 2, 2), (0, 1, 3)[:accepted]
    kinds = (TokenKind.ACCEPTED,) * accepted + (TokenKind.BONUS if accepted == 3 else TokenKind.CORRECTION,)
    total = 3 * draft_ms + verify_ms + 0.5
    return replace(step, parents=parents, accepted_path=path, emitted_kinds=kinds, total_ms=total)


def test_a_tree_is_diagnosed_by_its_levels_and_its_nodes():
    steps = [tree(accepted) for accepted in (3, 2, 1, 0, 3, 1)] * 10
    sums = Tally(steps)
    found = diagnose(sums, PLAIN)
    assert (found.usual_length, found.usual_depth) == (7, 3)
    assert found.cost == pytest.approx(2.0 / PLAIN.forward_ms), "the time of a level"
    assert found.alpha == pytest.approx(10 / 14), "ten of the levels that were tested"
    assert found.verify_cost == pytest.approx(1.4)
    by_limit = {what_if.limit: what_if.speedup for what_if in found.what_ifs}
    step_ms = 3 * 2.0 + 14.0 + 0.5
    assert by_limit[Limit.ACCEPTANCE] == pytest.approx(4 * PLAIN.total_ms / step_ms), "a path of three and a bonus"
    assert by_limit[Limit.DRAFT] == pytest.approx(found.tokens_per_step * PLAIN.total_ms / 14.5)
    sums.target_step_ms = 10.0
    summary = sums.summary(FinishReason.LENGTH)
    assert found.cost == pytest.approx(summary.cost_coefficient)


def test_a_trees_k_is_no_chains_k():
    steps = [tree(accepted, draft_ms=4.0) for accepted in (3, 2, 3, 3)] * 10
    config = {**MODEL, "method": "draft-tree", "num_draft_tokens": 7}
    assert best_length(Tally(steps), diagnose(Tally(steps), PLAIN)) is None
    texts = [advice.text for advice in promises(steps, config)]
    assert not any("Set K" in text for text in texts)
    assert any("a step of this one takes 0.40" in text for text in texts)
    costly = [tree(accepted, draft_ms=0.1, verify_ms=30.0) for accepted in (3, 2, 3, 3)] * 10
    assert any("Smaller trees" in advice.text for advice in promises(costly, config))
