"""The race: two runs on one clock, forwards and back, nothing moves unseen, and a speedup that adds up."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.run.conclusion import conclusion_of
from app.run.race.race import (
    MOVED,
    SAME,
    SAME_DISTRIBUTION,
    Race,
    comparison_text,
    lead_text,
    length_text,
    race_of,
    seconds_text,
    source_text,
    speedup_of,
)
from app.run.race.race_window import PREVIOUS, RaceClock, RaceWindow
from app.run.run_view import RunView
from core.analysis.run_counts import Timeline
from core.errors import PromptError
from core.settings import Coupling, RunRequest
from core.types import BaselineStep, Finished, FinishReason
from tests.fakes_app import make_step, make_summary

REQUEST = RunRequest(target="t", draft="d", prompt="x", baseline=True)
TEXTS = ("def", " f", "(x):\n", "    ", "\U0001f40e", "é", "\r\n", "", "  pass")


def text_at(position):
    return TEXTS[(position - 9) % len(TEXTS)]


def speculative(count=30, seed=1, **changes):
    source, position, steps = random.Random(seed), 9, []
    for index in range(count):
        k = source.choice((0, 3, 5))
        step = make_step(
            index, position, num_draft_tokens=k, num_accepted=source.randint(0, k), ms=source.uniform(8, 12)
        )
        steps.append(replace(step, **changes))
        position += len(step.emitted)
    return steps


def plainly(steps, ms=9.0, **changes):
    """The same tokens, one a step."""
    ids = [token for step in steps for token in step.emitted]
    blank = make_step(0, 0, num_draft_tokens=0, num_accepted=0, ms=ms)
    return [replace(blank, index=i, position=9 + i, emitted=(token,), **changes) for i, token in enumerate(ids)]


def feed(run):
    """A whole run: our steps, then the same tokens one by one."""
    position = 9
    for index, accepted in enumerate((4, 1, 0, 3, 4, 2)):
        run.apply(make_step(index, position, num_accepted=accepted, texts=text_at))
        position += len(run.steps[-1].emitted)
    for step in plainly(run.steps):
        run.apply(BaselineStep(replace(step, emitted_texts=(text_at(step.position),))))
    speedup = sum(step.total_ms for step in run.baseline_steps) / sum(step.total_ms for step in run.steps)
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH, measured_speedup=speedup)))


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_stop_text_that_spans_tokens_is_cut_from_each_text_that_ended_there(page, run, reason):
    feed(run)
    text = run.summary.text
    ours, plain = text[:-3] if reason is FinishReason.STOP else text, text[:-3]
    run.apply(Finished(replace(run.summary, finish_reason=reason, text=ours, baseline_text=plain)))
    page.end()
    page.clock.seek(page.clock.end_ms)
    assert page.ours.text.toPlainText() == ours.replace("\r", "\u240d")
    assert page.plain.text.toPlainText() == plain.replace("\r", "\u240d")


@pytest.fixture
def page(show_at, run):
    return show_at(RaceWindow(run), 552, 640)


def written(steps, clock_ms):
    """What these steps have written by then."""
    text, end = "", 0.0
    for step in steps:
        end += step.total_ms
        if end <= clock_ms:
            text += step.emitted_text
    return text.replace("\r", "\u240d")


def assert_texts(page, run, clock_ms):
    page.clock.seek(clock_ms)
    now = page.clock.now_ms
    assert page.ours.text.toPlainText() == written(run.steps, now)
    assert page.plain.text.toPlainText() == written(run.baseline_steps, now)


def test_before_a_race_the_page_says_what_to_do_for_one(page, run, show_at):
    assert show_at(RaceWindow(RunView()), 552, 640).timeline.isHidden(), "there is nothing to plot"
    assert page.stack.currentIndex() == 0
    assert "Run with “Measure the baseline” ticked" in page.empty.text()
    page.begin()
    assert "When the run and its baseline are done" in page.empty.text()
    run.begin(replace(REQUEST, baseline=False))
    page.begin()
    assert page.empty.text().startswith("This run measures no baseline")
    assert not page.timeline.isHidden()
    page.timeline.plot.refresh()
    assert [sample.isHidden() for sample in page.timeline.samples] == [False, True], "there is no baseline to draw"
    run.apply(make_step(0, 9))
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH)))
    page.end()
    assert page.stack.currentIndex() == 0
    assert not page.clock.is_playing
    run.request = REQUEST
    page.end()
    assert page.empty.text().startswith("No race: there is too little of the run or of its baseline")


def test_a_race_first_shows_its_end_and_its_texts_are_at_any_moment_what_was_written_by_then(page, run):
    feed(run)
    page.end()
    assert page.stack.currentIndex() == 1
    assert page.speedup.text() == f"{run.summary.measured_speedup:.2f}×", "too few steps for an interval"
    assert page.subject.text() == "Draft model · K = 4 · temperature 0.8", "the steps' own, not the request's"
    run.request = replace(REQUEST, method="gone:Method")
    page.end()
    assert page.subject.text().startswith("gone:Method"), "of a drafter that isn't installed here"
    assert page.source.text().endswith(f"≈\u00a0{run.summary.measured_speedup:.2f}×.")
    assert page.texts.text() == SAME
    assert page.clock.now_ms == page.clock.end_ms > 0
    assert page.ours.text.toPlainText() == page.plain.text.toPlainText() != ""
    ours_ms = sum(step.total_ms for step in run.steps)
    assert f" in {seconds_text(ours_ms)} · " in page.ours.count.text()
    end = page.clock.end_ms
    page.clock.seek(run.steps[0].total_ms)
    assert page.lead.text().startswith("The speculative run is ")
    assert page.ours.bar.value() == 5
    assert page.plain.count.text().startswith(f"{page.plain.bar.value()} token")
    for share in (0.0, 0.1, 0.55, 0.2, 1.0, 0.9, 0.31, 0.0, 1.0):
        assert_texts(page, run, share * end)


def test_play_continues_by_the_clock_and_stops_at_the_end(qtbot):
    clock = RaceClock()
    qtbot.addWidget(clock)
    clock.set_end(100.0)
    clock.seek(0.0)
    clock.pace.setCurrentText("¼×")
    clock.advance(40.0)
    assert clock.now_ms == 10.0
    clock.pace.setCurrentText("4×")
    clock.play()
    assert clock.is_playing
    clock.advance(1000.0)
    assert clock.now_ms == 100.0
    assert not clock.is_playing
    clock.play()
    assert clock.now_ms == 0.0, "from the start where the end was reached"
    clock.pause()
    clock.set_end(5_000.0)
    assert clock.pace.currentText() == "1×"
    clock.set_end(500.0)
    assert clock.pace.currentText() == "in 12 s", "at its own pace it would be over too soon"
    clock.pace.setCurrentText("4×")
    clock.pace.activated.emit(3)
    clock.set_end(400.0)
    assert clock.pace.currentText() == "4×", "the user's choice"
    clock.set_end(0.0)
    clock.play()
    assert not clock.is_playing


def test_the_buttons_and_the_slider_move_the_clock(page, run, qtbot):
    feed(run)
    page.end()
    controls = page.clock
    QTest.mouseClick(controls.play_button, Qt.MouseButton.LeftButton)
    assert page.clock.is_playing
    assert controls.play_button.text() == "Pause"
    qtbot.waitUntil(lambda: page.clock.now_ms > 0)
    QTest.keyClick(controls.play_button, Qt.Key.Key_Space)
    assert not page.clock.is_playing
    assert controls.play_button.text() == "Play"
    controls.slider.setFocus()
    QTest.keyClick(controls.slider, Qt.Key.Key_End)
    assert page.clock.now_ms == page.clock.end_ms
    QTest.keyClick(controls.slider, Qt.Key.Key_Home)
    assert page.clock.now_ms == 0.0
    QTest.mouseClick(controls.restart_button, Qt.MouseButton.LeftButton)
    assert page.clock.is_playing
    page.clock.pause()


def test_a_hidden_race_is_paused_and_built_when_shown_and_ends_with_the_next_run(page, run):
    page.hide()
    feed(run)
    page.end()
    assert page.stack.currentIndex() == 0
    page.show()
    assert page.stack.currentIndex() == 1
    assert_texts(page, run, page.clock.end_ms)
    page.clock.play()
    page.hide()
    assert not page.clock.is_playing
    page.show()
    page.clock.play()
    run.begin(REQUEST)
    page.begin()
    assert page.stack.currentIndex() == 0
    assert not page.clock.is_playing
    assert page.clock.end_ms == 0.0


def test_a_window_that_waited_for_its_race_has_the_keyboard_on_play(make_window, run_to_end):
    window = make_window(is_shown=True)
    window.menus.race.trigger()
    assert window.race.focusWidget() is window.race, "on no plot's menu"
    run_to_end(window)
    assert window.race.focusWidget() is window.race.clock.play_button


def test_a_run_of_the_window_can_be_raced(make_window, run_to_end):
    window = make_window(is_shown=True)
    run_to_end(window)
    assert window.race.stack.currentIndex() == 0, "built when it is looked at"
    window.menus.race.trigger()
    assert window.race.stack.currentIndex() == 1
    found = window.run_view
    assert window.race.speedup.text() == f"{found.summary.measured_speedup:.2f}× (95 %: {found.interval})"
    assert window.race.texts.text() == SAME_DISTRIBUTION


def test_the_race_says_that_it_is_the_previous_runs_while_a_new_run_has_not_started(
    make_window, run_to_end, session, qtbot
):
    window = make_window(is_shown=True)
    run_to_end(window)
    window.menus.race.trigger()
    own = window.race.subject.text()
    assert PREVIOUS not in own
    session.load_gate = threading.Event()
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
        assert window.race.subject.text() == f"{PREVIOUS} · {own}"
        session.load_gate.set()
    assert window.race.subject.text() == own
    session.fail_before = PromptError("The prompt is too long.")
    run_to_end(window)
    assert window.race.subject.text() == f"{PREVIOUS} · {own}"


# --- The arithmetic ---


def race(ours=None, plain=None, coupling=Coupling.REJECTION, speedup=1.5):
    """A run that is over, with its baseline."""
    run, ours = RunView(), ours or speculative()
    run.begin(replace(REQUEST, coupling=coupling))
    for event in (*ours, *map(BaselineStep, plain or plainly(ours))):
        run.apply(event)
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH, measured_speedup=speedup)))
    return run


def test_a_steps_tokens_are_there_when_it_ends_and_not_before():
    steps, timeline, untimed = speculative(3), Timeline(), Timeline()
    for step in steps:
        timeline.add(step)
        untimed.add(replace(step, total_ms=math.nan))
    first = steps[0].total_ms
    assert timeline.tokens_at(0) == 0
    assert timeline.tokens_at(first - 1e-6) == 0
    assert timeline.tokens_at(first) == len(steps[0].emitted)
    assert timeline.tokens_at(1e9) == timeline.num_tokens == sum(len(step.emitted) for step in steps)
    assert timeline.end_ms == pytest.approx(sum(step.total_ms for step in steps))
    assert untimed.end_ms == 0.0
    assert untimed.tokens_at(0.0) == untimed.num_tokens > 0


def test_efficiency_over_cost_is_the_speedup():
    ours = speculative()
    plain = plainly(ours)
    tokens = sum(len(step.emitted) for step in ours)
    ours_ms, plain_ms = (sum(step.total_ms for step in steps) for steps in (ours, plain))
    measured = (tokens / ours_ms) / (len(plain) / plain_ms)
    found = race(ours, plain, speedup=measured)
    efficiency, cost = tokens / len(ours), (ours_ms / len(ours)) / (plain_ms / len(plain))
    assert efficiency / cost == pytest.approx(measured)
    assert f"{efficiency:.2f} / {cost:.2f} ≈ {measured:.2f}×." in source_text(found, race_of(found))
    assert f"{efficiency:.2f} tokens per forward" in source_text(found, race_of(found))


def test_who_leads_and_by_how_much_follows_the_clock():
    ours = [make_step(0, 9, num_draft_tokens=4, num_accepted=4, ms=10.0)]
    plain = plainly(ours, ms=10.0)
    found = race(ours, plain)
    plain_ms, ours_ms = plain[0].total_ms, ours[0].total_ms
    assert [seconds_text(ms) for ms in (84.4, 999.6, 74_120)] == ["84 ms", "1.00 s", "74.1 s"]
    assert lead_text(race_of(found), 0) == "Level"
    assert lead_text(race_of(found), plain_ms + 0.01) == "The baseline is 1 token ahead"
    assert lead_text(race_of(found), ours_ms) == "The speculative run is 4 tokens ahead"
    gap = seconds_text(5 * plain_ms - ours_ms)
    assert lead_text(race_of(found), race_of(found).duration_ms) == f"The speculative run finished {gap} earlier"
    assert race_of(found).duration_ms == pytest.approx(5 * plain_ms)


@pytest.mark.parametrize(
    ("ours_ms", "plain_ms", "said"),
    [
        (406.4, 563.5, "The speculative run finished 158 ms earlier"),
        (9.6, 10.4, "Both finished at the same time"),
        (1251.0, 1254.0, "Both finished at the same time"),
        (1254.9, 1255.1, "The speculative run finished 0.01 s earlier"),
        (999.4, 999.6, "Both finished at the same time"),
        (1254.4, 1255.6, "The speculative run finished 0.01 s earlier"),
        (1255.3, 1254.7, "The baseline finished 0.01 s earlier"),
        (2500.0, 900.4, "The baseline finished 1.60 s earlier"),
    ],
)
def test_the_gap_at_the_end_agrees_with_the_two_times_beside_it(ours_ms, plain_ms, said):
    ours, plain = Timeline(), Timeline()
    for timeline, end_ms in ((ours, ours_ms), (plain, plain_ms)):
        timeline.ends_ms, timeline.counts = [end_ms], [5]
    assert lead_text(Race(ours, plain, is_whole=True), 5000.0) == said


def test_two_texts_of_different_lengths_race_to_the_same_token():
    ours = speculative(12)
    plain = plainly(ours)[:-5]
    found = race(ours, plain)
    raced = race_of(found)
    sides = found.steps[: len(raced.ours.counts)], found.baseline_steps[: len(raced.plain.counts)]
    num_tokens, counts = raced.ours.num_tokens, [sum(len(step.emitted) for step in steps) for steps in sides]
    assert counts == [num_tokens] * 2
    assert len(plain) - 6 < num_tokens <= len(plain)
    ours_ms, plain_ms = (sum(step.total_ms for step in steps) for steps in sides)
    assert speedup_of(found, raced) == pytest.approx(plain_ms / ours_ms)
    assert f" reached {num_tokens} tokens " in lead_text(raced, raced.duration_ms), "neither has finished"
    said = length_text(found, raced)
    assert said.startswith(f"Both are compared up to {num_tokens} tokens: the run wrote {found.num_tokens},")
    assert found.interval
    assert said.endswith(f"Over all tokens, the measured speedup is 1.50× (95 %: {found.interval}).")
    few = race(ours[:5], plain[:6])
    assert length_text(few, race_of(few)).endswith("is 1.50×."), "too few steps to tell"
    assert length_text(race(ours), race_of(race(ours))) == f"Both texts have {found.num_tokens} tokens."


def test_two_texts_are_compared_in_one_sentence():
    ours, other = speculative(), plainly(speculative(seed=2))
    assert comparison_text(race(ours)) == SAME
    assert comparison_text(race(ours, other)) == SAME_DISTRIBUTION
    num_first = sum(len(step.emitted) for step in ours[:2])
    stopped = race(ours, plainly(ours)[:num_first], speedup=None)
    assert (
        source_text(stopped, race_of(stopped))
        == f"The baseline was stopped after {num_first} tokens, so no speedup was measured."
    )
    assert comparison_text(stopped) == f"Same text, token for token, as far as the baseline got: {num_first} tokens."
    ours[5] = replace(ours[5], temperature=0.0)
    changed = race(ours, other)
    assert comparison_text(changed) == MOVED
    assert conclusion_of(changed).headline.endswith(", temperature changed during the run")
    ours[6] = replace(ours[6], temperature=math.nan)
    assert changed.temperatures == {0.0, ours[0].temperature}, "a damaged log lacks it, and nobody changed it"


@pytest.mark.parametrize("coupling", list(Coupling))
def test_texts_that_should_be_equal_but_differ_say_where_they_diverge(coupling):
    ours = speculative(temperature=0.0 if coupling is Coupling.REJECTION else 0.8)
    plain = plainly(ours)
    plain[6] = replace(plain[6], emitted=(-1,))
    assert comparison_text(race(ours, plain, coupling)) == "The texts diverge at token 7: rounding decided a near-tie."
