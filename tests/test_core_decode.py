"""Decoding: the text is plain decoding's, at temperature 0 token for token, else in law; and every count is right."""

import itertools
import math
import threading

import pytest
import torch

import core.decode
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import DrafterError, GenerationError, OutOfMemoryError, PairMismatchError, PromptError, SettingsError
from core.sampling import probabilities
from core.types import Coupling, Draft, FinishReason, PrefillDone, SamplingParams, Step, TokenKind
from tests.exactness import SIGNIFICANCE, always, engine_law_p_value, global_generator_untouched
from tests.fakes import (
    FAMILIES,
    ScriptDrafter,
    byte_tokenizer,
    fixed_law,
    greedy_reference,
    is_sentence,
    language_model,
    oracle,
    play,
    random_law,
    table_model,
    tiny_model,
    tiny_module,
)

GREEDY = SamplingParams(0.0)
PROMPT = [10, 20, 30, 40, 10, 20]
DRAFT_LENGTHS = [0, 1, 2, 3, 5, 8, 16]
LENGTH = 44


def tables(vocab_size: int = 8, **changes):
    """A target and a draft of different laws."""
    target = table_model(random_law(vocab_size, 1, scale=2), vocab_size, **changes)
    return target, table_model(random_law(vocab_size, 2, scale=2), vocab_size)


def plain_ids(target, prompt=(0,), count=40, **changes) -> list[int]:
    return play(autoregressive(target, list(prompt), max_new_tokens=count, **changes)).ids


def countdown(tokens) -> "core.decode.LanguageModel":
    """A model that says exactly these tokens after a prompt of one."""
    rows = torch.nn.functional.one_hot(torch.tensor(tokens), 8) * 20.0
    return table_model(lambda ids: rows[min(len(ids) - 1, len(rows) - 1)], 8)


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
    assert is_sentence(str(caught.value).removesuffix(" Mend its code."))


def test_a_draft_goes_quiet_at_an_id_that_it_lacks():
    target, draft = tiny_model(vocab_size=257), tiny_model(seed=1, vocab_size=250)
    for prompt in ([5, 252, 7], [5, 6, 7]):
        drafter = DraftModelDrafter(draft)
        run = play(speculative(target, drafter, prompt, num_draft_tokens=3, max_new_tokens=8, sampling=GREEDY))
        assert run.ids == greedy_reference(target, prompt, 8)
        assert bool(run.summary.num_draft_tokens) is (252 not in prompt)


def test_fewer_than_one_new_token_is_refused():
    target, _ = tables()
    with pytest.raises(SettingsError):
        play(autoregressive(target, [0], max_new_tokens=0))


