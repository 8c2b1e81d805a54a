"""Logits to probabilities to a token, also as a device without float64 (Apple's GPUs) computes them."""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import core.sampling
from core.decode import speculative
from core.drafters.draft_model import DraftModelDrafter
from core.errors import SettingsError
from core.sampling import (
    draw,
    draw_gumbel,
    draw_in_double,
    draw_uniforms,
    fractions,
    gumbel_noise,
    mixed,
    probabilities,
    seeded_generator,
)
from core.settings import SamplingParams
from core.verify import verify_block
from core.verify.on_device import verify_on_device
from tests.exactness import SIGNIFICANCE, certain_step, drafter_step, joint_p_value, random_blocks, verify_step
from tests.fakes import NoLook, Played, play, tiny_model
from tests.text_distribution import is_near_an_edge

LAST_UNIFORM = 1.0 - 2.0**-53

# On a grid, so that there are ties, and so that no two values are one by rounding alone.
values = st.integers(-240, 240).map(lambda eighths: eighths / 8) | st.sampled_from([0.0, 1.0, -1.0, 2.5])
rows = st.lists(values | st.just(-math.inf), min_size=1, max_size=40).filter(lambda row: max(row) > -math.inf)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.0]) | st.floats(0.05, 5),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.5, 0.9]) | st.floats(0.05, 1.0),
    min_p=st.sampled_from([0.0, 1.0]) | st.floats(0.0, 1.0),
)


def transformers_probabilities(logits: torch.Tensor, settings: SamplingParams) -> torch.Tensor:
    scores = TemperatureLogitsWarper(settings.temperature)(None, logits.unsqueeze(0))
    if settings.top_k:
        scores = TopKLogitsWarper(settings.top_k)(None, scores)
    if settings.top_p < 1.0:
        scores = TopPLogitsWarper(settings.top_p)(None, scores)
    if settings.min_p > 0.0:
        scores = MinPLogitsWarper(settings.min_p)(None, scores)
    return scores.softmax(-1)[0]


@given(st.lists(rows, min_size=1, max_size=3), params)
def test_a_batch_is_its_rows(several, settings):
    # Else a drafted block would be judged by another distribution than plain decoding follows.
    width = max(len(row) for row in several)
    logits = torch.tensor([row + [-math.inf] * (width - len(row)) for row in several])
    together = probabilities(logits, settings)
    for index, row in enumerate(logits):
        alone = probabilities(row, settings)
        assert torch.equal(together[index] > 0, alone > 0)
        assert torch.allclose(together[index], alone, atol=1e-6)


@pytest.mark.parametrize("top_k", [0, 4])
def test_of_equal_tokens_at_the_nucleus_edge_the_lowest_ids_stay(top_k):
    logits = torch.zeros(3, 60)
    logits[1] = torch.arange(60) * 0.1
    logits[2, 7] = 3.0
    probs = probabilities(logits, SamplingParams(1.0, top_k=top_k, top_p=0.26))
    assert (probs[0] > 0).nonzero().flatten().tolist() == list(range(16))
    assert torch.equal(probs, torch.stack([probabilities(row, SamplingParams(1.0, top_k, 0.26)) for row in logits]))


@given(rows, params.filter(lambda settings: settings.temperature > 0))
@settings(max_examples=400)
def test_agrees_with_transformers_own_filters(row, settings):
    logits = torch.tensor(row)
    assume(not is_near_an_edge(np.array(row), settings))
    ours, theirs = probabilities(logits, settings), transformers_probabilities(logits, settings)
    # Of equal logits at top-p's edge either may stay: the same number of them must.
    assert torch.allclose(ours.sort().values, theirs.sort().values, atol=1e-5)
    differs = (ours > 0) != (theirs > 0)
    for value in logits[differs].unique():
        tied = logits == value
        assert int(tied.sum()) > 1
        assert int((ours[tied] > 0).sum()) == int((theirs[tied] > 0).sum())


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-38, 1e-9])
def test_a_vanishing_temperature_is_greedy_not_broken(temperature):
    probs = probabilities(torch.tensor([0.0, 30.0, -5.0, 1e4]), SamplingParams(temperature))
    assert probs.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 2, "top_p": 0.5}])
