"""Draws and verdicts as a device without float64 makes them (Apple's GPUs), carried out on the processor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import core.sampling
from core.decode import speculative
from core.drafters.draft_model import DraftModelDrafter
from core.sampling import draw, draw_in_double, draw_uniforms, for_device, fractions
from core.settings import SamplingParams
from core.verify import decide, verify_block
from tests.exactness import SIGNIFICANCE, certain_step, drafter_step, joint_law_p_value, random_blocks, verify_step
from tests.fakes import NoLook, Played, play, tiny_model

LAST_UNIFORM = 1.0 - 2.0**-53


@pytest.fixture
def no_double(monkeypatch):
    """The processor passes for a device that has no float64 and runs behind the host."""
    monkeypatch.setattr(core.sampling, "has_double", lambda device: False)
    for user in ("core.verify", "core.decode"):
        monkeypatch.setattr(f"{user}.is_asynchronous", lambda device: True)


def in_words(value: float) -> torch.Tensor:
    return (torch.tensor(value, dtype=torch.float64) * 2.0**48).long()


def test_draw_inverts_the_distribution_function(no_double):
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    for uniform, token in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (LAST_UNIFORM, 4)]:
        assert int(draw(probs, torch.tensor(uniform, dtype=torch.float64))) == token
        assert int(draw(probs * 1e-9, in_words(uniform))) == token  # As little may be left as a residual.


def test_unlikely_tokens_of_a_large_vocabulary_are_drawn_as_doubles_draw_them(no_double):
    # Two in three of the mass on one id, the rest on a quarter of a million that float32 would lose behind it.
    probs = torch.full((262_144,), 1.0 / 3.0 / 262_143)
    probs[7] = 2.0 / 3.0
    tokens = [int(draw(probs, uniform)) for uniform in draw_uniforms(300, torch.Generator().manual_seed(0))]
    wanted = [int(draw_in_double(probs, uniform)) for uniform in draw_uniforms(300, torch.Generator().manual_seed(0))]
    # In 2^-37ths an id's edge is off by half a unit, and those before it add up: a thousandth of the way at most.
    assert max(abs(token - other) for token, other in zip(tokens, wanted, strict=True)) < 262
    assert len(set(tokens)) > 60


def test_draw_follows_the_distribution(no_double):
    probs = torch.rand(12, generator=torch.Generator().manual_seed(1)) ** 2
    probs[[3, 7]] = 0.0
    tokens = [int(draw(probs, uniform)) for uniform in draw_uniforms(20_000, torch.Generator().manual_seed(2))]
    counts = torch.bincount(torch.tensor(tokens), minlength=12)
    assert counts[[3, 7]].sum() == 0
    kept = probs > 0
    expected = (probs / probs.sum())[kept].double() * len(tokens)
    assert chisquare(counts[kept].double(), expected * len(tokens) / expected.sum()).pvalue > 1e-4


@given(st.floats(0.0, LAST_UNIFORM))
def test_a_draw_in_words_is_the_draw_to_24_bits_and_below_1(value):
    fraction = fractions(in_words(value))
    assert fraction.dtype is torch.float32
    assert 0.0 <= float(fraction) < 1.0
    assert 0.0 <= value - float(fraction) < 2.0**-24


def test_what_is_in_words_stays_so():
    words = in_words(0.3)
    assert for_device(words, torch.device("cpu")) is words


@given(random_blocks)
@settings(max_examples=150, deadline=None)
def test_the_verdict_is_that_of_doubles_without_a_look_on_the_way(block):
    tokens, probs, target, seed = block
    num_drafted = len(tokens)
    expected = verify_block(tokens, probs, target, generator=torch.Generator().manual_seed(seed))
    uniforms = draw_uniforms(num_drafted + 1, torch.Generator().manual_seed(seed))
    words = (uniforms * 2.0**48).long()
    with NoLook():
        verdict = decide(tokens, probs, target, words)
    assert verdict.dtype is torch.float32
    assert verdict[:2].tolist() == [expected.num_accepted, expected.next_token]


def test_a_certain_rejection_stays_one_where_u_is_0(no_double):
    target = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    verdict = decide(torch.tensor([0]), torch.tensor([[1.0, 0.0]]), target, torch.zeros(2, dtype=torch.long))
    assert verdict[:2].tolist() == [0, 1]


@pytest.mark.parametrize(
    "step", [verify_step(verify_block), certain_step(verify_block), drafter_step(DraftModelDrafter, verify_block)]
)
def test_a_block_follows_the_target_jointly(no_double, step):
    assert joint_law_p_value(step, samples=12_000) > SIGNIFICANCE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_is_that_of_the_processor(temperature, request):
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
        # What is told of a test is what decided it.
        tests = zip(step.uniforms, step.acceptance_probs, strict=True)
        assert [u < ratio for u, ratio in tests][: step.num_accepted] == [True] * step.num_accepted
