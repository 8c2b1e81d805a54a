"""Rewind and branch: back to a token, another one in its place, and on from there."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PySide6.QtWidgets import QMenu

from app.controller import RunState
from app.run.pacing import Pace
from app.run.text import branches
from app.run.text.branches import PAUSE_FIRST, WAIT_FIRST, branch, can_branch, choices
from app.run.text.tokens import Place
from core.errors import GenerationError
from core.evidence import PositionEvidence
from core.settings import LengthPolicy
from core.types import FinishReason
from tests.fakes_trees import tree_step

pytestmark = pytest.mark.usefixtures("short_look")


def open_menu(window):
    """The branch menu's actions by title, as they stand when it opens."""
    menu = window.transcript.playback.branch_menu
    menu.aboutToShow.emit()
    return {action.text(): action for action in menu.actions() if action.text()}


def take(window, qtbot, start):
    """Choose an entry that starts with these words, and wait for the run that it starts."""
    action = next(action for title, action in open_menu(window).items() if title.startswith(start))
    with qtbot.waitSignal(window.live.run_shown):
        action.trigger()


def ids_before(window, place):
    steps = window.run_view.steps
    before = [token for step in steps[: place.step] for token in step.emitted]
    return (*before, *steps[place.step].emitted[: place.slot])


def test_a_token_is_drawn_again_with_a_new_seed_after_the_kept_text(finished, qtbot, session):
    place = Place(3, 0)
    kept, old = ids_before(finished, place), session.requests[0]
    finished.transcript.view.choose(place)
    take(finished, qtbot, "Draw again")
    new = session.requests[1]
    assert new.continuation == kept
    assert (new.forced, new.forced_text) == ((), "")
    assert new.seed != old.seed
    assert finished.controls.fields["seed"].value() == new.seed
    assert new.max_new_tokens == old.max_new_tokens - len(kept)
    run, view = finished.run_view, finished.transcript.view
    assert run.summary.finish_reason is FinishReason.LENGTH
    text = run.started.config["continuation_text"]
    assert text
    assert view.toPlainText() == finished.prompt.text() + text + run.summary.text


def test_a_drafted_token_can_be_forced_in_place_of_the_one_that_was_drawn_instead(finished, qtbot, session):
    steps = finished.run_view.steps
    step = next(step for step in steps if step.num_accepted < step.num_draft_tokens)
    place = Place(step.index, step.num_accepted)
    listed = choices(finished.run_view, place)
    assert [choice.is_emitted for choice in listed] == [True, False]
    finished.transcript.view.choose(place)
    start = next(title for title in open_menu(finished) if title.startswith("Force") and "as it was" not in title)
    take(finished, qtbot, start)
    request = session.requests[1]
    assert request.forced == (step.drafted[place.slot],)
    assert request.seed == session.requests[0].seed
    assert finished.run_view.tokens.forced
    assert finished.run_view.tokens.forced in finished.transcript.view.toPlainText()


def test_a_typed_text_is_left_to_the_engine_and_a_dismissed_dialog_starts_nothing(finished, qtbot, session, dialogs):
    finished.transcript.view.choose(Place(1, 0))
    open_menu(finished)["Force text…"].trigger()
    assert len(dialogs.asked) == len(session.requests) == 1
    assert finished.controller.state is RunState.IDLE
    dialogs.forced_text = " zwölf"
    take(finished, qtbot, "Force text")
    assert session.requests[1].forced_text == " zwölf"


def test_a_branch_can_be_branched_again_and_another_run_ends_what_can_be_undone(finished, qtbot, session, run_to_end):
    finished.transcript.view.choose(Place(2, 0))
    take(finished, qtbot, "Draw again")
    first = session.requests[1].continuation
    place = Place(1, 0)
    new = ids_before(finished, place)
    finished.transcript.view.choose(place)
    take(finished, qtbot, "Draw again")
    assert session.requests[2].continuation == (*first, *new)
    assert session.requests[2].max_new_tokens == session.requests[1].max_new_tokens - len(new)
    assert finished.menus.undo_branch.isEnabled()
    run_to_end(finished)
    assert not finished.menus.undo_branch.isEnabled()


