"""A text ends where it should, and a failure or a stop leaves no trace."""

import math
import threading

import pytest
import torch

from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import GenerationError, OutOfMemoryError, PromptError
from core.settings import Coupling, LengthPolicy, SamplingParams
from core.types import FinishReason, Step
from tests.exactness import always
from tests.fakes import is_sentence, language_model, play, table_model, tiny_module
from tests.fakes_decode import GREEDY, PROMPT, Trouble, check_the_next_run, countdown, plain_ids, tables


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


def test_a_draft_with_a_shorter_context_goes_quiet_and_the_target_continues():
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
