"""Theory beside measurement: figures on steps made by hand, intervals that cover, predictions that come true."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from core.analysis.advice import best_length
from core.analysis.calibration import Predictor, calibrate, kl_bound, rank_correlation, study_predictors
from core.analysis.diagnosis import PlainStep, diagnose, verify_costs
from core.analysis.expectation import expected_tokens
from core.analysis.theory import resampled, speedup_theory, weighted_medians
from core.runlog.tally import COLUMNS, Tally
from core.types import TokenKind
from tests.test_core_analysis import make_step, predicted_speedup
from tests.test_core_diagnosis import drawn
from tests.test_core_evidence import a_block, capture_chain

PLAIN = PlainStep(forward_ms=10.0, total_ms=10.5, is_measured=False)


def theory_of(steps, plain=PLAIN, baseline=(), **settings):
    return speedup_theory(Tally(steps), plain, Tally(baseline), **settings)


def mixed(count=60):
    """Blocks of 2 and of 6, whose scoring takes 12 and 20 ms."""
    return [*drawn(0.8, 2, count=count, seed=3, verify_ms=12.0), *drawn(0.8, 6, count=count, seed=4, verify_ms=20.0)]


# --- Speedup ----------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_diagnosis_and_both_curves_the_formulas_at_every_k():
    steps = mixed()
    found, diagnosis = theory_of(steps, PLAIN), diagnose(Tally(steps), PLAIN)
    alpha, cost = found.alpha.value, found.cost.value
    assert (alpha, cost) == pytest.approx((diagnosis.alpha, diagnosis.cost))
    assert found.ran_tokens.value == pytest.approx(diagnosis.tokens_per_step)
    assert found.ran_speedup.value == pytest.approx(diagnosis.speedup)
    costs, longest = verify_costs(Tally(steps), PLAIN.forward_ms)
    assert found.verify.values == pytest.approx(costs)
    assert found.longest == longest == 6
    for k in range(17):
        assert found.tokens.values[k] == pytest.approx(expected_tokens(alpha, k))
        assert found.leviathan.values[k] == pytest.approx(predicted_speedup(alpha, k, cost))
        measured = predicted_speedup(alpha, k, cost, found.verify.values[k])
        assert found.measured_verify.values[k] == pytest.approx(measured)
    assert 0 < found.best_k <= found.leviathan.best


def test_c_and_the_best_length_leave_out_a_block_that_the_texts_end_cut_short():
    steps = drawn(0.8, 4, count=60)
    # It drafted 16 tokens, of which one is counted.
    whole, cut = Tally(steps), Tally([*steps, make_step(1, 1, is_cut=True, draft_ms=160.0)])
    found, diagnosis = speedup_theory(cut, PLAIN), diagnose(cut, PLAIN)
    assert found.cost.value == found.cost.high == pytest.approx(0.1)
    assert diagnosis.cost == cut.forecast(PLAIN.forward_ms)[0] == pytest.approx(0.1)
    lengths = [best_length(sums, diagnose(sums, PLAIN)).num_draft_tokens for sums in (whole, cut)]
    assert lengths[0] == lengths[1] > 1
    only = Tally([make_step(1, 1, is_cut=True)])
    assert (diagnose(only, PLAIN).cost, speedup_theory(only, PLAIN)) == (None, None)


def test_where_no_length_ran_five_times_v_is_that_of_those_that_ran_most_often():
    steps = [*drawn(0.8, 4, count=4, verify_ms=30.0), *drawn(0.8, 2, count=1, verify_ms=300.0)]
    found = theory_of(steps, PLAIN)
    assert found.verify.values[4] == diagnose(Tally(steps), PLAIN).verify_cost == pytest.approx(3.0)
    assert found.longest == 4


def test_a_draft_that_is_never_right_has_no_best_k_and_one_always_right_the_longest():
    never = theory_of(drawn(0.0, 4, count=40), PLAIN)
    assert never.best_k == 0
    assert never.share_wins == 0.0
    always = theory_of(drawn(1.0, 4, count=40, draft_ms=0.5), PLAIN)
    assert always.best_k == 16
    assert always.longest == 4


def test_nothing_tested_or_no_unit_is_nothing():
    assert theory_of([make_step(0, 0)] * 30, PLAIN) is None
    assert theory_of([], PLAIN) is None
    assert theory_of(mixed(), None) is None
    one = theory_of(drawn(0.5, 4, count=1), PLAIN)
    assert one.alpha.low is None
    assert one.measured_verify.low == ()


# --- Intervals --------------------------------------------------------------------------------------------------


def test_intervals_cover_what_is_true_about_as_often_as_they_say():
    k, alpha, runs = 4, 0.7, 120
    covered = {"alpha": 0, "tokens": 0}
    for seed in range(runs):
        found = theory_of(drawn(alpha, k, count=80, seed=seed), PLAIN, num_resamples=200)
        covered["alpha"] += found.alpha.low <= alpha <= found.alpha.high
        covered["tokens"] += found.ran_tokens.low <= expected_tokens(alpha, k) <= found.ran_tokens.high
    for name, count in covered.items():
        assert 0.87 <= count / runs <= 1.0, f"{name} was covered in {count} of {runs}"


def test_a_baseline_that_was_measured_is_resampled_along():
    steps = drawn(0.7, 4, count=100)
    plain = PlainStep(10.0, 10.5, True)
    baseline = [make_step(0, 0, verify_ms=10.0 + 8 * (index % 2)) for index in range(40)]
    steady = [make_step(0, 0, verify_ms=14.0)] * 40
    wide, narrow = (theory_of(steps, plain, other) for other in (baseline, steady))
    assert wide.ran_speedup.high - wide.ran_speedup.low > narrow.ran_speedup.high - narrow.ran_speedup.low
    assert narrow.ran_speedup == theory_of(steps, plain).ran_speedup


def test_weighted_medians_are_the_medians_of_what_was_drawn():
    rng = np.random.default_rng(5)
    values = rng.normal(size=31)
    for weights in resampled(31, rng, 40):
        medians = weighted_medians(values, weights)
        for row, median in zip(weights, medians, strict=True):
            assert median == pytest.approx(np.median(np.repeat(values, row.astype(int))))
    assert math.isnan(weighted_medians(values, np.zeros((1, 31)))[0])


def test_a_block_that_the_texts_end_cut_short_is_not_timed():
    table = Tally([make_step(4, 4), make_step(4, 2, is_cut=True), make_step(0, 0)]).table()
    assert table[:, COLUMNS.index("is_timed")].tolist() == [1, 0, 0]
    assert table[:, COLUMNS.index("tested")].tolist() == [4, 2, 0]


# --- Calibration ------------------------------------------------------------------------------------------------


def promised(chances, seed, *, real=lambda chance: chance, count=400):
    """Blocks whose places are accepted with `real` of what they promise."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        block = tuple(float(rng.choice(chances)) for _ in range(4))
        accepted = next((i for i, chance in enumerate(block) if rng.random() >= real(chance)), 4)
        steps.append(replace(make_step(4, accepted), expected_acceptance=block))
    return steps


