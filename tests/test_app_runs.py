"""Running, stopping, steering and failing."""

from __future__ import annotations

import sys
import threading

import pytest
from PySide6.QtCore import Qt

from app.controller import BUSY_SENTENCE, RunState
from app.run.tokens import Place
from app.settings import ChatTemplate
from core.errors import ModelNotFoundError
from core.settings import LengthPolicy
from core.text import percent_text
from core.types import FinishReason


@pytest.fixture
def gated(session):
    """Lets the session take one step for each release."""
    session.gate = threading.Semaphore(0)
    return session.gate


def steps_shown(window):
    return window.run_view.metrics.totals.steps


def test_a_run_shows_its_text_and_its_figures(window, run_to_end):
    run_to_end(window)
    summary = window.run_view.summary
    assert summary.finish_reason is FinishReason.LENGTH
    assert window.transcript.view.toPlainText() == window.prompt.text() + summary.text
    tiles = window.measurements.tiles
    assert tiles.speed.value.text() == f"{summary.tokens_per_second:,.1f}"
    assert tiles.speedup.value.text() == f"{summary.measured_speedup:.2f}×"
    assert tiles.acceptance.value.text() == percent_text(summary.draft_acceptance_rate)
    assert tiles.efficiency.value.text() == f"{summary.block_efficiency:.2f}"
    assert window.status.bar.value() == window.status.bar.maximum()
    assert window.status.stage.text().startswith("Done")
    assert window.controller.state is RunState.IDLE


def test_a_run_that_fills_the_context_is_not_said_to_have_reached_the_length_asked_for(window, session, run_to_end):
    run_to_end(window)
    assert window.status.stage.text() == "Done: reached the requested length"
    session.context_tokens = 20
    run_to_end(window)
    assert window.run_view.summary.num_tokens == 20
    assert window.status.stage.text() == "Done: reached the end of the model's context"


def test_an_answer_in_a_chat_starts_on_a_line_of_its_own(window, run_to_end):
    window.controls.run.chat.choose(ChatTemplate.ON)
    run_to_end(window)
    shown = window.transcript.view.toPlainText()
    assert shown == window.prompt.text() + "\n\n" + window.run_view.summary.text


def test_without_the_baseline_there_is_no_speedup_but_a_hint(window, run_to_end):
    window.controls.run.baseline.setChecked(False)
    run_to_end(window)
    assert window.measurements.tiles.speedup.value.text() == "–"
    assert window.measurements.tiles.speedup.note.text() == "tick Measure the baseline"
    assert window.measurements.latency.baseline_line.isVisible() is False


def test_tokens_are_on_screen_while_the_run_is_running(window, qtbot, gated):
    window.prompt.run_button.click()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    gated.release()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 3)
    assert window.transcript.view.toPlainText() == window.prompt.text() + window.run_view.tokens.text
    assert 0 < window.status.bar.value() < window.status.bar.maximum()


def test_a_single_step_reaches_every_panel_although_no_other_follows(window, qtbot, gated):
    window.prompt.run_button.click()
    gated.release()
    panel = window.measurements
    qtbot.waitUntil(lambda: len(panel.acceptance.accepted_bars.opts["x"]) == 1)
    qtbot.waitUntil(lambda: len(panel.latency.parts[0].opts["x"]) == 1)
    qtbot.waitUntil(lambda: panel.tiles.speed.value.text() != "–")


def test_stop_ends_the_run_and_keeps_what_came(window, qtbot, gated):
    window.prompt.run_button.click()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.stop_button.click()
        assert window.controller.state is RunState.STOPPING
        assert window.status.stage.text() == "Stopping…"
        assert not window.prompt.stop_button.isEnabled()
    assert window.run_view.summary.finish_reason is FinishReason.CANCELLED
    assert window.run_view.tokens.num_tokens > 0
    assert window.status.stage.text() == "Stopped"


def test_stop_twice_and_stop_with_nothing_to_stop_do_no_harm(window, qtbot, gated, run_to_end, session):
    window.menus.stop.trigger()
    window.prompt.run_button.click()
    with qtbot.waitSignal(window.live.run_shown):
        window.menus.stop.trigger()
        window.menus.stop.trigger()
        window.controller.stop()
    window.menus.stop.trigger()
    assert window.banner.sentence() == ""
    session.gate = None
    run_to_end(window)
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_run_during_a_run_says_so_and_changes_nothing(window, qtbot, gated, session):
    window.prompt.run_button.click()
    assert not window.prompt.run_button.isEnabled()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    window.menus.run.trigger()
    assert window.banner.sentence() == BUSY_SENTENCE
    assert len(session.requests) == 1
    assert steps_shown(window) == 1


def test_run_pressed_twice_in_a_row_runs_once(window, qtbot, session):
    with qtbot.waitSignal(window.live.run_shown):
        window.menus.run.trigger()
        window.menus.run.trigger()
    assert len(session.requests) == 1


