"""Logits to probabilities to a token: the basis of every distribution in the engine."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from core.errors import SettingsError
from core.sampling import draw, draw_gumbel, draw_uniforms, gumbel_noise, probabilities
from core.settings import SamplingParams

LAST_UNIFORM = 1.0 - 2.0**-53
TINY_UNIFORM = 2.0**-53

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
weights = st.lists(st.just(0.0) | st.floats(2.0**-60, 1.0), min_size=1, max_size=50).filter(lambda row: sum(row) > 0)


def transformers_probabilities(logits: torch.Tensor, settings: SamplingParams) -> torch.Tensor:
    scores = logits.unsqueeze(0)
    warpers = [TemperatureLogitsWarper(settings.temperature)]
    if settings.top_k:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0]


def is_near_an_edge(logits: torch.Tensor, settings: SamplingParams) -> bool:
    """Whether rounding alone decides if a token is inside: a cumulated mass, or a ratio, at its threshold."""
    scores = TemperatureLogitsWarper(settings.temperature)(None, logits.double().unsqueeze(0))
    if settings.top_k:
        scores = TopKLogitsWarper(settings.top_k)(None, scores)
    probs = scores.softmax(-1)[0]
    mass = probs.sort(descending=True).values.cumsum(-1)
    near_p = settings.top_p < 1 and bool(((mass - settings.top_p).abs() < 1e-5).any())
    ratio = probs / probs.max()
    near_min = settings.min_p > 0 and bool(((ratio - settings.min_p).abs() < 1e-5)[ratio < 1].any())
    return near_p or near_min


@given(rows, params)
def test_rows_are_distributions_over_what_may_be_drawn(row, settings):
    logits = torch.tensor(row)
    probs = probabilities(logits, settings)
    assert probs.dtype is torch.float32
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
    assert bool((probs >= 0).all())
    assert bool((probs[logits == -math.inf] == 0).all())
    # Whatever the filters, the most probable token stays in: the lowest id, where several are equal.
    assert float(probs[row.index(max(row))]) == float(probs.max()) > 0


@given(st.lists(rows, min_size=1, max_size=3), params)
def test_a_batch_is_its_rows(several, settings):
    # Else a drafted block would be verified with another distribution than plain decoding's, which scores one row.
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


@given(rows, params)
def test_temperature_zero_is_argmax_whatever_the_filters(row, settings):
    greedy = SamplingParams(0.0, settings.top_k, settings.top_p, settings.min_p)
    probs = probabilities(torch.tensor(row), greedy)
    expected = torch.zeros(len(row))
    expected[row.index(max(row))] = 1.0  # the lowest id of several equals
    assert torch.equal(probs, expected)


@given(rows, params.filter(lambda settings: settings.temperature > 0))
@settings(max_examples=400)
def test_agrees_with_transformers_own_filters(row, settings):
    logits = torch.tensor(row)
    if is_near_an_edge(logits, settings):
        return
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


@given(weights, st.sampled_from([0.0, 5e-324, TINY_UNIFORM, 0.5, LAST_UNIFORM]) | st.floats(0, LAST_UNIFORM))
@settings(max_examples=300)
def test_draw_never_returns_an_id_without_mass(row, uniform):
    for dtype in (torch.float32, torch.float64):
        probs = torch.tensor(row, dtype=dtype)
        token = int(draw(probs, torch.tensor(uniform, dtype=torch.float64)))
        assert float(probs[token]) > 0


def test_draw_inverts_the_distribution_function():
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    for uniform, token in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (LAST_UNIFORM, 4)]:
        assert int(draw(probs, torch.tensor(uniform, dtype=torch.float64))) == token


def test_draw_follows_the_distribution():
    probs = torch.rand(12, generator=torch.Generator().manual_seed(1)) ** 2
    probs[[3, 7]] = 0.0
    uniforms = draw_uniforms(20_000, torch.Generator().manual_seed(2))
    counts = torch.zeros(12)
    for uniform in uniforms:
        counts[int(draw(probs, uniform))] += 1
    assert counts[[3, 7]].sum() == 0
    kept = probs > 0
    expected = (probs / probs.sum())[kept].double() * len(uniforms)
    assert chisquare(counts[kept].double(), expected * counts.sum() / expected.sum()).pvalue > 1e-4


def test_gumbel_noise_belongs_to_its_seed_and_position():
    noise = gumbel_noise(7, 40, 100)
    assert torch.equal(noise, gumbel_noise(7, 40, 100))
    others = [gumbel_noise(seed, position, 100) for seed, position in [(7, 41), (7, 39), (8, 40), (40, 7), (6, 41)]]
    assert not any(torch.equal(noise, other) for other in others)
    assert bool(noise.isfinite().all())


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_gumbel_draws_follow_the_distribution_over_positions(seed):
    probs = torch.tensor([0.5, 0.2, 0.0, 0.15, 0.1, 0.05])
    counts = torch.zeros(6)
    pairs = torch.zeros(6, 6)
    last = 0
    for position in range(12_000):
        token = int(draw_gumbel(probs, gumbel_noise(seed, position, 6)))
        counts[token] += 1
        pairs[last, token] += 1
        last = token
    assert counts[2] == 0
    kept = [0, 1, 3, 4, 5]
    assert chisquare(counts[kept].double(), probs[kept].double() * 12_000, sum_check=False).pvalue > 1e-4
    # Neighbouring positions have nothing to do with each other.
    expected = torch.outer(probs, probs)[kept][:, kept].flatten().double() * 12_000
    assert chisquare(pairs[kept][:, kept].flatten().double(), expected, sum_check=False).pvalue > 1e-4


def test_gumbel_draws_follow_the_distribution_over_seeds():
    probs = torch.tensor([0.6, 0.3, 0.1])
    counts = torch.zeros(3)
    for seed in range(12_000):
        counts[int(draw_gumbel(probs, gumbel_noise(seed, 5, 3)))] += 1
    assert chisquare(counts.double(), probs.double() * 12_000, sum_check=False).pvalue > 1e-4