def test_undo_goes_back_to_the_run_before_the_branch_and_through_branches_of_branches(finished, qtbot, session):
    window, undo = finished, finished.menus.undo_branch
    assert not undo.isEnabled()
    texts, ids = [window.transcript.view.toPlainText()], [window.run_view.started.run_id]
    seed = window.controls.fields["seed"]
    for _ in range(2):
        window.transcript.view.choose(Place(1, 0))
        take(window, qtbot, "Draw again")
        texts.append(window.transcript.view.toPlainText())
        ids.append(window.run_view.started.run_id)
    window.transcript.view.choose(Place(1, 0))
    window.playback.set_pace(Pace.STEPWISE)
    next(action for title, action in open_menu(window).items() if title.startswith("Draw again")).trigger()
    qtbot.waitUntil(lambda: window.live.upcoming is None and window.run_view.prefill is not None)
    for place in (2, 1, 0):  # From a paused branch, and from finished ones.
        assert undo.isEnabled()
        undo.trigger()
        qtbot.waitUntil(lambda place=place: window.transcript.view.toPlainText() == texts[place])
        assert window.run_view.started.run_id == ids[place]
        assert seed.value() == window.run_view.request.seed, "Run repeats what is shown"
    assert not undo.isEnabled()
    qtbot.waitUntil(lambda: window.run_view.summary is not None)
    assert len(session.requests) == 4, "nothing is generated again"


def test_only_the_last_runs_that_were_left_are_kept_for_undo(finished, qtbot, monkeypatch):
    monkeypatch.setattr(branches, "MOST_LEFT", 2)
    ids = []
    for _ in range(3):
        finished.transcript.view.choose(Place(1, 0))
        take(finished, qtbot, "Draw again")
        ids.append(finished.run_view.started.run_id)
    for place in (1, 0):
        with qtbot.waitSignal(finished.live.run_shown):
            finished.menus.undo_branch.trigger()
        assert finished.run_view.started.run_id == ids[place]
    assert not finished.menus.undo_branch.isEnabled()


def test_a_paused_run_is_stopped_before_its_branch_starts(window, qtbot, session):
    window.playback.set_pace(Pace.STEPWISE)
    window.prompt.run_button.click()
    for index in range(2):
        qtbot.waitUntil(lambda: window.run_view.prefill is not None)
        window.transcript.playback.step_button.click()
        qtbot.waitUntil(lambda index=index: len(window.run_view.steps) == index + 1)
    window.transcript.view.choose(Place(1, 0))
    kept = ids_before(window, Place(1, 0))
    take(window, qtbot, "Draw again")
    qtbot.waitUntil(lambda: len(session.requests) == 2)
    assert session.requests[1].continuation == kept
    assert session.controls[0].is_cancelled
    assert window.controller.state is RunState.PAUSED


@pytest.mark.parametrize(("first", "then"), [(0.0, 0.9), (0.9, 0.0)])
def test_a_branch_has_the_temperature_and_k_that_were_in_force_at_its_token(window, qtbot, session, first, then):
    fields = window.controls.fields
    fields["temperature"].set_value(first)
    fields["num_draft_tokens"].set_value(3)
    window.playback.set_pace(Pace.STEPWISE)
    window.prompt.run_button.click()
    for count in (1, 2):
        qtbot.waitUntil(lambda: window.run_view.prefill is not None)
        window.playback.step_button.click()
        qtbot.waitUntil(lambda count=count: len(window.run_view.steps) == count)
        fields["temperature"].set_value(then)
        fields["num_draft_tokens"].set_value(9)
    for index, (temperature, k) in enumerate([(first, 3), (then, 9)]):
        place = Place(index, 0)
        new = branch(window.run_view, place)
        assert (new.sampling.temperature, new.num_draft_tokens) == (temperature, k)
        window.transcript.view.choose(place)
        assert open_menu(window)["Draw again, with a new seed"].isEnabled() == (temperature > 0)
    window.run_view.steps[0] = replace(window.run_view.steps[0], temperature=float("nan"), draft_length=None)
    assert branch(window.run_view, Place(0, 0)).sampling.temperature == first, "a log may lack it"
    window.run_view.steps[0] = replace(window.run_view.steps[0], temperature=-1.0)
    assert not can_branch(window.run_view, Place(0, 0))


