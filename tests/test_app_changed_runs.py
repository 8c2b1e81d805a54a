"""Runs that were changed on their way, or stepped through by hand: what is still said of their speed and settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.run.pacing import Pace
from app.run.race.race import race_of, source_text
from app.run.speed.speed import speed_report
from app.tools.runs.comparison import compare
from app.tools.runs.table import run_row
from core.analysis.steadiness import STEPWISE
from core.export.choice import choice_from_log
from core.export.run_data import run_data, verdict
from core.runlog.log import read_run_log
from core.runlog.store import read_head
from core.types import Finished

pytestmark = pytest.mark.usefixtures("short_look")


def take_steps(window, qtbot, count):
    """Take steps of a run one by one; the first call starts it."""
    if window.live.upcoming is None and not window.run_view.steps:
        window.playback.set_pace(Pace.STEPWISE)
        window.prompt.run_button.click()
        qtbot.waitUntil(lambda: window.run_view.prefill is not None)
    for _ in range(count):
        before = len(window.run_view.steps)
        window.playback.step_button.click()
        qtbot.waitUntil(lambda before=before: len(window.run_view.steps) > before)


def run_on(window, qtbot):
    with qtbot.waitSignal(window.live.run_shown):
        window.playback.pause_button.click()


def test_that_steps_were_taken_one_by_one_is_said_of_that_run_alone(window, qtbot, run_to_end):
    take_steps(window, qtbot, 1)
    run_on(window, qtbot)
    assert window.conclusion.headline.text().startswith("No speed comparison")
    request, events = window.run_view.request, window.run_view.past_events()
    *before, last = events
    fair = Finished(replace(last.summary, was_stepped=False, measured_speedup=1.4))
    for shown, is_stepped in (((*before, fair), False), (events, True)):
        with qtbot.waitSignal(window.live.run_shown):
            window.live.show_kept(request, shown, "kept")
        assert window.conclusion.headline.text().startswith("No speed comparison") is is_stepped


def test_a_run_whose_steps_were_taken_one_by_one_states_no_speedup_anywhere(window, qtbot, tmp_path):
    take_steps(window, qtbot, 1)
    run_on(window, qtbot)
    (kept,) = (tmp_path / "runs").glob("*.jsonl")
    log, row = read_run_log(kept), run_row(read_head(kept))
    assert log.summary["was_stepped"] is True
    assert log.summary["measured_speedup"] is None
    run = window.run_view
    texts = (window.measurements.tiles.speedup.value.text(), *row.texts, choice_from_log(log).measured)
    assert not [text for text in texts if "×" in text]
    assert "step by step" in row.subtitle
    assert verdict(run_data(log)) == window.conclusion.basis.text() == STEPWISE
    assert speed_report(run).headline == source_text(run, race_of(run)) == STEPWISE
    agreeing = compare([(read_head(kept), log)] * 2).agreeing
    assert [row.texts for row in agreeing if row.title == "Pace"] == [("step by step",) * 2]