# --- Temperature 0 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lean", [True, False], ids=["lean", "module"])
@pytest.mark.parametrize("kind", ["itself", "another", "always wrong", "oracle", "n-gram"])
def test_greedy_text_is_that_of_transformers_token_for_token(kind, is_lean):
    target = tiny_model("llama", is_lean=is_lean)
    expected = greedy_reference(target, PROMPT, LENGTH)
    for num_draft_tokens in DRAFT_LENGTHS:
        drafter = {
            "itself": lambda: target,
            "another": lambda: tiny_model("llama", 1, is_lean=not is_lean),
            "always wrong": lambda: oracle([*PROMPT, *expected], offset=1, vocab_size=257),
            "oracle": lambda: oracle([*PROMPT, *expected]),
            "n-gram": PromptLookupDrafter,
        }[kind]()
        run = play(
            speculative(
                target, drafter, PROMPT, num_draft_tokens=num_draft_tokens, sampling=GREEDY, max_new_tokens=LENGTH
            )
        )
        assert run.ids == expected, f"K = {num_draft_tokens}"
        assert run.summary.num_tokens == run.summary.num_accepted_tokens + len(run.steps) == LENGTH
        if kind in {"itself", "oracle"}:
            assert run.summary.num_accepted_tokens == run.summary.num_draft_tokens
            assert TokenKind.CORRECTION not in run.kinds
        if kind == "always wrong":
            assert run.summary.num_accepted_tokens == 0
            assert len(run.steps) == LENGTH
        if kind == "oracle" and num_draft_tokens:
            assert len(run.steps) == math.ceil(LENGTH / (num_draft_tokens + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_of_every_family_is_that_of_transformers(family):
    target, draft = tiny_model(family), tiny_model(family, 1)
    for prompt in (PROMPT, list(range(100, 130))):
        expected = greedy_reference(target, prompt, LENGTH)
        for drafter, num_draft_tokens in [
            (draft, 4),
            (PromptLookupDrafter(), 8),
            (oracle([*prompt, *expected][: len(prompt) + 30] + [3] * 99), 5),
        ]:
            run = play(
                speculative(
                    target, drafter, prompt, num_draft_tokens=num_draft_tokens, sampling=GREEDY, max_new_tokens=LENGTH
                )
            )
            assert run.ids == expected


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_lean_forward_gives_the_same_greedy_text(family):
    target = tiny_model(family, 3)
    lean = language_model(tiny_module(family, seed=3), is_lean=True)
    expected = greedy_reference(target, PROMPT, LENGTH)
    run = play(speculative(lean, tiny_model(family, 4), PROMPT, sampling=GREEDY, max_new_tokens=LENGTH))
    assert run.ids == expected == plain_ids(lean, PROMPT, LENGTH, sampling=GREEDY)


# --- Laws -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize(
    ("sampling", "num_draft_tokens"),
    [
        (SamplingParams(), 3),
        (SamplingParams(0.6, top_k=3), 1),
        (SamplingParams(1.4, top_p=0.7), 4),
        (SamplingParams(0.9, top_k=4, top_p=0.8, min_p=0.1), 2),
    ],
)
def test_three_tokens_follow_the_filtered_law_together(coupling, sampling, num_draft_tokens):
    p_value = engine_law_p_value(
        speculative, sampling=sampling, coupling=coupling, num_draft_tokens=num_draft_tokens, seed=num_draft_tokens
    )
    assert p_value > SIGNIFICANCE


@pytest.mark.parametrize("coupling", Coupling)
def test_nothing_outside_the_support_is_emitted(coupling):
    sampling = SamplingParams(1.5, top_k=2)
    target, draft = tables()
    run = play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=600, coupling=coupling, seed=3))
    ids = [0, *run.ids]
    for index in range(1, len(ids)):
        assert probabilities(target.law(ids[:index]), sampling)[ids[index]] > 0


