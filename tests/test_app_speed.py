"""The Speed page: its verdict, its bars and curves, advice that is applied, and nothing is wider than the page."""

from __future__ import annotations

import math
import shlex
import threading
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QPointF
from PySide6.QtWidgets import QLabel

from app.__main__ import build_parser
from app.jobs import Jobs
from app.run.conclusion import conclusion_of
from app.run.inspector.inspection import inspect
from app.run.run_view import RunView
from app.run.speed.speed import (
    COMPUTING,
    EMPTY,
    LATER,
    MEASURE_WHOLE,
    NO_UNIT,
    REPEAT,
    UNDRAFTED,
    speed_report,
    study_of,
)
from app.run.speed.speed_figures import UNCALIBRATED
from app.run.speed.speed_page import SpeedPage
from app.run.speed.speed_plots import Grouping, Quantity
from app.run.text.tokens import Place
from app.theme import DARK, LIGHT
from app.widgets.plot_card import PlotFormat, contents_of
from core.settings import Coupling, RunRequest
from core.text import percent_text
from core.types import BaselineStep, BlockTest, Finished, FinishReason
from tests.fakes_app import make_step, make_summary, run_of
from tests.test_core_diagnosis import LIMITED, drawn, tree
from tests.test_core_theory import with_evidence
from tests.test_core_tree_forecast import tree_step


@pytest.fixture
def steps():
    return drawn(0.8, 4, draft_ms=1.0, verify_ms=14.0, count=60)


def page_of(qtbot, run, width=340):
    jobs = Jobs()
    page = SpeedPage(run, jobs)
    page._jobs_kept = jobs
    qtbot.addWidget(page)
    page.resize(width, 700)
    page.show()
    page.end()
    qtbot.waitUntil(lambda: jobs.is_idle, timeout=30_000)
    return page


def texts(rows):
    return {labels[0].text(): (labels[1].text(), labels[2].text()) for labels in rows if labels[0].text()}


# --- The report ---


@pytest.mark.parametrize("limit", LIMITED)
def test_the_sentence_of_the_limit_names_the_one_that_the_first_bar_shows(limit):
    report = speed_report(run_of(LIMITED[limit]))
    ran, first = report.gains[0], report.gains[1]
    assert f"{ran.speedup:.2f}×" in report.headline
    assert f"{first.speedup:.2f}×" in report.limit
    assert [gain.is_main for gain in report.gains] == [False, True] + [False] * (len(report.gains) - 2)


def test_the_bars_add_up_to_the_step_and_their_ratio_is_the_speedup():
    run = run_of(drawn(0.8, 4, draft_ms=1.0, verify_ms=14.0))
    report = speed_report(run)
    step = sum(part.milliseconds for part in report.parts)
    assert step == pytest.approx(run.counts.sums.total_ms / len(run.steps))
    assert sum(part.milliseconds for part in report.replaced) / step == pytest.approx(report.gains[0].speedup)


def test_without_the_baseline_the_speedup_is_an_estimate_and_the_baseline_is_advised():
    report = speed_report(run_of(drawn(0.8, 4), baseline=False))
    assert report.headline.startswith("An estimated")
    assert "pays here" not in report.headline, "an estimate is no verdict"
    assert report.advice[0].settings == {"baseline": True}


@pytest.mark.parametrize(
    ("factor", "words"), [(0.7, "0.70× at K = 4: don't speculate here."), (1.0, "no measurable difference from plain"),
                          (1.3, "1.30× at K = 4: drafting pays here.")]
)  # fmt: skip
def test_the_verdict_follows_the_measured_speedup(factor, words):
    steps = drawn(0.8, 4, draft_ms=0.0, verify_ms=10.0)
    tokens, spent = sum(len(step.emitted) for step in steps), sum(step.total_ms for step in steps)
    run = run_of(steps, baseline=False, is_over=False)
    run.request = replace(run.request, baseline=True)
    plain = replace(make_step(0, 9, num_draft_tokens=0, num_accepted=0), total_ms=factor * spent / tokens)
    run.apply(BaselineStep(replace(plain, verify_ms=0.9 * plain.total_ms)))
    early = speed_report(run)
    assert early.headline.startswith("Too early to tell."), "its baseline is still being measured"
    assert LATER.format("baseline") in early.basis
    assert (early.limit, any(gain.is_main for gain in early.gains)) == ("", False)
    run.apply(Finished(make_summary(steps, FinishReason.LENGTH, baseline_text="x")))
    assert words in speed_report(run).headline


