"""Runs that are stopped or fail end at once, are said in a sentence, and leave no trace in the next."""

import itertools
import math
import threading

import pytest
import torch

from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.errors import GenerationError, OutOfMemoryError
from core.types import Coupling, FinishReason, SamplingParams, Step
from tests.fakes import is_sentence, play, table_model, tiny_model
from tests.fakes_decode import PROMPT, Trouble, check_the_next_run, tables


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
    target, draft = tiny_model("llama", 5, is_fused=True), tiny_model("gpt2", 5)
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
