"""Runs that were changed on their way, or stepped through by hand: what is still said of their speed and settings."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.run.conclusion import conclusion_of
from app.run.pacing import Pace
from app.run.race.race import race_of, subject_text, waiting_text
from app.run.run_view import RunView
from app.run.speed.speed import speed_report
from app.tools.runs.comparison import compare
from app.tools.runs.table import run_row
from core.analysis.steadiness import STEPWISE
from core.export.choice import choice_from_log
from core.export.run_data import run_data, verdict
from core.export.run_report import compare_page
from core.runlog.log import to_record
from core.runlog.reading import RunLog, read_run_log
from core.runlog.store import read_head
from core.settings import LengthPolicy
from core.types import Finished, RunStarted
from tests.fakes_app import make_step

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


def test_a_changed_k_is_not_stated_as_that_of_the_whole_run(window, qtbot, session, tmp_path, run_to_end):
    fields, run = window.controls.fields, window.run_view
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(3)
    run_to_end(window)
    assert subject_text(run).startswith("Draft model · K = 3 ·")
    session.gate = threading.Semaphore(2)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(run.steps) == 2)
    fields["num_draft_tokens"].set_value(9)
    fields["temperature"].set_value(0.25)
    session.gate.release()
    qtbot.waitUntil(lambda: len(run.steps) == 3)
    # K is drawn, for it was changed.
    qtbot.waitUntil(lambda: not window.measurements.acceptance.chosen_sample.isHidden())
    assert window.measurements.tiles.chosen.isHidden()
    fields["length_policy"].choose(LengthPolicy.AUTO)
    with qtbot.waitSignal(window.live.run_shown):
        session.gate.release(1000)
    assert not window.measurements.tiles.chosen.isHidden()
    assert window.measurements.tiles.chosen.note.text() == "by auto since it was changed", "no average of all steps"
    assert "K varied" in subject_text(run)
    assert "K = " not in subject_text(run)
    assert "with a K that was changed during the run" in speed_report(run).headline
    paths = sorted((tmp_path / "runs").glob("*.jsonl"))
    logs = [read_run_log(path) for path in paths]
    compared = compare(zip(map(read_head, paths), logs, strict=True), grouped=True)
    assert [row.texts for row in compared.differing if row.title == "K"] == [
        ("3", "3, then 9 from step 3, auto from step 4")
    ]
    assert len(compared.columns) == 2
    choice, mean = choice_from_log(logs[1]), run.summary.num_draft_tokens / run.summary.num_drafts
    note = (
        f"K was changed during the run; {mean:.1f} tokens on average where it drafted. "
        f"The temperature was changed during the run, which began with {run.request.sampling.temperature:g}."
    )
    assert (choice.k, choice.k_note) == (round(mean), note)
    assert choice_from_log(logs[0]).k_note == ""
    window.menus.production.trigger()
    assert note in window.exports.page.note.text()


@pytest.mark.parametrize(("first", "then", "expected"), [("auto", 4, 4), (4, LengthPolicy.ADAPTIVE, "auto")])
def test_advice_is_about_the_k_or_the_policy_that_is_in_force_at_the_end(first, then, expected, monkeypatch):
    run, seen = RunView(), []
    run.apply(RunStarted("r", "", "", {"num_draft_tokens": first, "seed": 3}, {}))
    run.apply(replace(make_step(0, 9, num_draft_tokens=2, num_accepted=1), draft_length=then))
    monkeypatch.setattr("app.run.run_view.advise", lambda _sums, _found, config, *_: seen.append(config))
    run.advice(None)
    assert (seen[0]["num_draft_tokens"], seen[0]["seed"]) == (expected, 3)


def test_a_k_that_was_changed_before_the_first_step_is_that_of_the_whole_run(window, qtbot, session, tmp_path):
    fields, run = window.controls.fields, window.run_view
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(3)
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(session.controls) == 1)
    fields["num_draft_tokens"].set_value(5)
    with qtbot.waitSignal(window.live.run_shown):
        session.gate.release(1000)
    assert (run.request.num_draft_tokens, {step.draft_length for step in run.steps}) == (3, {5})
    assert subject_text(run).startswith("Draft model · K = 5 ·")
    assert "changed" not in speed_report(run).headline
    assert window.measurements.acceptance.chosen_sample.isHidden()
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log = read_run_log(path)
    choice = choice_from_log(log)
    assert (choice.k, choice.k_note, run_data(log).draft_length) == (5, "", "5")


@pytest.mark.parametrize(
    ("first", "lengths", "counts", "k", "note"),
    [
        (8, (8, 8, 6, 6), (8, 8, 6, 0), 7, "K was changed during the run; 7.3 tokens on average where it drafted."),
        (8, (8, 6), (0, 0), 8, "K was changed during the run, which drafted nothing."),
        ("auto", (4, 4), (4, 1), 4, ""),
        ("auto", ("auto", "auto"), (0, 0), 4, "Outrider chooses K before each step; 4 is its usual default."),
        (8, (None, None), (8, 2), 8, ""),
    ],
)
def test_a_configuration_takes_k_from_the_steps_of_a_log_that_was_cut_off(first, lengths, counts, k, note):
    steps = [
        to_record(
            replace(make_step(i, 9, num_draft_tokens=count, num_accepted=0, temperature=0.0), draft_length=length)
        )
        for i, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    config = {"target": "t", "draft": "d", "prompt": "x", "seed": 0, "temperature": 0.0, "num_draft_tokens": first}
    choice = choice_from_log(RunLog({"config": config, "id": "r"}, steps))
    assert (choice.k, choice.k_note) == (k, note)


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
    tile = window.measurements.tiles.speedup
    assert tile.note.text() == "the steps were taken one by one"
    assert "step by step" in row.subtitle
    assert verdict(run_data(log)) == window.conclusion.basis.text() == STEPWISE
    report = speed_report(run)
    assert (report.headline, report.advice, report.limit, report.gains) == (STEPWISE, (), "", ())
    assert report.theory is None
    assert not report.figures
    assert not report.compared
    assert race_of(run) is None
    assert waiting_text(run, is_running=False) == STEPWISE
    agreeing = compare([(read_head(kept), log)] * 2).agreeing
    assert [row.texts for row in agreeing if row.title == "Pace"] == [("step by step",) * 2]
    other = RunLog(log.run, log.steps, {**log.summary, "was_stepped": False})
    assert "No setting or machine differs" in compare_page([log, log])
    assert "No setting or machine differs" not in compare_page([log, other])


def test_where_no_baseline_was_wanted_its_absence_is_named_and_not_the_stepping(window, qtbot, tmp_path):
    window.controls.fields["baseline"].setChecked(False)
    take_steps(window, qtbot, 1)
    run_on(window, qtbot)
    log = read_run_log(*(tmp_path / "runs").glob("*.jsonl"))
    assert log.summary["was_stepped"] is True
    assert "The baseline did not run" in verdict(run_data(log))
    short = replace(run_data(log).summary, baseline_text="one token")
    assert "too short to measure" in verdict(replace(run_data(log), summary=short))
    assert "one by one" not in window.measurements.tiles.speedup.note.text()
    assert "one by one" not in waiting_text(window.run_view, is_running=False)
    assert window.conclusion.isHidden()
    assert conclusion_of(window.run_view) is None


def test_steps_that_were_taken_one_by_one_are_neither_busy_nor_the_best(window, qtbot, tmp_path):
    take_steps(window, qtbot, 1)
    run_on(window, qtbot)
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    log, other = read_run_log(path), read_run_log(path)
    other.run["config"]["max_new_tokens"] += 1
    other.summary["tokens_per_second"] *= 2
    results = compare([(read_head(path), each) for each in (log, other)]).results
    (speed,) = [row for row in results if row.title == "Tokens per second"]
    assert len(set(speed.texts)) == 2
    assert speed.best == frozenset()
    for step in other.steps[::2]:
        step["total_ms"] *= 9
    for was_stepped in (False, True):
        other.summary["was_stepped"] = was_stepped
        assert run_data(other).was_busy is not was_stepped
