"""Properties of sampling and verification over random distributions, block lengths, vocabularies and filters."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import core.verify.rejection
from core.decode import autoregressive, speculative
from core.drafters.registry import METHODS
from core.sampling import draw, probabilities
from core.settings import LengthPolicy, SamplingParams
from core.types import TokenKind
from core.verify import residual, verify
from core.verify.on_device import verify_on_device
from tests.fakes import play, random_rows, table_model
from tests.faults import build_method
from tests.text_distribution import is_near_an_edge, reference_probabilities

often = settings(max_examples=300, derandomize=True)
seldom = settings(max_examples=60, derandomize=True)

LAST_UNIFORM = 1.0 - 2.0**-53

KINDS = {
    "dense": lambda rng, size: rng.random(size) + 1e-3,
    "peaked": lambda rng, size: np.exp(6 * rng.standard_normal(size)),
    "with zeros": lambda rng, size: rng.random(size) * (rng.random(size) < 0.4),
    "with ties": lambda rng, size: rng.integers(0, 4, size).astype(float),
    "one-hot": lambda rng, size: np.eye(size)[rng.integers(size)],
    "nearly one-hot": lambda rng, size: np.eye(size)[rng.integers(size)] + 1e-9 * rng.random(size),
    "tiny masses": lambda rng, size: 10.0 ** -rng.integers(0, 38, size),
}


def make_row(kind: str, seed: int, size: int) -> np.ndarray:
    """(V,) float64 that sums to 1."""
    rng = np.random.default_rng(seed)
    weights = KINDS[kind](rng, size)
    weights[rng.integers(size)] += 0.0 if weights.sum() else 1.0
    return weights / weights.sum()


@dataclass(frozen=True)
class Block:
    """A drafted block as a verifier gets it."""

    tokens: torch.Tensor
    draft_probs: torch.Tensor | None
    target_probs: torch.Tensor
    seed: int

    def verified(self, verifier=verify):
        generator = torch.Generator().manual_seed(self.seed)
        return verifier(self.tokens, self.draft_probs, self.target_probs, generator=generator)


@st.composite
def row_lists(draw, count: int, size: int):
    kinds, seeds = st.sampled_from(list(KINDS)), st.integers(0, 2**32 - 1)
    rows = [make_row(draw(kinds), draw(seeds), size) for _ in range(count)]
    return torch.from_numpy(np.array(rows).reshape(count, size))


@st.composite
def blocks(draw):
    num_drafted, size = draw(st.integers(0, 8)), draw(st.integers(2, 64))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    target = draw(row_lists(num_drafted + 1, size)).to(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        tokens = torch.from_numpy(rng.integers(0, size, num_drafted))
        return Block(tokens, None, target, draw(st.integers(0, 2**63 - 1)))
    # Some rows are the target's own, exactly or to within rounding.
    rows = draw(row_lists(num_drafted, size)).to(dtype)
    for at in range(num_drafted):
        same = draw(st.sampled_from(["other", "other", "same", "nearly the same"]))
        if same != "other":
            rows[at] = target[at] if same == "same" else (target[at] * (1 + 1e-7)).to(dtype)
    tokens = [int(rng.choice(np.flatnonzero(row))) for row in rows.numpy()]
    return Block(torch.tensor(tokens, dtype=torch.int64), rows, target, draw(st.integers(0, 2**63 - 1)))


@given(blocks())
@often
def test_a_verdict_is_possible_whatever_the_distributions(block):
    outcome = block.verified()
    num_drafted = len(block.tokens)
    assert 0 <= outcome.num_accepted <= num_drafted
    assert (outcome.next_kind is TokenKind.BONUS) == (outcome.num_accepted == num_drafted)
    emitted = [*block.tokens[: outcome.num_accepted].tolist(), outcome.next_token]
    for row, token in zip(block.target_probs, emitted, strict=False):
        assert float(row[token]) > 0
    assert len(outcome.acceptance_probs) == len(outcome.uniforms) == num_drafted
    for at, (accepted, uniform) in enumerate(zip(outcome.acceptance_probs, outcome.uniforms, strict=True)):
        assert 0 <= accepted <= 1
        assert 0 <= uniform < 1
        p = float(block.target_probs[at, block.tokens[at]])
        q = 1.0 if block.draft_probs is None else float(block.draft_probs[at, block.tokens[at]])
        assert accepted == pytest.approx(min(1.0, p / q), rel=1e-6)
        if at < outcome.num_accepted:
            assert uniform * q < p
        if at == outcome.num_accepted:
            assert uniform * q >= p
    if outcome.next_kind is TokenKind.CORRECTION and block.draft_probs is None:
        rejected = block.tokens[outcome.num_accepted]
        assert outcome.next_token != int(rejected) or float(block.target_probs[outcome.num_accepted, rejected]) == 1.0


@given(blocks())
@often
def test_one_state_gives_one_verdict_whoever_computes_it(block):
    outcome = block.verified()
    assert outcome == block.verified()
    parents = range(-1, len(block.tokens) - 1)
    # On a GPU the verdict is computed without a look at any number on the way.
    generator = torch.Generator().manual_seed(block.seed)
    uniforms = core.verify.rejection.draw_uniforms(len(block.tokens) + 1, generator)
    found, _ = verify_on_device(block.tokens, parents, block.draft_probs, block.target_probs, uniforms)
    assert found == replace(outcome, acceptance_probs=())


@given(st.integers(2, 64).flatmap(lambda size: row_lists(2, size)), st.sampled_from([torch.float32, torch.float64]))
@often
def test_the_residual_is_what_is_left_or_the_target(rows, dtype):
    target, draft = rows.to(dtype)
    for draft_row, token in ((draft, None), (None, int(target.argmax())), (None, 0), (target, None)):
        taken = torch.zeros_like(target) if draft_row is None else draft_row
        left = residual(target, draft_row, torch.tensor(token if token is not None else 0))
        assert bool((left >= 0).all())
        assert float(left.sum()) > 0
        assert bool((left[target == 0] == 0).all())
        if draft_row is None:
            expected = target.clone()
            expected[token] = 0
        else:
            expected = (target - taken).clamp(min=0)
        assert torch.allclose(left, expected / expected.sum() if float(expected.sum()) > 0 else target)


@given(st.integers(1, 64).flatmap(lambda size: row_lists(1, size)), st.data())
@often
def test_a_draw_inverts_the_cumulated_distribution(rows, data):
    (row,) = rows
    mass = row.cumsum(0)
    token = data.draw(st.sampled_from(row.nonzero().flatten().tolist()))
    below = float(mass[token - 1]) if token else 0.0
    inside = (below + float(mass[token])) / 2 / float(mass[-1])
    if below < inside * float(mass[-1]) < float(mass[token]):
        assert int(draw(row, torch.tensor(inside, dtype=torch.float64))) == token
    for uniform, probs in itertools.product((0.0, 5e-324, 2.0**-53, LAST_UNIFORM), (row, row.float())):
        assert float(probs[int(draw(probs, torch.tensor(uniform, dtype=torch.float64)))]) > 0


def emitted_distribution(draft_rows: dict, target_rows: dict, num_drafted: int, *, is_certain: bool) -> dict:
    """The distribution of the next K + 1 tokens, by adding up all drafts and verdicts instead of drawing any.

    Acceptance and residual are the verifier's own. What lies behind a verdict's last token is the target's.
    """
    distribution: dict = dict.fromkeys(itertools.product(range(len(target_rows[()])), repeat=num_drafted + 1), 0.0)

    def complete(tokens: tuple, mass: float) -> None:
        if mass == 0.0:
            return
        if len(tokens) == num_drafted + 1:
            distribution[tokens] += mass
            return
        for token, prob in enumerate(target_rows[tokens].tolist()):
            complete((*tokens, token), mass * prob)

    for drafted in itertools.product(range(len(target_rows[()])), repeat=num_drafted):
        rows = [draft_rows[drafted[:at]] for at in range(num_drafted)]
        if is_certain:
            mass = float(all(int(row.argmax()) == token for row, token in zip(rows, drafted, strict=True)))
        else:
            mass = math.prod(float(row[token]) for row, token in zip(rows, drafted, strict=True))
        if mass == 0.0:
            continue
        tokens = torch.tensor(drafted, dtype=torch.int64)
        draft_probs = None if is_certain else torch.stack(rows)
        target_probs = torch.stack([target_rows[drafted[:at]] for at in range(num_drafted + 1)])
        accepted = verify(tokens, draft_probs, target_probs, generator=torch.Generator()).acceptance_probs
        for at, probability in enumerate(accepted):
            weights = residual(target_probs[at], None if is_certain else rows[at], tokens[at]).double()
            for token, weight in enumerate((weights / weights.sum()).tolist()):
                complete((*drafted[:at], token), mass * (1 - probability) * weight)
            mass *= probability
        for token, prob in enumerate(target_probs[-1].tolist()):
            complete((*drafted, token), mass * prob)
    return distribution


@st.composite
def row_pairs(draw, most_drafted: int, most_tokens: int):
    num_drafted, size = draw(st.integers(1, most_drafted)), draw(st.integers(2, most_tokens))
    contexts = [each for length in range(num_drafted + 1) for each in itertools.product(range(size), repeat=length)]
    both = [dict(zip(contexts, draw(row_lists(len(contexts), size)), strict=True)) for _ in range(2)]
    return num_drafted, *both


@pytest.mark.parametrize("is_certain", [False, True])
@pytest.mark.parametrize(("most_drafted", "most_tokens"), [(1, 6), (3, 3)])
def test_the_distribution_of_what_is_emitted_adds_up_to_the_targets(most_drafted, most_tokens, is_certain):
    @given(row_pairs(most_drafted, most_tokens))
    @settings(max_examples=40, derandomize=True)
    def check(pair):
        num_drafted, draft_rows, target_rows = pair
        distribution = emitted_distribution(draft_rows, target_rows, num_drafted, is_certain=is_certain)
        assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
        for tokens, mass in distribution.items():
            expected = math.prod(float(target_rows[tokens[:at]][token]) for at, token in enumerate(tokens))
            assert mass == pytest.approx(expected, abs=1e-6)

    check()


def test_a_verifier_that_is_wrong_does_not_add_up(monkeypatch):
    pair = ({(): torch.tensor([0.2, 0.3, 0.5])}, {(): torch.tensor([0.5, 0.3, 0.2])})
    pair[1].update({(token,): torch.tensor([0.1, 0.2, 0.7]) for token in range(3)})

    def error() -> float:
        distribution = emitted_distribution(*pair, 1, is_certain=False)
        return max(
            abs(sum(distribution[token, after] for after in range(3)) - float(pair[1][()][token])) for token in range(3)
        )

    assert error() < 1e-6
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "residual", lambda target, draft, token: target)
        assert error() > 0.05
    with monkeypatch.context() as patch:
        lenient = core.verify.rejection.acceptance_of
        patch.setattr(core.verify.rejection, "acceptance_of", lambda *given: (1.3 * lenient(*given)).clamp(max=1.0))
        assert error() > 0.05


logit_rows = st.lists(
    st.integers(-80, 80).map(lambda eighths: eighths / 8) | st.just(-math.inf), min_size=2, max_size=64
).filter(lambda row: max(row) > -math.inf)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.just(0) | st.integers(1, 66),
    top_p=st.just(1.0) | st.floats(0.05, 0.99),
    min_p=st.just(0.0) | st.floats(0.001, 1.0),
)


@given(logit_rows, params)
@often
def test_filters_do_what_their_definitions_say(row, sampling):
    logits = torch.tensor(row)
    assume(not is_near_an_edge(np.array(row), sampling))
    probs = probabilities(logits, sampling)
    assert torch.allclose(probs.double(), torch.from_numpy(reference_probabilities(np.array(row), sampling)), atol=1e-6)


@given(st.lists(logit_rows, min_size=1, max_size=4), params)
@often
def test_rows_sum_to_one_keep_their_order_and_lose_only_the_improbable(rows, sampling):
    width = max(map(len, rows))
    logits = torch.tensor([row + [-math.inf] * (width - len(row)) for row in rows])
    before = logits.clone()
    together = probabilities(logits, sampling)
    assert torch.equal(logits, before), "what it is given stays as it was"
    for row, probs in zip(logits, together, strict=True):
        assert float(probs.double().sum()) == pytest.approx(1.0, abs=1e-5)
        kept = probs > 0
        assert bool((probs[row == -math.inf] == 0).all())
        order = row.argsort(descending=True, stable=True)
        if sampling.temperature > 0:
            assert bool((probs[order].diff() <= 1e-7).all()), "a likelier token is never the less probable one"
        # Whatever goes is no likelier than whatever stays, and the likeliest always stays.
        assert float(row[kept].min()) >= float(row[~kept].max() if bool((~kept).any()) else -math.inf)
        assert bool(kept[order[0]])
        if sampling.top_k and sampling.temperature > 0:
            kth = row[order[min(sampling.top_k, width) - 1]]
            assert bool((row[kept] >= kth).all())
        if sampling.min_p:
            assert float(probs[kept].min()) >= float(probs.max()) * sampling.min_p * (1 - 1e-5)


def support(logits: torch.Tensor, **filters) -> set[int]:
    return set(probabilities(logits, SamplingParams(**filters)).nonzero().flatten().tolist())


@given(logit_rows, st.data())
@often
def test_a_tighter_filter_keeps_a_part_of_what_a_looser_one_keeps(row, data):
    logits = torch.tensor(row)
    ks = sorted(data.draw(st.tuples(st.integers(1, 64), st.integers(1, 64))))
    ps = sorted(data.draw(st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0))))
    everything = support(logits)
    assert support(logits, top_k=ks[0]) <= support(logits, top_k=ks[1]) <= everything
    assert support(logits, top_p=ps[0]) <= support(logits, top_p=ps[1]) <= everything
    assert support(logits, min_p=ps[1]) <= support(logits, min_p=ps[0]) <= everything
    assert len(support(logits, top_k=ks[0])) >= min(ks[0], len(everything))


@given(
    st.sampled_from([name for name in METHODS if name != "medusa"]),  # Whose heads read a real model's states.
    st.integers(2, 12),
    st.integers(0, 1_000),
    st.lists(st.integers(0, 11), min_size=1, max_size=20),
    st.sampled_from([0, 1, 2, 3, 8, 16, LengthPolicy.AUTO]),
    st.integers(1, 40),
    st.booleans(),
)
@seldom
def test_greedy_text_is_plain_whatever_is_asked_for(method, vocab_size, seed, prompt, num_draft_tokens, count, has_end):
    prompt = [token % vocab_size for token in prompt]
    eos_ids = {seed % vocab_size} if has_end else set()
    target = table_model(random_rows(vocab_size, seed, scale=2), vocab_size, eos_ids=eos_ids)
    draft = table_model(random_rows(vocab_size, seed + seed % 2, scale=2), vocab_size)
    given_settings = {"sampling": SamplingParams(0.0), "max_new_tokens": count}
    plain = play(autoregressive(target, prompt, **given_settings))
    drafter = build_method(method, target, draft)
    run = play(speculative(target, drafter, prompt, num_draft_tokens=num_draft_tokens, **given_settings))
    ours, theirs = run.summary, plain.summary
    assert run.ids == plain.ids
    assert (ours.finish_reason, ours.text) == (theirs.finish_reason, theirs.text)
    assert ours.num_accepted_tokens == run.kinds.count(TokenKind.ACCEPTED)