@pytest.mark.parametrize("method", ["draft model", "n-gram", "equal"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_gumbel_coupled_text_is_that_of_plain_sampling_with_the_same_seed(method, temperature):
    target, draft = tables()
    sampling = SamplingParams(temperature, top_k=6, top_p=0.95)
    for seed in range(3):
        settings = {"sampling": sampling, "seed": seed, "coupling": Coupling.GUMBEL}
        expected = plain_ids(target, count=60, **settings)
        for num_draft_tokens in (1, 2, 5, 16, None):
            drafter = {"draft model": draft, "n-gram": PromptLookupDrafter(), "equal": target}[method]
            run = play(
                speculative(target, drafter, [0], num_draft_tokens=num_draft_tokens, max_new_tokens=60, **settings)
            )
            assert run.ids == expected
            if method == "equal":
                assert run.summary.num_accepted_tokens == run.summary.num_draft_tokens > 0
    if temperature:
        assert plain_ids(target, count=60, sampling=sampling, seed=8, coupling=Coupling.GUMBEL) != expected


@pytest.mark.parametrize("is_lean", [True, False], ids=["lean", "module"])
def test_gumbel_coupled_text_of_real_models_is_that_of_plain_sampling(is_lean):
    target, draft = tiny_model("llama", is_lean=is_lean), tiny_model("llama", 1)
    settings = {"sampling": SamplingParams(0.8, 50, 0.95), "seed": 5, "coupling": Coupling.GUMBEL}
    expected = plain_ids(target, PROMPT, 60, **settings)
    run = play(speculative(target, draft, PROMPT, num_draft_tokens=5, max_new_tokens=60, **settings))
    assert run.ids == expected


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


def test_the_figures_of_a_step_are_those_of_its_laws():
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


# --- Ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 16])
@pytest.mark.parametrize("extra", ["1", "2", "K", "K + 1", "K + 2", "40"])
def test_exactly_as_many_tokens_as_were_asked_for(num_draft_tokens, extra):
    count = eval(extra, {"K": num_draft_tokens})
    target, draft = tables()
    for drafter in (draft, target, PromptLookupDrafter(), always([0] * 16)):
        run = play(speculative(target, drafter, [0, 1], num_draft_tokens=num_draft_tokens, max_new_tokens=count))
        assert len(run.ids) == run.summary.num_tokens == count
        assert run.summary.finish_reason is FinishReason.LENGTH
        assert run.summary.num_tokens == run.summary.num_accepted_tokens + run.summary.num_steps


def check_counts(run, target) -> None:
    """The summary is the sum of the steps, and the cache holds one position fewer than the text."""
    summary, steps = run.summary, run.steps
    assert summary.num_tokens == sum(len(step.emitted) for step in steps)
    assert summary.num_accepted_tokens == run.kinds.count(TokenKind.ACCEPTED) == sum(s.num_accepted for s in steps)
    assert sum(summary.num_accepted_tokens_per_pos) == summary.num_accepted_tokens
    assert all(len(step.emitted) == len(step.emitted_kinds) == len(step.emitted_texts) for step in steps)
    assert all(kind is TokenKind.ACCEPTED for step in steps for kind in step.emitted_kinds[: step.num_accepted])
    assert target.last_runner.length == steps[-1].position + len(steps[-1].emitted) - 1


@pytest.mark.parametrize("at", range(7))
def test_nothing_follows_an_end_of_text_wherever_in_a_block_it_stands(at):
    tokens = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    tokens[at] = 7
    target = countdown(tokens)
    target.eos_ids = frozenset({7, 6})
    for drafter in (oracle([0, *tokens]), oracle([0, *tokens[:2], 5, *tokens[3:]]), always([5])):
        run = play(speculative(target, drafter, [0], num_draft_tokens=4, sampling=GREEDY))
        assert run.ids == tokens[: at + 1]
        assert run.summary.finish_reason is FinishReason.EOS
        check_counts(run, target)


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 3, 8])
@pytest.mark.parametrize(
    ("stops", "text", "count"),
    [
        (("cde",), "ab", 5),  # across tokens
        (("b",), "a", 2),
        (("zz", "ef", "de"), "abc", 5),  # the one that is complete first
        (("abcdefg",), "", 7),
        (("ga",), "abcdef", 8),
    ],
)
def test_a_stop_text_ends_the_text_before_it(stops, text, count, num_draft_tokens):
    tokens = [0, 1, 2, 3, 4, 5, 6] * 3
    target = countdown(tokens)
    run = play(
        speculative(target, oracle([0, *tokens]), [0], num_draft_tokens=num_draft_tokens, sampling=GREEDY, stop=stops)
    )
    assert run.summary.finish_reason is FinishReason.STOP
    assert run.summary.text == text
    assert run.ids == tokens[:count]
    check_counts(run, target)
    if num_draft_tokens == 0:
        return
    # What one block brings is cut before it is shown; only earlier steps may have shown the stop text's beginning.
    shown = "".join(step.emitted_text for step in run.steps)
    assert shown.startswith(text)
    assert stops[0] not in shown


def test_a_stop_text_in_the_prompt_does_not_count():
    target = countdown([1, 2, 3, 4])
    run = play(speculative(target, always([0]), [0], sampling=GREEDY, stop=("ab",), max_new_tokens=3))
    assert (run.summary.finish_reason, run.summary.text) == (FinishReason.LENGTH, "bcd")