def test_a_baseline_that_was_stopped_gives_no_verdict_but_an_estimate_and_is_to_be_run_again(steps):
    run = run_of(steps)
    assert "drafting pays here" in speed_report(run, study_of(run)()).headline
    run.summary = replace(run.summary, baseline_tokens_per_second=None)
    report = speed_report(run, study_of(run)())
    assert report.headline.startswith("An estimated")
    assert f"The first {run.baseline.sums.tokens:,} tokens of the baseline took" in report.basis
    assert (report.advice[0].text, report.advice[0].repeats) == (MEASURE_WHOLE, True)
    assert report.compared[0].title == "Speedup, estimated"
    assert run.outcome == ("Done: reached the requested length · baseline stopped", "Done · baseline stopped")
    assert conclusion_of(run).headline == "No speedup measured: the baseline is not complete"
    run.summary = replace(run.summary, error="The run is complete, but its baseline failed: no memory.")
    assert run.outcome[0].endswith(" · baseline failed")


def test_a_busy_machine_is_named_before_the_verdict_and_a_repeat_is_the_first_advice(steps, monkeypatch):
    run = run_of(steps)
    quiet = speed_report(run)
    monkeypatch.setattr(RunView, "busy_note", "The machine was busy: something else ran.")
    busy = speed_report(run)
    assert busy.headline == f"Busy machine. {quiet.headline}"
    assert [advice.text for advice in busy.advice] == [REPEAT, *(advice.text for advice in quiet.advice)]


def test_a_verdict_names_the_policy_that_chose_k(steps):
    run = run_of(steps + drawn(0, 0, verify_ms=14.0, count=20))
    assert " at K = 4: " in speed_report(run).headline
    run.started.config.update(num_draft_tokens="auto", length_policy="adaptive")
    assert speed_report(run).headline.endswith("with adaptive K, 3.0 on average: drafting pays here.")


def test_that_the_machine_was_busy_is_said_on_top_of_the_run_and_not_again():
    run = run_of(drawn(0.8, 4))
    run.summary = replace(run.summary, target_step_ms=4.0)
    assert run.busy_note in speed_report(run).basis, "nothing else says it where no speedup was measured"
    run.summary = replace(run.summary, measured_speedup=1.2)
    assert conclusion_of(run).headline.startswith("Measured on a busy machine")
    assert "busy" not in speed_report(run).basis


def test_a_trees_figures_are_in_its_own_words():
    report = speed_report(run_of([tree(accepted) for accepted in (3, 2, 0)] * 10))
    assert "with trees of 7 nodes" in report.headline
    assert "most with a tree of 7 nodes in 3 levels" in report.basis
    how = {figure.title: figure.how for figure in report.figures}
    assert "levels tested" in how["α, acceptance"]
    assert "one drafted level" in how["c, draft cost"]
    assert "to score 8 positions" in how["v(8), verify cost"]
    assert all("K is its depth" in gain.how for gain in report.gains)
    chain = speed_report(run_of(drawn(0.8, 4)))
    said = (chain.basis, *(item.how for item in (*chain.figures, *chain.gains)))
    assert not any("level" in text or "tree" in text for text in said)


