"""A session carries out a request: its events come in order, with a baseline where asked, and it can be stopped."""

import contextlib
import json
from dataclasses import replace

import pytest

from core.controls import RunControls
from core.errors import OutriderError
from core.runlog.log import CONFIG_FIELDS, ENVIRONMENT_FIELDS
from core.session import Session
from core.settings import Coupling, SamplingParams
from core.types import BaselineStep, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step
from tests.fakes import byte_tokenizer
from tests.fakes_session import kinds, requests_of, save_pair


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    return requests_of(save_pair(tmp_path_factory.mktemp("models")))


def test_events_come_in_order(request_for):
    events = list(Session().run(request_for()))
    assert kinds(events) == [RunStarted, PrefillDone, Step, Finished]
    assert [event.text for event in events if isinstance(event, StageChanged)] == [
        "Loading target…", "Loading draft…", "Reading the prompt…"
    ]  # fmt: skip
    summary = events[-1].summary
    steps = [event for event in events if isinstance(event, Step)]
    assert summary.finish_reason is FinishReason.LENGTH
    assert summary.num_tokens == sum(len(step.emitted) for step in steps) == 12
    assert summary.text == "".join(step.emitted_text for step in steps)
    assert summary.baseline_tokens_per_second is summary.measured_speedup is summary.error is None


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
    assert bytes(byte_tokenizer().decode(started.config["prompt_token_ids"]), "utf-8") == b"def f(x):"
    json.dumps([started.config, started.environment])


def test_runs_have_names_of_their_own(request_for):
    session = Session()
    names = {event.run_id for _ in range(3) for event in session.run(request_for()) if isinstance(event, RunStarted)}
    assert len(names) == 3


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


def test_a_run_stopped_during_its_baseline_is_kept_without_one(request_for):
    controls = RunControls.from_request(request_for())
    seen = []
    for event in Session().run(request_for(baseline=True), controls):
        seen.append(event)
        if isinstance(event, BaselineStep):
            controls.cancel()
    assert sum(isinstance(event, BaselineStep) for event in seen) == 1
    assert seen[-1].summary.num_tokens == 12
    assert seen[-1].summary.measured_speedup is None


def test_a_stopped_run_has_no_baseline(request_for):
    controls = RunControls.from_request(request_for())
    seen = []
    for event in Session().run(request_for(baseline=True), controls):
        seen.append(event)
        if isinstance(event, Step):
            controls.cancel()
    assert kinds(seen) == [RunStarted, PrefillDone, Step, Finished]
    assert seen[-1].summary.finish_reason is FinishReason.CANCELLED


def test_the_same_request_gives_the_same_text_in_any_session(request_for):
    session = Session()
    texts = {list(each.run(request_for(seed=4)))[-1].summary.text for each in (session, session, Session())}
    assert len(texts) == 1


def test_a_prompt_of_white_space_is_text_to_continue(request_for):
    assert list(Session().run(request_for(prompt=" \n\t")))[-1].summary.num_tokens == 12


def test_live_settings_reach_the_run(request_for):
    request = request_for(sampling=SamplingParams(1.0), num_draft_tokens=2, max_new_tokens=30)
    controls = RunControls.from_request(request)
    seen = []
    for event in Session().run(request, controls):
        if isinstance(event, Step):
            seen.append((event.num_draft_tokens, event.temperature))
            controls.set_num_draft_tokens(4)
            controls.set_temperature(0.0)
    assert seen[:2] == [(2, 1.0), (4, 0.0)]


def test_a_session_ends_with_finished_and_nothing_after_it(request_for):
    events = list(Session().run(request_for()))
    assert [index for index, event in enumerate(events) if isinstance(event, Finished)] == [len(events) - 1]
