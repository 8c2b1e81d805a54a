"""What an inspector is told of a place: exact over the whole vocabulary, small, untimed, and the same from a log."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.decode import autoregressive, speculative
from core.evidence import LEAST_LISTED, MAX_LISTED, capture
from core.sampling import draw, probabilities
from core.settings import Coupling, SamplingParams
from core.types import TokenKind, Verification
from core.verify import verify_block
from tests.fakes import ScriptDrafter, play, random_law, table_model


def names(ids):
    return tuple(f"#{token}" for token in ids)


def random_rows(count: int, vocab_size: int, seed: int, scale: float = 2.0, zeros: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab_size, generator=generator) * scale
    logits = logits.masked_fill(torch.rand(count, vocab_size, generator=generator) < zeros, -torch.inf)
    logits[:, 0] = logits[:, 0].clamp_min(0.0)
    return torch.softmax(logits, -1)


def a_block(num_drafted: int, vocab_size: int, seed: int, *, has_probs: bool = True, **changes):
    """Tokens, their distributions, the target's, and the verdict."""
    target = random_rows(num_drafted + 1, vocab_size, seed, **changes)
    draft = random_rows(num_drafted, vocab_size, seed + 1, **changes) if num_drafted else torch.empty(0, vocab_size)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(draft, 1, generator=generator).squeeze(1) if num_drafted else torch.empty(0).long()
    probs = draft if has_probs and num_drafted else None
    return tokens, probs, target, verify_block(tokens, probs, target, generator=generator)


def by_hand(row: torch.Tensor) -> tuple[list[float], float]:
    """A distribution as doubles, and its entropy."""
    law = row.double().tolist()
    return law, -math.fsum(p * math.log(p) for p in law if p > 0)


def check_listed(listed, tail: float, ids, law: list[float], exact: float = 1e-7):
    for token, prob in zip(ids, listed, strict=True):
        assert prob == pytest.approx(law[token], rel=1e-6, abs=1e-12)
    rest = math.fsum(prob for token, prob in enumerate(law) if token not in set(ids))
    assert tail == pytest.approx(rest, rel=1e-4, abs=exact * 1e-2)
    assert math.fsum(listed) + tail == pytest.approx(1.0, abs=1e-5)


def check_place(place, tokens, probs, target, outcome, slot: int):
    target_law, target_entropy = by_hand(target[slot])
    assert len(set(place.ids)) == len(place.ids) == len(place.texts) <= MAX_LISTED
    assert place.texts == names(place.ids)
    check_listed(place.target_probs, place.target_tail, place.ids, target_law)
    assert place.target_entropy == pytest.approx(target_entropy, rel=1e-5, abs=1e-6)
    if slot == len(tokens):
        assert place.draft_probs is place.draft_tail is place.draft_entropy is place.residual_mass is None
        assert place.expected_acceptance is place.residual_probs is None
        return
    one_hot = torch.nn.functional.one_hot(tokens[slot], target.shape[1])
    draft_law, draft_entropy = by_hand(one_hot if probs is None else probs[slot])
    check_listed(place.draft_probs, place.draft_tail, place.ids, draft_law)
    assert place.draft_entropy == pytest.approx(draft_entropy, rel=1e-5, abs=1e-6)
    excess = [max(0.0, p - q) for p, q in zip(target_law, draft_law, strict=True)]
    overlap = math.fsum(map(min, target_law, draft_law))
    assert place.residual_mass == pytest.approx(math.fsum(excess), rel=1e-5, abs=1e-7)
    assert place.expected_acceptance == pytest.approx(overlap, abs=1e-6)
    assert int(tokens[slot]) in place.ids
    if slot == outcome.num_accepted:
        law = [value / math.fsum(excess) for value in excess]
        check_listed(place.residual_probs, place.residual_tail, place.ids, law, exact=1e-4)
    else:
        assert place.residual_probs is place.residual_tail is None


