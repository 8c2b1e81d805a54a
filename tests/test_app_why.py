"""The page Why: what it says about a run, when it updates, and what its bars mean."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import QPointF

from app.run.pages.why import EMPTY, why_report
from app.run.pages.why_page import WhyPanel
from core.types import BaselineStep
from tests.fakes_app import make_step, run_of
from tests.test_core_diagnosis import LIMITED, drawn, tree


@pytest.mark.parametrize("limit", LIMITED)
def test_the_headline_names_the_limit_that_the_first_bar_shows(limit):
    report = why_report(run_of(LIMITED[limit]))
    ran, first = report.gains[0], report.gains[1]
    assert report.headline.startswith(f"{ran.speedup:.2f}×")
    assert f"{first.speedup:.2f}×" in report.headline
    assert [gain.is_main for gain in report.gains] == [False, True] + [False] * (len(report.gains) - 2)


def test_the_bars_add_up_to_the_step_and_their_ratio_is_the_speedup():
    run = run_of(drawn(0.8, 4, draft_ms=1.0, verify_ms=14.0))
    report = why_report(run)
    step = sum(part.milliseconds for part in report.parts)
    assert step == pytest.approx(run.counts.sums.total_ms / len(run.steps))
    assert sum(part.milliseconds for part in report.replaced) / step == pytest.approx(report.gains[0].speedup)


def test_without_the_baseline_the_speedup_is_called_an_estimate():
    report = why_report(run_of(drawn(0.8, 4), baseline=False))
    assert report.headline.startswith("An estimated")
    assert "Measure the baseline" in report.basis


def test_a_speedup_of_one_is_neither_slower_nor_faster():
    steps = drawn(0.8, 4, draft_ms=2.0, verify_ms=12.0)
    tokens = sum(len(step.emitted) for step in steps)
    spent = sum(step.total_ms for step in steps)
    for factor, words in ((0.998, "1.00×: as fast as"), (0.9, "0.90×: slower than"), (1.1, "1.10× here.")):
        run = run_of(steps, baseline=False, is_over=False)
        plain = replace(make_step(0, 9, num_draft_tokens=0, num_accepted=0), total_ms=factor * spent / tokens)
        run.apply(BaselineStep(replace(plain, verify_ms=0.9 * plain.total_ms)))
        assert why_report(run).headline.startswith(words)


def test_a_machine_that_was_not_steady_is_named():
    steps = drawn(0.8, 4)
    assert "steady" not in why_report(run_of(steps)).basis
    run = run_of(steps, is_over=False)
    run.apply(BaselineStep(make_step(0, 9, num_draft_tokens=0, num_accepted=0, ms=60.0)))
    assert "took 10.00 ms before the run and 30.00 ms in the baseline" in why_report(run).basis


def test_a_few_steps_are_too_few_and_a_run_without_drafts_is_plain_decoding():
    assert "too few steps to say" in why_report(run_of(drawn(0.8, 4, count=7))).headline
    report = why_report(run_of([make_step(0, 9, num_draft_tokens=0, num_accepted=0)] * 30))
    assert "plain decoding" in report.headline
    assert len(report.gains) == 1


def test_a_trees_figures_are_in_its_own_words():
    report = why_report(run_of([tree(accepted) for accepted in (3, 2, 0)] * 10))
    assert "most with a tree of 7 nodes in 3 levels" in report.basis
    how = {figure.title: figure.how for figure in report.figures}
    assert "levels tested" in how["α"]
    assert "one drafted level" in how["c"]
    assert "to score 8 positions" in how["v(8)"]
    assert all("K is its depth" in gain.how for gain in report.gains)
    chain = why_report(run_of(drawn(0.8, 4)))
    said = (chain.basis, *(item.how for item in (*chain.figures, *chain.gains)))
    assert not any("level" in text or "tree" in text for text in said)


def test_a_running_run_is_followed_and_advice_waits_for_its_end():
    run = run_of(drawn(0.8, 4, count=40), is_over=False)
    for count in (40, 50):
        assert f"{count} steps" in why_report(run).basis
        for step in drawn(0.8, 4, count=10, seed=2):
            run.apply(step)
    run.begin(run.request)
    assert why_report(run).headline == EMPTY
    steps = drawn(0.9, 4, draft_ms=5.0, verify_ms=11.0)
    running, over = why_report(run_of(steps, is_over=False)), why_report(run_of(steps))
    assert "when the run is over" in running.advice[0].text
    assert any("smaller draft" in advice.text for advice in over.advice)


def test_the_page_follows_a_run_only_while_it_is_open(make_window, qtbot, session):
    session.gate = threading.Semaphore(30)
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 30)
    assert window.why.headline.text() == EMPTY
    window.side.show_page(window.why)
    assert "estimated" in window.why.headline.text()
    assert "30 steps" in window.why.basis.text()
    session.gate.release(1000)
    with qtbot.waitSignal(window.live.run_shown):
        pass
    summary = window.run_view.summary
    assert window.why.headline.text().startswith(f"{summary.measured_speedup:.2f}×")
    assert window.why.advice.text()


@pytest.mark.parametrize("width", [340, 620])
def test_the_page_fits_its_column_and_explains_what_the_pointer_is_on(qtbot, width):
    panel = WhyPanel(run_of(drawn(0.8, 4, draft_ms=1.0, verify_ms=14.0)))
    qtbot.addWidget(panel)
    panel.resize(width, 700)
    panel.show()
    panel.end()
    assert panel.area.widget().minimumSizeHint().width() <= panel.area.viewport().width()
    places = panel.step_bar.parts()
    assert [part.title for part, _ in places] == ["draft", "plain forward", "scoring more", "overhead"]
    for part, place in places:
        assert panel.step_bar.tip_at(place.center()).startswith(part.title)
    assert panel.step_bar.tip_at(QPointF(0, 0)) == ""