@pytest.mark.parametrize("drafter", ["other", "itself", "n-gram", "always wrong", "none"])
def test_after_every_step_the_cache_holds_one_position_fewer_than_the_text(drafter):
    target, draft = tables()
    drafters = {
        "other": draft,
        "itself": target,
        "n-gram": PromptLookupDrafter(),
        "always wrong": always([0, 1, 2]),
        "none": always([]),
    }
    if drafter == "itself":
        draft = drafters["itself"] = table_model(target.law, 8)
    ids = [0, 1, 2]
    for event in speculative(target, drafters[drafter], ids.copy(), num_draft_tokens=3, max_new_tokens=60, seed=2):
        if isinstance(event, PrefillDone):
            assert target.last_runner.ids == ids[:-1]
        if isinstance(event, Step):
            ids += event.emitted
            assert target.last_runner.ids == ids[:-1]
            if drafter in {"other", "itself"} and draft.last_runner.ids:
                # A full block leaves the draft's cache one short of that: it never read its own last token.
                length = draft.last_runner.length
                assert draft.last_runner.ids == ids[:length]
                assert length in {len(ids) - 1, len(ids) - 2}
    assert len(ids) == 63


def test_the_end_of_the_context_ends_the_text():
    target, draft = tables(context_length=20)
    for drafter in (draft, target, PromptLookupDrafter()):
        run = play(speculative(target, drafter, [0] * 5, num_draft_tokens=8, max_new_tokens=99))
        assert len(run.ids) == 15
        assert run.summary.finish_reason is FinishReason.LENGTH
    full = play(speculative(target, draft, [0] * 19, num_draft_tokens=8, max_new_tokens=99))
    assert len(full.ids) == 1


def test_a_draft_with_a_shorter_context_goes_quiet_and_the_target_goes_on():
    target = tables()[0]
    draft = table_model(target.law, 8, context_length=12)
    for prompt in ([0] * 4, [0] * 11, [0] * 12, [0] * 13, [0] * 40):
        run = play(speculative(target, draft, prompt, num_draft_tokens=4, sampling=GREEDY, max_new_tokens=30))
        assert run.ids == plain_ids(target, prompt, 30, sampling=GREEDY)
        assert all(step.num_draft_tokens == 0 for step in run.steps if step.position > 12)
    run = play(speculative(target, draft, [0] * 4, num_draft_tokens=None, sampling=GREEDY, max_new_tokens=30))
    assert run.ids == plain_ids(target, [0] * 4, 30, sampling=GREEDY)


def test_a_real_model_can_be_run_to_the_end_of_its_context():
    target = language_model(tiny_module("gpt2", n_positions=32))
    run = play(speculative(target, target, PROMPT, num_draft_tokens=16, sampling=GREEDY, max_new_tokens=99))
    assert len(run.ids) == 32 - len(PROMPT)
    assert run.summary.draft_acceptance_rate == 1.0


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "empty"), ([0] * 20, "20"), ([0] * 25, "25"), ([8], "0 to 7"), ([0, -1], "0 to 7")]
)
@pytest.mark.parametrize("start", [autoregressive, lambda model, ids: speculative(model, model, ids)])
def test_a_prompt_that_cant_be_continued_is_refused(prompt, words, start):
    target, _ = tables(context_length=20)
    with pytest.raises(PromptError, match=words) as caught:
        start(target, prompt)
    assert is_sentence(str(caught.value))


# --- Padded tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_padding_of_the_tables_is_never_emitted(coupling, temperature):
    target, draft = tiny_model(vocab_size=300), tiny_model(seed=1, vocab_size=272)
    # The padding would win every time, were it not masked.
    target.model.lm_head.weight.data[257:] *= 50
    draft.model.lm_head.weight.data[257:] *= 50
    sampling = SamplingParams(temperature)
    for models in ((target, draft), (draft, target), (target, target)):
        run = play(speculative(*models, PROMPT, sampling=sampling, max_new_tokens=60, coupling=coupling))
        assert len(run.ids) == 60
        assert max(run.ids) < 257
        assert max(max(step.drafted, default=0) for step in run.steps) < 257
        if temperature == 0.0:
            assert run.ids == plain_ids(models[0], PROMPT, 60, sampling=sampling)
            if models[0] is models[1]:
                assert run.summary.draft_acceptance_rate == 1.0


def test_a_draft_whose_table_lacks_the_last_ids_still_serves_exactly():
    target, draft = tiny_model(vocab_size=257), tiny_model(seed=1, vocab_size=250)
    assert draft.vocab_size == 250
    run = play(speculative(target, draft, PROMPT, sampling=GREEDY, max_new_tokens=60))
    assert run.ids == greedy_reference(target, PROMPT, 60)


