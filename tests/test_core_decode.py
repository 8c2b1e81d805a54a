"""Decoding: greedy text is that of transformers, sampled text follows the distribution, steps report what happened."""

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch

from core import decode
from core.controls import Cancelled
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup, blaming
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import DrafterError, OutriderError, PairMismatchError, SettingsError
from core.runners import matmul
from core.runners.llama import FusedLlamaWeights
from core.runners.timing import Stopwatch
from core.sampling import probabilities
from core.settings import Coupling, SamplingParams
from core.types import Draft, TokenKind
from tests.exactness import SIGNIFICANCE, always, engine_p_value, global_generator_untouched
from tests.fakes import (
    GREEDY,
    ScriptDrafter,
    byte_tokenizer,
    failing,
    greedy_reference,
    is_sentence,
    language_model,
    oracle,
    play,
    random_rows,
    refusal,
    table_model,
    tiny_model,
    tiny_module,
)
from tests.fakes_decode import PROMPT, countdown, plain_ids, tables


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
    target, drafter = tables()[0], always([1])
    drafter.propose = lambda context: broken_drafts()[what]
    with pytest.raises(DrafterError) as caught:
        play(speculative(target, drafter, [0], num_draft_tokens=2, max_new_tokens=9))
    assert is_sentence(str(caught.value).removesuffix(" Fix its code."))


@pytest.mark.parametrize("method", ["start", "propose", "observe"])
@pytest.mark.parametrize("error", [KeyError("boom"), RuntimeError("a\nb"), ValueError(), SystemExit(3)], ids=repr)
def test_what_a_drafter_of_others_raises_is_named_as_its_own_bug(method, error):
    target, drafter = tables()[0], always([1])
    setattr(drafter, method, failing(error))
    with pytest.raises(DrafterError, match=rf"^{type(drafter).__name__} failed \({type(error).__name__}") as caught:
        play(speculative(target, drafter, [0], num_draft_tokens=2, max_new_tokens=9))
    assert is_sentence(str(caught.value).removesuffix(" Fix its code."))


@pytest.mark.parametrize("error", [Cancelled(), MemoryError(), OutriderError("Mine.")], ids=repr)
def test_what_is_no_bug_of_a_drafter_passes_through(error):
    with pytest.raises(type(error)), blaming(always([1])):
        raise error


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
            p, q = (probabilities(model.logits_of(context), sampling) for model in (target, draft))
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
    drafter = ScriptDrafter(lambda ids, count: [int(target.logits_of([*ids]).argmax()), 1, 2, 3][: next(lengths)])
    run = play(speculative(target, drafter, [0], num_draft_tokens=4, sampling=GREEDY, max_new_tokens=60))
    assert run.ids == plain_ids(target, count=60, sampling=GREEDY)
    assert {step.num_draft_tokens for step in run.steps} >= {0, 1, 2, 3}
    assert run.summary.num_drafts == sum(step.num_draft_tokens > 0 for step in run.steps)


def test_a_drafter_that_writes_into_its_ids_changes_no_text():
    target, _ = tables()

    def script(ids, count):
        ids.append(5)
        return ids[-1:]

    run = play(speculative(target, ScriptDrafter(script), [0], num_draft_tokens=2, sampling=GREEDY, max_new_tokens=12))
    assert run.ids == plain_ids(target, count=12, sampling=GREEDY)


def test_a_drafter_learns_of_every_verdict():
    target, _ = tables()
    drafter = always([1, 2, 3])
    run = play(speculative(target, drafter, [0], num_draft_tokens=3, max_new_tokens=80))
    drafted = [step for step in run.steps if step.num_draft_tokens]
    assert [outcome.num_accepted for outcome in drafter.outcomes] == [step.num_accepted for step in drafted]
    assert [outcome.next_token for outcome in drafter.outcomes] == [step.emitted[-1] for step in drafted]


def test_plain_decoding_is_the_loop_without_drafts():
    target, draft = tables()
    for coupling in Coupling:
        settings = {"max_new_tokens": 50, "seed": 3, "coupling": coupling, "sampling": SamplingParams(0.7, 5)}
        plain = play(autoregressive(target, [0], **settings))
        assert plain.ids == play(speculative(target, draft, [0], num_draft_tokens=0, **settings)).ids
        assert set(plain.kinds) == {TokenKind.BONUS}
        assert (plain.summary.num_drafts, plain.summary.draft_acceptance_rate) == (0, None)
        assert (plain.summary.block_efficiency, plain.summary.predicted_speedup) == (1.0, None)


LENGTH = 32


@pytest.mark.parametrize("kind", ["itself", "another", "always wrong", "oracle", "n-gram"])
def test_greedy_text_is_that_of_transformers_token_for_token(kind):
    target = tiny_model("llama", is_fused=True)
    expected = greedy_reference(target, PROMPT, LENGTH)
    drafters = {
        "itself": lambda: target,
        "another": lambda: tiny_model("llama", 1),
        "always wrong": lambda: oracle([*PROMPT, *expected], offset=1, vocab_size=257),
        "oracle": lambda: oracle([*PROMPT, *expected]),
        "n-gram": PromptLookupDrafter,
    }
    for k in [0, 1, 3, 16]:
        settings = {"num_draft_tokens": k, "sampling": GREEDY, "max_new_tokens": LENGTH}
        run = play(speculative(target, drafters[kind](), PROMPT, **settings))
        assert run.ids == expected, f"K = {k}"
        assert run.summary.num_tokens == run.summary.num_accepted_tokens + len(run.steps) == LENGTH
        if kind in {"itself", "oracle"}:
            assert run.summary.num_accepted_tokens == run.summary.num_draft_tokens
            assert TokenKind.CORRECTION not in run.kinds
            assert not k or kind == "itself" or len(run.steps) == math.ceil(LENGTH / (k + 1))
        if kind == "always wrong":
            assert (run.summary.num_accepted_tokens, len(run.steps)) == (0, LENGTH)


