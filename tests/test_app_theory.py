"""The page Theory: what it says of a run, when it works, what its plots show, and that nothing is wider than it."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from app.jobs import Jobs
from app.run.pages.theory import EMPTY, LATER, NO_UNIT, UNCALIBRATED, UNDRAFTED, study_of, whole_report
from app.run.pages.theory_page import TheoryPage
from app.run.pages.theory_plots import Grouping, Quantity
from app.theme import DARK, LIGHT
from app.widgets.plot_card import PlotFormat, contents_of
from core.settings import Coupling, RunRequest
from core.types import BlockTest
from tests.fakes_app import make_step, run_of
from tests.test_core_diagnosis import drawn
from tests.test_core_shapes import tree_step
from tests.test_core_theory import with_evidence


@pytest.fixture
def steps():
    return drawn(0.8, 4, draft_ms=1.0, verify_ms=14.0, count=60)


def page_of(qtbot, run, width=340):
    jobs = Jobs()
    page = TheoryPage(run, jobs)
    page._jobs_kept = jobs
    qtbot.addWidget(page)
    page.resize(width, 700)
    page.show()
    page.end()
    qtbot.waitUntil(lambda: jobs.is_idle, timeout=30_000)
    return page


def texts(rows):
    return {labels[0].text(): (labels[1].text(), labels[2].text()) for labels in rows if labels[0].text()}


def test_every_figure_has_its_formula_and_an_interval_where_there_is_one(qtbot, steps):
    page = page_of(qtbot, run_of(steps))
    shown = texts(page.figures.rows)
    assert shown["α, acceptance"][0].startswith("0.")
    assert "–" in shown["Speedup expected"][1]
    assert shown["Best K"][1].endswith("sure")
    assert page.headline.text().startswith("K = ")


def test_a_run_whose_single_tests_have_no_probabilities_says_that_it_is_not_calibrated(steps):
    blocks = [replace(step, block=(BlockTest(1.0, 0.0),) * (step.num_draft_tokens + 1)) for step in steps]
    typical = [replace(step, expected_acceptance=(math.nan,) * step.num_draft_tokens) for step in steps]
    for run, is_missing in ((run_of(blocks), True), (run_of(typical), True), (run_of(steps), False)):
        report = whole_report(run, study_of(run)())
        assert (UNCALIBRATED in report.basis) is is_missing is (report.calibration is None)


def test_the_curves_pass_through_one_at_k_0_and_the_point_stands_at_the_runs_own_k(qtbot, steps):
    page = page_of(qtbot, run_of(steps))
    x, y = page.plot.line.getData()
    assert (x[0], y[0]) == (0, pytest.approx(1.0))
    assert x[-1] == 4
    assert page.plot.beyond.getData()[0][[0, -1]].tolist() == [4, 16]
    assert page.plot.point.getData()[0].tolist() == [4]
    assert "extrapolated" in dict(page.plot.details(9))["v(10)"]
    assert np.all(page.plot.edges[0].getData()[1] <= page.plot.edges[1].getData()[1])


def test_the_switches_show_block_efficiency_and_groups_by_prediction(qtbot, steps):
    page = page_of(qtbot, run_of(steps))
    page.quantity.group.button(1).click()
    assert page.plot.quantity is Quantity.TOKENS
    assert page.plot.readout(0) == "K 0: 1.00"
    assert page.plot.line.getData()[0][-1] == 16
    assert "position by position" in page.plot.legend()[1].accessibleName()
    assert [group.title for group in page.calibration.groups] == ["1", "2", "3", "4"]
    page.grouping.group.button(1).click()
    assert page.calibration.grouping is Grouping.TENTHS
    assert page.calibration.details(0)[0][0].startswith("Predicted")


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
        (drawn(0.8, 4, count=7), "Too few blocks"),
        (drawn(0.0, 4, count=50), "Don't speculate"),
    ],
)
def test_a_run_that_has_little_to_say_says_what_is_missing(qtbot, made, words):
    page = page_of(qtbot, run_of(made))
    assert page.headline.text().startswith(words)


def test_without_a_plain_step_there_is_no_unit_and_shared_noise_is_named_as_a_reason(qtbot, steps):
    run = run_of(steps)
    run.request = RunRequest("t", "d", "x", coupling=Coupling.GUMBEL)
    rows = {row.title: row for row in whole_report(run, study_of(run)()).rows}
    assert "shares its noise" in rows["z of the difference"].how
    run = run_of(steps, baseline=False)
    run.prefill = None
    assert page_of(qtbot, run).headline.text() == NO_UNIT


@pytest.mark.parametrize(("theme", "width"), [(LIGHT, 340), (DARK, 620)])
def test_the_page_fits_its_column_and_both_plots_can_be_saved(qtbot, apply_theme, steps, theme, width):
    page = page_of(qtbot, run_of(steps), width)
    apply_theme(theme)
    assert page.area.widget().minimumSizeHint().width() <= page.area.viewport().width()
    for card in page.cards:
        for kind in PlotFormat:
            assert len(contents_of(kind, card)()) > 100
    (card,) = (card for card in page.cards if card.title == "Expected over K")
    assert contents_of(PlotFormat.CSV, card)().count("\n") == 18


def test_the_window_computes_a_report_in_another_thread_when_the_page_is_open(make_window, qtbot, session):
    session.gate = threading.Semaphore(30)
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 30)
    assert window.theory.headline.text() == EMPTY
    window.side.show_page(window.theory)
    assert LATER in window.theory.basis.text()
    session.gate.release(1000)
    qtbot.waitUntil(lambda: window.theory.calibration.calibration is not None)
    assert "tested tokens" in window.theory.basis.text()


def test_a_running_run_is_shown_without_intervals_and_the_next_one_cancels_a_study(qtbot, steps):
    run = run_of(steps, is_over=False)
    assert LATER in page_of(qtbot, run).basis.text()
    assert study_of(run) is None
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
    assert page.headline.text().startswith("A tree, K = 5, depth 3,")
    shown = texts(page.figures.rows)
    assert shown["Tree, K = 2, depth 1"][0].endswith("×")
    assert "Best K" not in shown
    assert page.plot.line.getData()[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert dict(page.plot.details(4))["chain"]
    assert page.plot.details(4)[0][0] == "K = 4, depth 2"
    (card,) = (card for card in page.cards if card.title == "Expected over K")
    assert "chain_speedup" in contents_of(PlotFormat.CSV, card)()
    page.plot.show_theory(None)
    page = page_of(qtbot, run_of(steps))
    assert "v = 1" in page.plot.legend()[1].accessibleName()