def test_models_whose_tokenizers_differ_are_refused():
    other = language_model(tiny_module("llama"), byte_tokenizer(specials=("<other>",)))
    with pytest.raises(PairMismatchError, match="id 256") as caught:
        speculative(tiny_model(), other, PROMPT)
    assert is_sentence(str(caught.value))


# --- Live settings ----------------------------------------------------------------------------------------------


def test_k_and_temperature_apply_from_the_next_step_and_are_recorded():
    model = tables()[0]
    controls = RunControls(SamplingParams(1.0, top_k=3), 2)
    seen = []
    for event in speculative(model, model, [0], controls=controls, max_new_tokens=60):
        if not isinstance(event, Step):
            continue
        seen.append((event.num_draft_tokens, event.temperature))
        if len(seen) == 2:
            controls.set_num_draft_tokens(5)
        if len(seen) == 3:
            controls.set_temperature(0.0)
            greedy_from = event.position + len(event.emitted)
        if len(seen) == 5:
            controls.set_num_draft_tokens(0)
        if len(seen) == 6:
            break
    assert seen == [(2, 1.0), (2, 1.0), (5, 1.0), (5, 0.0), (5, 0.0), (0, 0.0)]
    assert greedy_from < 60
    assert controls.sampling.top_k == 3


@pytest.mark.parametrize("k", [-1, 17])
def test_live_settings_out_of_range_change_nothing(k):
    controls = RunControls(SamplingParams(0.5), 3)
    with pytest.raises(SettingsError):
        controls.set_num_draft_tokens(k)
    with pytest.raises(SettingsError):
        controls.set_temperature(-1.0)
    with pytest.raises(SettingsError):
        controls.set_temperature(math.nan)
    assert (controls.num_draft_tokens, controls.sampling.temperature) == (3, 0.5)


def test_a_temperature_that_moves_keeps_greedy_steps_greedy():
    target, draft = tables()
    controls = RunControls(SamplingParams(1.0), 3)
    ids = [0]
    for event in speculative(target, draft, [0], controls=controls, max_new_tokens=80):
        if isinstance(event, Step):
            for token in event.emitted:
                if event.temperature == 0.0:
                    assert token == int(target.law(ids).argmax())
                ids.append(token)
            controls.set_temperature(0.0 if controls.sampling.temperature else 1.0)


# --- Stops and failures -----------------------------------------------------------------------------------------


def check_the_next_run(target, draft) -> None:
    """Whatever happened before, runs with these models are what they are with new ones."""
    fresh, fresh_draft = table_model(target.law, 8), table_model(draft.law, 8)
    assert plain_ids(target, sampling=GREEDY) == plain_ids(fresh, sampling=GREEDY)
    after, expected = (
        play(speculative(*pair, [0], max_new_tokens=40, seed=9)) for pair in ((target, draft), (fresh, fresh_draft))
    )
    assert after.ids == expected.ids
    assert after.summary.num_accepted_tokens == expected.summary.num_accepted_tokens


class Trouble:
    """Does something before the n-th forward of a model."""

    def __init__(self, model, at: int, action) -> None:
        self._countdown, self._action = itertools.count(at, -1), action
        self.model = model
        self.forwards_after = 0
        self.has_struck = False
        model.on_forward = self._before

    def _before(self, runner, ids) -> None:
        if self.has_struck:
            self.forwards_after += 1
        elif next(self._countdown) == 0:
            self.has_struck = True
            self._action()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.model.on_forward = lambda runner, ids: None
        assert self.has_struck


@pytest.mark.parametrize(
    ("who", "at"),
    [("target", 0), ("target", 1), ("target", 4), ("target", 6), ("draft", 0), ("draft", 3), ("draft", 5)],
    ids=lambda value: str(value),
)
def test_a_stop_takes_effect_within_one_forward_and_leaves_no_trace(who, at):
    target, draft = tables()
    controls = RunControls(num_draft_tokens=4)
    prompt = [0] * 1_100  # three forwards of the prefill
    with Trouble({"target": target, "draft": draft}[who], at, controls.cancel) as trouble:
        run = play(speculative(target, draft, prompt, controls=controls, max_new_tokens=400))
    assert run.summary.finish_reason is FinishReason.CANCELLED
    assert trouble.forwards_after == 0
    assert run.summary.num_tokens == len(run.ids)
    check_the_next_run(target, draft)