@pytest.mark.parametrize("bad", [[math.nan, 0.0, 1.0], [0.0, 1.0, math.nan], [-math.inf] * 3, [0.0, math.inf, 1.0]])
def test_a_broken_row_stays_recognisable_and_alone(temperature, filters, bad):
    logits = torch.tensor([bad, [1.0, 2.0, 3.0]])
    probs = probabilities(logits, SamplingParams(temperature, **filters))
    assert bool(probs[0].isnan().all())
    assert float(probs[1].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "values",
    [{"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": 11},
     {"temperature": "1"}, {"temperature": True}, {"top_k": -1}, {"top_k": 1.5}, {"top_p": 0.0}, {"top_p": 1.1},
     {"top_p": math.nan}, {"min_p": -0.1}, {"min_p": 1.5}, {"min_p": math.nan}],
)  # fmt: skip
def test_settings_out_of_range_are_refused_with_a_sentence(values):
    with pytest.raises(SettingsError, match=r"^\S.*\.$"):
        SamplingParams(**values)


def test_gumbel_noise_belongs_to_its_seed_and_position():
    noise = gumbel_noise(7, 40, 100)
    assert torch.equal(noise, gumbel_noise(7, 40, 100))
    others = [gumbel_noise(seed, position, 100) for seed, position in [(7, 41), (7, 39), (8, 40), (40, 7), (6, 41)]]
    assert not any(torch.equal(noise, other) for other in others)
    assert bool(noise.isfinite().all())


def test_gumbel_noise_and_draws_are_the_same_on_every_machine():
    """Fixed numbers: an integer hash, and a generator that takes 32 bits of a longer seed."""
    assert mixed(0) == 0xE220A8397B1DCDAF  # The first output of SplitMix64 from 0, as published.
    noise = gumbel_noise(7, 40, 50_000)
    assert torch.allclose(noise[[0, 1, 49_999]], torch.tensor(NOISE), atol=1e-6)
    assert torch.equal(noise[:100], gumbel_noise(7, 40, 100))
    seeds = (1, 1 + 2**32, 1 + 2**40, 1 + 2**62)
    assert len({float(draw_uniforms(1, seeded_generator(seed))) for seed in seeds}) == 4
    assert len({float(gumbel_noise(seed, 0, 1)) for seed in seeds}) == 4


NOISE = [-1.2146258, 0.2641770, -0.1088933]


@pytest.mark.parametrize("seed", [0, 2**63 - 1, None])
def test_gumbel_draws_follow_the_distribution_over_positions_and_over_seeds(seed):
    probs = torch.tensor([0.5, 0.2, 0.0, 0.15, 0.1, 0.05])
    noises = (gumbel_noise(at, 5, 6) if seed is None else gumbel_noise(seed, at, 6) for at in range(5_000))
    tokens = draw_gumbel(probs, torch.stack([*noises]))
    counts = torch.bincount(tokens, minlength=6)
    assert counts[2] == 0
    kept = [0, 1, 3, 4, 5]
    assert chisquare(counts[kept].double(), probs[kept].double() * 5_000, sum_check=False).pvalue > SIGNIFICANCE
    # Neighbours have nothing to do with each other.
    pairs = torch.bincount(tokens[:-1] * 6 + tokens[1:], minlength=36).view(6, 6)[kept][:, kept]
    expected = torch.outer(probs, probs)[kept][:, kept].double() * 4_999
    assert chisquare(pairs.flatten().double(), expected.flatten(), sum_check=False).pvalue > SIGNIFICANCE


@pytest.fixture
def no_double(monkeypatch):
    """The processor passes for a device that has no float64 and runs behind the host."""
    monkeypatch.setattr(core.sampling, "has_double", lambda device: False)
    monkeypatch.setattr("core.verify.on_device.has_double", lambda device: False)
    for user in ("core.rounds", "core.decode"):
        monkeypatch.setattr(f"{user}.is_asynchronous", lambda device: True)


def in_words(value: float) -> torch.Tensor:
    return (torch.tensor(value, dtype=torch.float64) * 2.0**48).long()


