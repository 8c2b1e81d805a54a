"""What the engine's side of the thread boundary tells the window, and in which order."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from app.handover import Handover

from app import giving_way
from app.controller import SWITCH_S
from app.services import open_session, open_session_beside_window
from app.worker import EngineWorker, EventInbox
from core.controls import RunControls
from core.errors import OutriderError
from core.evidence import PackedEvidence
from core.types import Finished, Inspected, RunRequest, StageChanged
from tests.fakes_app import FakeSession, fake_services, make_step
from tests.test_app_inspection import inspected


def refuse() -> FakeSession:
    raise OutriderError("There is no engine here.")


@pytest.mark.parametrize("is_able", [True, False], ids=["starts", "fails"])
def test_no_stage_is_open_any_more_when_the_engine_says_that_it_is_ready(tmp_path, qapp, is_able):
    session, inbox = FakeSession(), EventInbox()
    services = fake_services(session, tmp_path)
    worker = EngineWorker(services if is_able else replace(services, open_session=refuse), inbox, Handover())
    seen: list[object] = []
    worker.ready.connect(lambda: seen.append(list(inbox.take_all())[-1]))
    worker.warm_up()
    assert seen == [StageChanged("")]
    assert list(inbox.take_all()) == []


def test_an_engine_is_opened_and_told_once(tmp_path, qapp, qtbot):
    worker = EngineWorker(fake_services(FakeSession(), tmp_path), EventInbox(), Handover())
    with qtbot.waitSignal(worker.ready):
        worker.warm_up()
    with qtbot.assertNotEmitted(worker.ready):
        worker.warm_up()


def test_while_the_engine_is_imported_the_window_is_let_in_more_often(tmp_path, qapp):
    seen = []

    def load():
        seen.append(sys.getswitchinterval())
        raise OutriderError("There is no engine here.")

    before = sys.getswitchinterval()
    services = replace(fake_services(FakeSession(), tmp_path), load_libraries=load)
    EngineWorker(services, EventInbox(), Handover()).warm_up()
    assert seen == [pytest.approx(giving_way.SWITCH_S)]
    assert giving_way.SWITCH_S < SWITCH_S
    assert sys.getswitchinterval() == pytest.approx(before)


def test_the_window_gets_evidence_packed_and_the_log_has_it_as_it_came(tmp_path, qapp):
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

    inbox, logs = EventInbox(), []
    worker = EngineWorker(replace(fake_services(Inspecting(), tmp_path), open_log=Log), inbox, Handover())
    request = RunRequest("target", "draft", "prompt")
    worker.run(request, RunControls.from_request(request))
    (sent,) = (event for event in inbox.take_all() if isinstance(event, Inspected))
    assert isinstance(sent.evidence, PackedEvidence)
    assert sent.evidence == places
    (written,) = (event for event in logs[0].events if isinstance(event, Inspected))
    assert written.evidence is places


def test_several_threads_give_way_and_the_interval_comes_back_with_the_last_of_them():
    before = sys.getswitchinterval()
    first, second = giving_way.giving_way(), giving_way.giving_way()
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(giving_way.SWITCH_S)
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(giving_way.SWITCH_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_beside_a_window_an_engine_lets_it_in_more_often_while_it_loads_models():
    assert open_session_beside_window()._while_loading is giving_way.giving_way
    with open_session()._while_loading():
        assert sys.getswitchinterval() > giving_way.SWITCH_S
