"""Modified rejection sampling: what comes out follows the target, and bad input is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from core.drafters.draft_model import DraftModelDrafter
from core.errors import DrafterError, GenerationError
from core.types import TokenKind
from core.verify import residual, verify, verify_block, verify_tree
from core.verify.on_device import verify_on_device
from core.verify.other_rules import verify_as_block, verify_gumbel
from tests.exactness import (
    SIGNIFICANCE,
    certain_step,
    drafter_step,
    global_generator_untouched,
    joint_p_value,
    verify_step,
)

PAPER_TARGET = torch.tensor([0.5, 0.3, 0.2])
PAPER_DRAFT = torch.tensor([0.2, 0.3, 0.5])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(token: int, size: int = 4) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(token), size).float()


@pytest.fixture
def uniforms(monkeypatch):
    """Sets what the verifier draws."""

    def fix(*values: float) -> None:
        drawn = torch.tensor(values, dtype=torch.float64)
        monkeypatch.setattr("core.verify.rejection.draw_uniforms", lambda count, _: drawn[:count])

    return fix


def as_block(tokens, parents, *rest):
    return verify_as_block(tokens, *rest)


def verify_chain(tokens, parents, *rows_and_uniforms):
    *rows, drawn = rows_and_uniforms
    return verify(tokens, *rows, generator=generator(int(drawn[0] * 2**53)))


@pytest.mark.parametrize(
    "step", [verify_step(verify_chain), certain_step(verify_block), drafter_step(DraftModelDrafter, verify_block)]
)
def test_a_block_follows_the_target_jointly(step):
    assert joint_p_value(step, samples=3_000) > SIGNIFICANCE


def test_the_example_of_the_paper():
    draws, draft, first = 3_000, generator(1), torch.zeros(3)
    accepted, corrections, randomness = 0, set(), generator(2)
    target = torch.stack([PAPER_TARGET, PAPER_TARGET])
    for _ in range(draws):
        token = torch.multinomial(PAPER_DRAFT, 1, generator=draft)
        outcome = verify(token, PAPER_DRAFT[None], target, generator=randomness)
        accepted += outcome.num_accepted
        if not outcome.num_accepted:
            corrections.add(outcome.next_token)
        first[int(token) if outcome.num_accepted else outcome.next_token] += 1
    assert binomtest(accepted, draws, 0.7).pvalue > SIGNIFICANCE
    assert corrections == {0}
    assert chisquare(first.double(), PAPER_TARGET.double() * draws, sum_check=False).pvalue > SIGNIFICANCE


@given(st.integers(0, 6), st.integers(2, 20), st.integers(0, 10_000))
def test_equal_distributions_accept_all_and_draw_the_bonus_from_the_last_row(num_drafted, vocab_size, seed):
    rows = torch.rand(num_drafted + 1, vocab_size, generator=generator(seed)) + 1e-3
    rows /= rows.sum(-1, keepdim=True)
    rows[-1] = one_hot(seed % vocab_size, vocab_size)
    tokens = torch.randint(vocab_size, (num_drafted,), generator=generator(seed))
    outcome = verify(tokens, rows[:-1], rows, generator=generator(seed))
    assert outcome.num_accepted == num_drafted
    assert outcome.next_token == seed % vocab_size
    assert outcome.next_kind is TokenKind.BONUS
    assert outcome.acceptance_probs == (1.0,) * num_drafted


@pytest.mark.parametrize("has_probs", [True, False])
def test_target_probability_zero_is_rejected_even_where_u_is_0(uniforms, has_probs):
    uniforms(0.0, 0.3)
    draft_probs = torch.tensor([[0.5, 0.5, 0.0]]) if has_probs else None
    outcome = verify(torch.tensor([0]), draft_probs, torch.tensor([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]]))
    assert (outcome.num_accepted, outcome.next_kind) == (0, TokenKind.CORRECTION)
    assert outcome.next_token == (2 if has_probs else 1)


@pytest.mark.parametrize(("uniform", "num_accepted"), [(0.0, 1), (0.59, 1), (0.6 - 1e-9, 1), (0.6, 0), (0.99, 0)])
def test_accepts_where_u_is_below_the_ratio(uniforms, uniform, num_accepted):
    uniforms(uniform, 0.0)
    draft_probs = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    target_probs = torch.tensor([[0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    # 0.6 as the double nearest to 0.3 / 0.5.
    outcome = verify(torch.tensor([0]), draft_probs, target_probs)
    assert outcome.num_accepted == num_accepted
    assert outcome.acceptance_probs == pytest.approx((0.6,))
    assert outcome.uniforms == (uniform,)


@pytest.mark.parametrize("draft_probs", [None, torch.empty(0, 3)])
def test_without_a_draft_the_target_is_sampled(draft_probs):
    counts, randomness = torch.zeros(3), generator(4)
    for _ in range(2_000):
        outcome = verify(torch.empty(0, dtype=torch.int64), draft_probs, PAPER_TARGET[None], generator=randomness)
        assert outcome.num_accepted == 0
        assert outcome.next_kind is TokenKind.BONUS
        assert outcome.acceptance_probs == outcome.uniforms == ()
        counts[outcome.next_token] += 1
    assert chisquare(counts.double(), PAPER_TARGET.double() * 2_000, sum_check=False).pvalue > SIGNIFICANCE


def test_a_residual_that_rounding_leaves_empty_falls_back_to_the_target(uniforms):
    # Equal but for the last bit, at the one token that is tested with a u that falls between.
    target, draft = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5])
    target[0] = torch.nextafter(target[0], torch.tensor(0.0))
    uniforms(1.0 - 2.0**-53, 0.9)
    outcome = verify(torch.tensor([0]), draft[None], torch.stack([target, one_hot(0, 2)]))
    assert (outcome.num_accepted, outcome.next_token) == (0, 1)
    assert torch.equal(residual(target, draft, torch.tensor(0)), target)
    assert torch.equal(residual(one_hot(0), None, torch.tensor(0)), one_hot(0))


@pytest.mark.parametrize("num_drafted", [0, 1, 5])
def test_the_number_of_draws_depends_only_on_the_length(num_drafted):
    states = set()
    for target in (one_hot(0), one_hot(1)):  # all accepted, none accepted
        randomness = generator()
        tokens = torch.zeros(num_drafted, dtype=torch.int64)
        verify(tokens, None, target.repeat(num_drafted + 1, 1), generator=randomness)
        states.add(bytes(randomness.get_state().numpy()))
    assert len(states) == 1


def test_the_global_generator_is_left_alone_and_without_one_runs_differ():
    rows = torch.full((9, 50), 0.02)
    with global_generator_untouched():
        outcomes = {verify(torch.arange(8), rows[:-1], rows).uniforms for _ in range(3)}
        verify(torch.arange(8), rows[:-1], rows, generator=generator())
    assert len(outcomes) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_and_id_types_are_accepted(dtype):
    target = torch.randn(3, 40, generator=generator()).softmax(-1).to(dtype)
    draft = torch.randn(2, 40, generator=generator(1)).softmax(-1).to(dtype)
    for ids in (torch.int32, torch.int16, torch.uint8):
        outcome = verify(torch.tensor([1, 2], dtype=ids), draft, target, generator=generator())
        assert outcome == verify(torch.tensor([1, 2]), draft, target, generator=generator())


def test_rows_of_a_wider_type_than_the_targets_are_accepted_for_siblings():
    target = torch.randn(3, 40, generator=generator()).softmax(-1)
    draft, tokens, parents = target[:2].flip(1), torch.tensor([1, 2]), torch.tensor([-1, -1])
    outcome = verify_tree(tokens, parents, draft.double(), target, generator=generator())
    expected = verify_tree(tokens, parents, draft, target, generator=generator())
    assert (outcome.path, outcome.next_token) == (expected.path, expected.next_token)
    assert outcome.acceptance_probs == pytest.approx(expected.acceptance_probs)


def test_rows_that_half_precision_rounded_are_drawn_from_as_distributions(uniforms):
    """The draft's row sums to .995: a token is accepted by the ratio of probabilities, not of weights."""
    target, draft = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0.6, 0.395]])
    ratio = 0.5 / (0.6 / 0.995)
    for uniform, num_accepted in ((ratio - 1e-4, 1), (ratio + 1e-4, 0)):
        uniforms(uniform, 0.5)
        assert verify(torch.tensor([0]), draft, target).num_accepted == num_accepted