def test_a_branch_and_what_undoes_it_show_the_settings_that_run(window, qtbot, session):
    fields = window.controls.fields
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["temperature"].set_value(0.9)
    fields["num_draft_tokens"].set_value(3)
    window.playback.set_pace(Pace.STEPWISE)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.run_view.prefill is not None)
    window.playback.step_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 1)
    fields["temperature"].set_value(0.2)
    fields["length_policy"].choose(LengthPolicy.AUTO)
    window.playback.step_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 2)
    with qtbot.waitSignal(window.live.run_shown):
        window.playback.set_pace(Pace.FULL)
    for count, (temperature, length) in enumerate([(0.9, 3), (0.2, LengthPolicy.AUTO)], start=2):
        window.transcript.view.choose(Place(count - 2, 0))
        open_menu(window)["Draw again, with a new seed"].trigger()
        qtbot.waitUntil(lambda count=count: len(session.controls) == count)
        qtbot.waitUntil(lambda: window.menus.undo_branch.isEnabled() and window.run_view.summary is not None)
        controls = session.controls[-1]
        assert (controls.sampling.temperature, controls.num_draft_tokens) == (temperature, length)
        assert (fields["temperature"].value(), window.controls.draft_length()) == (temperature, length)
        fields["temperature"].set_value(0.5)
        with qtbot.waitSignals([window.branches.undone, window.live.run_shown]):
            window.menus.undo_branch.trigger()
        assert (fields["temperature"].value(), window.controls.draft_length()) == (0.9, 3)


def test_a_position_with_a_token_offers_branches_in_two_menus_and_one_without_offers_none(finished):
    finished.transcript.view.choose(Place(1, 0))
    menu = QMenu()
    finished.transcript.view.menu_opening.emit(menu)
    (submenu,) = [action.menu() for action in menu.actions() if action.menu() is not None]
    assert [action.text() for action in submenu.actions() if action.text()] == list(open_menu(finished))
    button = finished.transcript.playback.branch_button
    finished.selection.clear()
    assert "Select a token first" in button.toolTip()
    finished.selection.select(Place(2, 0))
    assert button.isEnabled()
    assert "Rewind to before the selected token" in button.toolTip()
    assert finished.menus.branch.isEnabled()
    finished.selection.select(Place(2, 99))
    assert not button.isEnabled()
    assert "No run can branch" in button.toolTip()
    finished.selection.select(Place(10_000, 0))
    assert not button.isEnabled()
    assert not can_branch(finished.run_view, None)
    finished.selection.clear()
    assert not finished.menus.branch.isEnabled()


def test_at_temperature_zero_nothing_can_be_drawn_again(window, run_to_end):
    window.controls.fields["temperature"].spin.setValue(0)
    run_to_end(window)
    window.transcript.view.choose(Place(0, 0))
    assert not open_menu(window)["Draw again, with a new seed"].isEnabled()


def test_tokens_from_the_evidence_are_offered_most_likely_first(finished):
    seen = PositionEvidence((5, 7, 9), (" a", " b", " c"), (0.1, 0.6, 0.3), 0.0, 0.9)
    step = finished.run_view.steps[1]
    finished.run_view.steps[1] = replace(step, evidence=(seen,) * len(step.emitted))
    listed = choices(finished.run_view, Place(1, 0))
    assert [(choice.token_id, choice.target_prob) for choice in listed[:3]] == [(7, 0.6), (9, 0.3), (5, 0.1)]
    assert step.emitted[0] in {choice.token_id for choice in listed}
    left = replace(seen, target_probs=(0.0, 0.9, 0.1))
    tree = replace(tree_step(0, 2, [-1, -1], [1]), evidence=(seen, left))
    listed = choices(SimpleNamespace(steps=[tree]), Place(0, 1))
    assert [choice.target_prob for choice in listed[:3]] == [0.6, 0.3, 0.1], "not what a rejection left"