def test_a_running_run_is_followed_and_advice_and_intervals_wait_for_its_end():
    run = run_of(drawn(0.8, 4, count=40), is_over=False)
    for count in (40, 50):
        assert f"{count} steps" in speed_report(run).basis
        for step in drawn(0.8, 4, count=10, seed=2):
            run.apply(step)
    assert LATER.format("baseline") in speed_report(run).basis
    assert speed_report(run).advice == ()
    assert study_of(run) is None
    run.begin(run.request)
    assert speed_report(run).headline == EMPTY
    over = speed_report(run_of(drawn(0.9, 4, draft_ms=5.0, verify_ms=11.0)))
    assert COMPUTING in over.basis
    assert any("smaller draft" in advice.text for advice in over.advice)


def test_single_tests_without_probabilities_and_shared_noise_are_named_as_reasons(steps):
    blocks = [replace(step, block=(BlockTest(1.0, 0.0),) * (step.num_draft_tokens + 1)) for step in steps]
    typical = [replace(step, expected_acceptance=(math.nan,) * step.num_draft_tokens) for step in steps]
    for run, is_missing in ((run_of(blocks), True), (run_of(typical), True), (run_of(steps), False)):
        report = speed_report(run, study_of(run)())
        assert (UNCALIBRATED in report.basis) is is_missing is (report.calibration is None)
    run.request = RunRequest("t", "d", "x", coupling=Coupling.GUMBEL)
    rows = {row.title: row for row in speed_report(run, study_of(run)()).figures}
    assert "shares its noise" in rows["z of the difference"].how
    assert "at least 1 and never less than for fewer positions" in rows["v(5), verify cost"].how


# --- The page ---


def test_measured_stands_beside_expected_and_every_figure_has_its_formula_behind_the_fold(qtbot, steps):
    run = run_of(steps)
    page = page_of(qtbot, run)
    compared = texts(page.compared.rows)
    assert compared["Speedup"][0] == f"{speed_report(run).gains[0].speedup:.2f}×"
    assert compared["Speedup"][1].endswith("×")
    assert compared["α, acceptance of tested tokens"][1] == "–", "the predictions start from it"
    shown = texts(page.figures.rows)
    assert shown["α, acceptance"][0].endswith("\u00a0%")
    assert "–" in shown["Speedup by formula"][1]
    assert shown["Best K"][1].endswith("sure")
    assert not page.figures.isVisible()
    page.fold.button.click()
    assert page.figures.isVisible()
    assert all(labels[3].text() for labels in page.figures.rows)


def test_predicted_is_only_a_share_of_the_drafted_tokens_and_each_curve_is_called_by_one_name(qtbot, steps):
    trees = [tree_step((-1, 0, -1, 1, 2), path) for path in ((0, 1, 3), (2, 4), ()) for _ in range(20)]
    for made in (steps, trees):
        page = page_of(qtbot, run_of(made))
        page.fold.set_open(True)
        said = [label.text() for label in page.findChildren(QLabel)]
        for by in Grouping:
            page.calibration.show_grouping(by)
            said += [by.title, by.axis, *(name for row in page.calibration.details(0) for name in row)]
            said += [sample.accessibleName() for sample in page.calibration.samples]
        said += [name for row in page.plot.details(2) for name in row]
        said += [sample.accessibleName() for sample in page.plot.samples]
        assert [text for text in said if "predict" in text.replace("predictors", "").lower()] == []
        assert made is trees or "1\u00a0−\u00a0TV, tested tokens" in said
        assert page.compared_note.isVisible()
        assert "leaves out overhead" in page.compared_note.text()
    page = page_of(qtbot, run_of(steps))
    assert {"formula", "if verifying cost one plain forward"} <= {name for name, _ in page.plot.details(2)}
    facts = inspect([replace(steps[0], uniforms=(0.5,) * 4)], Place(0, 0)).facts
    assert [fact.title for fact in facts if "predict" in fact.title.lower()] == []


