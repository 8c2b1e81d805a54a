"""A text ends where it should: at its length, an end of text, a stop text, or the end of the context."""

import pytest

from core.decode import autoregressive, speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import PromptError
from core.types import FinishReason, LengthPolicy
from tests.exactness import always
from tests.fakes import is_sentence, language_model, oracle, play, table_model, tiny_module
from tests.fakes_decode import GREEDY, PROMPT, check_counts, countdown, plain_ids, tables


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
    run = play(
        speculative(target, draft, [0] * 4, num_draft_tokens=LengthPolicy.AUTO, sampling=GREEDY, max_new_tokens=30)
    )
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
