"""What the engine's side of the thread boundary tells the window, and in which order."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from app.controller import SWITCH_S
from app.handover import Handover
from app.worker import IMPORT_SWITCH_S, EngineWorker, EventInbox
from core.errors import OutriderError
from core.types import StageChanged
from tests.fakes_app import FakeSession, fake_services


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
    assert seen == [pytest.approx(IMPORT_SWITCH_S)]
    assert IMPORT_SWITCH_S < SWITCH_S
    assert sys.getswitchinterval() == pytest.approx(before)
