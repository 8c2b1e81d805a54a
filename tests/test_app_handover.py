"""Who has the processor: the window asks for a turn, and the engine gives it between two steps."""

from __future__ import annotations

import threading

import pytest

import app.handover
from app.handover import Handover


@pytest.fixture
def handover(qapp):
    return Handover()


class Engine(threading.Thread):
    """Offers the window its turn once."""

    def __init__(self, handover: Handover) -> None:
        super().__init__(daemon=True)
        self._handover = handover

    def run(self) -> None:
        self._handover.offer()


def test_an_engine_that_nobody_asked_goes_on(handover, qtbot):
    with qtbot.assertNotEmitted(handover.given):
        handover.offer()


def test_who_asks_no_more_is_given_nothing(handover, qtbot):
    handover.want()
    assert handover.is_wanted
    handover.withdraw()
    with qtbot.assertNotEmitted(handover.given):
        handover.offer()


def test_the_engine_stands_still_until_the_turn_is_over_and_gives_one_for_each_time_it_was_asked(
    handover, qtbot, monkeypatch
):
    monkeypatch.setattr(app.handover, "MOST_S", 60.0)
    engine = Engine(handover)
    handover.want()
    with qtbot.waitSignal(handover.given):
        engine.start()
    with handover.turn():
        engine.join(0.05)
        assert engine.is_alive()
    engine.join(10)
    assert not engine.is_alive()
    assert not handover.is_wanted
    handover.offer()


def test_a_drawing_that_fails_gives_the_turn_back(handover, qtbot, monkeypatch):
    monkeypatch.setattr(app.handover, "MOST_S", 60.0)
    engine = Engine(handover)
    handover.want()
    with qtbot.waitSignal(handover.given):
        engine.start()
    with pytest.raises(ZeroDivisionError), handover.turn():
        _ = 1 / 0
    engine.join(10)
    assert not engine.is_alive()


def test_no_engine_waits_for_ever_for_a_window_that_has_other_things_to_do(handover, monkeypatch):
    monkeypatch.setattr(app.handover, "MOST_S", 0.01)
    handover.want()
    handover.offer()
