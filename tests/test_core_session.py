"""A session carries out a request: its events come in order, with a baseline where asked; failures are sentences."""

import contextlib
import itertools
import json
from dataclasses import replace

import pytest
import torch

import core.session
from core.controls import RunControls
from core.errors import ModelNotFoundError, ModelUnreadableError, OutriderError, PromptError, SettingsError
from core.models.prompting import EncodedPrompt
from core.runlog.log import CONFIG_FIELDS, ENVIRONMENT_FIELDS, to_record
from core.runlog.replay import summary_from_record
from core.runners.llama import FusedLlamaRunner
from core.runners.module import ModuleRunner
from core.session import Continuation, Loaded, Session, run_started
from core.settings import Coupling, LengthPolicy, SamplingParams, VerificationRule
from core.types import BaselineStep, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step
from tests.errors import failing
from tests.fakes import byte_tokenizer, is_sentence, refusal, tiny_model
from tests.fakes_session import kinds, requests_of, save_pair


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    return requests_of(save_pair(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def session():
    """One that has been through all the failures before, so that each shows the next run works."""
    return Session()


def test_events_come_in_order(request_for):
    events = list(Session().run(request_for()))
    assert kinds(events) == [RunStarted, PrefillDone, Step, Finished]
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert [event.text for event in events if isinstance(event, StageChanged)] == [
        "Loading target…", "Loading draft…", "Reading the prompt…"
    ]  # fmt: skip
    summary = events[-1].summary
    steps = [event for event in events if isinstance(event, Step)]
    assert summary.finish_reason is FinishReason.LENGTH
    assert summary.num_tokens == sum(len(step.emitted) for step in steps) == 12
    assert summary.text == "".join(step.emitted_text for step in steps)
    assert summary.baseline_tokens_per_second is summary.measured_speedup is summary.error is None


def test_a_clock_that_jumps_changes_no_time_of_a_run(request_for, monkeypatch):
    jumps = itertools.cycle([0.0, 4e9, 1e9, 1.0])
    monkeypatch.setattr("time.time", lambda: next(jumps))
    events = list(Session().run(request_for(baseline=True)))
    summary, steps = events[-1].summary, [event for event in events if isinstance(event, Step)]
    assert summary.finish_reason is FinishReason.LENGTH
    assert all(0 < step.total_ms < 60_000 and step.absent_ms == 0 for step in steps)
    assert 0 < summary.measured_speedup < 1_000


def test_models_are_loaded_within_what_the_session_was_given_for_that_and_nothing_else_is_done_there(request_for):
    entered = []

    @contextlib.contextmanager
    def loading():
        entered.append("in")
        yield
        entered.append("out")

    session, request, seen = Session(while_loading=loading), request_for(), {}
    for event in session.run(request):
        seen.setdefault(getattr(event, "text", type(event)), list(entered))
    assert seen["Loading target…"] == seen["Loading draft…"] == ["in"]
    assert seen[RunStarted] == seen[Step] == ["in", "out"]
    entered.clear()
    list(session.load(request, RunControls.from_request(request)))
    assert entered == ["in", "out"], "for a check or a probe, too"
    with pytest.raises(OutriderError):
        list(session.run(replace(request, target="nobody/nothing")))


def test_the_first_event_of_a_run_has_the_fields_of_the_schema(request_for):
    request = request_for(
        sampling=SamplingParams(0.5, 7, 0.9, 0.01), seed=5, stop=("x",), coupling=Coupling.GUMBEL, num_draft_tokens=None
    )
    started = next(event for event in Session().run(request) if isinstance(event, RunStarted))
    assert started.config.keys() >= set(CONFIG_FIELDS)
    assert started.environment.keys() >= set(ENVIRONMENT_FIELDS)
    expected = {
        "target": request.target, "draft": request.draft, "method": "draft-model", "device": "cpu",
        "dtype": "float32", "num_draft_tokens": "auto", "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.01,
        "seed": 5, "coupling": "gumbel", "max_new_tokens": 12, "prompt": "def f(x):", "chat": False, "stop": ["x"],
    }  # fmt: skip
    assert {name: started.config[name] for name in expected} == expected
    assert started.config["target_source"] == started.config["draft_source"] == "local"
    assert bytes(byte_tokenizer().decode(started.config["prompt_token_ids"]), "utf-8") == b"def f(x):"
    json.dumps([started.config, started.environment])


def test_the_same_request_gives_the_same_text_in_any_session_under_a_name_of_its_own(request_for):
    session = Session()
    runs = [list(each.run(request_for(seed=4))) for each in (session, session, Session())]
    assert len({events[-1].summary.text for events in runs}) == 1
    assert len({event.run_id for events in runs for event in events if isinstance(event, RunStarted)}) == 3


def test_the_baseline_runs_after_and_says_the_same_at_temperature_0(request_for):
    events = list(Session().run(request_for(baseline=True, sampling=SamplingParams(0.0))))
    assert kinds(events) == [RunStarted, PrefillDone, Step, BaselineStep, Finished]
    summary = events[-1].summary
    plain = [event.step for event in events if isinstance(event, BaselineStep)]
    assert len(plain) == 12
    assert all(step.num_draft_tokens == 0 and len(step.emitted) == 1 for step in plain)
    assert summary.baseline_text == summary.text == "".join(step.emitted_text for step in plain)
    assert summary.baseline_tokens_per_second == pytest.approx(12e3 / sum(step.total_ms for step in plain))
    assert summary.measured_speedup == pytest.approx(summary.tokens_per_second / summary.baseline_tokens_per_second)


def test_where_steps_were_taken_one_by_one_no_speedup_is_measured(request_for):
    controls = RunControls(SamplingParams(0.0), 3)
    controls.step_once()
    for event in Session().run(request_for(baseline=True), controls):
        if isinstance(event, Step):
            controls.resume()
    summary = event.summary
    assert (summary.was_stepped, summary.measured_speedup, summary.measured_speedup_interval) == (True, None, None)
    assert summary.baseline_tokens_per_second
    assert summary_from_record(to_record(event), summary) == summary
    assert "was_stepped" not in to_record(Finished(replace(summary, was_stepped=False)))


def test_the_baseline_has_the_temperature_of_the_last_step(request_for):
    controls, tokens = RunControls(SamplingParams(1.0)), 0
    events = Session().run(request_for(baseline=True), controls)
    for event in events:
        if isinstance(event, Step):
            tokens += len(event.emitted)
            controls.set_temperature(0.0 if tokens < 12 else 1.0)  # No step takes the last one.
        elif isinstance(event, Finished):
            baseline = event.summary.baseline_text
    *_, greedy = Session().run(request_for(sampling=SamplingParams(0.0)))
    assert baseline == greedy.summary.text


def test_what_was_changed_while_the_models_were_loaded_is_logged(request_for):
    request = request_for(num_draft_tokens=3)
    controls = RunControls.from_request(request)
    events = Session().run(request, controls)
    next(events)
    controls.set_temperature(0.0)
    controls.set_num_draft_tokens(LengthPolicy.ADAPTIVE)
    config = next(event for event in events if isinstance(event, RunStarted)).config
    assert (config["temperature"], config["num_draft_tokens"], config["length_policy"]) == (0.0, "auto", "adaptive")


def test_a_system_prompt_is_logged_where_there_is_one(request_for):
    prompt, loaded = EncodedPrompt([1], "x", True), Loaded(tiny_model(), None, None)
    started = run_started(request_for(system="Be brief."), loaded, prompt, Continuation())
    assert started.config["system"] == "Be brief."
    assert "system" not in run_started(request_for(), loaded, prompt, Continuation()).config


def test_the_threshold_of_typical_acceptance_is_logged_where_it_decides(request_for):
    prompt, loaded = EncodedPrompt([1], "x", False), Loaded(tiny_model(), None, None)
    for rule, expected in ((VerificationRule.TYPICAL, [0.09, 0.3]), (VerificationRule.TOKEN, [None, None])):
        config = run_started(request_for(verification=rule), loaded, prompt, Continuation()).config
        assert [config.get(name) for name in ("typical_floor", "typical_share")] == expected


def test_a_k_of_0_is_plain_decoding_without_a_draft(request_for):
    greedy = {"sampling": SamplingParams(0.0)}
    events = list(Session().run(request_for(num_draft_tokens=0, **greedy)))
    steps = [event for event in events if isinstance(event, Step)]
    assert "Loading draft…" not in [getattr(event, "text", "") for event in events]
    assert all(step.num_draft_tokens == 0 and len(step.emitted) == 1 for step in steps)
    assert events[-1].summary.text == list(Session().run(request_for(**greedy)))[-1].summary.text
    assert next(event for event in events if isinstance(event, RunStarted)).config["num_draft_tokens"] == 0


@pytest.mark.parametrize("at", [Step, BaselineStep])
def test_a_run_stopped_before_or_during_its_baseline_is_kept_without_one(request_for, at, monkeypatch):
    monkeypatch.setattr(core.session, "busy_note", lambda run, plain, _: "busy" * (run.num_steps + plain.num_steps))
    request = request_for(baseline=True, prompt=" \n\t")
    controls, seen = RunControls.from_request(request), []
    for event in Session().run(request, controls):
        seen.append(event)
        if isinstance(event, at):
            controls.cancel()
    summary = seen[-1].summary
    assert sum(isinstance(event, at) for event in seen) == 1
    assert kinds(seen)[3:] == ([Finished] if at is Step else [BaselineStep, Finished])
    assert summary.finish_reason is (FinishReason.CANCELLED if at is Step else FinishReason.LENGTH)
    assert summary.num_tokens == (12 if at is BaselineStep else sum(len(e.emitted) for e in seen if type(e) is Step))
    assert summary.measured_speedup is None
    assert summary.was_busy, "which its steps show without a baseline, too"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a kernel failed\nat line 3"), torch.OutOfMemoryError("out of memory"), TypeError("bad call"),
     KeyError("a key"), AssertionError(), NotImplementedError("on this device")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failure_in_a_run_is_its_last_event_and_the_next_run_works(session, request_for, monkeypatch, error):
    expected = list(session.run(request_for()))[-1].summary.text
    real = core.session.speculative

    def stopping(*args, **settings):
        for number, event in enumerate(real(*args, **settings)):
            yield event
            if number == 2:
                raise error

    with monkeypatch.context() as patch:
        patch.setattr(core.session, "speculative", stopping)
        events = list(session.run(request_for()))
    assert kinds(events) == [RunStarted, PrefillDone, Step, Finished]
    summary = events[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert is_sentence(summary.error)
    steps = [event for event in events if isinstance(event, Step)]
    assert summary.num_steps == len(steps) == 2
    assert summary.text == "".join(step.emitted_text for step in steps)
    assert list(session.run(request_for()))[-1].summary.text == expected


def test_a_model_that_fails_from_its_first_forward_on_fails_in_the_run(request_for, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 2)
    session = Session()
    threads = torch.get_num_threads()
    try:
        assert list(session.run(request_for()))[-1].summary.error is None
        with monkeypatch.context() as patch:
            for runner in (FusedLlamaRunner, ModuleRunner):
                patch.setattr(runner, "forward", failing(RuntimeError("a kernel failed")))
            events = list(session.run(request_for()))
        assert kinds(events) == [RunStarted, Finished]
        assert "kernel failed" in events[-1].summary.error
        assert list(session.run(request_for()))[-1].summary.error is None
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"target": "no/such/model"}, ModelNotFoundError), ({"draft": "no/such/model"}, ModelNotFoundError),
     ({"target": "."}, ModelUnreadableError), ({"draft": None}, SettingsError),
     ({"method": "crystal-ball"}, SettingsError),
     ({"method": "prompt-lookup", "method_options": {"max_ngram": 99}}, SettingsError),
     ({"device": "abacus"}, SettingsError), ({"dtype": "float7"}, SettingsError), ({"chat": True}, SettingsError),
     ({"prompt": "long " * 200}, PromptError)],
    ids=str,
)  # fmt: skip
def test_what_cant_be_carried_out_is_said_before_the_run_starts(session, request_for, changes, error):
    seen = []
    refusal(error, lambda: seen.extend(session.run(request_for(**changes))))
    assert all(isinstance(event, StageChanged) for event in seen)
    assert list(session.run(request_for()))[-1].summary.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "changes",
    [{"prompt": ""}, {"target": " "}, {"num_draft_tokens": 99}, {"num_draft_tokens": 2.5}, {"num_draft_tokens": True},
     {"max_new_tokens": 0}, {"seed": -1}, {"seed": 2**63}, {"seed": 1.5}, {"stop": ("a", "")}],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_run_are_refused_at_once(request_for, changes):
    refusal(SettingsError, request_for, **changes)
