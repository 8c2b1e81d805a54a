"""A text ends where it should, and a failure or a stop leaves no trace."""

import json
import math
import threading

import pytest
import torch

from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.drafters.registry import METHODS
from core.errors import GenerationError, PromptError
from core.runlog.log import to_line, to_record
from core.runlog.replay import step_from_record, summary_from_record
from core.runlog.tally import Tally
from core.settings import Coupling, LengthPolicy, SamplingParams, VerificationRule
from core.types import FinishReason, Step
from tests.exactness import always
from tests.fakes import EOS, GREEDY, byte_tokenizer, language_model, play, refusal, table_model, tiny_module
from tests.fakes_decode import PROMPT, countdown, plain_ids, tables
from tests.faults import build_method

TURN = "<|turn|>"


def test_a_stop_text_in_the_prompt_does_not_count():
    target = countdown([1, 2, 3, 4])
    run = play(speculative(target, always([0]), [0], sampling=GREEDY, stop=("ab",), max_new_tokens=3))
    assert (run.summary.finish_reason, run.summary.text) == (FinishReason.LENGTH, "bcd")


@pytest.mark.parametrize("method", METHODS)
def test_a_special_token_that_is_a_stop_text_ends_every_method_as_it_ends_generate_and_shows_no_text(method):
    tokenizer, module = byte_tokenizer(specials=(EOS, TURN)), tiny_module("llama", vocab_size=258)
    settings = {"sampling": GREEDY, "max_new_tokens": 24, "inspect": True}
    turn, model = tokenizer.convert_tokens_to_ids(TURN), language_model(module, tokenizer)
    module.lm_head.weight[turn] = 1.01 * module.lm_head.weight[plain_ids(model, PROMPT, 7, sampling=GREEDY)[-1]]
    expected = module.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, pad_token_id=0,
                               stop_strings=[TURN], tokenizer=tokenizer)[0, len(PROMPT):].tolist()  # fmt: skip
    assert expected.index(turn) == len(expected) - 1 > 2
    target = language_model(module, tokenizer, is_fused=True)
    for k in (0, 1, 4, 7):
        drafter = build_method(method, target, target)
        run = play(speculative(target, drafter, PROMPT, num_draft_tokens=k, stop=("never", TURN), **settings))
        assert run.ids == expected
        assert (run.summary.finish_reason, run.summary.num_tokens) == (FinishReason.STOP, len(expected))
        assert run.summary.text == "".join(step.emitted_text for step in run.steps) == tokenizer.decode(expected[:-1])
        for step in run.steps:
            line = to_line(to_record(step))
            assert step.evidence
            assert to_line(to_record(step_from_record(json.loads(line)))) == line
        record = json.loads(to_line(to_record(run.finished)))
        assert summary_from_record(record, Tally(run.steps).summary(FinishReason.STOP)) == run.summary


def test_the_end_of_the_context_ends_the_text():
    target, draft = tables(context_length=20)
    for drafter in (draft, target, PromptLookupDrafter()):
        run = play(speculative(target, drafter, [0] * 5, num_draft_tokens=8, max_new_tokens=99))
        assert len(run.ids) == 15
        assert run.summary.finish_reason is FinishReason.LENGTH
    full = play(speculative(target, draft, [0] * 19, num_draft_tokens=8, max_new_tokens=99))
    assert len(full.ids) == 1


@pytest.mark.parametrize(("size", "k"), [(4, 4), (11, 4), (12, 4), (13, 4), (40, 4), (4, LengthPolicy.AUTO)])
def test_a_draft_with_a_shorter_context_stops_and_the_target_continues(size, k):
    target = tables()[0]
    draft = table_model(target.logits_of, 8, context_length=12)
    run = play(speculative(target, draft, [0] * size, num_draft_tokens=k, sampling=GREEDY, max_new_tokens=30))
    assert run.ids == plain_ids(target, [0] * size, 30, sampling=GREEDY)
    assert all(step.num_draft_tokens == 0 for step in run.steps if step.position > 12)


