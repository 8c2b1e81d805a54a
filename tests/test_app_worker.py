"""What the engine's side of the thread boundary sends to the window."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from app.worker import EngineWorker, run_task
from core.evidence import PackedEvidence
from core.session import Session
from core.settings import RunRequest
from core.types import Finished, Inspected
from tests.fakes import PANICS, edit_json, is_sentence, save_model
from tests.fakes_app import FakeSession, keep_files_in, make_step
from tests.test_app_inspector import inspected


def test_the_window_gets_evidence_packed_and_the_log_gets_it_unchanged(tmp_path, qapp, monkeypatch):
    step = inspected(make_step(0, 9))
    places = step.evidence

    class Inspecting(FakeSession):
        def run(self, request, controls):
            for event in super().run(request, controls):
                if isinstance(event, Finished):
                    yield Inspected(0, places)
                yield event

    events, logged = deque(), []
    keep_files_in(tmp_path, monkeypatch)
    log = SimpleNamespace(write=logged.append, close=lambda: None)
    monkeypatch.setattr("app.worker.RunLogWriter", lambda _path: log)
    worker = EngineWorker(events, Inspecting)
    request = RunRequest("target", "draft", "prompt")
    worker.perform(run_task(request, events))
    (sent,) = (event for event in events if isinstance(event, Inspected))
    assert isinstance(sent.evidence, PackedEvidence)
    assert sent.evidence == places
    (written,) = (event for event in logged if isinstance(event, Inspected))
    assert written.evidence is places


def test_a_run_whose_tokenizer_panics_ends_as_failed_with_a_sentence(tmp_path, qapp):
    edit_json(save_model(tmp_path / "model") / "tokenizer.json", **PANICS)
    said, ended = [], []
    worker = EngineWorker(deque(), Session)
    worker.task_failed.connect(lambda task, sentence: said.append(sentence))
    worker.task_ended.connect(ended.append)
    request = RunRequest(str(tmp_path / "model"), None, prompt="abc", method="prompt-lookup", device="cpu")
    task = run_task(request, deque())
    worker.perform(task)
    assert ended == [task]
    assert len(said) == 1
    assert "can't handle this text" in said[0]
    assert is_sentence(said[0])