def test_unlikely_tokens_of_a_large_vocabulary_are_drawn_as_in_float64(no_double):
    # Two in three of the mass on one id, the rest on a quarter of a million that float32 would lose behind it.
    probs = torch.full((262_144,), 1.0 / 3.0 / 262_143)
    probs[7] = 2.0 / 3.0
    tokens = [int(draw(probs, uniform)) for uniform in draw_uniforms(300, torch.Generator().manual_seed(0))]
    wanted = [int(draw_in_double(probs, uniform)) for uniform in draw_uniforms(300, torch.Generator().manual_seed(0))]
    # In 2^-37ths an id's edge is off by half a unit, and those before it add up: a thousandth of the way at most.
    assert max(abs(token - other) for token, other in zip(tokens, wanted, strict=True)) < 262
    assert len(set(tokens)) > 60


@pytest.mark.parametrize("has_double", [True, False])
def test_draw_inverts_the_cumulated_distribution_and_follows_it(has_double, request):
    if not has_double:
        request.getfixturevalue("no_double")
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    for uniform, token in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (LAST_UNIFORM, 4)]:
        assert int(draw(probs, torch.tensor(uniform, dtype=torch.float64))) == token
        if not has_double:  # As little may be left as a residual.
            assert int(draw(probs * 1e-9, in_words(uniform))) == token
    probs = torch.rand(12, generator=torch.Generator().manual_seed(1)) ** 2
    probs[[3, 7]] = 0.0
    tokens = [int(draw(probs, uniform)) for uniform in draw_uniforms(5_000, torch.Generator().manual_seed(2))]
    counts = torch.bincount(torch.tensor(tokens), minlength=12)
    assert counts[[3, 7]].sum() == 0
    kept = probs > 0
    expected = (probs / probs.sum())[kept].double() * len(tokens)
    assert chisquare(counts[kept].double(), expected * len(tokens) / expected.sum()).pvalue > SIGNIFICANCE


@given(st.floats(0.0, LAST_UNIFORM))
def test_an_integer_draw_equals_the_draw_to_24_bits_and_is_below_1(value):
    fraction = fractions(in_words(value))
    assert fraction.dtype is torch.float32
    assert 0.0 <= float(fraction) < 1.0
    assert 0.0 <= value - float(fraction) < 2.0**-24


@given(random_blocks)
@settings(max_examples=150)
def test_the_verdict_equals_that_in_float64_without_reading_values_on_the_host(block):
    tokens, probs, target, seed = block
    num_drafted = len(tokens)
    parents = range(-1, num_drafted - 1)
    uniforms = draw_uniforms(num_drafted + 1, torch.Generator().manual_seed(seed))
    expected = verify_block(tokens, parents, probs, target, uniforms)
    words = (uniforms * 2.0**48).long()

    def fetch(values: torch.Tensor) -> list[float]:
        assert values.dtype is torch.float32
        return values.tolist()

    with NoLook(), patch("core.verify.on_device.has_double", lambda device: False):
        outcome, _ = verify_on_device(tokens, parents, probs, target, uniforms, draws=words, fetch=fetch)
    assert (outcome.path, outcome.next_token) == (expected.path, expected.next_token)


def on_device(*block):
    return verify_on_device(*block)[0]


def test_a_certain_rejection_stays_one_where_u_is_0(no_double):
    target = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    certain, zeros = torch.tensor([[1.0, 0.0]]), torch.zeros(2, dtype=torch.float64)
    outcome, _ = verify_on_device(torch.tensor([0]), [-1], certain, target, zeros)
    assert (outcome.path, outcome.next_token) == ((), 1)


@pytest.mark.parametrize(
    "step", [verify_step(on_device), certain_step(on_device), drafter_step(DraftModelDrafter, on_device)]
)
def test_without_float64_a_block_follows_the_target_jointly(no_double, step):
    assert joint_p_value(step, samples=3_000) > SIGNIFICANCE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_float64_a_run_equals_the_processors(temperature, request):
    target, draft = tiny_model(is_fused=True), tiny_model(seed=1, is_fused=True)

    def run() -> Played:
        sampling = SamplingParams(temperature)
        return play(speculative(target, draft, [1, 2, 3], sampling=sampling, max_new_tokens=40, seed=3))

    def shape(run: Played) -> list:
        return [(step.drafted, step.emitted, step.num_accepted) for step in run.steps]

    usual = run()
    request.getfixturevalue("no_double")
    behind = run()
    assert shape(behind) == shape(usual)
    for step in behind.steps:
        # What is reported about a test is what decided it.
        tests = zip(step.uniforms, step.acceptance_probs, strict=True)
        assert [u < ratio for u, ratio in tests][: step.num_accepted] == [True] * step.num_accepted
