"""The inspector while evidence is still to come: it waits, shows it when it is there, and asks the engine for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.run.inspection import NOT_KEPT, NOT_YET
from app.run.inspector import InspectorPanel
from app.run.run_view import RunView
from app.run.tokens import Place, Selection
from core.types import Finished, FinishReason, Inspected, RunRequest
from tests.fakes_app import make_step, make_summary
from tests.test_app_inspector import inspected

REQUEST = RunRequest(target="t", draft="d", prompt="x", inspect=True)


@pytest.fixture
def run() -> RunView:
    view = RunView()
    view.begin(REQUEST)
    return view


@pytest.fixture
def panel(qtbot, run) -> InspectorPanel:
    widget = InspectorPanel(run, Selection())
    qtbot.addWidget(widget)
    widget.resize(384, 700)
    widget.show()
    return widget


def test_evidence_that_comes_later_is_shown_as_soon_as_it_is_there(panel, run):
    step = inspected(make_step(0, 9))
    run.apply(replace(step, evidence=()))
    panel._selection.select(Place(0, 0))
    assert panel.note.text() == NOT_YET
    panel.refresh(has_news=True)
    assert panel.note.text() == NOT_YET
    run.apply(Inspected(0, step.evidence))
    panel.refresh(has_news=True)
    assert panel.bars.isVisible()
    assert not panel.note.isVisible()


def test_evidence_that_never_came_is_not_waited_for_when_the_run_is_over(panel, run):
    run.apply(make_step(0, 9))
    panel._selection.select(Place(0, 0))
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH)))
    panel.end()
    assert panel.note.text() == NOT_KEPT


def test_evidence_of_a_step_that_is_missing_goes_to_no_other(run):
    run.apply(make_step(1, 9))
    for index in (0, 1, 7):
        run.apply(Inspected(index, inspected(make_step(0, 9)).evidence))
    assert run.steps == [make_step(1, 9)]


def test_a_run_sends_its_evidence_at_once_while_the_inspector_is_seen_and_only_then(qtbot, window):
    window.show()
    assert window.controller.start(REQUEST)
    controls = window.controller._controls
    for page, is_wanted in (
        (window.inspector, True),
        (window.plots, False),
        (window.theory, False),
        (window.why, False),
    ):
        window.side.show_page(page)
        window.live._on_frame()
        assert controls.is_inspected is is_wanted
    window.controller.stop()


def test_in_a_window_that_is_put_away_nobody_looks(qtbot, window):
    window.show()
    window.side.show_page(window.inspector)
    assert window.controller.start(REQUEST)
    controls = window.controller._controls
    for put_away, is_wanted in ((window.showMinimized, False), (window.showNormal, True)):
        put_away()
        window.live._on_frame()
        assert controls.is_inspected is is_wanted
    window.controller.stop()


def test_a_run_that_starts_while_the_inspector_is_open_sends_evidence_at_once(qtbot, window):
    window.show()
    window.side.show_page(window.inspector)
    window.live._on_frame()
    assert window.controller.start(REQUEST)
    assert window.controller._controls.is_inspected
    window.controller.stop()