def test_the_coldest_temperatures_are_greedy_on_the_fused_runner_too():
    target, draft = tiny_model(is_fused=True), tiny_model(seed=1, is_fused=True)
    expected = plain_ids(target, count=20, sampling=GREEDY)
    for temperature in (1e-7, 1e-30, 1e-300):
        sampling = SamplingParams(temperature)
        assert play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=20)).ids == expected


def test_kernels_are_measured_before_the_clock_of_the_prefill_runs(monkeypatch):
    target, draft = tiny_model(is_fused=True), tiny_model(seed=1, is_fused=True)
    fresh = replace(draft, fused_weights=FusedLlamaWeights(draft.model))
    came: list[str] = []
    monkeypatch.setattr(matmul, "_remembered", lambda key, measure: came.append("measured") or 0)
    monkeypatch.setattr(decode, "Stopwatch", lambda device: came.append("clock") or Stopwatch(device))
    play(speculative(target, fresh, [0], max_new_tokens=4))
    assert came.count("measured") > 3, "this draft's kernels were chosen before"
    assert came[came.index("clock") :].count("measured") == 0


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize(
    ("sampling", "k"),
    [(SamplingParams(), 1), (SamplingParams(1.4, top_p=0.7), 4)],  # test_core_mutants has all filters together.
)
def test_three_tokens_follow_the_filtered_distribution_together(coupling, sampling, k):
    p_value = engine_p_value(speculative, sampling=sampling, coupling=coupling, num_draft_tokens=k, seed=k)
    assert p_value > SIGNIFICANCE


@pytest.mark.parametrize("coupling", Coupling)
def test_a_draft_equal_to_its_target_accepts_everything(coupling):
    sampling = SamplingParams(1.1, top_k=5, top_p=0.9)
    model = tables()[0]
    run = play(speculative(model, model, [0], sampling=sampling, max_new_tokens=200, seed=1, coupling=coupling))
    assert run.summary.draft_acceptance_rate == 1.0
    for step in run.steps:
        assert step.expected_acceptance == pytest.approx((1.0,) * step.num_draft_tokens, abs=1e-6)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_seed_decides_the_text_and_the_global_generator_nothing(coupling):
    target, draft = tables()
    with global_generator_untouched():
        texts = [
            play(speculative(target, draft, [0], max_new_tokens=50, seed=seed, coupling=coupling)).ids
            for seed in (1, 1, 2, 2**63 - 1)
        ]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


@functools.cache
def sixteen(coupling: Coupling, seed: int):
    """The summary of a long run over 16 tokens."""
    models = [table_model(random_rows(16, number, scale=2), 16) for number in (1, 2)]
    settings = {"sampling": SamplingParams(0.9, top_k=12), "max_new_tokens": 1000, "seed": seed, "coupling": coupling}
    return play(speculative(*models, [0], num_draft_tokens=3, **settings)).summary


def test_what_a_coupled_run_expects_of_rejection_is_what_rejection_does():
    def mean(coupling: Coupling, name: str) -> float:
        return sum(getattr(sixteen(coupling, seed), name) for seed in range(2)) / 2

    reached = mean(Coupling.REJECTION, "draft_acceptance_rate")
    for coupling in Coupling:
        assert mean(coupling, "expected_acceptance_rate") == pytest.approx(reached, abs=0.03)
    # Coupling by shared noise keeps less, which is the price that is shown.
    assert mean(Coupling.GUMBEL, "draft_acceptance_rate") < reached - 0.01


def test_a_draft_goes_quiet_at_an_id_that_it_lacks():
    target, draft = tiny_model(vocab_size=257), tiny_model(seed=1, vocab_size=250)
    for prompt in ([5, 252, 7], [5, 6, 7]):
        drafter = DraftModelDrafter(DrafterSetup(target, draft))
        run = play(speculative(target, drafter, prompt, num_draft_tokens=3, max_new_tokens=8, sampling=GREEDY))
        assert run.ids == greedy_reference(target, prompt, 8)
        assert bool(run.summary.num_draft_tokens) is (252 not in prompt)


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_padding_of_the_tables_is_never_emitted(coupling, temperature):
    target, draft = tiny_model(vocab_size=300), tiny_model(seed=1, vocab_size=272)
    for model in (target, draft):  # The padding would win every time, were it not masked.
        model.model.lm_head.weight.data[257:] *= 50
    sampling = SamplingParams(temperature)
    for models in ((target, draft), (draft, target), (target, target)):
        run = play(speculative(*models, PROMPT, sampling=sampling, max_new_tokens=30, coupling=coupling))
        assert len(run.ids) == 30
        assert max(*run.ids, *(token for step in run.steps for token in step.drafted)) < 257
        if temperature == 0.0:
            assert run.ids == plain_ids(models[0], PROMPT, 30, sampling=sampling)
            assert models[0] is not models[1] or run.summary.draft_acceptance_rate == 1.0


def test_models_whose_tokenizers_differ_are_refused():
    other = language_model(tiny_module("llama"), byte_tokenizer(specials=("<other>",)))
    refusal(PairMismatchError, speculative, tiny_model(), other, PROMPT, match="id 256")