def test_the_curves_pass_through_one_at_k_0_and_the_point_stands_at_the_runs_own_k(qtbot, steps):
    page = page_of(qtbot, run_of(steps))
    x, y = page.plot.line.getData()
    assert (x[0], y[0]) == (0, pytest.approx(1.0))
    assert x[-1] == 4
    assert page.plot.beyond.getData()[0][[0, -1]].tolist() == [4, 16]
    assert page.plot.point.getData()[0].tolist() == [4]
    assert "extrapolated" in dict(page.plot.details(9))["v(10)"]
    assert page.plot.readout(2) == f"K = 2: {y[2]:.2f}×"
    assert np.all(page.plot.edges[0].getData()[1] <= page.plot.edges[1].getData()[1])
    # The switches show block efficiency, and groups by expectation.
    page.quantity.group.button(1).click()
    assert page.plot.quantity is Quantity.TOKENS
    assert page.plot.readout(0) == "K = 0: 1.00"
    assert page.plot.line.getData()[0][-1] == 16
    assert "position by position" in page.plot.samples[1].accessibleName()
    assert [group.title for group in page.calibration.groups] == ["1", "2", "3", "4"]
    tested = [step for step in steps if 0 in step.tested]
    share = percent_text(sum(step.num_accepted > 0 for step in tested) / len(tested), 1)
    assert page.calibration.readout(0) == f"Position 1: {share} of {len(tested):,} tested"
    page.grouping.group.button(1).click()
    assert page.calibration.grouping is Grouping.TENTHS
    assert page.calibration.details(0)[0][0].startswith("1 − TV")


def test_a_run_without_evidence_says_so_and_one_with_it_shows_correlations(qtbot, steps):
    assert "distributions were not kept" in page_of(qtbot, run_of(steps)).predictors_note.text()
    with_probs, _ = with_evidence(300, count=40, scale=1.0)
    page = page_of(qtbot, run_of(with_probs))
    assert "lower bound" in page.predictors_note.text()
    assert texts(page.predictors.rows)["KL(p||q)"][0].startswith("−")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((), EMPTY),
        ((make_step(0, 9, num_draft_tokens=0, num_accepted=0),) * 30, UNDRAFTED),
        (drawn(0.8, 4, count=7), "×, but too few steps to tell."),
        (drawn(0.0, 4, count=50), "other settings should pay"),
    ],
)
def test_a_run_that_has_little_to_say_says_what_is_missing(qtbot, made, words):
    assert words in page_of(qtbot, run_of(made)).headline.text()


def test_a_run_without_drafts_is_not_compared_with_itself():
    report = speed_report(run_of((make_step(0, 9, num_draft_tokens=0, num_accepted=0),) * 30, baseline=False))
    assert report.headline == UNDRAFTED
    assert (report.parts, report.replaced, report.gains) == ((), (), ())


def test_without_a_plain_step_there_is_no_unit(qtbot, steps):
    run = run_of(steps, baseline=False)
    run.prefill = None
    page = page_of(qtbot, run)
    assert page.headline.text() == NO_UNIT
    assert page.advice[0].button.isVisible()


def test_a_forward_that_took_longer_than_a_whole_step_is_no_unit(steps):
    run = run_of(steps, baseline=False)
    for target_step_ms, is_known in ((12.0, True), (40.0, False)):
        run.prefill = replace(run.prefill, target_step_ms=target_step_ms)
        assert (speed_report(run).headline != NO_UNIT) is is_known


@pytest.mark.parametrize(("theme", "width"), [(LIGHT, 340), (DARK, 620)])
def test_the_page_fits_its_column_its_plots_can_be_saved_and_bars_explain_what_the_pointer_is_on(
    qtbot, apply_theme, steps, theme, width
):
    page = page_of(qtbot, run_of(steps), width)
    page.fold.set_open(True)
    apply_theme(theme)
    assert page.area.widget().minimumSizeHint().width() <= page.area.viewport().width()
    for card in page.cards:
        for kind in PlotFormat:
            assert len(contents_of(kind, card)()) > 100
    assert contents_of(PlotFormat.CSV, page.cards[0])().count("\n") == 18
    places = page.step_bar.parts()
    assert [part.title for part, _ in places] == ["draft", "plain forward", "extra verify time", "overhead"]
    for part, place in places:
        assert page.step_bar.tip_at(place.center()).startswith(part.title)
    assert page.step_bar.tip_at(QPointF(0, 0)) == ""


