"""The inspector on screen: selected by keys and clicks, nothing cut off, evidence shown when it arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt

from app.run.inspection import NOT_KEPT, NOT_YET
from app.run.inspector import FEW_ROWS, InspectorPanel
from app.run.run_view import RunView
from app.run.tokens import Place, Selection
from app.theme import DARK, LIGHT
from core.settings import RunRequest
from core.types import Finished, FinishReason, Inspected
from tests.fakes_app import make_step, make_summary
from tests.test_app_inspection import NUM_OTHERS, STEPS, inspected

REQUEST = RunRequest(target="t", draft="d", prompt="x", inspect=True)


@pytest.fixture
def run() -> RunView:
    view = RunView()
    view.begin(RunRequest(target="t", draft="d", prompt="x"))
    for step in STEPS:
        view.apply(step)
    return view


@pytest.fixture
def panel(show_at, run):
    return show_at(InspectorPanel(run, Selection()), 340, 700)


def test_the_inspector_says_what_to_do_until_a_token_is_selected(panel):
    assert not panel.scroll_area.isVisible()
    panel._selection.select(Place(0, 2))
    assert panel.scroll_area.isVisible()
    assert panel.title.text() == "Step 0 · draft 3 of 4"
    panel._selection.clear()
    assert not panel.scroll_area.isVisible()


def test_keys_go_from_token_to_token_and_from_step_to_step(qtbot, panel):
    panel.setFocus()
    keys = (Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Left, Qt.Key.Key_Up)
    places = []
    for key in keys:
        qtbot.keyClick(panel, key)
        places.append(panel._selection.place)
    assert places == [Place(0, 0), Place(0, 1), Place(1, 1), Place(1, 0), Place(0, 0)]


def test_a_click_on_a_chip_selects_its_place(qtbot, panel):
    panel._selection.select(Place(0, 0))
    for index, slot in ((4, 2), (3, 3), (1, 1)):
        point = panel.block.boxes()[index].center().toPoint()
        qtbot.mouseClick(panel.block, Qt.MouseButton.LeftButton, pos=point)
        assert panel._selection.place == Place(0, slot)
    qtbot.mouseClick(panel.block, Qt.MouseButton.LeftButton, pos=QPoint(panel.block.width() - 1, 1))
    assert panel._selection.place == Place(0, 1)


def test_the_buttons_go_from_step_to_step(qtbot, panel):
    panel._selection.select(Place(0, 3))
    qtbot.mouseClick(panel.behind, Qt.MouseButton.LeftButton)
    assert panel._selection.place == Place(1, 3)
    qtbot.mouseClick(panel.before, Qt.MouseButton.LeftButton)
    assert panel._selection.place == Place(0, 3)


def test_the_other_listed_tokens_are_a_click_away(qtbot, panel):
    panel._selection.select(Place(0, 2))
    few = panel.bars.sizeHint().height()
    assert panel.more.text() == f"Show all {NUM_OTHERS + 2}"
    qtbot.mouseClick(panel.more, Qt.MouseButton.LeftButton)
    assert panel.bars.sizeHint().height() > 2 * few
    assert panel.more.text() == f"Show the first {FEW_ROWS}"
    qtbot.mouseClick(panel.more, Qt.MouseButton.LeftButton)
    assert panel.bars.sizeHint().height() == few


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("width", [340, 384, 620])
def test_nothing_is_wider_than_the_panel(qtbot, panel, theme, width):
    panel.set_theme(theme)
    panel.resize(width, 700)
    wide = replace(make_step(3, 40, num_draft_tokens=16, num_accepted=3), drafted_texts=("x" * 80,) * 16)
    panel._run.apply(inspected(wide))
    for place in (Place(0, 2), Place(1, 3), Place(3, 3), Place(3, 5)):
        panel._selection.select(place)
        body = panel.scroll_area.widget()
        qtbot.waitUntil(lambda body=body: body.width() <= panel.scroll_area.viewport().width())
        assert body.minimumSizeHint().width() <= 340 - 12
        assert all(panel.block.boxes()[i].right() <= panel.block.width() for i in range(len(panel.block._chips)))
        panel.grab()


def test_what_is_painted_is_said_as_well(panel):
    panel._selection.select(Place(0, 2))
    assert "“␣last” resampled (shown)" in panel.block.accessibleDescription()
    assert "“␣no” (id " in panel.bars.accessibleDescription()
    assert "rejected here" in panel.bars.accessibleDescription()
    for widget in (panel, panel.block, panel.bars, panel.before, panel.behind):
        assert widget.objectName()
        assert widget.accessibleName()


def test_evidence_that_comes_later_is_shown_as_soon_as_it_is_there(panel, run):
    run.begin(REQUEST)
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
    run.begin(REQUEST)
    run.apply(make_step(0, 9))
    panel._selection.select(Place(0, 0))
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH)))
    panel.end()
    assert panel.note.text() == NOT_KEPT


def test_evidence_of_a_step_that_is_missing_goes_to_no_other(run):
    run.begin(REQUEST)
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
        window.live._on_text_due()
        assert controls.is_inspected is is_wanted
    window.side.show_page(window.inspector)
    for put_away, is_wanted in ((window.showMinimized, False), (window.showNormal, True)):
        # In a minimised window nobody looks.
        put_away()
        window.live._on_text_due()
        assert controls.is_inspected is is_wanted
    window.controller.stop()
