"""Events reach the screen in time, however many there are, and a run's end is shown in full."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.controller import RunState
from app.run import live as live_view
from app.run import run_view
from app.run.run_view import RunView
from app.run.text.tokens import Place
from app.setup.prompt import BASELINE_HINT, LIVE_HINT, LIVE_HINT_FIXED_K, PAUSED_HINT_FIXED_K, SERVED_HINT
from app.widgets.labels import STEPS
from app.worker import run_task
from core.errors import PromptError
from core.runlog.store import RunStore
from core.settings import LengthPolicy, RunRequest
from core.types import BaselineStep, Finished, FinishReason, RunStarted, StageChanged
from tests.fakes_app import make_step, make_summary, text_of
from tests.fakes_runs import keep_run


@pytest.fixture
def flooded(window, monkeypatch):
    """A window with more events than one frame applies."""
    monkeypatch.setattr(live_view, "APPLY_S", 0.0)
    for index in range(4):
        window.controller._events.append(make_step(index, 3 * index))
    return window


def test_a_flood_of_events_is_applied_over_several_frames(flooded):
    for number in (1, 2, 3, 4, 4):
        flooded.live._on_text_due()
        assert len(flooded.run_view.steps) == number


def test_text_is_due_ten_times_a_second_and_the_panels_four_times():
    assert live_view.TEXT_MS <= 100
    assert live_view.PANELS_MS <= 250


def test_a_text_whose_frames_are_costly_is_shown_less_often_until_they_are_not(window, monkeypatch):
    live, intervals = window.live, []
    live._start_timers()
    for index, cost_s in enumerate((0.001, 0.015, 0.1, 0.015, 0.1)):
        window.controller._events.append(make_step(index, 3 * index))
        with monkeypatch.context() as patch:
            clock = SimpleNamespace(perf_counter=lambda: 0.0, thread_time=iter((5.0, 5.0 + cost_s)).__next__)
            patch.setattr(live_view, "time", clock)
            live._on_text_due()
        intervals.append(live._text_timer.interval())
    assert intervals == [live_view.TEXT_MS, live_view.TEXT_MS, 600, live_view.TEXT_MS, 600]
    live._start_timers()
    assert live._text_timer.interval() == live_view.TEXT_MS
    live._stop_timers()


def test_with_the_first_text_the_status_no_longer_says_that_the_prompt_is_read(window):
    window.run_view.begin(RunRequest(target="t", draft="d", prompt="p"))
    window.controller._set_state(RunState.RUNNING)
    window.controller._events.append(StageChanged("Reading the prompt…"))
    window.live._on_text_due()
    assert window.status.stage.text() == "Reading the prompt…"
    window.controller._events.append(make_step(0, 0))
    window.live._on_text_due()
    assert window.status.stage.text() != "Reading the prompt…"


def test_while_the_baseline_is_measured_the_hint_beside_run_offers_no_change_of_the_run(window):
    request, note = RunRequest("t", "d", "p"), window.prompt.note
    window.live._replace(request)
    window.controller._set_state(RunState.RUNNING)
    for event, hint in ((make_step(0, 0), LIVE_HINT), (BaselineStep(make_step(0, 0)), BASELINE_HINT)):
        window.controller._events.append(event)
        window.live._on_text_due()
        assert note.text() == hint
    window.live.upcoming = request
    window.controls.changed.emit()
    assert note.text() == LIVE_HINT, "that baseline is the previous run's"
    window.live.upcoming = None
    window.controller._set_state(RunState.IDLE)


def test_the_hint_beside_run_offers_what_changes_the_run_and_not_what_the_form_shows(window, qtbot, session, keys):
    controls, note, gate = window.controls, window.prompt.note, threading.Semaphore(0)
    session.gate = gate

    def hint(k):
        controls.fields["length_policy"].choose(LengthPolicy.FIXED)
        controls.fields["num_draft_tokens"].set_value(k)
        window.prompt.run_button.click()
        return note.text()

    def end():
        with qtbot.waitSignal(window.live.run_shown):
            window.controller.stop()
            gate.release(1000)

    assert hint(0) == LIVE_HINT_FIXED_K, "there is no drafter"
    controls.fields["num_draft_tokens"].set_value(4)
    assert note.text() == LIVE_HINT_FIXED_K
    window.controller.pause()
    assert note.text() == PAUSED_HINT_FIXED_K
    end()
    assert hint(4) == LIVE_HINT
    controls.method.choose("draft-tree")
    assert note.text() == LIVE_HINT_FIXED_K, "a tree's K counts nodes"
    controls.engine.choose("http://127.0.0.1:9")
    controls.engine.changed.emit()
    assert note.text() == LIVE_HINT_FIXED_K, "the run is still on this machine"
    controls.engine.choose("")
    controls.engine.changed.emit()
    end()
    window.controller.start(replace(session.requests[-1], engine="http://127.0.0.1:9"))
    assert note.text() == SERVED_HINT
    end()


def test_the_progress_bar_shows_what_the_count_beside_it_says_in_the_baseline_and_after_an_early_end(window):
    live, status, steps = window.live, window.status, [make_step(0, 1), make_step(1, 4)]
    live._replace(RunRequest("t", "d", "p", max_new_tokens=12, baseline=True))
    window.controller._set_state(RunState.RUNNING)
    head = RunStarted("r", "2026-01-01T00:00:00", "1", config={}, environment={})
    ended = Finished(make_summary(steps, FinishReason.EOS))
    plain = BaselineStep(make_step(0, 1, num_draft_tokens=0, num_accepted=0))
    said = ((head, *steps), "6 of 12 tokens", 6), ((plain,) * 2, "baseline: 2 of 12 tokens", 2)
    for events, text, tokens in (*said, ((ended,), "6 of 12 tokens", 6)):
        window.controller._events.extend(events)
        live._on_panels_due()
        assert status.count.text() == text
        assert status.bar.value() == pytest.approx(STEPS * tokens / 12, abs=1)
    window.controller._set_state(RunState.IDLE)


def test_text_tiles_plots_and_counts_show_the_same_steps_in_mid_run(make_window):
    window = make_window(is_shown=True)
    request = RunRequest(target="t", draft="d", prompt="p", max_new_tokens=64)
    window.live._replace(request)
    window.controller._set_state(RunState.RUNNING)
    window.controller._events.extend([make_step(0, 1), make_step(1, 4)])
    window.live._on_text_due()
    window.controller._events.append(make_step(2, 7))
    window.live._on_panels_due()
    assert len(window.transcript.view._firsts) == 3
    assert window.status.count.text() == "9 of 64 tokens"
    assert window.measurements.tiles.speed.note.text().startswith("9 tokens")
    assert window.transcript.playback.slider.maximum() == 3
    for plot in (window.measurements.acceptance.accepted_bars, window.measurements.latency.parts[0]):
        assert len(plot.opts["x"]) == 3
    window.controller._set_state(RunState.IDLE)


@pytest.mark.parametrize("is_kept", [False, True])
def test_at_the_end_the_beginning_of_a_stop_text_goes_from_the_text_and_is_not_copied(window, qtbot, is_kept):
    live, view, run = window.live, window.transcript.view, window.run_view
    text, steps = "Once t1 t2 t3 t", [make_step(0, 1), make_step(1, 4)]
    ended = Finished(replace(make_summary(steps, FinishReason.STOP), text=text.removeprefix("Once")))
    request = RunRequest("t", "d", "Once")
    if is_kept:
        live.show_kept(request, (*steps, ended), "kept")
    else:
        live._replace(request)
        window.controller._events.extend(steps)
        live._on_text_due()
        assert view.toPlainText() == "Once t1 t2 t3 t4 t5 t6"
        view.choose(Place(1, 1))
        window.controller._events.append(ended)
    live._on_text_due()
    assert view.toPlainText() == text
    view._copy()
    assert QGuiApplication.clipboard().text() == text.removeprefix("Once")
    for slot in range(3):  # Its tokens were generated, so they can be inspected.
        view.choose(Place(1, slot))
        assert view.selected_span().token_id == steps[1].emitted[slot]
    assert run.steps == steps, "a branch continues from what was generated"


def test_panels_hear_of_news_once_and_of_the_end_before_the_window_and_before_another_run_begins(window):
    calls = []
    noted = SimpleNamespace(
        begin=lambda: calls.append(("begin", None)),
        refresh=lambda *, has_news: calls.append(("refresh", has_news)),
        end=lambda: calls.append(("end", None)),
    )
    window.live._panels = (*window.live._panels, noted)
    window.controller._events.append(make_step(0, 0))
    window.live._on_text_due()
    assert (len(window.run_view.steps), calls) == (1, []), "text comes before the panels"
    for _ in range(2):
        window.live._on_panels_due()
    assert calls == [("refresh", True), ("refresh", False)]
    calls.clear()
    window.live.run_shown.connect(lambda: calls.append(("shown", window.run_view.request.prompt)))
    window.live.show_kept(RunRequest("t", "d", "p"), (), "another")
    window.live._on_run_ended()
    window.live.show_kept(RunRequest("t", "d", "other"), (), "another")
    assert calls == [("begin", None), ("end", None), ("shown", "p"), ("begin", None)]


def test_a_run_whose_last_events_are_a_flood_ends_when_all_of_it_is_shown(flooded, monkeypatch, qtbot):
    window = flooded
    window.controller._events.append(Finished(make_summary([make_step(0, 0)], FinishReason.LENGTH)))
    shown, said = [], set()
    window.live.run_shown.connect(lambda: shown.append(len(window.run_view.steps)))
    show = window.status.stage.setText
    monkeypatch.setattr(window.status.stage, "setText", lambda text: (said.add(text), show(text)))
    window.run_view.begin(RunRequest("t", "d", "p"))
    window.controller._set_state(RunState.RUNNING)
    window.controller._task = run_task(window.run_view.request, window.controller._events, window.controller)
    window.live._start_timers()
    with qtbot.waitSignal(window.live.run_shown, timeout=20_000):
        window.controller._on_task_ended(window.controller._task)
        assert shown == []
    assert shown == [4]
    assert said == {"Preparing…", "Done: reached the end of the model's context"}, "and never that nothing was run"
    assert window.run_view.summary is not None
    assert not window.live._text_timer.isActive()
    assert not window.live._panels_timer.isActive()


def test_a_run_that_begins_while_the_end_of_the_last_is_being_shown_waits_for_it(flooded):
    shown = []
    flooded.live.run_shown.connect(lambda: shown.append(len(flooded.run_view.steps)))
    flooded.live._on_run_ended()
    assert shown == []
    flooded.live.show_kept(RunRequest(target="t", draft="d", prompt="x"), (), "another")
    assert shown == [4]
    assert flooded.run_view.steps == []


def test_a_branch_that_waits_for_a_run_begins_before_a_kept_run_is_opened(flooded, monkeypatch, tmp_path):
    window = flooded
    window.live._on_run_ended()
    begun, shown = [], []
    window.live.run_shown.connect(lambda: begun.append(window.controller.start(RunRequest("t", "d", "branch"))))
    monkeypatch.setattr(window.live, "show_kept", lambda *args: shown.append(args))
    keep_run(tmp_path / "kept")
    (kept,) = RunStore(tmp_path / "kept").runs()
    window.runs.show(kept, RunRequest("t", "d", "kept"), (), [])
    assert begun == [True]
    assert shown == [], "the engine is busy by now"


def test_a_run_that_fails_before_it_starts_leaves_the_last_one_on_screen(window, run_to_end, session, qtbot):
    run_to_end(window)
    text, steps = window.transcript.view.toPlainText(), list(window.run_view.steps)
    session.fail_before = PromptError("The prompt is too long.")
    window.prompt.set_text("another")
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
    assert window.banner.sentence() == "The prompt is too long."
    assert window.transcript.view.toPlainText() == text
    assert window.run_view.steps == steps
    assert window.menus.export.isEnabled()
    window.controls.models.changed.emit()
    assert window.banner.sentence() != "", "news about models mends nothing"
    window.prompt.set_text("a shorter one")
    assert window.banner.sentence() == "", "its cause may be mended"
    assert not window.status.stage.text().startswith("The run did not start")


def test_a_run_folds_the_prompt_and_a_click_or_an_edit_opens_it_as_high_as_it_was(
    make_window, run_to_end, qtbot, monkeypatch
):
    window = make_window(is_shown=True)
    height = window.prompt.height()
    run_to_end(window)
    assert window.prompt.is_folded
    qtbot.waitUntil(lambda: window.prompt.height() < height)
    qtbot.waitUntil(lambda: window.prompt.height() == window.prompt.minimumSizeHint().height())
    with monkeypatch.context() as patch:
        # Not told to the prompt itself: what is found out about models meanwhile would say otherwise.
        why = "Why it can't be run takes more lines than two, " * 6
        patch.setattr(window.controls, "problem", lambda _prompt: why)
        window.controls.changed.emit()
        qtbot.waitUntil(lambda: window.prompt.height() == window.prompt.minimumSizeHint().height() > 150)
    window.controls.changed.emit()
    qtbot.waitUntil(lambda: window.prompt.height() == window.prompt.minimumSizeHint().height() < 150)
    assert "textSplitter" not in window.state.splitters(), "the next start is not with a folded prompt's height"
    qtbot.mouseClick(window.prompt.edit.viewport(), Qt.MouseButton.LeftButton)
    assert not window.prompt.is_folded
    qtbot.waitUntil(lambda: window.prompt.height() == height)


def test_a_run_that_ends_before_the_engine_is_warmed_up_leaves_no_timer_running(window, run_to_end):
    run_to_end(window)
    window.live.watch_warm_up()
    assert not window.live._text_timer.isActive()


def test_a_run_that_is_stopped_while_its_models_load_leaves_the_last_one_whole(window, qtbot, session, run_to_end):
    run_to_end(window)
    before = (window.run_view.summary, text_of(window.run_view), window.measurements.tiles.speed.value.text())
    session.load_gate = threading.Event()
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
        qtbot.waitUntil(lambda: len(session.controls) == 2)
        shown = (window.transcript.view, window.conclusion)
        qtbot.waitUntil(lambda: None not in [widget.graphicsEffect() for widget in shown])
        window.prompt.stop_button.click()
        session.load_gate.set()
    assert (window.run_view.summary, text_of(window.run_view), window.measurements.tiles.speed.value.text()) == before
    assert [widget.graphicsEffect() for widget in shown] == [None, None]
    assert not window.conclusion.isHidden()
    assert window.status.stage.text() == "The run did not start"


def test_a_line_above_the_text_says_that_it_is_the_previous_runs_until_another_run_starts(
    window, qtbot, session, run_to_end
):
    older = window.transcript.whose
    session.fail_before = PromptError("The prompt is too long.")
    run_to_end(window)
    assert older.isHidden(), "there is no previous run"
    session.fail_before = None
    run_to_end(window)
    assert older.isHidden()
    assert not window.conclusion.isHidden()
    window.run_view.summary = replace(window.run_view.summary, was_stepped=True)
    window.conclusion.end()
    verdict = window.conclusion.headline.text()
    assert window.status.count.text()
    session.fail_before = PromptError("The prompt is too long.")
    run_to_end(window)
    assert (window.status.count.text(), window.status.bar.value()) == ("", 0), "the refused run has no tokens"
    assert not older.isHidden()
    button = window.conclusion.advice.button
    assert (window.conclusion.headline.text(), window.conclusion.isHidden()) == (verdict, False), "as the text stays"
    assert (button.text(), button.isEnabled()) == ("Run again", False), "it would not run the prompt above"
    assert older.text() == "This is the previous run: the new one did not start."
    for height, has_legend in ((120, False), (500, True)):
        window.transcript.resize(500, height)
        window.transcript.restyle()
        assert window.transcript._legend.isHidden() is not has_legend, "a low panel has no room for both"
    window.prompt.set_text("Another prompt")
    assert not older.isHidden(), "it is still the previous run's text"
    assert button.isEnabled()
    session.fail_before = None
    run_to_end(window)
    assert older.isHidden()


def test_whether_the_machine_was_busy_is_computed_once_for_a_run_that_is_over(monkeypatch):
    notes = iter(("first", "second", "third"))
    monkeypatch.setattr(run_view, "busy_note", lambda *_: next(notes))
    run = RunView()
    for note in ("first", "second"):
        run.begin(RunRequest("t", "d", "p"))
        assert run.busy_note == ""
        run.apply(Finished(make_summary([make_step(0, 0)], FinishReason.LENGTH)))
        assert [run.busy_note, run.busy_note] == [note, note]
    run.summary = replace(run.summary, num_tokens=1)
    assert run.busy_note == "third"


def test_only_a_run_of_the_same_target_is_the_previous_one_whatever_its_draft():
    run, first = RunView(), RunRequest(target="a", draft="b", prompt="x")
    # A single step draws no line.
    looked_up, other = replace(first, draft=None, method="prompt-lookup"), replace(first, target="c")
    runs = ((first, 1, False), (first, 2, False), (first, 2, True), (looked_up, 2, True), (other, 2, False))
    for request, num_steps, has_previous in runs:
        run.begin(request)
        assert (run.previous is not None) is has_previous
        for index in range(num_steps):
            run.apply(make_step(index, 4, num_accepted=1))


@pytest.mark.parametrize(
    ("reason", "ending", "short"),
    [
        (FinishReason.CANCELLED, "Stopped", "Stopped"),
        (FinishReason.LENGTH, "Done: reached the requested length", "Done"),
    ],
)
def test_where_the_status_does_not_fit_it_says_only_how_the_run_ended(finished, monkeypatch, reason, ending, short):
    monkeypatch.setattr("app.run.live._advice", lambda _run: "The steps are inferred: start the server with --x.")
    finished.run_view.summary = replace(finished.run_view.summary, finish_reason=reason)
    finished.live._show_stage()
    stage = finished.status.stage
    assert stage.text() == f"{ending} · The steps are inferred: start the server with --x."
    assert stage._short == short