def test_predictions_are_compared_by_position_and_by_tenth():
    found = calibrate(promised((0.25, 0.55, 0.95), 1))
    assert abs(found.z) < 2
    assert [item.title for item in found.positions] == ["1", "2", "3", "4"]
    assert [item.title for item in found.bins] == ["0.2–0.3", "0.5–0.6", "0.9–1.0"]
    assert sum(item.num_tested for item in found.bins) == found.overall.num_tested
    for item in found.bins:
        assert item.low <= item.predicted <= item.high
    assert found.positions[0].num_tested == 400
    assert calibrate(promised((0.25, 0.55, 0.95), 1, real=lambda chance: chance**2)).z < -4


def test_tokens_after_a_rejection_and_damaged_predictions_are_left_out():
    step = replace(make_step(3, 1), expected_acceptance=(1.0, 0.0, 0.123))
    found = calibrate([step] * 5)
    assert [(item.title, item.observed) for item in found.bins] == [("0.0–0.1", 0.0), ("0.9–1.0", 1.0)]
    assert found.z is None
    steps = [replace(make_step(2, 2), expected_acceptance=(math.nan, 0.5))] * 3
    assert calibrate(steps).overall.num_tested == 3
    assert calibrate([replace(make_step(2, 2), expected_acceptance=(math.nan, math.nan))]) is None
    assert calibrate([make_step(0, 0)]) is None


