"""What the engine's side of the thread boundary sends to the window, and in which order."""

from __future__ import annotations

import pytest

from app.worker import EngineWorker, Inbox
from core.controls import RunControls
from core.errors import OutriderError
from core.evidence import PackedEvidence
from core.settings import RunRequest
from core.types import Finished, Inspected, StageChanged
from tests.fakes_app import FakeSession, keep_files_in, make_step
from tests.test_app_inspection import inspected


def refuse() -> FakeSession:
    raise OutriderError("There is no engine here.")


@pytest.mark.parametrize("open_session", [FakeSession, refuse], ids=["starts", "fails"])
def test_no_stage_is_open_any_more_when_the_engine_is_ready(qapp, open_session):
    inbox = Inbox()
    worker = EngineWorker(inbox, open_session)
    seen: list[object] = []
    worker.ready.connect(lambda: seen.append(list(inbox.take_all())[-1]))
    worker.warm_up()
    assert seen == [StageChanged("")]
    assert list(inbox.take_all()) == []


def test_an_engine_is_opened_and_reported_once(qapp, qtbot):
    worker = EngineWorker(Inbox(), FakeSession)
    with qtbot.waitSignal(worker.ready):
        worker.warm_up()
    with qtbot.assertNotEmitted(worker.ready):
        worker.warm_up()


def test_the_window_gets_evidence_packed_and_the_log_gets_it_unchanged(tmp_path, qapp, monkeypatch):
    step = inspected(make_step(0, 9))
    places = step.evidence

    class Inspecting(FakeSession):
        def run(self, request, controls):
            for event in super().run(request, controls):
                if isinstance(event, Finished):
                    yield Inspected(0, places)
                yield event

    class Log:
        def __init__(self, _path):
            self.events = []
            logs.append(self)

        def write(self, event):
            self.events.append(event)

        def close(self):
            pass

    inbox, logs = Inbox(), []
    keep_files_in(tmp_path, monkeypatch)
    monkeypatch.setattr("app.worker.RunLogWriter", Log)
    worker = EngineWorker(inbox, Inspecting)
    request = RunRequest("target", "draft", "prompt")
    worker.run(request, RunControls.from_request(request))
    (sent,) = (event for event in inbox.take_all() if isinstance(event, Inspected))
    assert isinstance(sent.evidence, PackedEvidence)
    assert sent.evidence == places
    (written,) = (event for event in logs[0].events if isinstance(event, Inspected))
    assert written.evidence is places
