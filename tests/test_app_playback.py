"""Step mode: pause, next step, run on, the pace, and back through a run; text and plots follow one selection."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor

import app.run.pacing
import core.controls
from app.controller import RunState
from app.run.pacing import Pace, Pacing
from app.run.text.tokens import KINDS, Fate, Place
from app.setup.prompt import AHEAD_HINT, READY_HINT, SLOWED_HINT
from core.types import BaselineStep, Drafted, FinishReason, PrefillDone, RunStarted
from tests.fakes_app import make_step, text_of

pytestmark = pytest.mark.usefixtures("short_look")


@pytest.fixture
def stepwise(window):
    """A window whose runs begin with a pause."""
    choose(window, Pace.STEPWISE)
    return window


def choose(window, pace):
    window.transcript.playback.pace.choose(pace)
    window.transcript.playback.pace.activated.emit(0)


def num_steps(window):
    return len(window.run_view.steps)


def bar(window):
    return window.transcript.playback


def run_paused(window, qtbot, steps=0):
    """Run until this many steps have come and the run waits."""
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.run_view.prefill is not None)
    for index in range(steps):
        bar(window).step_button.click()
        qtbot.waitUntil(lambda index=index: num_steps(window) == index + 1)


def test_a_run_runs_step_by_step_and_then_on(stepwise, qtbot):
    run_paused(stepwise, qtbot, steps=2)
    assert stepwise.controller.state is RunState.PAUSED
    assert stepwise.status.stage.text() == "Paused before step 3"
    assert stepwise.prompt.note.text().startswith("F8")
    assert stepwise.transcript.view.toPlainText() == stepwise.prompt.text() + text_of(stepwise.run_view)
    bar(stepwise).slider.setValue(1)
    bar(stepwise).step_button.click()
    qtbot.waitUntil(lambda: num_steps(stepwise) == 3)
    assert stepwise.transcript.view.toPlainText() == stepwise.prompt.text() + text_of(stepwise.run_view)
    qtbot.waitUntil(lambda: bar(stepwise).slider.value() == 3)
    with qtbot.waitSignal(stepwise.live.run_shown):
        bar(stepwise).set_pace(Pace.FULL)
        assert stepwise.controller.state is RunState.RUNNING
    assert stepwise.run_view.summary.finish_reason is FinishReason.LENGTH


def test_in_halves_the_first_press_shows_the_draft_and_the_second_its_verdict(window, qtbot):
    choose(window, Pace.HALVES)
    run_paused(window, qtbot)
    bar(window).step_button.click()
    view = window.transcript.view
    qtbot.waitUntil(lambda: bool(window.run_view.tokens.pending) and view._num_pending > 0)
    assert num_steps(window) == 0
    assert window.status.stage.text() == "Step 1 drafted, not verified"
    assert {span.fate for span in view._spans[-view._num_pending :]} == {Fate.DRAFTED}
    bar(window).step_button.click()
    qtbot.waitUntil(lambda: num_steps(window) == 1)
    assert window.status.stage.text() == "Paused before step 2"
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.stop_button.click()


def test_a_run_can_be_paused_while_it_is_running(window, qtbot, session):
    session.gate = threading.Semaphore(3)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: num_steps(window) == 3)
    bar(window).pause_button.click()
    session.gate.release(1000)
    assert window.controller.state is RunState.PAUSED
    assert bar(window).pause_button.accessibleName() == "Resume"
    # The session had asked for a step before the pause or waits for the next one: at most one more comes.
    bar(window).step_button.click()
    qtbot.waitUntil(lambda: num_steps(window) >= 4)
    assert window.run_view.summary is None
    with qtbot.waitSignal(window.live.run_shown):
        window.menus.pause.trigger()


def test_k_and_temperature_are_live_in_a_pause_which_stop_ends_and_another_run_can_follow(stepwise, qtbot, run_to_end):
    run_paused(stepwise, qtbot, steps=1)
    stepwise.controls.fields["num_draft_tokens"].slider.setValue(7)
    stepwise.controls.fields["temperature"].spin.setValue(0.25)
    bar(stepwise).step_button.click()
    qtbot.waitUntil(lambda: num_steps(stepwise) == 2)
    step = stepwise.run_view.steps[-1]
    assert (step.num_draft_tokens, step.temperature) == (7, 0.25)
    with qtbot.waitSignal(stepwise.live.run_shown):
        stepwise.prompt.stop_button.click()
        assert stepwise.controller.state is RunState.STOPPING
    assert stepwise.run_view.summary.finish_reason is FinishReason.CANCELLED
    choose(stepwise, Pace.FULL)
    run_to_end(stepwise)
    assert stepwise.run_view.summary.finish_reason is FinishReason.LENGTH


def test_a_run_that_is_stepped_to_its_end_measures_its_baseline_without_pauses(stepwise, qtbot, session):
    stepwise.controls.fields["max_new_tokens"].setValue(6)
    run_paused(stepwise, qtbot)
    with qtbot.waitSignal(stepwise.live.run_shown):
        for _ in range(6):
            stepwise.controller.step_once()
    assert stepwise.run_view.summary.baseline_tokens_per_second is not None
    assert stepwise.controller.state is RunState.IDLE


def test_a_step_that_is_wanted_while_the_models_load_is_taken_before_the_run_pauses(window, qtbot, session):
    session.load_gate = threading.Event()
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: bool(session.controls))
    window.menus.next_step.trigger()
    assert window.controller.state is RunState.PAUSED
    session.load_gate.set()
    qtbot.waitUntil(lambda: num_steps(window) == 1)
    assert session.controls[0].is_paused
    window.controller.stop()


@pytest.fixture
def clock(monkeypatch):
    """What the pace reads; a test moves it."""
    now = [100.0]
    monkeypatch.setattr(app.run.pacing.time, "monotonic", lambda: now[0])
    return now


def test_a_slowed_step_follows_its_draft_after_the_time_of_its_tokens(clock):
    pacing, (first, second) = Pacing(), (make_step(i, 9, num_accepted=i + 1) for i in range(2))
    pacing.tokens_per_second = 8.0
    events = iter((PrefillDone(9, 1.0, None), first, BaselineStep(second), second))
    assert [type(event) for event in pacing.due(events)] == [PrefillDone, Drafted]
    assert pacing.is_behind
    clock[0] += 0.24
    assert list(pacing.due(events)) == []
    clock[0] += 0.02
    passed = list(pacing.due(events))
    assert passed[:2] == [first, BaselineStep(second)]
    assert passed[2].drafted == second.drafted
    pacing.hurry()
    assert list(pacing.due(events)) == [second]


@pytest.mark.parametrize("has_ended", [True, False], ids=["the engine has ended", "a second has passed"])
def test_the_start_of_a_slowed_run_waits_while_the_engine_is_measured(clock, has_ended):
    pacing, started, step = (
        Pacing(),
        RunStarted("id", "2026-01-02T03:04:05+00:00", "0", {}, {}),
        make_step(0, 9, num_accepted=1),
    )
    pacing.tokens_per_second = 8.0
    events = iter((started, step))
    assert list(pacing.due(iter((started,)))) == [started]  # A kept run isn't measured.
    pacing.begin(is_measured=True)
    assert list(pacing.due(events)) == []
    if has_ended:
        pacing.engine_ended()
    else:
        clock[0] += 1.0
    assert [type(event) for event in pacing.due(events)] == [RunStarted, Drafted]
    clock[0] += 0.25
    assert list(pacing.due(events)) == [step]


def test_only_the_showing_of_a_slowed_run_waits_and_full_speed_ends_that(window, qtbot, session, clock):
    choose(window, Pace.SLOWED)
    window.prompt.run_button.click()
    assert window.prompt.note.text() == AHEAD_HINT
    with qtbot.waitSignal(window.controller.run_ended):
        pass
    assert not session.controls[0].is_paused
    qtbot.waitUntil(lambda: bool(window.run_view.tokens.pending))
    assert (num_steps(window), window.run_view.summary) == (0, None)
    assert window.status.stage.text() == "The run is done; its text is shown at 8 tokens/s"
    with qtbot.waitSignal(window.live.run_shown):
        bar(window).full_button.click()
    assert window.run_view.summary.measured_speedup is not None
    assert bar(window).pace.member() is Pace.FULL


@pytest.mark.parametrize("stop", [lambda window: window.prompt.stop_button.click(),
                                  lambda window: window.menus.stop.trigger()])  # fmt: skip
def test_stop_ends_a_slowed_showing_at_once_with_the_whole_text_as_the_hint_beside_run_says(window, qtbot, clock, stop):
    choose(window, Pace.SLOWED)
    with qtbot.waitSignal(window.controller.run_ended):
        window.prompt.run_button.click()
    qtbot.waitUntil(lambda: bool(window.run_view.tokens.pending))
    assert window.live.is_slowed
    assert window.prompt.note.text() == SLOWED_HINT
    bar(window).pause_button.click()
    assert window.prompt.stop_button.isEnabled()
    assert window.prompt.stop_button.text() == "Show all"
    with qtbot.waitSignal(window.live.run_shown):
        stop(window)
    assert window.prompt.stop_button.text() == "Stop"
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH
    assert window.transcript.view.toPlainText() == window.prompt.text() + window.run_view.summary.text
    assert not window.prompt.stop_button.isEnabled()
    assert not bar(window).pacing.is_paused
    assert window.prompt.note.text() == READY_HINT


def test_stop_ends_a_slowed_run_whose_engine_is_not_done_where_the_engine_is(window, qtbot, session, clock):
    session.gate = threading.Semaphore(3)
    choose(window, Pace.SLOWED)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.transcript.playback.pacing.is_behind)
    clock[0] += 1.0
    qtbot.waitUntil(lambda: bool(window.run_view.tokens.pending))
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.stop_button.click()
    assert window.run_view.summary.finish_reason is FinishReason.CANCELLED
    assert num_steps(window) == window.run_view.summary.num_steps
    assert window.transcript.view.toPlainText() == window.prompt.text() + window.run_view.summary.text


def test_a_slowed_run_can_be_paused_and_stepped_through(window, qtbot, clock):
    choose(window, Pace.SLOWED)
    with qtbot.waitSignal(window.controller.run_ended):
        window.prompt.run_button.click()
    bar(window).pause_button.click()
    assert bar(window).pause_button.accessibleName() == "Resume"
    clock[0] += 60.0
    for count in (1, 2):
        bar(window).step_button.click()
        qtbot.waitUntil(lambda count=count: num_steps(window) == count)
    bar(window).pause_button.click()
    clock[0] += 60.0
    qtbot.waitUntil(lambda: num_steps(window) > 2)
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()  # Shows the rest, and begins another run.


def test_a_draft_is_shown_until_its_verdict_comes_and_is_never_copied(stepwise, qtbot, monkeypatch):
    monkeypatch.setattr(core.controls, "LOOK_MS", 30_000.0)
    run_paused(stepwise, qtbot)
    view = stepwise.transcript.view
    bar(stepwise).step_button.click()
    qtbot.waitUntil(lambda: bool(stepwise.run_view.tokens.pending))
    qtbot.waitUntil(lambda: view.toPlainText() != stepwise.prompt.text())
    cursor = QTextCursor(view.document())
    cursor.movePosition(QTextCursor.MoveOperation.End)
    assert cursor.charFormat().underlineStyle() == cursor.charFormat().UnderlineStyle.DashUnderline
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == stepwise.prompt.text()
    with qtbot.waitSignal(stepwise.live.run_shown):
        bar(stepwise).pause_button.click()
    assert stepwise.run_view.tokens.pending == ()
    assert view.toPlainText() == stepwise.prompt.text() + stepwise.run_view.summary.text


def test_a_finished_run_can_be_gone_through_and_is_whole_at_the_end(window, run_to_end):
    run_to_end(window)
    view, slider, steps = window.transcript.view, bar(window).slider, window.run_view.steps
    whole = view.toPlainText()
    assert bar(window).place.text() == f"{len(steps)} of {len(steps)} steps"
    for shown in (3, 0, 1, len(steps) - 1, 2):
        slider.setValue(shown)
        assert view.toPlainText() == window.prompt.text() + "".join(step.emitted_text for step in steps[:shown])
        assert window.selection.place == (Place(shown - 1, 0) if shown else None)
        assert bar(window).place.text() == f"{shown} of {len(steps)} steps"
    slider.setValue(len(steps))
    assert view.toPlainText() == whole
    slider.setValue(1)
    run_to_end(window)
    assert slider.value() == slider.maximum() == num_steps(window)
    assert view.toPlainText() == window.prompt.text() + window.run_view.summary.text


# --- Text and plots are one ---


def plots(window):
    return window.measurements.acceptance, window.measurements.latency


def test_a_step_that_is_pointed_at_or_selected_is_marked_in_the_text_and_in_every_plot(window, run_to_end):
    run_to_end(window)
    view = window.transcript.view
    for plot in plots(window):
        plot.pointed.emit(3)
        (mark,) = view.extraSelections()
        assert (mark.cursor.selectionStart(), mark.cursor.selectionEnd()) == view._step_range(3)
        for other in plots(window):
            assert other._hovered.isVisible()
            assert other._hovered.value() == 4, "steps count from 1 on screen"
        plot.pointed.emit(-1)
        assert view.extraSelections() == []
        assert not any(other._hovered.isVisible() for other in plots(window))
    view.choose(Place(2, 0))
    assert window.selection.place == Place(2, 0)
    assert [plot._selected.value() for plot in plots(window)] == [3, 3]
    plots(window)[1].step_clicked.emit(5)
    assert window.selection.place == Place(5, 0)
    assert view.selected_span().place == Place(5, 0)
    run_to_end(window)
    assert window.selection.place is None
    assert view.selected_span() is None
    assert not any(plot._selected.isVisible() for plot in plots(window))


def test_a_selected_step_that_is_out_of_sight_is_scrolled_to(make_window, run_to_end):
    window = make_window(is_shown=True)
    window.controls.fields["max_new_tokens"].setValue(400)
    run_to_end(window)
    view = window.transcript.view
    assert view.rectangles(*view.place_range(Place(0, 0))) == []
    window.selection.select(Place(0, 0))
    assert view.rectangles(*view.place_range(Place(0, 0)))


# --- Space ---


def test_space_pauses_and_resumes_but_not_from_a_field_or_a_button(make_window, qtbot, session):
    window = make_window(is_shown=True)
    session.gate = threading.Semaphore(1)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: num_steps(window) == 1)
    window.prompt.edit.setFocus()
    before = window.prompt.text()
    qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Space)
    assert len(window.prompt.text()) == len(before) + 1
    window.transcript.ghosts_button.setFocus()
    qtbot.keyClick(window.transcript.ghosts_button, Qt.Key.Key_Space)
    assert window.menus.show_ghosts.isChecked()
    assert window.controller.state is RunState.RUNNING
    window.transcript.view.setFocus()
    qtbot.keyClick(window.transcript.view, Qt.Key.Key_Space)
    assert window.controller.state is RunState.PAUSED
    qtbot.keyClick(window.transcript.view, Qt.Key.Key_Space)
    assert window.controller.state is RunState.RUNNING


def test_nothing_in_the_header_and_the_bar_is_cut_off(make_window, qtbot):
    window = make_window(is_shown=True)
    panel = window.transcript
    panel.set_ghosts_shown(True)
    panel.setParent(None)
    qtbot.addWidget(panel)
    panel.setMinimumWidth(380)  # As the column has it, whatever stands in it.
    shown = [*(panel._words[fate] for fate in KINDS), panel.ghosts_button, bar(window).place]
    shown += [bar(window).pause_button, bar(window).step_button, bar(window).branch_button]
    shown += [bar(window).pace, bar(window).full_button]
    choose(window, Pace.SLOWED)
    for width in (380, 900):
        panel.resize(width, 400)
        with qtbot.waitExposed(panel):
            panel.show()
        assert panel.width() == width
        qtbot.waitUntil(lambda: all(widget.width() >= widget.sizeHint().width() for widget in shown))
        for widget in shown:
            assert widget.isVisible()
            assert widget.mapTo(panel, widget.rect().topRight()).x() <= panel.width()
        assert bar(window)._pace_label.isVisible() is (width == 900)
    choose(window, Pace.FULL)
    panel.resize(380, 400)
    qtbot.waitUntil(lambda: bar(window).branch_button.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonTextBesideIcon)


@pytest.mark.parametrize("pace", [Pace.STEPWISE, Pace.SLOWED])
def test_a_run_waits_for_its_first_step_though_the_one_before_had_a_baseline(window, qtbot, session, run_to_end, pace):
    run_to_end(window)
    assert window.run_view.baseline_steps
    choose(window, pace)
    session.load_gate = threading.Event()
    window.prompt.run_button.click()
    if pace is Pace.SLOWED:
        bar(window).pause_button.click()
    with qtbot.waitSignal(window.live._panels_timer.timeout):
        pass
    assert bar(window).pause_button.accessibleName() == "Resume"
    assert bar(window).step_button.isEnabled(), "the first step can be asked for while the models load"
    session.load_gate.set()
    qtbot.waitUntil(lambda: window.run_view.prefill is not None and window.live.upcoming is None)
    assert (num_steps(window), bar(window).pause_button.accessibleName()) == (0, "Resume")
    with qtbot.waitSignal(window.live.run_shown):
        for _ in range(50):
            bar(window).step_button.click()
    assert bar(window).pause_button.accessibleName() == "Pause"