# --- Cheaper predictors -----------------------------------------------------------------------------------------


def with_evidence(vocab_size, count=30, **changes):
    """Steps with the evidence of random pairs, and these pairs as (target, draft) rows of drafted places."""
    steps, pairs = [], []
    for seed in range(count):
        tokens, probs, target, outcome = a_block(3, vocab_size, 10 * seed, **changes)
        last = [TokenKind.ACCEPTED] * outcome.num_accepted + [outcome.next_kind]
        block = replace(
            make_step(3, outcome.num_accepted),
            emitted_kinds=tuple(last),
            evidence=capture_chain(tokens, probs, target, outcome),
        )
        steps.append(block)
        pairs += list(zip(target[:3].double(), probs.double(), strict=True))
    return steps, pairs


def kl(p, q):
    return float(torch.where(p > 0, p * (p / q).log(), 0.0).sum())


def fits(steps):
    return {fit.predictor: fit for fit in study_predictors(steps).fits}


def test_where_all_tokens_are_listed_the_divergences_are_exact():
    steps, pairs = with_evidence(12)
    found = fits(steps)
    assert found[Predictor.KL_TARGET_DRAFT].mean == pytest.approx(np.mean([kl(p, q) for p, q in pairs]), rel=1e-4)
    assert found[Predictor.KL_DRAFT_TARGET].mean == pytest.approx(np.mean([kl(q, p) for p, q in pairs]), rel=1e-4)
    assert found[Predictor.DRAFT_TOP].mean == pytest.approx(np.mean([float(q.max()) for _, q in pairs]), rel=1e-5)
    same = np.mean([int(p.argmax()) == int(q.argmax()) for p, q in pairs])
    assert found[Predictor.TOP_1].mean == pytest.approx(same)
    assert study_predictors(steps).most_tail == pytest.approx(0.0, abs=1e-6)


def test_a_tail_makes_a_divergence_a_lower_bound():
    steps, pairs = with_evidence(300, scale=1.0)
    places = [place for step in steps for place in step.evidence[:3]]
    for place, (p, q) in zip(places, pairs, strict=True):
        arrays = (np.array(place.target_probs), np.array(place.draft_probs))
        tails = (np.array([place.target_tail]), np.array([place.draft_tail]))
        bound = kl_bound(*arrays, np.array([0]), *tails)[0]
        assert 0.0 <= bound <= kl(p, q) + 1e-5
    found = study_predictors(steps)
    assert 0.01 < found.mean_tail <= found.most_tail
    assert found.num_positions == 90


def test_a_token_that_the_draft_excludes_makes_one_divergence_infinite_and_its_rank_the_highest():
    steps, pairs = with_evidence(12, zeros=0.3)
    found = fits(steps)[Predictor.KL_TARGET_DRAFT]
    assert found.num_infinite == sum(math.isinf(kl(p, q)) for p, q in pairs) > 0
    assert math.isfinite(found.mean)
    assert found.with_overlap < 0


def test_rank_correlation_sees_order_alone_and_shares_ties():
    from scipy.stats import spearmanr

    rising = np.arange(30.0)
    assert rank_correlation(rising, np.exp(rising)) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    assert rank_correlation(rising, np.zeros(30)) is None

    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 5, 50).astype(float), rng.integers(0, 5, 50).astype(float)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