def test_tokens_beyond_the_most_likely_ones_have_their_share_of_the_whole_distribution_or_none():
    tree = replace(tree_step(0, 2, [-1, -1, -1], []), target_probs=(0.02, 0.9, 0.8))
    ids = (*range(200, 216), 7, 100, 101)
    probs = (*((25 - place) / 1000 for place in range(16)), 0.003, 0.002, 0.005)
    whole = PositionEvidence(ids, tuple(map(str, ids)), probs, 0.0, 0.9)
    run = SimpleNamespace(steps=[replace(tree, evidence=(whole,) * 3)])
    listed = {choice.token_id: choice.target_prob for choice in choices(run, Place(0, tree.slots[0]))}
    assert list(listed) == [*range(200, 212), 101, 7, 100, 102], "most likely first"
    assert [listed[token] for token in (101, 7, 100, 102)] == [0.005, 0.003, 0.002, None]
    run.steps = [tree]
    listed = {choice.token_id: choice.target_prob for choice in choices(run, Place(0, tree.slots[0]))}
    assert listed == {7: None, 100: 0.02, 101: None, 102: None}, "the later ones' own is what a rejection left"


def test_a_branch_at_the_very_end_still_writes_a_token(finished):
    last = finished.run_view.steps[-1]
    request = branch(finished.run_view, Place(last.index, len(last.emitted) - 1), forced=(1,))
    assert request.max_new_tokens == 1


def test_no_token_can_be_forced_at_a_place_after_which_the_run_has_its_length(finished):
    last = finished.run_view.steps[-1]
    at_end, before = Place(last.index, last.slots[-1]), Place(last.index - 1, 0)
    for place, can in ((before, True), (at_end, False)):
        finished.transcript.view.choose(place)
        menu = open_menu(finished)
        forced = [action.isEnabled() for title, action in menu.items() if title.startswith("Force “")]
        assert forced == [can] * len(forced) != []
        assert menu["Draw again, with a new seed"].isEnabled()
        assert menu["Force text…"].isEnabled()


def test_while_a_slowed_run_is_computed_a_pause_is_not_named_as_the_way_to_a_branch(window, qtbot, session):
    session.gate, tip = threading.Semaphore(0), window.playback.branch_button.toolTip
    window.prompt.run_button.click()
    session.gate.release(2)
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 2)
    window.transcript.view.choose(Place(0, 0))
    assert tip() == PAUSE_FIRST
    window.playback.set_pace(Pace.SLOWED)
    assert tip() == WAIT_FIRST
    window.menus.pause.trigger()
    window.transcript.view.choose(Place(1, 0))
    assert (tip(), window.controller.state) == (WAIT_FIRST, RunState.RUNNING)
    with qtbot.waitSignal(window.live.run_shown):
        window.menus.stop.trigger()
        session.gate.release(1000)
    assert window.playback.branch_button.isEnabled()


def test_a_branch_that_can_not_start_leaves_the_one_on_screen_to_be_undone(finished, qtbot, session):
    before = finished.transcript.view.toPlainText()
    finished.transcript.view.choose(Place(1, 0))
    take(finished, qtbot, "Draw again")
    session.fail_before = GenerationError("This token ends the text.")
    finished.transcript.view.choose(Place(1, 0))
    take(finished, qtbot, "Draw again")
    assert finished.menus.undo_branch.isEnabled()
    session.fail_before = None
    finished.playback.set_pace(Pace.SLOWED)
    finished.transcript.view.choose(Place(1, 0))
    with qtbot.waitSignal(finished.controller.run_ended):
        next(action for title, action in open_menu(finished).items() if title.startswith("Draw again")).trigger()
    for _ in range(2):  # From a branch of the branch, of which not all is shown yet.
        assert finished.menus.undo_branch.isEnabled()
        with qtbot.waitSignal(finished.live.run_replaced):
            finished.menus.undo_branch.trigger()
    qtbot.waitUntil(lambda: finished.transcript.view.toPlainText() == before)


def test_a_branch_from_a_run_that_is_shown_slowly_keeps_all_of_it(window, qtbot, session):
    window.playback.set_pace(Pace.SLOWED)
    with qtbot.waitSignal(window.controller.run_ended):
        window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) > 1)
    window.transcript.view.choose(Place(1, 0))
    next(action for title, action in open_menu(window).items() if title.startswith("Draw again")).trigger()
    qtbot.waitUntil(lambda: window.live.upcoming is None)
    window.menus.undo_branch.trigger()
    qtbot.waitUntil(lambda: window.run_view.request is session.requests[0])
    with qtbot.waitSignal(window.live.run_shown):
        window.live.finish()
    assert window.run_view.summary is not None
    assert window.run_view.num_tokens == session.requests[0].max_new_tokens