def test_a_stop_from_another_thread_and_a_second_one_are_fine():
    target, draft = tables()
    controls = RunControls()
    events = speculative(target, draft, [0], controls=controls, max_new_tokens=1_000)
    steps = 0
    for event in events:
        if isinstance(event, Step):
            steps += 1
            if steps == 3:
                for _ in range(2):
                    thread = threading.Thread(target=controls.cancel)
                    thread.start()
                    thread.join()
    assert steps == 3
    assert event.summary.finish_reason is FinishReason.CANCELLED
    assert event.summary.num_steps == 3


def test_a_run_that_is_stopped_before_it_starts_ends_at_once():
    target, draft = tables()
    controls = RunControls()
    controls.cancel()
    run = play(speculative(target, draft, [0] * 10, controls=controls))
    assert (run.steps, run.summary.finish_reason) == ([], FinishReason.CANCELLED)
    assert target.last_runner.length == 0


@pytest.mark.parametrize("after", [0, 1, 4])
def test_closing_the_generator_ends_the_run_and_leaves_no_trace(after):
    target, draft = tables()
    events = speculative(target, draft, [0], max_new_tokens=200)
    for _ in range(after):
        next(events)
    events.close()
    assert list(events) == []
    check_the_next_run(target, draft)


@pytest.mark.parametrize(("who", "at"), [("target", 0), ("target", 5), ("draft", 0), ("draft", 2), ("draft", 4)])
def test_a_failure_amid_a_step_is_raised_and_leaves_no_trace(who, at):
    target, draft = tables()

    def fail() -> None:
        raise RuntimeError("a kernel failed")

    with Trouble({"target": target, "draft": draft}[who], at, fail), pytest.raises(RuntimeError, match="kernel"):
        play(speculative(target, draft, [0, 1, 2], num_draft_tokens=4, max_new_tokens=200))
    check_the_next_run(target, draft)


def test_real_models_are_as_before_after_a_failure_amid_drafting():
    target, draft = tiny_model("llama", 5, is_lean=True), tiny_model("gpt2", 5)
    settings = {"sampling": SamplingParams(0.9), "seed": 2, "max_new_tokens": 30}
    expected = play(speculative(target, draft, PROMPT, **settings)).ids
    calls = itertools.count()

    def fail(*_) -> None:
        if next(calls) == 7:
            raise RuntimeError("a kernel failed")

    handle = draft.model.transformer.h[1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="kernel"):
            play(speculative(target, draft, PROMPT, **settings))
    finally:
        handle.remove()
    assert play(speculative(target, draft, PROMPT, **settings)).ids == expected


def test_running_out_of_memory_is_a_sentence():
    target, draft = tables()

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines.")

    with Trouble(target, 6, fail), pytest.raises(OutOfMemoryError) as caught:
        play(speculative(target, draft, [0]))
    assert is_sentence(str(caught.value))
    check_the_next_run(target, draft)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_cant_be_sampled_are_a_sentence(who, value, temperature):
    target, draft = tables()
    good = (target if who == "target" else draft).law

    def broken(ids):
        row = good(ids).clone()
        if len(ids) > 6:
            row[3] = value
        return row

    models = {"target": target, "draft": draft}
    models[who] = table_model(broken, 8)
    for coupling in Coupling:
        with pytest.raises(GenerationError, match=who) as caught:
            play(speculative(models["target"], models["draft"], [0], sampling=SamplingParams(temperature),
                             coupling=coupling))  # fmt: skip
        assert is_sentence(str(caught.value))
    if who == "target":
        with pytest.raises(GenerationError):
            play(autoregressive(models["target"], [0], sampling=SamplingParams(temperature)))


def test_the_coldest_temperatures_are_greedy_on_the_lean_runner_too():
    target, draft = tiny_model(is_lean=True), tiny_model(seed=1, is_lean=True)
    expected = plain_ids(target, count=20, sampling=GREEDY)
    for temperature in (1e-7, 1e-30, 1e-300):
        sampling = SamplingParams(temperature)
        assert play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=20)).ids == expected