@pytest.mark.parametrize(
    ("verify_ms", "titles", "meaning"),
    [
        (14.0, ["plain forward", "extra verify time"], "plain forward: "),
        # A plain forward takes 10 ms; verifying may take less on a busy machine.
        (8.0, ["verify"], "verify, plain forward: "),
    ],
)
def test_only_a_plain_forward_is_called_one_and_the_legend_names_what_the_bars_show(qtbot, verify_ms, titles, meaning):
    page = page_of(qtbot, run_of(drawn(0.8, 4, draft_ms=1.0, verify_ms=verify_ms)))
    parts = [part for part, _ in page.step_bar.parts()]
    assert [part.title for part in parts[1:-1]] == titles
    assert sum(part.milliseconds for part in parts[1:-1]) == pytest.approx(verify_ms)
    _, forward, extra, _ = page.samples
    assert forward.accessibleName().startswith(meaning)
    assert extra.isVisibleTo(page) is (len(titles) == 2)


def test_the_page_follows_a_run_only_while_it_is_open_and_its_intervals_come_from_another_thread(
    make_window, qtbot, session
):
    session.gate = threading.Semaphore(30)
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 30)
    assert window.speed.headline.text() == EMPTY
    window.side.setCurrentWidget(window.speed)
    assert "Too early to tell" in window.speed.headline.text()
    assert "30 steps" in window.speed.basis.text()
    assert not window.speed.race_button.isVisible()
    session.gate.release(1000)
    with qtbot.waitSignal(window.live.run_shown):
        pass
    assert f"{window.run_view.summary.measured_speedup:.2f}×" in window.speed.headline.text()
    qtbot.waitUntil(lambda: window.speed.calibration.calibration is not None)
    assert COMPUTING not in window.speed.basis.text()
    window.speed.race_button.click()
    assert window.race.isVisible()


def test_the_next_run_cancels_a_study(qtbot, steps):
    run = run_of(steps)
    page = page_of(qtbot, run)
    page.end()
    job = page._job
    run.begin(run.request)
    page.begin()
    assert job.is_cancelled
    assert page.headline.text() == EMPTY


def test_a_run_of_trees_shows_shapes_beside_a_chain_and_a_chain_again_after_it(qtbot, steps):
    parents = (-1, 0, -1, 1, 2)
    trees = [tree_step(parents, path) for path in ((0, 1, 3), (2, 4), ()) for _ in range(20)]
    page = page_of(qtbot, run_of(trees))
    assert texts(page.compared.rows)["α, acceptance of tested levels"][1] == "–", "α is that of a level"
    shapes = texts(page.shapes.rows)
    assert next(iter(shapes)) == "Tree, K = 5, depth 3"
    assert shapes["Tree, K = 2, depth 1"][0].endswith("×")
    assert "Best K" not in texts(page.figures.rows)
    assert page.plot.line.getData()[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert dict(page.plot.details(4))["chain"]
    assert page.plot.details(4)[0][0] == "K = 4, depth 2"
    assert "chain_speedup" in contents_of(PlotFormat.CSV, page.cards[0])()
    page.plot.show_theory(None)
    page = page_of(qtbot, run_of(steps))
    assert "if verifying cost one plain forward" in page.plot.samples[1].accessibleName()
    assert not page.shapes.isVisible()


@pytest.mark.parametrize("chat", [None, True, False])
def test_the_command_to_copy_has_the_runs_model_and_template_and_quotes_what_a_log_holds(chat, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    texts = ["http://h/$(id); id", "my model", "" if chat is False else "It's $HOME."]
    run = run_of([make_step(0, 3)])
    run.request = replace(run.request, chat=chat, **dict(zip(("engine", "target", "system"), texts, strict=True)))
    args = build_parser().parse_args(shlex.split(speed_report(run).command.replace("\\\n", ""))[1:])
    assert [args.engine, args.target, args.system, args.chat] == [*texts, chat]
