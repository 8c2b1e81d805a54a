"""What theory expects, against published numbers; and a run's own figures against its steps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.analysis.expectation import expected_accepted, expected_tokens
from core.analysis.run_counts import Column, RunCounts
from core.runlog.tally import Tally
from core.types import FinishReason, Step, StepSource, TokenKind
from tests import policy_machine

alphas = st.floats(0.0, 1.0)
lengths = st.integers(0, 32)


def make_step(drafted: int, accepted: int, *, is_cut: bool = False, draft_ms=1.0, verify_ms=10.0) -> Step:
    """A step with these counts. Cut: the text ended with its last accepted token."""
    last = TokenKind.BONUS if accepted == drafted else TokenKind.CORRECTION
    kinds = (TokenKind.ACCEPTED,) * accepted + (() if is_cut else (last,))
    floats = (0.5,) * drafted
    return policy_machine.make_step(floats, floats, accepted, kinds, drafted * draft_ms, verify_ms, sample_ms=0.5)


def predicted_speedup(alpha, k, cost, verify_cost=1.0):
    """tau / (K c + v), Leviathan et al., theorem 3.8 with v = 1."""
    return expected_tokens(alpha, k) / (k * cost + verify_cost)


def best_k(alpha, cost):
    return max(range(33), key=lambda k: (predicted_speedup(alpha, k, cost), -k))


@pytest.mark.parametrize(
    ("alpha", "k", "cost", "speedup"),
    [(0.6, 2, 0, 1.96), (0.8, 5, 0, 3.69), (0.9, 10, 0, 6.86), (0.8, 5, 0.05, 2.951), (0.5, 5, 0.5, 0.5625)],
)
def test_the_speedups_of_the_paper_and_some_computed_by_hand(alpha, k, cost, speedup):
    assert predicted_speedup(alpha, k, cost) == pytest.approx(speedup, abs=0.005 if cost == 0 else 5e-4)
    assert predicted_speedup(alpha, k, 0.0) == pytest.approx(expected_tokens(alpha, k))


def test_the_best_length():
    lengths = {(0.5, 0.05): 3, (0.6, 0.05): 4, (0.7, 0.05): 6, (0.8, 0.05): 8, (0.9, 0.05): 13, (0.5, 0.5): 0}
    assert {case: best_k(*case) for case in lengths} == lengths


@given(alphas, lengths)
def test_expected_tokens_are_the_sum_of_a_chain_of_acceptances(alpha, k):
    assert expected_tokens(alpha, k) == pytest.approx(sum(alpha**i for i in range(k + 1)), rel=1e-6)
    assert 1.0 <= expected_tokens(alpha, k) <= k + 1 + 1e-9


def summarise(tally: Tally, target_step_ms: float):
    tally.target_step_ms = target_step_ms
    return tally.summary(FinishReason.LENGTH)


def test_a_tally_counts_what_its_words_say():
    steps = [make_step(4, 4), make_step(4, 1), make_step(4, 0), make_step(0, 0), make_step(2, 1, is_cut=True)]
    counted = Tally(steps)
    counted.target_step_ms = 5.0
    summary = counted.summary(FinishReason.EOS)
    assert summary.text == "".join(step.emitted_text for step in steps)
    assert (summary.num_steps, summary.num_drafts, summary.num_draft_tokens) == (5, 4, 14)
    assert (summary.num_tokens, summary.num_accepted_tokens) == (5 + 2 + 1 + 1 + 1, 6)
    assert summary.num_accepted_tokens_per_pos == (3, 1, 1, 1)
    assert summary.draft_acceptance_rate == pytest.approx(6 / 14)
    assert summary.block_efficiency == pytest.approx(10 / 5)
    # Tested: 4, 2, 1 and 1; what lies behind a rejection or an end is not.
    assert counted.alpha == pytest.approx(6 / 8)
    assert summary.cost_coefficient == pytest.approx(14 / 14 / 5)
    assert summary.tokens_per_second == pytest.approx(10 / sum(step.total_ms for step in steps) * 1e3)
    # Three blocks of 4 whose times count and a plain step; the block that the text ended in is left out.
    expected = (3 * expected_tokens(6 / 8, 4) + 1) / (3 * (4 * 0.2 + 2.0) + 1)
    assert summary.predicted_speedup == pytest.approx(expected)


def test_positions_count_what_was_drafted_tested_and_accepted():
    counts = Tally([make_step(4, 4), make_step(4, 1), make_step(2, 2, is_cut=True), make_step(0, 0)]).positions
    assert (counts.drafted, counts.tested, counts.accepted) == ([3, 3, 2, 2], [3, 3, 1, 1], [3, 2, 1, 1])
    assert counts.of_drafted(2) == 0.5
    assert counts.of_tested(1) == pytest.approx(2 / 3)
    assert [Tally([make_step(2, 0)]).positions.of_tested(position) for position in range(2)] == [0.0, None]


def test_a_prediction_counts_steps_without_a_draft_and_a_text_that_ends_early_makes_no_draft_look_slow():
    # Ten full blocks of three among ninety plain steps, drafting and scoring for free: 130 tokens in 100 steps' time.
    steps = [make_step(3, 3, draft_ms=0.0)] * 10 + [make_step(0, 0)] * 90
    assert summarise(Tally(steps), target_step_ms=10.0).predicted_speedup == pytest.approx(1.3)
    cut = replace(make_step(1, 1, is_cut=True), draft_ms=16.0)
    assert summarise(Tally([make_step(16, 3), cut]), target_step_ms=10.0).cost_coefficient == pytest.approx(0.1)


def test_an_empty_tally_has_no_figures_rather_than_false_ones():
    summary = Tally().summary(FinishReason.CANCELLED)
    assert (summary.num_tokens, summary.num_accepted_tokens_per_pos) == (0, ())
    figures = (summary.draft_acceptance_rate, summary.block_efficiency, summary.cost_coefficient,
               summary.tokens_per_second, summary.predicted_speedup, summary.expected_acceptance_rate)  # fmt: skip
    assert figures == (None,) * 6


def test_a_token_is_expected_to_be_accepted_only_after_accepted_ones():
    assert expected_accepted((), ()) == 0
    assert expected_accepted((0.1,), (0.5,)) == 0.5
    assert expected_accepted((1.0, 0.0, 1.0), (0.5, 0.25, 0.125)) == 0.75
    assert expected_accepted((0.5, 0.5, 0.3), (0.8, 0.8, 0.4)) == pytest.approx(0.8 + 0.4 + 0.1)


@pytest.mark.parametrize("source", [None, StepSource.SERVER, StepSource.CHUNKS])
def test_a_running_rate_ends_where_a_step_may_have_drafted_unseen(source):
    """A stream of a server shows no step whose whole draft was rejected."""
    counts = RunCounts()
    for index, (drafted, accepted) in enumerate(((0, 0), (4, 4), (4, 3), (0, 0), (4, 4))):
        counts.add(replace(make_step(drafted, accepted), index=index, source=source))
    before, after = counts.columns[Column.RUNNING_RATE][2], counts.columns[Column.RUNNING_RATE][4]
    assert before == 7 / 8
    assert counts.sums.knows_drafts is (source is not StepSource.CHUNKS)
    assert after == 11 / 12 if counts.sums.knows_drafts else math.isnan(after)