# --- The length that the engine chooses -------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in forwards only: `clock.costs` holds milliseconds per forward, by model."""

    class Clock:
        now = 0.0

        def __init__(self, device) -> None:
            self._last, self._parts = Clock.now, []

        def lap(self) -> float:
            elapsed, self._last = Clock.now - self._last, Clock.now
            return elapsed

        def start(self) -> None:
            self._last = Clock.now

        def stop(self) -> None:
            self._parts.append(self.lap())

        def read(self) -> list[float]:
            return self._parts

    def charge(model, milliseconds: float) -> None:
        def spend(runner, ids) -> None:
            Clock.now += milliseconds

        model.on_forward = spend

    Clock.charge = staticmethod(charge)
    monkeypatch.setattr("core.decode.Stopwatch", Clock)
    monkeypatch.setattr("core.decode.StepClock", Clock)
    monkeypatch.setattr("core.target.Stopwatch", Clock)
    return Clock


def test_the_chosen_length_keeps_the_text_exact():
    target, draft = tables()
    expected = plain_ids(target, count=120, sampling=GREEDY)
    for drafter in (draft, table_model(target.law, 8), PromptLookupDrafter(), always([1, 2])):
        run = play(speculative(target, drafter, [0], num_draft_tokens=None, sampling=GREEDY, max_new_tokens=120))
        assert run.ids == expected
    p_value = engine_law_p_value(
        speculative, sampling=SamplingParams(0.9, top_k=5), num_draft_tokens=None, blocks=1_000
    )
    assert p_value > SIGNIFICANCE


def test_a_hopeless_and_costly_draft_is_soon_left_alone(clock):
    target, _ = tables()
    wrong = table_model(lambda ids: -target.law(ids) * 4, 8)
    clock.charge(target, 10.0)
    clock.charge(wrong, 9.0)
    run = play(speculative(target, wrong, [0], num_draft_tokens=None, sampling=GREEDY, max_new_tokens=400))
    lengths = [step.num_draft_tokens for step in run.steps]
    assert lengths[0] > 0
    assert lengths[1:10] == [0] * 9
    # It looks again now and then, as seldom as the share of the time that looking may cost demands.
    probes = [index for index, length in enumerate(lengths) if length and index]
    assert probes
    assert min(later - earlier for earlier, later in itertools.pairwise([0, *probes])) >= 10
    assert sum(step.total_ms for step in run.steps) < 1.05 * 10.0 * 400


def test_a_free_and_perfect_draft_is_used_in_full(clock):
    target, _ = tables()
    clock.charge(target, 10.0)
    draft = table_model(target.law, 8)
    clock.charge(draft, 0.1)
    run = play(speculative(target, draft, [0], num_draft_tokens=None, max_new_tokens=400))
    assert max(step.num_draft_tokens for step in run.steps) >= 12
    assert run.summary.block_efficiency > 8


def test_times_are_split_as_they_passed(clock):
    target, _ = tables()
    clock.charge(target, 10.0)
    draft = table_model(target.law, 8)
    clock.charge(draft, 2.0)
    run = play(speculative(target, draft, [0, 1, 2], num_draft_tokens=3, max_new_tokens=41))
    for step in run.steps[1:-1]:
        # After a full block the draft reads two tokens at first, in one forward.
        assert (step.draft_ms, step.verify_ms, step.sample_ms) == pytest.approx((6.0, 10.0, 0.0))
    summary = run.summary
    # Two forwards of the prefill; the rest is decoding.
    assert summary.prefill_ms == pytest.approx(12.0)
    assert summary.cost_coefficient == pytest.approx(0.2, rel=0.1)
    assert summary.tokens_per_second == pytest.approx(1e3 * 41 / sum(step.total_ms for step in run.steps))
    # (K + 1) / (K c + 1), since everything is accepted and scoring four costs what scoring one does.
    assert summary.predicted_speedup == pytest.approx(4 / 1.6, rel=0.1)
    assert summary.block_efficiency == pytest.approx(41 / len(run.steps))


# --- Drafts of every shape --------------------------------------------------------------------------------------


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