@settings(max_examples=60, deadline=None)
@given(
    num_drafted=st.integers(0, 6),
    vocab_size=st.sampled_from([2, 7, 63, 64, 65, 130, 700]),
    seed=st.integers(0, 10_000),
    has_probs=st.booleans(),
    scale=st.sampled_from([0.1, 2.0, 8.0]),
    zeros=st.sampled_from([0.0, 0.7]),
)
def test_every_figure_is_that_of_the_whole_vocabulary(num_drafted, vocab_size, seed, has_probs, scale, zeros):
    block = a_block(num_drafted, vocab_size, seed, has_probs=has_probs, scale=scale, zeros=zeros)
    outcome = block[-1]
    places = capture(*block, names)
    assert len(places) == num_drafted + 1
    for slot, place in enumerate(places):
        check_place(place, *block, slot)
    assert outcome.next_token in places[outcome.num_accepted].ids


@pytest.mark.parametrize("vocab_size", [65, 3000])
def test_the_listed_tokens_are_the_likeliest(vocab_size):
    tokens, probs, target, outcome = a_block(3, vocab_size, 4, scale=0.5)
    for slot, place in enumerate(capture(tokens, probs, target, outcome, names)):
        larger = target[slot] if slot == 3 else torch.maximum(target[slot], probs[slot])
        happened = {int(tokens[slot])} if slot < 3 else set()
        happened |= {outcome.next_token} if slot == outcome.num_accepted else set()
        assert len(place) == MAX_LISTED
        shown = [float(larger[token]) for token in place.ids]
        assert shown == sorted(shown, reverse=True)
        if slot != outcome.num_accepted:
            best = set(larger.topk(MAX_LISTED - len(happened)).indices.tolist())
            assert best <= set(place.ids)


def test_unlikely_tokens_are_listed_only_where_they_were_drafted_or_drawn():
    target = torch.tensor([[0.5, 0.5 - 3e-8, 1e-8, 1e-8, 1e-8], [0.5, 0.5 - 3e-8, 1e-8, 1e-8, 1e-8]])
    draft = torch.tensor([[0.5 - 1e-8, 0.5, 1e-8, 0.0, 0.0]])
    outcome = Verification(1, 4, TokenKind.BONUS, (1.0,), (0.1,), 0.9999999999)
    place, bonus = capture(torch.tensor([2]), draft, target, outcome, names)
    assert LEAST_LISTED > 1e-8
    assert sorted(place.ids) == [0, 1, 2]
    assert sorted(bonus.ids) == [0, 1, 4]
    assert place.target_tail == pytest.approx(2e-8, rel=1e-5)


def test_a_distribution_that_the_draft_meets_exactly_leaves_no_residual():
    rows = random_rows(3, 50, 1)
    tokens = torch.tensor([1, 2])
    outcome = verify_block(tokens, rows[:2], rows, generator=torch.Generator().manual_seed(0))
    for place in capture(tokens, rows[:2], rows, outcome, names)[:2]:
        assert place.residual_mass == 0.0
        assert place.expected_acceptance == 1.0


# --- In a run ---------------------------------------------------------------------------------------------------

VOCAB = 40


def pair():
    return (
        table_model(random_law(VOCAB, 1, scale=2), VOCAB),
        table_model(random_law(VOCAB, 2, scale=2), VOCAB),
    )


def a_run(*, inspect: bool, count: int = 60, **changes):
    target, draft = pair()
    return play(speculative(target, draft, [0, 1], max_new_tokens=count, inspect=inspect, seed=5, **changes))


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.0), SamplingParams(0.7, top_k=5)])
def test_a_run_is_the_same_whether_it_is_inspected_or_not(coupling, sampling):
    plain, seen = (a_run(inspect=inspect, coupling=coupling, sampling=sampling) for inspect in (False, True))
    assert plain.ids == seen.ids
    assert plain.summary.text == seen.summary.text
    assert not any(step.evidence for step in plain.steps)
    for step in seen.steps:
        has_bonus = step.emitted_kinds[-1] is TokenKind.BONUS
        assert len(step.evidence) == step.num_draft_tokens + has_bonus