def test_the_request_is_a_snapshot(window, qtbot, gated, session):
    window.prompt.run_button.click()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    window.prompt.edit.setPlainText("something else")
    window.controls.run.length.setValue(3)
    assert session.requests[0].prompt != "something else"
    assert window.run_view.request.max_new_tokens != 3
    assert window.transcript.view.toPlainText().startswith(session.requests[0].prompt)


def test_k_and_temperature_are_live(window, qtbot, gated, session):
    window.prompt.run_button.click()
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 1)
    window.controls.draft_length.number.slider.setValue(9)
    window.controls.sampling.temperature.spin.setValue(0.25)
    assert session.controls[0].num_draft_tokens == 9
    assert session.controls[0].sampling.temperature == 0.25
    gated.release()
    qtbot.waitUntil(lambda: steps_shown(window) == 2)
    step = window.run_view.log().steps[-1]
    assert (step["num_draft_tokens"], step["temperature"]) == (9, 0.25)
    for policy in (LengthPolicy.AUTO, LengthPolicy.ADAPTIVE):
        window.controls.draft_length.policy.choose(policy)
        assert session.controls[0].num_draft_tokens is policy


def test_a_failure_before_the_start_shows_one_sentence_and_the_next_run_works(window, session, run_to_end):
    session.fail_before = ModelNotFoundError("There is no model 'x' here.")
    prompt = window.prompt.text()
    run_to_end(window)
    assert window.banner.sentence() == "There is no model 'x' here."
    assert window.controller.state is RunState.IDLE
    assert window.prompt.text() == prompt
    assert not window.menus.export.isEnabled()
    assert window.status.stage.text() == "Not run"
    assert window.status.bar.maximum() > 0, "a bar that is always busy"
    session.fail_before = None
    run_to_end(window)
    assert window.banner.sentence() == ""
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_a_failure_after_the_start_shows_one_sentence_and_keeps_what_came(window, session, run_to_end):
    session.fail_after = (3, "The model returned NaN. Try float32.")
    run_to_end(window)
    assert window.banner.sentence() == "The model returned NaN. Try float32."
    assert steps_shown(window) == 3
    assert window.status.stage.text() == "Failed"
    assert window.menus.export.isEnabled()
    session.fail_after = None
    run_to_end(window)
    assert window.banner.sentence() == ""


@pytest.mark.parametrize("error", [ValueError("a\nTraceback (most recent call last)"), KeyError("x"), RuntimeError()])
def test_an_unforeseen_exception_becomes_one_line_without_a_traceback(window, session, run_to_end, error):
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


def test_the_banner_can_be_dismissed(window, session, run_to_end):
    session.fail_before = ModelNotFoundError("No.")
    run_to_end(window)
    window.banner.close_button.click()
    assert window.banner.sentence() == ""


def test_keys_start_and_stop_a_run(make_window, qtbot, gated):
    window = make_window(is_shown=True)
    window.prompt.edit.setFocus()
    qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: window.controller.state is RunState.RUNNING)
    with qtbot.waitSignal(window.live.run_shown):
        qtbot.keyClick(window.prompt.edit, Qt.Key.Key_Escape)
    assert "\n\n\n" not in window.prompt.text()


def test_the_engine_is_imported_once_the_window_is_up_and_no_model_is_loaded(make_window, qtbot, session):
    window = make_window()
    with qtbot.waitSignal(window.controller.engine_ready):
        window.show()
    assert session.requests == []
    qtbot.waitUntil(lambda: window.status.stage.text() == "Ready")


def test_a_log_that_can_not_be_kept_is_reported_once_and_the_run_continues(make_window, tmp_path, run_to_end):
    (tmp_path / "runs").write_text("")
    window = make_window()
    run_to_end(window)
    assert "log" in window.banner.sentence()
    assert window.run_view.summary.finish_reason is FinishReason.LENGTH


def test_every_run_is_kept_as_a_log(window, run_to_end, tmp_path):
    from core.runlog.log import read_run_log

    run_to_end(window)
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    assert log.problems == []
    assert log.steps == window.run_view.log().steps
    assert log.summary == window.run_view.log().summary


def test_the_window_has_its_runs_inspected_and_forgets_the_selection_with_the_run(window, session, run_to_end):
    run_to_end(window)
    assert session.requests[-1].inspect
    window.selection.select(Place(0, 0))
    window.side.show_page(window.inspector)
    run_to_end(window)
    assert window.selection.place is None


def test_hidden_panels_keep_no_step_of_the_previous_run(make_window, run_to_end):
    window = make_window(is_shown=True)
    run_to_end(window)
    for page in (window.plots, window.why, window.measurements):
        window.side.show_page(page)
    steps = window.run_view.steps
    run_to_end(window)
    # What is left are this name and the call that counts.
    assert sys.getrefcount(steps) == 2
