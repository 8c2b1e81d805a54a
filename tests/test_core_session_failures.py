"""What goes wrong in a run, or can't be carried out at all, is said in a sentence, and the next run works."""

import pytest
import torch

import core.session
from core.errors import ModelNotFoundError, ModelUnreadableError, OutriderError, PromptError, SettingsError
from core.runners.llama import FusedLlamaRunner
from core.runners.module import ModuleRunner
from core.session import Session
from core.types import Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step
from tests.fakes import is_sentence
from tests.fakes_session import kinds, requests_of, save_pair


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    return requests_of(save_pair(tmp_path_factory.mktemp("models")))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a kernel failed\nat line 3"),
        torch.OutOfMemoryError("out of memory"),
        TypeError("bad call"),
        AttributeError("no such thing"),
        KeyError("a key"),
        AssertionError(),
        NotImplementedError("on this device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_in_a_run_is_its_last_event_and_the_next_run_works(request_for, monkeypatch, error):
    session = Session()
    expected = list(session.run(request_for()))[-1].summary.text
    real, calls = core.session.speculative, []

    def failing(*args, **settings):
        for event in real(*args, **settings):
            calls.append(event)
            yield event
            if len(calls) == 3:
                raise error

    monkeypatch.setattr(core.session, "speculative", failing)
    events = list(session.run(request_for()))
    assert kinds(events) == [RunStarted, PrefillDone, Step, Finished]
    summary = events[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert is_sentence(summary.error)
    steps = [event for event in events if isinstance(event, Step)]
    assert summary.num_steps == len(steps) == 2
    assert summary.text == "".join(step.emitted_text for step in steps)
    monkeypatch.undo()
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
                patch.setattr(runner, "forward", _fail)
            events = list(session.run(request_for()))
        assert kinds(events) == [RunStarted, Finished]
        assert "kernel failed" in events[-1].summary.error
        assert list(session.run(request_for()))[-1].summary.error is None
    finally:
        torch.set_num_threads(threads)


def _fail(*_, **__) -> None:
    raise RuntimeError("a kernel failed")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"target": "no/such/model"}, ModelNotFoundError),
        ({"draft": "no/such/model"}, ModelNotFoundError),
        ({"target": "."}, ModelUnreadableError),
        ({"draft": None}, SettingsError),
        ({"method": "crystal-ball"}, SettingsError),
        ({"method": "prompt-lookup", "method_options": {"max_ngram": 99}}, SettingsError),
        ({"device": "abacus"}, SettingsError),
        ({"dtype": "float7"}, SettingsError),
        ({"chat": True}, SettingsError),
        ({"prompt": "long " * 200}, PromptError),
    ],
    ids=str,
)
def test_what_cant_be_carried_out_is_said_before_the_run_starts(request_for, changes, error):
    session = Session()
    seen = []
    with pytest.raises(error) as caught:
        seen.extend(session.run(request_for(**changes)))
    assert isinstance(caught.value, OutriderError)
    assert is_sentence(str(caught.value))
    assert all(isinstance(event, StageChanged) for event in seen)
    assert list(session.run(request_for()))[-1].summary.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "changes",
    [{"prompt": ""}, {"target": " "}, {"num_draft_tokens": 0}, {"num_draft_tokens": 99},
     {"num_draft_tokens": 2.5}, {"num_draft_tokens": True}, {"max_new_tokens": 0}, {"max_new_tokens": -3},
     {"seed": -1}, {"seed": 2**63}, {"seed": 1.5}, {"stop": ("",)}, {"stop": ("a", "")}],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_run_are_refused_at_once(request_for, changes):
    with pytest.raises(SettingsError) as caught:
        request_for(**changes)
    assert is_sentence(str(caught.value))
