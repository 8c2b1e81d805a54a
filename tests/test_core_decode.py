"""Decoding counts correctly: steps match their distributions, caches the text, and drafters see every verification."""

import itertools
import math

import pytest
import torch

from core.decode import autoregressive, speculative
from core.drafters.draft_model import DraftModelDrafter
from core.errors import DrafterError, SettingsError
from core.sampling import probabilities
from core.settings import Coupling, SamplingParams
from core.types import Draft, TokenKind
from tests.exactness import always
from tests.fakes import ScriptDrafter, fixed_law, is_sentence, play, table_model
from tests.fakes_decode import GREEDY, countdown, plain_ids, tables


def test_statistics_end_where_the_text_ends():
    target = countdown([1, 2, 3, 7, 1, 2, 3])
    target.eos_ids = frozenset({7})
    run = play(speculative(target, target, [0], num_draft_tokens=6, sampling=GREEDY, max_new_tokens=30))
    (step,) = run.steps
    assert step.emitted == step.drafted == (1, 2, 3, 7)
    assert step.num_draft_tokens == step.num_accepted == 4
    sizes = {len(values) for values in (step.draft_probs, step.target_probs, step.uniforms, step.expected_acceptance)}
    assert sizes == {4}
    assert run.summary.draft_acceptance_rate == 1.0


def broken_drafts() -> dict[str, Draft]:
    tokens, parents = torch.tensor([1, 2]), torch.tensor([-1, 0])
    return {
        "too many": Draft(torch.ones(3, dtype=torch.int64), torch.tensor([-1, 0, 1]), None),
        "a tree": Draft(tokens, torch.tensor([-1, -1]), None),
        "a strange id": Draft(torch.tensor([1, 8]), parents, None),
        "wrong shape": Draft(tokens, parents, torch.full((2, 7), 1 / 7)),
        "probability 0": Draft(tokens, parents, torch.eye(8)[:2]),
    }


@pytest.mark.parametrize("what", broken_drafts())
def test_a_drafter_that_breaks_its_contract_is_named_for_it(what):
    target, _ = tables()
    drafter = always([1])
    drafter.propose = lambda context: broken_drafts()[what]
    with pytest.raises(DrafterError) as caught:
        play(speculative(target, drafter, [0], num_draft_tokens=2, max_new_tokens=9))
    assert is_sentence(str(caught.value).removesuffix(" Fix its code."))


def test_fewer_than_one_new_token_is_refused():
    target, _ = tables()
    with pytest.raises(SettingsError):
        play(autoregressive(target, [0], max_new_tokens=0))


def test_the_figures_of_a_step_are_those_of_its_distributions():
    sampling = SamplingParams(0.9, top_k=5)
    target, draft = tables()
    ids = [0]
    for step in play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=80, seed=4)).steps:
        assert step.position == len(ids)
        assert len(step.drafted_texts) == len(step.uniforms) == step.num_draft_tokens == len(step.drafted)
        for at, token in enumerate(step.drafted):
            context = [*ids, *step.drafted[:at]]
            p, q = (probabilities(model.law(context), sampling) for model in (target, draft))
            assert step.target_probs[at] == pytest.approx(float(p[token]))
            assert step.draft_probs[at] == pytest.approx(float(q[token]))
            assert step.acceptance_probs[at] == pytest.approx(min(1.0, float(p[token] / q[token])))
            assert step.expected_acceptance[at] == pytest.approx(float(torch.minimum(p, q).sum()))
            if at < step.num_accepted:
                assert step.uniforms[at] < step.acceptance_probs[at] + 1e-9
            elif at == step.num_accepted and len(step.emitted) == at + 1:
                assert step.uniforms[at] >= step.acceptance_probs[at] - 1e-9
        assert step.emitted[: step.num_accepted] == step.drafted[: step.num_accepted]
        assert step.total_ms == pytest.approx(step.draft_ms + step.verify_ms + step.sample_ms)
        ids += step.emitted


def test_drafters_may_propose_fewer_tokens_than_k_or_none():
    target, _ = tables()
    lengths = itertools.cycle([0, 3, 1, 2, 0, 4])
    drafter = ScriptDrafter(lambda ids, count: [int(target.law([*ids]).argmax()), 1, 2, 3][: next(lengths)])
    run = play(speculative(target, drafter, [0], num_draft_tokens=4, sampling=GREEDY, max_new_tokens=60))
    assert run.ids == plain_ids(target, count=60, sampling=GREEDY)
    assert {step.num_draft_tokens for step in run.steps} >= {0, 1, 2, 3}
    assert run.summary.num_drafts == sum(step.num_draft_tokens > 0 for step in run.steps)


def test_a_drafter_learns_of_every_verdict():
    target, _ = tables()
    drafter = always([1, 2, 3])
    run = play(speculative(target, drafter, [0], num_draft_tokens=3, max_new_tokens=80))
    drafted = [step for step in run.steps if step.num_draft_tokens]
    assert [outcome.num_accepted for outcome in drafter.outcomes] == [step.num_accepted for step in drafted]
    assert [outcome.next_token for outcome in drafter.outcomes] == [step.emitted[-1] for step in drafted]


def test_one_drafter_may_serve_run_after_run():
    target, draft = tables()
    drafter = DraftModelDrafter(draft)
    texts = [play(speculative(target, drafter, prompt, max_new_tokens=40, seed=1)).ids for prompt in ([0], [1, 2], [0])]
    assert texts[0] == texts[2]


def test_plain_decoding_is_the_loop_without_drafts():
    target, draft = tables()
    for coupling in Coupling:
        settings = {"max_new_tokens": 50, "seed": 3, "coupling": coupling, "sampling": SamplingParams(0.7, 5)}
        plain = play(autoregressive(target, [0], **settings))
        assert plain.ids == play(speculative(target, draft, [0], num_draft_tokens=0, **settings)).ids
        assert set(plain.kinds) == {TokenKind.BONUS}
        assert (plain.summary.num_drafts, plain.summary.draft_acceptance_rate) == (0, None)
        assert (plain.summary.block_efficiency, plain.summary.predicted_speedup) == (1.0, None)


def test_a_token_of_target_probability_zero_is_never_accepted():
    target = table_model(fixed_law([0.0, 0.0, -math.inf]), 3)
    run = play(speculative(target, always([2, 2]), [0], num_draft_tokens=2, max_new_tokens=100))
    assert 2 not in run.ids
    assert run.summary.num_accepted_tokens == 0