def test_plain_steps_have_the_targets_distribution_alone():
    target, _ = pair()
    run = play(autoregressive(target, [0], max_new_tokens=5, inspect=True))
    for step in run.steps:
        (place,) = step.evidence
        assert place.draft_probs is None
        assert step.emitted[0] in place.ids


def test_a_steps_evidence_agrees_with_its_own_figures():
    for step in a_run(inspect=True).steps:
        for slot, token in enumerate(step.drafted):
            place = step.evidence[slot]
            at = list(place.ids).index(token)
            assert place.target_probs[at] == pytest.approx(step.target_probs[slot])
            assert place.draft_probs[at] == pytest.approx(step.draft_probs[slot])
            assert place.expected_acceptance == pytest.approx(step.expected_acceptance[slot], abs=1e-6)


def test_the_draw_from_the_residual_can_be_done_again_from_what_is_shown():
    num_corrections = 0
    for step in a_run(inspect=True).steps:
        if step.emitted_kinds[-1] is not TokenKind.CORRECTION:
            continue
        num_corrections += 1
        place = step.evidence[step.num_accepted]
        law = torch.zeros(VOCAB)
        law[torch.tensor(list(place.ids))] = torch.tensor(list(place.residual_probs))
        assert int(draw(law, torch.tensor(step.next_uniform))) == step.emitted[-1]
    assert num_corrections > 5


def test_under_shared_noise_nothing_is_drawn_from_a_residual():
    steps = a_run(inspect=True, coupling=Coupling.GUMBEL).steps
    assert all(step.next_uniform is None and step.uniforms == () for step in steps)
    assert all(place.residual_probs is None for step in steps for place in step.evidence)
    assert any(place.residual_mass > 0.1 for step in steps for place in step.evidence if place.residual_mass)


def test_a_drafter_without_distributions_counts_as_certain():
    target, _ = pair()
    drafter = ScriptDrafter(lambda ids, count: [ids[-1]] * count)
    for step in play(speculative(target, drafter, [0], max_new_tokens=20, inspect=True)).steps:
        for place, token in zip(step.evidence, step.drafted, strict=False):
            assert place.draft_probs[list(place.ids).index(token)] == 1.0
            assert place.draft_entropy == place.draft_tail == 0.0


def test_what_lies_behind_an_end_leaves_no_evidence():
    rows = torch.nn.functional.one_hot(torch.tensor([1, 2, 3, 7, 1, 2, 3]), 8) * 20.0
    target = table_model(lambda ids: rows[min(len(ids) - 1, 6)], 8, eos_ids=[7])
    (step,) = play(
        speculative(
            target, target, [0], num_draft_tokens=6, sampling=SamplingParams(0.0), max_new_tokens=30, inspect=True
        )
    ).steps
    assert len(step.evidence) == len(step.drafted) == 4
    assert step.next_uniform is None


def test_what_a_place_holds_is_bounded():
    tokens, probs, target, outcome = a_block(4, 20_000, 3, scale=0.3)
    for place in capture(tokens, probs, target, outcome, names):
        assert len(place) == MAX_LISTED
        kept = [place.ids, place.target_probs, place.draft_probs or [], place.residual_probs or []]
        assert all(values.itemsize * len(values) <= 4 * MAX_LISTED for values in kept if values)
    assert not any(isinstance(value, torch.Tensor) for value in vars_of(place))


def vars_of(place):
    return [getattr(place, name) for name in type(place).__slots__]


def test_the_distributions_shown_are_those_after_the_filters():
    target, draft = pair()
    sampling = SamplingParams(0.7, top_k=3)
    step = play(speculative(target, draft, [0], sampling=sampling, inspect=True, max_new_tokens=8)).steps[0]
    law = probabilities(target.law([0]), sampling)
    shown = dict(zip(step.evidence[0].ids, step.evidence[0].target_probs, strict=True))
    for token in law.nonzero().flatten().tolist():
        assert shown[token] == pytest.approx(float(law[token]))
