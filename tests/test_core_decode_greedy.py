"""At temperature 0 the text is that of transformers, token for token, whatever is drafted."""

import math

import pytest

from core.decode import speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.settings import SamplingParams
from core.types import TokenKind
from tests.fakes import FAMILIES, greedy_reference, language_model, oracle, play, tiny_model, tiny_module
from tests.fakes_decode import GREEDY, PROMPT, plain_ids

DRAFT_LENGTHS = [0, 1, 2, 3, 5, 8, 16]
LENGTH = 44


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
@pytest.mark.parametrize("kind", ["itself", "another", "always wrong", "oracle", "n-gram"])
def test_greedy_text_is_that_of_transformers_token_for_token(kind, is_fused):
    target = tiny_model("llama", is_fused=is_fused)
    expected = greedy_reference(target, PROMPT, LENGTH)
    for num_draft_tokens in DRAFT_LENGTHS:
        drafter = {
            "itself": lambda: target,
            "another": lambda: tiny_model("llama", 1, is_fused=not is_fused),
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
    fused = language_model(tiny_module(family, seed=3), is_fused=True)
    expected = greedy_reference(target, PROMPT, LENGTH)
    run = play(speculative(fused, tiny_model(family, 4), PROMPT, sampling=GREEDY, max_new_tokens=LENGTH))
    assert run.ids == expected == plain_ids(fused, PROMPT, LENGTH, sampling=GREEDY)


def test_the_coldest_temperatures_are_greedy_on_the_fused_runner_too():
    target, draft = tiny_model(is_fused=True), tiny_model(seed=1, is_fused=True)
    expected = plain_ids(target, count=20, sampling=GREEDY)
    for temperature in (1e-7, 1e-30, 1e-300):
        sampling = SamplingParams(temperature)
        assert play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=20)).ids == expected
