"""The race on screen: both texts follow one clock, forwards and back, and nothing moves unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QScrollArea

from app.run.pages.race import SAME, SAME_DISTRIBUTION, seconds_text
from app.run.pages.race_page import BESIDE_WIDTH, RaceClock, RacePage
from app.run.run_view import RunView
from app.theme import DARK, LIGHT
from core.settings import RunRequest
from core.types import BaselineStep, Finished, FinishReason
from tests.fakes_app import make_step, make_summary

REQUEST = RunRequest(target="t", draft="d", prompt="x", baseline=True)
TEXTS = ("def", " f", "(x):\n", "    ", "\U0001f40e", "é", "\r\n", "", "  pass")


def text_at(position):
    return TEXTS[(position - 9) % len(TEXTS)]


def feed(run, blocks=(4, 1, 0, 3, 4, 2), ms=9.0, **summary):
    """A whole run: our steps, then the same tokens one by one."""
    position = 9
    for index, accepted in enumerate(blocks):
        run.apply(make_step(index, position, num_draft_tokens=4, num_accepted=accepted, texts=text_at))
        position += len(run.steps[-1].emitted)
    ids = [token for step in run.steps for token in step.emitted]
    for index, token in enumerate(ids):
        step = make_step(index, 9 + index, num_draft_tokens=0, num_accepted=0, texts=text_at, ms=ms)
        run.apply(BaselineStep(replace(step, emitted=(token,))))
    speedup = sum(step.total_ms for step in run.baseline_steps) / sum(step.total_ms for step in run.steps)
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH, **{"measured_speedup": speedup, **summary})))


@pytest.fixture
def run():
    view = RunView()
    view.begin(REQUEST)
    return view


@pytest.fixture
def page(show_at, run):
    return show_at(RacePage(run), 552, 480)


def written(run, steps, clock_ms):
    """What these steps have written by then, worked out anew."""
    text, end = "", 0.0
    for step in steps:
        end += step.total_ms
        if end <= clock_ms:
            text += step.emitted_text
    return text.replace("\r", "\u240d")


def assert_texts(page, run, clock_ms):
    page.clock.seek(clock_ms)
    now = page.clock.now_ms
    assert page.ours.text.toPlainText() == written(run, run.steps, now)
    assert page.plain.text.toPlainText() == written(run, run.baseline_steps, now)


def test_before_a_race_the_page_says_what_to_do_for_one(page, run):
    assert page.stack.currentIndex() == 0
    assert "Run with “Measure the baseline” ticked" in page.empty.text()
    page.begin()
    assert "When the run and its baseline are done" in page.empty.text()
    run.begin(replace(REQUEST, baseline=False))
    page.begin()
    assert page.empty.text().startswith("This run measures no baseline")
    run.apply(make_step(0, 9))
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH)))
    page.end()
    assert page.stack.currentIndex() == 0
    assert not page.clock.is_playing


def test_a_race_ends_with_the_result(page, run):
    feed(run)
    page.end()
    assert page.stack.currentIndex() == 1
    assert page.speedup.text() == f"{run.summary.measured_speedup:.2f}×"
    assert page.source.text().endswith(f"= {run.summary.measured_speedup:.2f}×.")
    assert page.texts.text() == SAME
    assert page.clock.now_ms == page.clock.end_ms > 0
    assert page.ours.text.toPlainText() == page.plain.text.toPlainText() != ""
    ours_ms = sum(step.total_ms for step in run.steps)
    assert page.ours.count.text().endswith(f"done at {seconds_text(ours_ms)}")


def test_both_texts_are_at_any_moment_what_was_written_by_then(page, run):
    feed(run)
    page.end()
    end = page.clock.end_ms
    page.clock.seek(run.steps[0].total_ms)
    assert page.lead.text().startswith("Speculative is ")
    assert page.ours.bar.value() == 5
    assert page.plain.count.text().startswith(f"{page.plain.bar.value()} token")
    for share in (0.0, 0.1, 0.55, 0.2, 1.0, 0.9, 0.31, 0.0, 1.0):
        assert_texts(page, run, share * end)
    page.set_theme(DARK)
    assert_texts(page, run, 0.5 * end)


def test_tokens_are_drawn_in_the_look_of_their_kind_for_the_speculative_text_alone(page, run):
    feed(run)
    page.end()
    for text, expected in ((page.ours.text, LIGHT.accepted), (page.plain.text, None)):
        cursor = text.textCursor()
        cursor.setPosition(1)
        is_colored = cursor.charFormat().foreground().style() is not Qt.BrushStyle.NoBrush
        assert is_colored is (expected is not None)
        if expected:
            assert cursor.charFormat().foreground().color().name() == expected


def test_play_continues_by_the_clock_and_stops_at_the_end(qtbot):
    clock = RaceClock()
    qtbot.addWidget(clock)
    clock.set_end(100.0)
    clock.seek(0.0)
    clock.pace.setCurrentText("× ¼")
    clock.advance(40.0)
    assert clock.now_ms == 10.0
    clock.pace.setCurrentText("× 4")
    clock.play()
    assert clock.is_playing
    clock.advance(1000.0)
    assert clock.now_ms == 100.0
    assert not clock.is_playing
    clock.play()
    assert clock.now_ms == 0.0, "from the start where the end was reached"
    clock.pause()
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
    controls.pace.setCurrentText("× 4")
    page.clock.advance(2.0)
    assert page.clock.now_ms == 8.0
    QTest.mouseClick(controls.restart_button, Qt.MouseButton.LeftButton)
    assert page.clock.is_playing
    page.clock.pause()


def test_a_hidden_race_is_paused_and_made_when_shown(page, run, qtbot):
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


def test_the_next_run_takes_the_race_away(page, run):
    feed(run)
    page.end()
    page.clock.play()
    run.begin(REQUEST)
    page.begin()
    assert page.stack.currentIndex() == 0
    assert not page.clock.is_playing
    assert page.clock.end_ms == 0.0


def test_a_baseline_that_was_stopped_can_be_raced_and_says_so(page, run):
    feed(run, measured_speedup=None)
    del run.baseline_steps[5:]
    page.end()
    assert page.speedup.text() == "–"
    assert page.source.text() == "The baseline was stopped after 5 tokens, so no speedup was measured."


def test_the_texts_stand_side_by_side_where_there_is_room_and_fill_what_there_is(page, run):
    feed(run)
    page.end()
    assert page.lanes.orientation() is Qt.Orientation.Vertical
    assert page.findChild(QScrollArea).verticalScrollBar().maximum() == 0
    page.resize(BESIDE_WIDTH + 40, 480)
    assert page.lanes.orientation() is Qt.Orientation.Horizontal


def test_a_run_of_the_window_can_be_raced(make_window, run_to_end, qtbot):
    window = make_window(is_shown=True)
    run_to_end(window)
    assert window.race.stack.currentIndex() == 0, "made when it is looked at"
    window.text_pages.show_page(window.race)
    assert window.race.stack.currentIndex() == 1
    assert window.race.speedup.text() == f"{window.run_view.summary.measured_speedup:.2f}×"
    assert window.race.texts.text() == SAME_DISTRIBUTION
    for widget in (window.race.clock.play_button, window.race.clock.slider, window.race.clock.pace):
        assert widget.accessibleName()
        assert widget.objectName().startswith("race")


def test_a_text_that_is_given_less_room_stays_at_its_end(page, run):
    feed(run, blocks=(4,) * 60)
    page.end()
    bar = page.ours.text.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0
    page.resize(552, 420)
    assert bar.value() == bar.maximum()
    bar.setValue(0)
    page.resize(552, 400)
    assert bar.value() == 0