@pytest.mark.parametrize("verified", [verify_block, as_block, verify_on_device])
def test_nan_of_a_trimmed_draft_or_behind_the_block_and_impossible_drafts_are_reported(verified):
    rows, trimmed = torch.full((2, 4), 0.25), torch.tensor([[0.0, math.nan, math.nan, 0.0]])
    with pytest.raises(GenerationError, match="draft"):
        verified(torch.tensor([1]), [-1], trimmed, rows, torch.zeros(2))
    with pytest.raises(GenerationError, match="target"):
        verified(torch.tensor([1]), [-1], rows[:1], torch.cat((rows[:1], rows[1:] * math.nan)), torch.zeros(2))
    with pytest.raises(DrafterError, match="probability 0"):
        verified(torch.tensor([1]), [-1], torch.tensor([[1.0, 0.0, 0.0, 0.0]]), rows, torch.zeros(2))


def _with(rows: torch.Tensor, value: float) -> torch.Tensor:
    rows = rows.clone()
    rows[-1, 1] = value
    return rows


TOKENS, DRAFT, TARGET = torch.tensor([0, 1]), torch.full((2, 4), 0.25), torch.full((3, 4), 0.25)
BAD_INPUT = {
    "one token too few": (TOKENS[:1], DRAFT, TARGET),
    "tokens in a column": (TOKENS[:, None], DRAFT, TARGET),
    "tokens that are no integers": (TOKENS.float(), DRAFT, TARGET),
    "an id below 0": (torch.tensor([0, -1]), DRAFT, TARGET),
    "an id above V without probs": (torch.tensor([4, 1]), None, TARGET),
    "draft rows too short": (TOKENS, torch.full((2, 2), 0.5), TARGET),
    "target in one row": (TOKENS, DRAFT, TARGET[0]),
    "target without columns": (torch.empty(0, dtype=torch.int64), None, torch.empty(1, 0)),
    "NaN in target": (TOKENS, DRAFT, _with(TARGET, math.nan)),
    "infinity in target": (TOKENS, DRAFT, _with(TARGET, math.inf)),
    "negative target": (TOKENS, DRAFT, torch.tensor([[0.5, 0.75, -0.25, 0.0]] * 3)),
    "draft row without mass": (TOKENS, torch.zeros(2, 4), TARGET),
    "target row without mass": (TOKENS, DRAFT, torch.zeros(3, 4)),
    "logits for target": (TOKENS, DRAFT, TARGET * 30),
    "integers for target": (TOKENS, DRAFT, torch.ones(3, 4, dtype=torch.int64)),
    "a token that can't have been drawn": (TOKENS, torch.tensor([[1.0, 0, 0, 0], [0.5, 0.0, 0.5, 0]]), TARGET),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused_with_a_sentence(name):
    assert verify(TOKENS, DRAFT, TARGET, generator=generator()).num_accepted == 2
    with pytest.raises(ValueError, match=r"^[^\n]+\.$"):
        verify(*BAD_INPUT[name], generator=generator())


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), min_size=7, max_size=7))
@settings(max_examples=200)
def test_shared_randomness_gives_the_targets_own_tokens(drafted, wanted):
    wanted = wanted[: len(drafted) + 1]
    outcome = verify_gumbel(torch.tensor(drafted, dtype=torch.int64), range(-1, len(drafted) - 1), torch.tensor(wanted))
    emitted = [*drafted[: outcome.num_accepted], outcome.next_token]
    assert emitted == wanted[: len(emitted)]
    assert (outcome.next_kind is TokenKind.BONUS) == (drafted == wanted[:-1])
    assert outcome.num_accepted == len(drafted) or drafted[outcome.num_accepted] != outcome.next_token
