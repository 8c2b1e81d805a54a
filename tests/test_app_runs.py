"""Running, stopping, steering and failing."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt

from app.controller import RunState
from app.run.measurements import _speedup
from app.setup.model_picker import ModelRole
from core.errors import ModelNotFoundError
from core.runlog.reading import read_run_log
from core.settings import LengthPolicy
from core.text import percent_text
from core.types import FinishReason
from tests.fakes_app import run_of, text_of
from tests.test_core_diagnosis import drawn


@pytest.fixture
def gated(session):
    """Lets the session take one step for each release."""
    session.gate = threading.Semaphore(0)
    return session.gate


def steps_shown(window):
    return window.run_view.counts.sums.num_steps


@pytest.fixture
def running(window, qtbot, gated):
    """A window with a run that has taken one step and waits for the next."""
    window.prompt.run_button.click()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    return window


def test_a_run_shows_its_text_and_its_figures_and_is_kept_as_a_log(window, session, run_to_end, tmp_path):
    run_to_end(window)
    assert session.requests[0].inspect
    summary = window.run_view.summary
    assert summary.finish_reason is FinishReason.LENGTH
    assert window.transcript.view.toPlainText() == window.prompt.text() + summary.text
    tiles = window.measurements.tiles
    assert tiles.speed.value.text() == f"{summary.tokens_per_second:,.1f}"
    assert tiles.speedup.value.text() == f"{summary.measured_speedup:.2f}×"
    assert tiles.acceptance.value.text() == percent_text(summary.draft_acceptance_rate)
    assert tiles.efficiency.value.text() == f"{summary.block_efficiency:.2f}"
    assert window.status.bar.value() == window.status.bar.maximum()
    assert window.status.stage.text() == "Done: reached the requested length"
    assert window.controller.state is RunState.IDLE
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    shown = window.run_view.snapshot()()
    assert (log.problems, log.steps, log.summary) == ([], shown.steps, shown.summary)
    session.context_tokens = 20
    run_to_end(window)
    assert window.run_view.summary.num_tokens == 20
    assert window.status.stage.text() == "Done: reached the end of the model's context"


def test_a_chats_answer_starts_on_a_line_of_its_own_and_without_the_baseline_a_hint_stands_for_the_speedup(
    window, run_to_end
):
    window.controls.fields["chat"].choose(True)
    assert window.measurements.tiles.speedup.note.text() == "measured against the baseline"
    window.controls.fields["baseline"].setChecked(False)
    run_to_end(window)
    shown = window.transcript.view.toPlainText()
    assert shown == window.prompt.text() + "\n\n" + window.run_view.summary.text
    assert window.measurements.tiles.speedup.value.text() == "–"
    assert window.measurements.tiles.speedup.note.text() == "needs “Measure the baseline”"
    assert window.measurements.latency.baseline_line.isVisible() is False


def test_a_baseline_that_was_stopped_is_not_said_not_to_have_run():
    steps = drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0)
    run = run_of(steps)
    run.summary = replace(run.summary, baseline_tokens_per_second=None)
    assert _speedup(run)[1:] == ("the baseline did not finish", "unfinished baseline")
    run.baseline_steps.clear()
    assert _speedup(run)[1] == "the baseline did not run"


def test_steps_are_on_every_panel_while_the_run_is_running(running, qtbot, gated):
    window, panel = running, running.measurements
    qtbot.waitUntil(lambda: len(panel.acceptance.accepted_bars.opts["x"]) == 1)
    qtbot.waitUntil(lambda: len(panel.latency.parts[0].opts["x"]) == 1)
    qtbot.waitUntil(lambda: panel.tiles.speed.value.text() != "–")
    gated.release()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 3)
    assert window.transcript.view.toPlainText() == window.prompt.text() + text_of(window.run_view)
    assert 0 < window.status.bar.value() < window.status.bar.maximum()


def test_stop_ends_the_run_and_keeps_its_text_however_often_it_is_pressed(running, qtbot, session, run_to_end):
    window = running
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.stop_button.click()
        assert window.controller.state is RunState.STOPPING
        assert window.status.stage.text() == "Stopping…"
        assert not window.prompt.stop_button.isEnabled()
        window.menus.stop.trigger()
        window.controller.stop()
    window.menus.stop.trigger()
    assert window.run_view.summary.finish_reason is FinishReason.CANCELLED
    assert window.run_view.num_tokens > 0
    assert window.status.stage.text() == "Stopped"
    assert window.banner.sentence() == ""
    session.gate = None
    run_to_end(window)
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_run_during_a_run_says_so_until_it_ends_and_changes_nothing(running, session, qtbot):
    assert not running.prompt.run_button.isEnabled()
    running.menus.run.trigger()
    assert running.banner.sentence().startswith("The run is in progress. Stop it, or wait for it to end,")
    assert len(session.requests) == 1
    assert steps_shown(running) == 1
    running.controller.stop()
    qtbot.waitUntil(lambda: running.controller.state is RunState.IDLE)
    assert running.banner.sentence() == ""


def test_k_and_temperature_are_live_and_all_else_stays_as_it_was_at_the_start(running, qtbot, gated, session):
    window = running
    window.prompt.edit.setPlainText("something else")
    window.controls.fields["max_new_tokens"].setValue(3)
    window.controls.fields["num_draft_tokens"].slider.setValue(9)
    window.controls.fields["temperature"].spin.setValue(0.25)
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 2)
    step = window.run_view.snapshot()().steps[-1]
    assert (step["num_draft_tokens"], step["temperature"]) == (9, 0.25)
    for policy in (LengthPolicy.AUTO, LengthPolicy.ADAPTIVE):
        window.controls.fields["length_policy"].choose(policy)
        assert session.controls[0].num_draft_tokens is policy
    assert session.requests[0].prompt != "something else"
    assert window.run_view.request.max_new_tokens != 3
    assert window.transcript.view.toPlainText().startswith(session.requests[0].prompt)


def test_a_failure_before_the_start_shows_one_sentence_and_the_next_run_works(window, session, run_to_end):
    session.fail_before = ModelNotFoundError("There is no model 'x' here.")
    prompt = window.prompt.text()
    run_to_end(window)
    assert window.banner.sentence() == "There is no model 'x' here."
    assert window.controller.state is RunState.IDLE
    assert window.prompt.text() == prompt
    assert not window.menus.export.isEnabled()
    assert window.status.stage.text() == "The run did not start"
    assert window.status.bar.maximum() > 0, "a bar that is always busy"
    window.banner.close_button.click()
    assert window.banner.sentence() == ""
    session.fail_before = None
    run_to_end(window)
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_a_failure_after_the_start_shows_one_sentence_and_keeps_the_text(window, session, run_to_end):
    session.fail_after = (3, "The model returned NaN. Try float32.")
    run_to_end(window)
    assert window.banner.sentence() == "The model returned NaN. Try float32."
    assert steps_shown(window) == 3
    assert window.status.stage.text() == "Failed"
    assert window.menus.export.isEnabled()
    session.fail_after = None
    run_to_end(window)
    assert window.banner.sentence() == ""


def test_an_unforeseen_exception_becomes_one_line_without_a_traceback(window, session, run_to_end):
    for error in (ValueError("a\nTraceback (most recent call last)"), KeyError("x"), RuntimeError()):
        session.fail_before = error
        run_to_end(window)
        sentence = window.banner.sentence()
        assert sentence.startswith("The run failed")
        assert type(error).__name__ in sentence
        assert "\n" not in sentence
        assert "Traceback" not in sentence


def test_an_engine_that_can_not_start_is_explained_and_tried_again(make_window, session, tmp_path, run_to_end):
    answers = [ImportError("No module named 'torch'"), session]

    def open_session():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    window = make_window(open_session)
    run_to_end(window)
    assert "torch" in window.banner.sentence()
    run_to_end(window)
    assert window.banner.sentence() == ""


def test_the_engine_is_imported_once_the_window_is_up_and_no_model_is_loaded(window, qtbot, session):
    with qtbot.waitSignal(window.controller.engine_ready):
        window.show()
    for role in ModelRole:
        window.controls.models.choose(role, "tiny-draft")
    window.models.open()
    assert session.requests == []
    qtbot.waitUntil(lambda: window.status.stage.text() == "Ready")


def test_a_log_that_can_not_be_kept_is_reported_and_the_run_continues(make_window, tmp_path, run_to_end):
    (tmp_path / "runs").write_text("")
    window = make_window()
    run_to_end(window)
    assert "log" in window.banner.sentence()
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_keys_start_and_stop_a_run(make_window, qtbot, gated):
    window = make_window(is_shown=True)
    window.prompt.edit.setFocus()
    before = window.prompt.text()
    qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: window.controller.state is RunState.RUNNING)
    with qtbot.waitSignal(window.live.run_shown):
        qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Escape)
    assert window.prompt.text() == before


def test_hidden_panels_keep_no_steps_of_the_previous_run(make_window, run_to_end):
    window = make_window(is_shown=True)
    run_to_end(window)
    for page in (window.speed, window.measurements):
        window.side.setCurrentWidget(page)
    window.race.open()
    window.race.close()
    steps = window.run_view.steps
    run_to_end(window)
    # What is left are this name and the call that counts.
    assert sys.getrefcount(steps) == 2
