"""Every registered method on both runners, with real models: distribution, greedy text, caches; and their mutants.

A method that is added to the registry is tested here without further work.
"""

import itertools

import pytest

import core.rounds
import core.verify.rejection
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.registry import METHODS
from core.settings import Coupling, LengthPolicy, SamplingParams
from core.types import FinishReason, PrefillDone, Step, TokenKind
from tests.exactness import SIGNIFICANCE, mutate
from tests.fakes import GREEDY, LetterTokenizer, failing, language_model, oracle, play, tiny_module
from tests.faults import (
    RUNNER_FAULTS,
    DraftsOtherwise,
    build_method,
    claims_a_smoother_distribution,
    strike,
    takes_the_likeliest,
    with_runners,
)
from tests.text_distribution import FILTERS, is_found, text_p_value, undecided_models, write

PROMPT = [5, 7, 3, 4, 5, 7]
LENGTH = 28
NUM_LETTERS = 26
PAIRS = [*itertools.product(METHODS, (True, False))]


def of(pairs):
    names = [f"{method}-{'fused' if is_fused else 'module'}" for method, is_fused in pairs]
    return pytest.mark.parametrize(("method", "is_fused"), pairs, ids=names)


EVERY = of(PAIRS)
SAMPLED = of([pair for pair in PAIRS if pair[1] or pair[0] == "draft-tree"])
"""Greedy text shows what a runner does wrong; of what is drawn, only a tree takes a way of its own through a module."""

LETTERS = LetterTokenizer(NUM_LETTERS)


def make_models(is_fused: bool):
    """A target and a draft that speak in letters, their tables padded with ids that would win if they were let."""
    modules = [tiny_module("llama", seed=seed, vocab_size=NUM_LETTERS + 6) for seed in (0, 1)]
    for module in modules:
        module.lm_head.weight[NUM_LETTERS:] *= 20
    target, draft = (language_model(module, LETTERS, is_fused=is_fused) for module in modules)
    return target, draft


def plain(target, count: int = LENGTH, **settings):
    return play(autoregressive(target, PROMPT, max_new_tokens=count, **settings))


def spoken(method: str, target, draft, count: int = LENGTH, **settings):
    return play(speculative(target, build_method(method, target, draft), PROMPT, max_new_tokens=count, **settings))


@SAMPLED
def test_texts_follow_the_filtered_distribution_with_every_filter(method, is_fused):
    target, draft = undecided_models(is_fused)
    texts = list(write(speculative, target, lambda: build_method(method, target, draft), length=80))
    assert {text.sampling for text in texts} == set(FILTERS.values())
    assert text_p_value(texts, target, build_method(method, target, draft)) > SIGNIFICANCE


LENIENCE = ("u[node] * q[node] < chance", "u[node] * q[node] < 2 * chance")
"""Of the mutants of the joint test, the one that is biased most towards a draft of any kind."""


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_verifier_is_found_whatever_the_method(method, monkeypatch):
    target, draft = undecided_models(True)
    if spoken(method, target, draft, 100).summary.draft_acceptance_rate > 0.9:
        pytest.skip("so good a draft is tested for nothing: the text is the target's, whatever the verifier does")
    monkeypatch.setattr(core.rounds, "verify_block", mutate(core.verify.rejection, *LENIENCE).verify_block)
    assert is_found(
        speculative, target, lambda: build_method(method, target, draft), build_method(method, target, draft)
    )


@pytest.mark.parametrize("change", [claims_a_smoother_distribution, takes_the_likeliest])
@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_drafter_is_found_whatever_the_method(method, change):
    target, draft = undecided_models(True)
    watched = DraftsOtherwise(build_method(method, target, draft), change)
    play(speculative(target, watched, PROMPT, max_new_tokens=30))
    if watched.is_certain and change is not claims_a_smoother_distribution:
        pytest.skip("its tokens are certain: there is no distribution to draw them from otherwise")
    assert is_found(
        speculative, target, lambda: DraftsOtherwise(build_method(method, target, draft), change),
        build_method(method, target, draft),
    )  # fmt: skip


@SAMPLED
def test_with_shared_noise_the_text_is_that_of_plain_sampling(method, is_fused):
    target, draft = make_models(is_fused)
    policies = (LengthPolicy.AUTO, LengthPolicy.ADAPTIVE)
    for seed, (name, sampling) in enumerate({**FILTERS, "greedy": GREEDY}.items()):
        policy = policies[(seed + list(METHODS).index(method)) % 2]
        settings = {"sampling": sampling, "seed": seed, "coupling": Coupling.GUMBEL}
        expected = plain(target, **settings).ids
        for length in (1 + seed, policy):
            assert spoken(method, target, draft, num_draft_tokens=length, **settings).ids == expected, name


@EVERY
def test_greedy_text_is_plain_and_ends_where_it_is_told_to(method, is_fused):
    target, draft = make_models(is_fused)
    expected = plain(target, sampling=GREEDY).ids
    assert max(expected) < NUM_LETTERS
    for length in (0, 1, 4, 16, LengthPolicy.AUTO, LengthPolicy.ADAPTIVE):
        counts = {2, LENGTH}
        if length in {1, 4}:
            counts |= {length, length + 1, length + 2}
        for count in counts:
            run = spoken(method, target, draft, count, num_draft_tokens=length, sampling=GREEDY)
            assert run.ids == expected[:count]
            summary = run.summary
            assert summary.finish_reason is FinishReason.LENGTH
            assert summary.num_tokens == summary.num_accepted_tokens + summary.num_steps == count