def test_a_real_model_can_be_run_to_the_end_of_its_context():
    target = language_model(tiny_module("gpt2", n_positions=32))
    run = play(speculative(target, target, PROMPT, num_draft_tokens=16, sampling=GREEDY, max_new_tokens=99))
    assert len(run.ids) == 32 - len(PROMPT)
    assert run.summary.draft_acceptance_rate == 1.0


def test_an_end_within_a_block_cuts_its_tests():
    target = tables()[0]
    run = play(speculative(target, target, [0], num_draft_tokens=8, stop=("a", "b"), rule=VerificationRule.BLOCK))
    cut = run.steps[-1]
    assert run.summary.finish_reason is FinishReason.STOP
    assert (cut.num_accepted, len(cut.block)) == (cut.num_draft_tokens, cut.num_draft_tokens + 1)
    assert [test.weight for test in cut.block] == pytest.approx([1.0] * len(cut.block))


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "empty"), ([0] * 20, "20"), ([0] * 25, "25"), ([8], "0 to 7"), ([0, -1], "0 to 7")]
)
@pytest.mark.parametrize("start", [autoregressive, lambda model, ids: speculative(model, model, ids)])
def test_a_prompt_that_cant_be_continued_is_refused(prompt, words, start):
    target, _ = tables(context_length=20)
    refusal(PromptError, start, target, prompt, match=words)


def test_a_stop_from_another_thread_and_a_second_one_are_fine():
    controls, seen = RunControls(), []
    for event in speculative(*tables(), [0], controls=controls, max_new_tokens=1_000):
        seen.append(event)
        if sum(isinstance(event, Step) for event in seen) == 3:
            for _ in range(2):
                thread = threading.Thread(target=controls.cancel)
                thread.start()
                thread.join()
    assert (seen[-1].summary.finish_reason, seen[-1].summary.num_steps) == (FinishReason.CANCELLED, 3)


def test_a_run_that_is_stopped_before_it_starts_ends_at_once():
    target, draft = tables()
    controls = RunControls()
    controls.cancel()
    run = play(speculative(target, draft, [0] * 10, controls=controls))
    assert (run.steps, run.summary.finish_reason) == ([], FinishReason.CANCELLED)
    assert target.last_runner.length == 0


def check_the_next_run(target, draft) -> None:
    """Whatever happened before, runs with these models are what they are with new ones."""
    fresh, fresh_draft = table_model(target.logits_of, 8), table_model(draft.logits_of, 8)
    assert plain_ids(target, sampling=GREEDY) == plain_ids(fresh, sampling=GREEDY)
    after, expected = (
        play(speculative(*pair, [0], max_new_tokens=40, seed=9)) for pair in ((target, draft), (fresh, fresh_draft))
    )
    assert after.ids == expected.ids
    assert after.summary.num_accepted_tokens == expected.summary.num_accepted_tokens


@pytest.mark.parametrize("after", [0, 1, 4])
def test_closing_the_generator_ends_the_run_and_leaves_no_trace(after):
    target, draft = tables()
    events = speculative(target, draft, [0], max_new_tokens=200)
    for _ in range(after):
        next(events)
    events.close()
    assert list(events) == []
    check_the_next_run(target, draft)


@pytest.mark.parametrize("is_behind", [False, True], ids=["CPU", "device that runs behind the host"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_cant_be_sampled_are_a_sentence(who, value, temperature, is_behind, monkeypatch):
    for user in ("core.rounds", "core.decode"):
        monkeypatch.setattr(f"{user}.is_asynchronous", lambda device: is_behind)
    models = dict(zip(("target", "draft"), tables(), strict=True))
    good = models[who].logits_of

    def broken(ids):
        row = good(ids).clone()
        if len(ids) > 6:
            row[3] = value
        return row

    models[who] = table_model(broken, 8)
    for coupling in Coupling:
        run = speculative(*models.values(), [0], sampling=SamplingParams(temperature), coupling=coupling)
        refusal(GenerationError, play, run, match=who)
    if who == "target":
        with pytest.raises(GenerationError):
            play(autoregressive(models["target"], [0], sampling=SamplingParams(temperature)))
