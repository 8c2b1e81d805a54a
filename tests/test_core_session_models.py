"""A session loads the models of its runs once, keeps them while they fit, and makes room where they don't."""

import os
import shutil
import weakref

import pytest
import torch

from core.controls import RunControls
from core.errors import OutOfMemoryError, PairMismatchError
from core.models.language_model import LanguageModel
from core.models.loading import load
from core.models.placement import first_device
from core.models.prompting import render_prompt
from core.runners.llama import FusedLlamaRunner
from core.session import Session
from core.settings import SamplingParams
from core.types import Finished, FinishReason, RunStarted, StageChanged, Step
from tests.fakes import byte_tokenizer, is_sentence, save_model, shared_tokenizer, tiny_module
from tests.fakes_session import requests_of, save_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A pair, and a model of another tokenizer."""
    folder = save_pair(tmp_path_factory.mktemp("models"))
    save_model(folder / "stranger", tokenizer=byte_tokenizer([("a", "b")]))
    return folder


@pytest.fixture
def request_for(models):
    return requests_of(models)


@pytest.fixture
def loads(monkeypatch):
    """The references that were really loaded, in order."""
    seen = []

    def spy(ref, *args, **settings):
        seen.append(ref.rpartition("/")[2])
        return load(ref, *args, **settings)

    monkeypatch.setattr("core.models.shelf.load", spy)
    return seen


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


def test_models_that_a_run_does_not_use_make_room_for_those_that_it_does(request_for, loads, monkeypatch):
    monkeypatch.setattr("core.models.shelf.free_memory", lambda _: 0)
    session = Session()
    for method in ("draft-model", "draft-model", "prompt-lookup", "draft-model"):
        draft = {} if method == "draft-model" else {"method": method}
        assert list(session.run(request_for(**draft)))
    assert loads == ["target", "draft", "draft"]


@pytest.mark.parametrize("has_others", [True, False])
def test_a_load_that_finds_no_room_is_tried_again_with_everything_else_gone(request_for, monkeypatch, has_others):
    session, tried = Session(), []
    if has_others:
        assert list(session.run(request_for(dtype="bfloat16")))

    def fail_once(ref, *args, **settings):
        tried.append(ref.rpartition("/")[2])
        if len(tried) == 2:
            raise OutOfMemoryError("No room.")
        return load(ref, *args, **settings)

    monkeypatch.setattr("core.models.shelf.load", fail_once)
    if not has_others:
        with pytest.raises(OutOfMemoryError):
            list(session.run(request_for()))
        assert tried == ["target", "draft"]
    assert list(session.run(request_for()))[-1].summary.error is None
    assert tried[:3] == ["target", "draft", "draft"]


def test_a_run_out_of_memory_gives_back_its_caches_and_says_what_would_fit(request_for, monkeypatch, loads):
    session = Session()
    assert list(session.run(request_for(dtype="bfloat16")))
    expected = list(session.run(request_for()))[-1].summary.text
    del loads[:]
    make, runners = LanguageModel.runner, weakref.WeakSet()

    def note(self, *args, **settings):
        runner = make(self, *args, **settings)
        runners.add(runner)
        made.append(1)
        return runner

    def fail(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    seen, made = [], []
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "runner", note)
        for event in session.run(request_for(baseline=True)):
            seen.append(event)
            if isinstance(event, Step):
                patch.setattr(FusedLlamaRunner, "forward", fail)
    summary = seen[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert is_sentence(summary.error)
    assert "cpu ran out of memory with a text of up to 21 tokens" in summary.error
    assert len(made) >= 2
    assert not list(runners)
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


def test_a_chat_template_that_was_changed_is_used_in_the_next_run_and_preview_and_a_log_beside_it_loads_nothing(
    request_for, models, loads, tmp_path
):
    target = shutil.copytree(models / "target", tmp_path / "target")
    template, session = target / "chat_template.jinja", Session()
    request = request_for(target=str(target), method="prompt-lookup", prompt="hi", chat=None)

    def text_read() -> str:
        started = next(event for event in session.run(request) if isinstance(event, RunStarted))
        text = shared_tokenizer().decode(started.config["prompt_token_ids"])
        assert render_prompt(str(target), "hi").text == text
        return text

    template.write_text("<{{ messages[0].content }}>")
    assert text_read() == "<hi>"
    for name in ("run.jsonl", ".run.jsonl.lock", "output.txt"):
        (target / name).write_text("{}")
    assert text_read() == "<hi>"
    assert loads == ["target"]
    template.rename(target / "kept.txt")
    assert text_read() == "hi"
    (target / "kept.txt").rename(template)
    assert text_read() == "<hi>"
    template.write_text("[{{ messages[0].content }}]")
    assert text_read() == "[hi]"
    assert loads == ["target"] * 4


def test_a_gguf_file_is_unpacked_and_its_progress_reported(request_for, models, monkeypatch, tmp_path):
    (tmp_path / "packed.gguf").write_bytes(b"GGUF")

    def converting(_path, _check_cancelled):
        yield from (0.0, 0.4, 0.401)
        return models / "target"

    monkeypatch.setattr("core.models.folder.gguf.converting", converting)
    monkeypatch.setattr("core.models.folder.gguf.convert", lambda *_: models / "target")
    seen = list(Session().run(request_for(target=str(tmp_path / "packed.gguf"), method="prompt-lookup")))
    assert [event.text for event in seen if isinstance(event, StageChanged)] == [
        "Converting packed (only once)… 0\xa0%",
        "Converting packed (only once)… 40\xa0%",
        "Loading packed…",
        "Reading the prompt…",
    ]


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

    monkeypatch.setattr("core.models.folder.gguf.converting", converting)
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


def test_a_stop_while_the_drafter_is_made_ends_without_a_run(request_for, monkeypatch):
    controls = RunControls.from_request(request_for())

    def make(_name, setup, _options):
        controls.cancel()
        setup.check_cancelled()

    monkeypatch.setattr("core.session.build_drafter", make)
    events = list(Session().run(request_for(), controls))
    assert RunStarted not in map(type, events)
    assert events[-1].summary.finish_reason is FinishReason.CANCELLED


def test_a_stop_while_models_load_ends_without_a_run(request_for, loads):
    controls, session, seen = RunControls.from_request(request_for()), Session(), []
    for event in session.run(request_for(), controls):
        seen.append(type(event))
        controls.cancel()
    assert seen == [StageChanged, Finished]
    assert event.summary.finish_reason is FinishReason.CANCELLED
    # Loading was given up before its weights were read; the next run begins anew.
    assert loads == ["target"]
    assert list(session.run(request_for()))[-1].summary.finish_reason is FinishReason.LENGTH
    assert loads == ["target", "target", "draft"]


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_loaded(request_for, models, loads):
    with pytest.raises(PairMismatchError, match="id 256"):
        list(Session().run(request_for(draft=str(models / "stranger"))))
    assert loads == []


def test_a_model_is_where_its_weights_are_unless_a_map_spreads_it():
    """transformers gives a model on one device no map."""
    module = tiny_module("llama").to("meta")
    assert first_device(module) == torch.device("meta")
    module.hf_device_map = {"model.embed_tokens": 1, "lm_head": "cpu"}
    assert first_device(module) == torch.device("cuda", 1)
