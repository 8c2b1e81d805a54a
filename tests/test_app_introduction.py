"""The first minute: the recorded run and its callouts, how it is skipped, what comes next, and the closing sentence."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest

import app.introduction.introduction
import app.run.pacing
from app.introduction.guide_bar import Part
from app.introduction.introduction import CHAT_MODEL, callouts_of
from app.run.conclusion import DRAWING, conclusion_of
from app.run.pacing import Pace
from app.run.text.tokens import Place
from app.settings import SettingsStore
from app.setup.prompt import FOR_CHAT
from app.theme import RESOURCES
from app.tools.models.downloads import Download, DownloadState
from app.widgets.labels import STEPS
from core.analysis.steadiness import REPEAT_WHEN_IDLE, interval_text
from core.errors import PromptError
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.runlog.reading import read_run_log
from core.runlog.replay import events
from core.settings import Coupling
from core.types import Step
from tests.fakes_app import make_step, run_of

RECORDING = RESOURCES / "introduction" / "recorded.jsonl"


@pytest.fixture
def clock(monkeypatch):
    """What the pace reads; each reading is a second later."""
    now = iter(range(1_000_000))
    monkeypatch.setattr(app.run.pacing.time, "monotonic", lambda: float(next(now)))


@pytest.fixture
def new_window(make_window, monkeypatch, clock):
    """A window at its very first start; callouts wait for Next."""
    window = make_window()
    monkeypatch.setattr(app.introduction.introduction, "RECORDING", RECORDING)
    window.introduction._timer.setInterval(1_000_000)
    window.introduction.start_if_new()
    return window


def part(window):
    return window.introduction._part


def until_callout(window, qtbot):
    qtbot.waitUntil(lambda: not window.introduction.callout.isHidden())
    return window.introduction.callout


def test_the_recorded_run_is_small_has_evidence_and_its_command_beside_it():
    assert RECORDING.stat().st_size <= 300_000
    log = read_run_log(RECORDING)
    steps = [event for event in events(log) if isinstance(event, Step)]
    assert all(step.evidence for step in steps)
    assert log.run["config"]["target"] == CHAT_MODEL
    assert log.run["config"]["chat"]
    readme = RECORDING.with_name("README.md").read_text("utf-8")
    assert log.run["config"]["prompt"] in readme
    assert f"--seed {log.run['config']['seed']}" in readme


@pytest.mark.parametrize(("category", "then"), [("Code", Part.LIVE), (FOR_CHAT, Part.GET_CHAT)])
def test_a_preset_chosen_during_the_recorded_run_ends_it_and_is_in_the_prompt(new_window, qtbot, category, then):
    window, menu = new_window, new_window.prompt.presets_button.menu()
    until_callout(window, qtbot)
    presets = [action for action in menu.actions() if action.isEnabled()]
    chosen = next(action for action in presets if (action.data().category == FOR_CHAT) is (category == FOR_CHAT))
    with qtbot.waitSignal(window.live.run_shown):
        chosen.trigger()
        assert not window.live.is_slowed
    assert part(window) is then
    assert window.introduction.callout.isHidden()
    assert not window.prompt.isHidden()
    assert window.prompt.text() == chosen.data().text
    assert "Recorded run" in window.transcript.whose.text()


def test_one_step_of_the_recorded_run_is_explained_while_its_draft_waits(new_window, qtbot):
    window, run = new_window, new_window.run_view
    assert window.introduction.is_seen
    callout = until_callout(window, qtbot)
    assert "Recorded" in window.introduction.bar.badge.text()
    explained = len(run.steps)
    window.live._on_panels_due()
    assert window.status.bar.value() == pytest.approx(STEPS * run.num_tokens / run.request.max_new_tokens, abs=1)
    for title in ("Drafted", "Being checked"):
        assert callout.title.text() == title
        assert len(run.steps) == explained
        assert run.tokens.pending
        assert callout.next_button.text() == "Next"
        callout.next_button.click()
    assert callout.title.text() == "Kept or replaced"
    assert callout.next_button.text() == "Continue"
    qtbot.waitUntil(lambda: len(run.steps) == explained + 1)
    assert 0 < run.steps[-1].num_accepted < len(run.steps[-1].drafted)
    assert run.steps[-1].emitted_texts[-1].strip() in callout.text.text()
    with qtbot.waitSignal(window.live.run_shown):
        callout.next_button.click()
    assert callout.isHidden()
    assert part(window) is Part.LIVE


def test_while_the_recorded_run_is_shown_its_settings_are_and_one_button_stands_out(new_window, qtbot):
    window, introduction = new_window, new_window.introduction
    callout = until_callout(window, qtbot)
    own = window.controls.settings(window.prompt.text())
    shown = [label.text() for label in introduction._facts.values()]
    assert shown == ["SmolLM2-135M-Instruct", "Outrider SmolLM2 drafter", "3", "0.70", "80", "10"]
    assert introduction._settings.isVisibleTo(window)
    assert not window.controls.fields["seed"].isVisibleTo(window)
    assert callout.next_button.property("role") == "primary"
    assert window.prompt.isHidden(), "the user's own prompt would seem to be the recorded one"
    with qtbot.waitSignal(window.live.run_shown):
        introduction.bar.leave_button.click()
    assert window.controls.settings(window.prompt.text()) == own
    assert not window.prompt.isHidden()
    assert window.controls.fields["seed"].isVisibleTo(window)
    stage = window.status.stage
    assert stage.text().startswith("Recorded · Done: ")
    assert stage._short == stage.text().removeprefix("Recorded · "), "how it ended is not cut for what the bar says"
    assert (introduction.bar.go_button.property("role"), window.prompt.run_button.property("stands")) == (
        "primary",
        "back",
    )
    introduction.bar.leave_button.click()
    assert not window.prompt.run_button.property("stands")


def test_a_line_above_the_text_says_that_it_is_the_recorded_runs_until_a_run_has_started(new_window, qtbot, session):
    window, whose = new_window, new_window.transcript.whose
    until_callout(window, qtbot)
    assert whose.isHidden(), "the bar and the settings say it"
    with qtbot.waitSignal(window.live.run_shown):
        window.introduction.bar.leave_button.click()
    window.introduction.bar.leave_button.click()
    session.fail_before = PromptError("The prompt is too long.")
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
        assert not whose.isHidden(), "its text is shown while the models load"
    assert not whose.isHidden()
    assert whose.text() == "Recorded run: SmolLM2-135M-Instruct, on another machine."
    session.fail_before = None
    with qtbot.waitSignal(window.live.run_begun):
        window.prompt.run_button.click()
    assert whose.isHidden()
    window.live.finish()


def test_the_last_callout_points_at_the_token_that_was_replaced(new_window, qtbot):
    window, view = new_window, new_window.transcript.view
    window.show()
    callout = until_callout(window, qtbot)
    number = len(window.run_view.steps)
    callout.next_button.click()
    callout.next_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == number + 1)
    assert not callout.isHidden()

    def is_at_the_token():
        window.introduction.refresh(has_news=True)
        places = view.rectangles_of(Place(number, window.run_view.steps[number].num_accepted))
        tip = view.viewport().mapFrom(window, callout.pos() + callout._tip.toPoint())
        return any(place.adjusted(-1, -3, 1, 3).contains(tip) for place in places)

    qtbot.waitUntil(is_at_the_token)


def test_callouts_go_on_by_themselves_and_with_resume(new_window, qtbot):
    callout = until_callout(new_window, qtbot)
    assert new_window.introduction._timer.isActive()
    new_window.introduction._timer.timeout.emit()
    assert callout.title.text() == "Being checked"
    with qtbot.waitSignal(new_window.live.run_shown):
        new_window.menus.pause.trigger()
    assert callout.isHidden()


def test_it_is_noted_as_shown_before_it_ends(new_window, qtbot, tmp_path):
    until_callout(new_window, qtbot)
    assert new_window.state.saving.isActive()
    new_window.state.saving.timeout.emit()
    assert SettingsStore(tmp_path / "settings.json").load().introduction_seen


def test_it_is_skipped_at_once_and_never_comes_again(new_window, make_window, qtbot, tmp_path, session):
    window = new_window
    skips = (window.introduction.bar.leave_button.click, window.menus.stop.trigger, window.prompt.run_button.click)
    for skip, becomes in zip(skips, (Part.LIVE, Part.LIVE, Part.RACE), strict=True):
        callout = until_callout(window, qtbot)
        with qtbot.waitSignal(window.live.run_shown):
            skip()
        assert callout.isHidden()
        assert part(window) is becomes
        assert bool(session.requests) is (becomes is Part.RACE)
        if becomes is Part.LIVE:
            window.menus.introduction.trigger()
    window.close()
    assert SettingsStore(tmp_path / "settings.json").load().introduction_seen
    again = make_window()
    again.introduction.start_if_new()
    assert part(again) is Part.NOTHING
    again.menus.introduction.trigger()
    qtbot.waitUntil(lambda: part(again) is Part.RECORDED)


def test_the_live_run_is_slowed_and_the_race_draws_the_same_text_without_a_change_of_settings(
    make_window, qtbot, session, clock
):
    window = make_window(is_shown=True)
    introduction, bar = window.introduction, window.introduction.bar
    window.controls.fields["baseline"].setChecked(False)
    introduction._show_part(Part.LIVE)
    with qtbot.waitSignal(window.live.run_shown):
        bar.go_button.click()
        assert window.playback.pace.member() is Pace.SLOWED
    assert (part(window), bar.isHidden(), window.conclusion.isHidden()) == (Part.RACE, False, False)
    with qtbot.waitSignal(introduction.race_wanted):
        bar.go_button.click()
        assert window.playback.pace.member() is Pace.FULL
    assert [request.coupling for request in session.requests] == [Coupling.REJECTION, Coupling.GUMBEL]
    assert window.controls.fields["coupling"].member() is Coupling.REJECTION
    assert not window.controls.fields["baseline"].isChecked()
    assert window.race.clock.is_playing
    assert part(window) is Part.GET_CHAT


def test_a_stopped_live_run_is_offered_again(clock, window, qtbot, session):
    session.gate = threading.Semaphore(1)
    window.introduction._show_part(Part.LIVE)
    with qtbot.waitSignal(window.live.run_shown):
        window.introduction.bar.go_button.click()
        window.controller.stop()
    assert (part(window), window.introduction.bar.isHidden()) == (Part.LIVE, False)


def test_a_run_without_a_baseline_is_no_race(window, run_to_end, qtbot):
    window.introduction._show_part(Part.RACE)
    window.controls.fields["baseline"].setChecked(False)
    with qtbot.assertNotEmitted(window.introduction.race_wanted):
        run_to_end(window)
    assert part(window) is Part.RACE


# --- The chat model ---


def question(window):
    actions = window.prompt.presets_button.menu().actions()
    return next(action for action in actions if action.isEnabled() and "chat" in action.data().category)


def test_a_chat_preset_on_the_code_pair_offers_the_chat_model_with_progress_cancel_and_failure(
    window, qtbot, monkeypatch
):
    asked = []
    monkeypatch.setattr(window.models.downloads, "get", lambda ref, *_: asked.append(ref))
    question(window).trigger()
    bar, downloads = window.introduction.bar, window.models.downloads
    assert part(window) is Part.GET_CHAT
    bar.go_button.click()
    assert asked == [CHAT_MODEL]
    downloads._put(Download(CHAT_MODEL, DownloadState.RUNNING))
    assert bar.go_button.isHidden()
    assert not bar.download.cancel.isHidden()
    downloads._put(Download(CHAT_MODEL, DownloadState.FAILED, sentence="There is no connection."))
    assert bar.download.note.text() == "There is no connection."
    assert window.banner.sentence() == "", "it is said once"
    assert not bar.download.resume.isHidden()
    downloads.dismiss(CHAT_MODEL)
    assert (bar.download, bar.go_button.isHidden()) == (None, False)


def test_a_chat_preset_on_the_code_pair_says_that_a_chat_model_has_to_be_downloaded_where_that_is_off(
    window, monkeypatch
):
    monkeypatch.setattr("core.models.remote.hub.is_offline", lambda: True)
    question(window).trigger()
    bar = window.introduction.bar
    assert not bar.isHidden()
    assert "one has to be downloaded first, and this computer is set to offline" in bar.label.text()
    assert bar.go_button.isHidden()
    first = next(action for action in window.prompt.presets_button.menu().actions() if action.isEnabled())
    first.trigger()
    assert bar.isHidden(), "of this preset alone"


def test_the_chat_model_that_has_arrived_is_asked_with_one_click(window, qtbot, tmp_path, session, clock):
    entry = ModelEntry(CHAT_MODEL, "SmolLM2", tmp_path, ModelFormat.SAFETENSORS, 9, ModelOrigin.KEPT)
    question(window).trigger()
    text = window.prompt.text()
    window.models.library.add(entry)
    window.introduction._on_model_arrived(entry)
    assert part(window) is Part.ASK_CHAT
    with qtbot.waitSignal(window.live.run_shown):
        window.introduction.bar.go_button.click()
    assert (session.requests[0].target, session.requests[0].prompt) == (CHAT_MODEL, text)
    assert window.playback.pace.member() is Pace.FULL, "later runs are not slowed"
    assert part(window) is Part.NOTHING


# --- The closing sentence ---


def test_a_run_with_a_baseline_ends_with_one_sentence_on_top_until_the_next_begins(window, run_to_end, qtbot):
    assert window.conclusion.isHidden()
    run_to_end(window)
    found = conclusion_of(window.run_view)
    assert window.conclusion.headline.text() == found.headline
    assert f"{window.run_view.summary.measured_speedup:.2f} times as fast as plain decoding" in found.headline
    assert found.headline.endswith("same distribution")
    assert window.run_view.interval in found.basis
    assert re.search(r"same work varied in time by \d+\s% \(busy: above 50\s%\)\.", found.basis)
    window.controls.fields["baseline"].setChecked(False)
    run_to_end(window)
    assert window.conclusion.isHidden()


def concluded(ms, **changes):
    """The conclusion on 40 even steps of this time, beside a baseline of 21.2 ms a token."""
    run = run_of([make_step(i, 9 + 3 * i, ms=ms, num_accepted=2) for i in range(40)])
    sums, plain = run.counts.sums, run.baseline.sums
    speedup = (sums.tokens / sums.total_ms) / (plain.tokens / plain.total_ms)
    run.summary = replace(run.summary, measured_speedup=speedup)
    return conclusion_of(run, **changes)


def test_where_a_run_is_slower_it_says_so_and_what_to_try():
    slower = concluded(60.0)
    assert slower.kind == "slower"
    assert slower.headline.startswith("Slower than plain decoding, at 0.5")
    assert slower.advice
    faster = concluded(10.0)
    assert "times as fast as plain decoding" in faster.headline
    assert faster.advice.repeats, "the times of a busy machine are no grounds for other settings"


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((1.004, 1.1), "no measurable difference"),
        ((1.006, 1.1), "times as fast as"),
        ((0.9, 0.996), "no measurable difference"),
        ((0.9, 0.994), "slower"),
    ],
)
def test_the_headline_follows_from_the_interval_as_it_is_shown(monkeypatch, interval, words):
    monkeypatch.setattr("app.run.conclusion.speedup_interval", lambda *_: interval)
    found = concluded(10.0 if interval[0] > 1 else 60.0)
    assert words in found.headline.lower()
    assert interval_text(interval) in found.basis


def test_a_busy_machine_qualifies_the_headline_and_few_steps_tell_nothing():
    def spread(count, scale=1.0, **changes):
        steps = [make_step(i, 9 + 3 * i, ms=scale * (10.0 + 30.0 * (i % 3 == 0)), num_accepted=2) for i in range(count)]
        run = run_of(steps)
        run.summary = replace(run.summary, measured_speedup=1.4)
        return conclusion_of(run, **changes)

    busy = spread(40, 3.0)
    assert busy.kind == "doubtful"
    assert busy.headline.startswith("Measured on a busy machine: ")
    assert "machine was busy" not in busy.basis
    assert "Repeat the run" in busy.basis
    assert DRAWING not in busy.basis
    assert spread(40).basis.endswith(DRAWING)
    assert REPEAT_WHEN_IDLE not in spread(40).basis, "one advice at a time"
    assert DRAWING not in spread(40, is_slowed=True).basis
    few = spread(4)
    assert few.headline.startswith("Too few steps to tell")
    assert (few.kind, few.advice) == ("", None)


def test_callouts_quote_the_step_that_they_explain():
    step = make_step(4, 9, num_accepted=1)
    drafted, checked, kept = (text for _, text in callouts_of(step))
    assert "4 tokens" in drafted
    assert "all 4" in checked
    assert step.emitted_texts[1].strip() in kept
    assert step.drafted_texts[1].strip() in kept
