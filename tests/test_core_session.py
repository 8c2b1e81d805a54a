"""A session carries out requests: its events come in order, its models are kept or dropped, and failures are said."""

import json
import os
import shutil
import threading
import weakref

import pytest
import torch

import core.session
from core.controls import RunControls
from core.errors import (
    ModelNotFoundError,
    ModelUnreadableError,
    OutOfMemoryError,
    OutriderError,
    PairMismatchError,
    PromptError,
    SettingsError,
)
from core.models.loading import LanguageModel, load
from core.models.prompting import encode_prompt
from core.models.shelf import ModelShelf
from core.records import CONFIG_FIELDS, ENVIRONMENT_FIELDS
from core.runners.lean import LeanRunner
from core.runners.module import ModuleRunner
from core.session import Session
from core.types import (
    BaselineStep,
    Coupling,
    Finished,
    FinishReason,
    PrefillDone,
    RunRequest,
    RunStarted,
    SamplingParams,
    StageChanged,
    Step,
)
from tests.fakes import byte_tokenizer, is_sentence, save_model

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, a draft and a chat model of one tokenizer, and one of another."""
    root = tmp_path_factory.mktemp("models")
    save_model(root / "target", eos_token_id=None)
    save_model(root / "draft", family="gpt2", seed=1, eos_token_id=None)
    chat = byte_tokenizer()
    chat.chat_template = TEMPLATE
    save_model(root / "chat", tokenizer=chat)
    save_model(root / "stranger", tokenizer=byte_tokenizer([("a", "b")]))
    return root


@pytest.fixture
def request_for(models):
    def make(**changes) -> RunRequest:
        settings = {
            "target": str(models / "target"),
            "draft": str(models / "draft"),
            "prompt": "def f(x):",
            "max_new_tokens": 12,
            "device": "cpu",
            **changes,
        }
        return RunRequest(**settings)

    return make


@pytest.fixture
def loads(monkeypatch):
    """The references that were really loaded, in order."""
    seen = []

    def spy(ref, *args, **settings):
        seen.append(ref.rpartition("/")[2])
        return load(ref, *args, **settings)

    monkeypatch.setattr("core.models.pair_loader.load", spy)
    return seen


def kinds(events) -> list[type]:
    """The types of events, those of a row taken together, without the stages."""
    names = [type(event) for event in events if not isinstance(event, StageChanged)]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] is not name]


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


def test_models_are_kept_for_the_next_runs_while_they_fit(request_for, models, loads):
    session = Session()
    assert list(session.run(request_for()))
    assert list(session.run(request_for(seed=3)))
    assert list(session.run(request_for(method="prompt-lookup")))
    assert list(session.run(request_for(device="auto", dtype="float32")))
    assert loads == ["target", "draft"]
    assert list(session.run(request_for(dtype="bfloat16")))
    assert list(session.run(request_for()))
    assert loads == ["target", "draft", "target", "draft"]
    assert session.held_bytes("cpu") > 0
    session.close()
    assert session.held_bytes("cpu") == 0
    assert list(session.run(request_for(draft=str(models / "target"))))
    assert loads[4:] == ["target"]


def test_models_that_a_run_does_not_use_make_room_for_those_that_it_does(request_for, loads):
    session = Session(ModelShelf(lambda _: 0))
    assert list(session.run(request_for()))
    assert list(session.run(request_for()))
    assert loads == ["target", "draft"]
    assert list(session.run(request_for(method="prompt-lookup")))
    assert list(session.run(request_for()))
    assert loads == ["target", "draft", "draft"]


def test_a_load_that_finds_no_room_is_tried_again_with_everything_else_gone(request_for, monkeypatch):
    session = Session()
    assert list(session.run(request_for(dtype="bfloat16")))
    tried = []

    def fail_once(ref, *args, **settings):
        tried.append(ref.rpartition("/")[2])
        if len(tried) == 2:
            raise OutOfMemoryError("No room.")
        return load(ref, *args, **settings)

    monkeypatch.setattr("core.models.pair_loader.load", fail_once)
    assert list(session.run(request_for()))[-1].summary.error is None
    assert tried == ["target", "draft", "draft"]
    # With nothing to drop, there is nothing to try again.
    del tried[:]
    session = Session()
    with pytest.raises(OutOfMemoryError):
        list(session.run(request_for()))
    assert tried == ["target", "draft"]
    assert list(session.run(request_for()))[-1].summary.error is None


def test_a_run_out_of_memory_gives_back_its_caches_and_says_what_would_fit(request_for, monkeypatch, loads):
    session = Session()
    assert list(session.run(request_for(dtype="bfloat16")))
    expected = list(session.run(request_for()))[-1].summary.text
    del loads[:]
    make, runners = LanguageModel.runner, []

    def note(self, *args, **settings):
        runner = make(self, *args, **settings)
        runners.append(weakref.ref(runner))
        return runner

    def fail(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "runner", note)
        for event in session.run(request_for(baseline=True)):
            seen.append(event)
            if isinstance(event, Step):
                patch.setattr(LeanRunner, "forward", fail)
    summary = seen[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert is_sentence(summary.error)
    assert "cpu ran out of memory in a text of up to 21 tokens" in summary.error
    assert len(runners) >= 2
    assert [runner() for runner in runners if runner() is not None] == []
    # What the run used is still here, the rest made room.
    assert list(session.run(request_for()))[-1].summary.text == expected
    assert loads == []
    assert list(session.run(request_for(dtype="bfloat16")))
    assert loads == ["target", "draft"]


def test_weights_that_were_written_anew_are_loaded_anew(request_for, models, loads, tmp_path):
    target = shutil.copytree(models / "target", tmp_path / "target")
    session = Session()
    request = request_for(target=str(target), method="prompt-lookup", sampling=SamplingParams(0.0))
    before = list(session.run(request))[-1].summary.text
    save_model(target, seed=5, eos_token_id=None)
    os.utime(target / "model.safetensors", ns=(1, 2**62))
    assert list(session.run(request))[-1].summary.text != before
    assert loads == ["target", "target"]


def test_a_gguf_file_is_unpacked_with_its_progress_told(request_for, models, monkeypatch, tmp_path):
    (tmp_path / "packed.gguf").write_bytes(b"GGUF")

    def converting(_path, _check_cancelled):
        yield 0.0
        yield 0.4
        yield 0.401
        return models / "target"

    monkeypatch.setattr("core.models.gguf.converting", converting)
    monkeypatch.setattr("core.models.gguf.convert", lambda *_: models / "target")
    seen = list(Session().run(request_for(target=str(tmp_path / "packed.gguf"), method="prompt-lookup")))
    assert [event.text for event in seen if isinstance(event, StageChanged)] == [
        "Converting packed, once… 0 %", "Converting packed, once… 40 %", "Loading packed…", "Reading the prompt…"
    ]  # fmt: skip


def test_a_stop_while_a_file_is_unpacked_ends_it(request_for, monkeypatch, tmp_path):
    (tmp_path / "packed.gguf").write_bytes(b"GGUF")
    ended = []

    def converting(_path, check_cancelled):
        try:
            while True:
                check_cancelled()
                yield 0.5
        finally:
            ended.append(True)

    monkeypatch.setattr("core.models.gguf.converting", converting)
    request = request_for(target=str(tmp_path / "packed.gguf"), method="prompt-lookup")
    controls = RunControls.from_request(request)
    events = Session().run(request, controls)
    assert isinstance(next(events), StageChanged)
    controls.cancel()
    assert next(events).summary.finish_reason is FinishReason.CANCELLED
    assert ended == [True]
    closed = Session().run(request)
    next(closed)
    closed.close()
    assert ended == [True, True]


def test_the_same_request_gives_the_same_text_in_any_session(request_for):
    session = Session()
    texts = {list(each.run(request_for(seed=4)))[-1].summary.text for each in (session, session, Session())}
    assert len(texts) == 1


def test_a_stop_while_models_load_ends_without_a_run(request_for, loads):
    controls = RunControls.from_request(request_for())
    session = Session()
    events = session.run(request_for(), controls)
    seen = [next(events)]
    thread = threading.Thread(target=controls.cancel)
    thread.start()
    thread.join()
    seen += events
    assert [type(event) for event in seen] == [StageChanged, Finished]
    assert seen[-1].summary.finish_reason is FinishReason.CANCELLED
    # Loading was given up before its weights were read; the next run begins anew.
    assert loads == ["target"]
    assert list(session.run(request_for()))[-1].summary.finish_reason is FinishReason.LENGTH
    assert loads == ["target", "target", "draft"]


def test_closing_a_run_leaves_a_session_that_works(request_for):
    session = Session()
    events = session.run(request_for())
    while not isinstance(next(events), Step):
        pass
    events.close()
    assert list(session.run(request_for()))[-1].summary.finish_reason is FinishReason.LENGTH


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
            for runner in (LeanRunner, ModuleRunner):
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


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_loaded(request_for, models, loads):
    with pytest.raises(PairMismatchError, match="id 256"):
        list(Session().run(request_for(draft=str(models / "stranger"))))
    assert loads == []


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


def test_the_chat_template_is_applied_where_there_is_one(models):
    chat, plain = load(str(models / "chat"), "cpu"), load(str(models / "target"), "cpu")
    prompt = encode_prompt(chat, "hello")
    assert prompt.is_chat
    assert prompt.rendered == chat.tokenizer.decode(prompt.ids) == "<user>hello<assistant>"
    raw = encode_prompt(chat, "hello", False)
    assert (raw.is_chat, raw.rendered, chat.tokenizer.decode(raw.ids)) == (False, "hello", "hello")
    assert encode_prompt(plain, "hello") == raw
    with pytest.raises(SettingsError, match="chat template"):
        encode_prompt(plain, "hello", True)


def test_lone_surrogates_and_odd_characters_are_taken_as_text(models):
    plain = load(str(models / "target"), "cpu")
    for text in ("\ud83d", "a\x00b", "\N{ZERO WIDTH JOINER}", "🙂"):
        assert encode_prompt(plain, text).ids


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