def check_counts(run, target) -> None:
    """The summary is the sum of the steps, and the target's cache holds one position fewer than the text."""
    summary, steps = run.summary, run.steps
    assert summary.num_tokens == len(run.ids)
    assert summary.num_accepted_tokens == run.kinds.count(TokenKind.ACCEPTED)
    assert sum(summary.num_accepted_tokens_per_pos) == summary.num_accepted_tokens
    for step in steps:
        assert len(step.emitted) == len(step.emitted_kinds) == len(step.emitted_texts)
        figures = (step.draft_probs, step.target_probs, step.acceptance_probs, step.expected_acceptance)
        assert {len(values) for values in (*figures, step.drafted)} == {step.num_draft_tokens}
    assert target.runners[0].length == len(PROMPT) + len(run.ids) - 1


@EVERY
def test_a_stop_text_across_tokens_ends_the_text_before_it_and_nothing_follows_an_end_of_text(method, is_fused):
    target, draft = make_models(is_fused)
    ids = plain(target, sampling=GREEDY).ids
    text = LETTERS.decode(ids)
    for at in range(2, LENGTH - 3, 6):
        stop = text[at : at + 3]
        begin = text.index(stop)
        watched = with_runners(target)
        run = spoken(method, watched, draft, num_draft_tokens=5, sampling=GREEDY, stop=(stop, "no such text"))
        assert run.summary.finish_reason is FinishReason.STOP
        assert run.summary.text == text[:begin]
        assert LETTERS.decode(run.ids) == text[: begin + 3]
        check_counts(run, watched)
    first_uses = [at for at, token in enumerate(ids) if token not in ids[:at]]
    assert len(first_uses) > 5
    for at in first_uses[1:7]:
        target.eos_ids = frozenset({ids[at]})
        watched = with_runners(target)
        run = spoken(method, watched, draft, num_draft_tokens=5, sampling=GREEDY)
        assert run.ids == ids[: at + 1]
        assert run.summary.finish_reason is FinishReason.EOS
        check_counts(run, watched)


@EVERY
@pytest.mark.parametrize("coupling", Coupling)
def test_after_every_step_the_caches_hold_the_text_and_no_more(method, is_fused, coupling):
    target, draft = (with_runners(model) for model in make_models(is_fused))
    ids = list(PROMPT)
    events = speculative(
        target, build_method(method, target, draft), PROMPT, num_draft_tokens=3, max_new_tokens=LENGTH, seed=2,
        coupling=coupling,
    )  # fmt: skip
    for event in events:
        if isinstance(event, Step):
            ids += event.emitted
        if isinstance(event, PrefillDone | Step):
            scoring, *drafting = [*target.runners, *draft.runners]
            assert scoring.length == len(ids) - 1
            assert all(runner.length in {len(ids) - 1, len(ids) - 2} for runner in drafting)


@pytest.mark.parametrize("fault", RUNNER_FAULTS)
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
def test_a_wrong_cache_or_scoring_is_found(is_fused, fault):
    honest, draft = make_models(is_fused)
    expected = plain(honest, sampling=GREEDY).ids
    target = with_runners(honest, fault)

    def differs(drafter) -> bool:
        try:
            run = play(speculative(target, drafter, PROMPT, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=LENGTH))
        except (ValueError, RuntimeError):
            return True  # The cache overflowed, or was asked for what it does not hold.
        return run.ids != expected

    half_right = [token if at % 3 else 0 for at, token in enumerate([*PROMPT, *expected])]
    assert all(differs(drafter) for drafter in (DraftModelDrafter(DrafterSetup(target, draft)), oracle(half_right)))


MOMENTS = (0, 2, 5, 6, 7, 10)
"""Forwards: of the prefill, of the timing, and within the first steps' drafting and scoring."""


@EVERY
def test_a_failure_or_a_stop_amid_any_forward_leaves_no_trace(method, is_fused):
    target, draft = make_models(is_fused)
    settings = {"num_draft_tokens": 3, "sampling": SamplingParams(0.9), "seed": 4}

    def texts() -> list[list[int]]:
        return [plain(target, 4).ids, spoken(method, target, draft, 10, **settings).ids]

    before = texts()
    for at, is_stop in itertools.product(MOMENTS, (False, True)):
        controls = RunControls(settings["sampling"], settings["num_draft_tokens"])
        events = speculative(target, build_method(method, target, draft), PROMPT, controls=controls, seed=4)
        with pytest.MonkeyPatch.context() as patch:
            since = strike(patch, at, controls.cancel if is_stop else failing(RuntimeError("a kernel failed")))
            if is_stop:
                assert play(events).summary.finish_reason is FinishReason.CANCELLED
                assert len(since) <= 1, "a stop takes effect within one forward"
            else:
                with pytest.raises(RuntimeError, match="a kernel failed"):
                    play(events)
        assert texts() == before
