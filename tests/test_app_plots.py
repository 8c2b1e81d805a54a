"""What the plots draw is what the events say; they zoom by key, and rest unseen."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QScrollArea, QToolTip

from app.run.measurements import MeasurementsPanel, MetricTiles
from app.run.plots.acceptance_plot import AcceptancePlot
from app.run.plots.latency_plot import LatencyPlot
from app.run.plots.step_plot import FOLLOWED_STEPS, MAX_BARS
from app.run.race.race_window import RaceWindow
from core.analysis.expectation import BlockSums, expected_accepted, wilson
from core.analysis.run_counts import Column
from core.settings import LengthPolicy, RunRequest
from core.text import percent_text
from core.types import BaselineStep, Finished, FinishReason
from tests.fakes_app import make_step, make_summary

REQUEST = RunRequest(target="t", draft="d", prompt="x", baseline=True)


def feed(run, count=40, seed=0, plain=0):
    source, position = random.Random(seed), 9
    for index in range(count):
        k = source.choice((0, 2, 6))
        run.apply(make_step(index, position, num_draft_tokens=k, num_accepted=source.randint(0, k)))
        position += len(run.steps[-1].emitted)
    for index in range(plain):
        run.apply(BaselineStep(make_step(index, 9 + index, num_draft_tokens=0, num_accepted=0, ms=9.0)))


@pytest.fixture
def race(show_at, run):
    made = show_at(RaceWindow(run), 800, 700)
    made.begin()
    return made


@pytest.fixture
def page(show_at, run):
    made = show_at(MeasurementsPanel(run), 384, 800)
    made.begin()
    return made


def test_the_stairs_reach_every_steps_end_and_count_with_few_points_in_a_long_run(race, run):
    feed(run, 40, plain=25)
    race.end()
    plot = race.timeline.plot
    for curve, steps in ((plot.ours_line, run.steps), (plot.plain_line, run.baseline_steps)):
        x, y = curve.getData()
        ends = np.cumsum([step.total_ms for step in steps]) / 1000
        counts = np.cumsum([len(step.emitted) for step in steps])
        np.testing.assert_allclose(x, np.concatenate([[0], np.repeat(ends, 2)]))
        np.testing.assert_allclose(y, np.repeat(np.concatenate([[0], counts]), 2)[:-1])
    feed(run, 6000)
    plot.settle(is_over=True)
    line = run.counts.timeline
    x, y = plot.ours_line.getData()
    assert len(x) == len(y) < 6000
    assert y[-1] == pytest.approx(line.num_tokens, rel=0.01)
    first, last = line.ends_ms[3000] / 1000, line.ends_ms[3000] / 1000 + 0.2
    plot.getViewBox().setXRange(first, last, padding=0)
    x, _ = plot.ours_line.getData()
    assert len(x) < 200
    assert x[0] <= first < last <= x[-1]


def test_bars_and_line_are_the_counts_by_position(page, run):
    feed(run, 60)
    page.end()
    plot = page.positions
    blocks = [(step.num_draft_tokens, step.num_accepted) for step in run.steps if step.num_draft_tokens]
    for place in range(6):
        drafted = [kept for k, kept in blocks if k > place]
        tested = [kept for kept in drafted if kept >= place]
        accepted = sum(kept > place for kept in drafted)
        assert plot.bars.opts["height"][place] == pytest.approx(accepted / len(drafted))
        assert plot.line.yData[place] == pytest.approx(accepted / len(tested))
        low, high = wilson(accepted / len(tested), len(tested))
        assert plot.whiskers.opts["top"][place] == pytest.approx(high - accepted / len(tested))
        assert plot.whiskers.opts["bottom"][place] == pytest.approx(accepted / len(tested) - low)


def test_the_menus_of_pyqtgraph_go_with_the_plot_and_are_not_seen_in_it(page):
    for plot in (page.latency, page.positions):
        menu = plot.getPlotItem().ctrlMenu
        assert menu.parent() is plot
        assert menu.isWindow()
        assert not menu.isVisible()


def test_the_place_that_is_pointed_at_has_a_readout_and_a_tooltip(page, run):
    feed(run)
    page.end()
    plot, card = page.positions, page.chain_card
    center = plot.getViewBox().mapViewToScene(plot.getViewBox().viewRect().center())
    plot._on_mouse_moved(center)
    assert card._readout.text().startswith("position ")
    point = plot.mapFromScene(center)
    card.eventFilter(plot.viewport(), QHelpEvent(QEvent.Type.ToolTip, point, plot.viewport().mapToGlobal(point)))
    assert "of all drafted" in QToolTip.text()
    plot.leaveEvent(QEvent(QEvent.Type.Leave))
    assert card._readout.text() == ""


@pytest.mark.parametrize("which", ["page", "race"])
def test_a_hidden_plot_draws_nothing_until_it_is_shown_and_nothing_old_in_the_next_run(which, run, request):
    page = request.getfixturevalue(which)
    plot = page.positions if which == "page" else page.timeline.plot

    def is_empty():
        drawn = plot.bars.opts["height"] if which == "page" else plot.ours_line.yData
        return drawn is None or not any(drawn)

    page.hide()
    feed(run, 30)
    page.refresh(has_news=True)
    page.end()
    assert is_empty()
    page.show()
    assert not plot._hint.isVisible()
    if which == "page":
        assert len(plot.bars.opts["height"]) == 6
    feed(run, 10, plain=3)
    page.refresh(has_news=True)
    if which == "race":
        assert (plot.ours.num_tokens, plot.plain.num_tokens) == (run.num_tokens, 3)
        assert dict(plot.details(8))["speculative"].endswith(" tokens")
    run.begin(REQUEST)
    page.begin()
    assert is_empty()


def test_keys_zoom_and_pan_and_bring_all_back(race, run):
    feed(run, 40)
    race.end()
    plot = race.timeline.plot
    whole = plot.getViewBox().viewRange()
    plot.setFocus()
    QTest.keyClick(plot, Qt.Key.Key_Plus)
    closer = plot.getViewBox().viewRange()[0]
    assert closer[1] - closer[0] == pytest.approx(0.8 * (whole[0][1] - whole[0][0]))
    QTest.keyClick(plot, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert plot.getViewBox().viewRange()[0][0] > closer[0]
    feed(run, 5)
    race.end()
    assert plot.getViewBox().viewRange()[0][0] > closer[0], "a view that was moved by hand stays"
    QTest.keyClick(plot, Qt.Key.Key_Home)
    assert plot.getViewBox().viewRange()[0][0] == 0


def test_the_band_around_the_running_rate_is_that_of_the_run_so_far(window, run_to_end):
    run_to_end(window)
    columns, sums = window.run_view.counts.columns, BlockSums()
    for index, step in enumerate(window.run_view.steps):
        sums.add(step.num_draft_tokens, step.num_accepted)
        shown = (columns[Column.RATE_LOW][index], columns[Column.RATE_HIGH][index])
        expected = sums.interval()
        assert np.isnan(shown).all() if expected is None else shown == pytest.approx(expected)
    upper = window.measurements.acceptance.band_edges[1].getData()[1]
    assert upper[-1] == pytest.approx(sums.interval()[1] * columns[Column.MEAN_DRAFTED][-1]), "in tokens, as the bars"


# --- The plots of single steps ---


def random_steps(count, seed=0):
    source = random.Random(seed)
    for index in range(count):
        k = source.choice((0, 1, 4, 8))
        yield make_step(
            index, 3 * index, num_draft_tokens=k, num_accepted=source.randint(0, k), ms=source.uniform(5, 15)
        )


@pytest.fixture
def plots(qtbot, sound_binding, run):
    made = (AcceptancePlot(run), LatencyPlot(run))
    for plot in made:
        qtbot.addWidget(plot)
        plot.resize(420, 220)
    return made


def append(run, steps):
    steps = list(steps)
    for step in steps:
        run.apply(step)
    return steps


def test_columns_and_running_rates_are_those_of_the_run_so_far(run):
    steps = append(run, random_steps(25, seed=3))
    assert run.counts.columns[Column.NUM_DRAFTED] == [step.num_draft_tokens for step in steps]
    for end in range(1, 26):
        drafted = sum(step.num_draft_tokens for step in steps[:end])
        shown = run.counts.columns[Column.RUNNING_RATE][end - 1]
        predicted = run.counts.columns[Column.PREDICTED_RATE][end - 1]
        if not drafted:
            assert math.isnan(shown)
            assert math.isnan(predicted)
            continue
        assert shown == pytest.approx(sum(step.num_accepted for step in steps[:end]) / drafted)
        expected = sum(expected_accepted(step.acceptance_probs, step.expected_acceptance) for step in steps[:end])
        assert predicted == pytest.approx(expected / drafted)


def test_a_reproducible_run_shows_what_rejection_would_have_accepted(window, run_to_end):
    plot, tile = window.measurements.acceptance, window.measurements.tiles.acceptance
    run_to_end(window)
    assert tile.note.text().startswith("of drafted, predicted")
    assert plot.predicted_sample.accessibleName().startswith("predicted: ")
    assert "Under block verification, the weights are those of its own test" in plot.predicted_sample.accessibleName()
    window.controls.fields["coupling"].click()
    run_to_end(window)
    rate = window.run_view.predicted_acceptance
    assert tile.note.text() == f"rejection sampling {percent_text(rate)}"
    assert plot.predicted_line.isVisible()
    assert plot.predicted_sample.accessibleName().startswith("with rejection sampling: ")
    assert window.run_view.counts.columns[Column.PREDICTED_RATE][-1] == pytest.approx(rate)


def test_a_bar_that_goes_on_above_the_plot_has_an_arrow(run, plots):
    _, latency = plots
    append(run, [make_step(index, 3 * index, num_accepted=2, ms=300.0 if index == 7 else 5.0) for index in range(20)])
    latency.settle(is_over=True)
    x, y = latency.cut.getData()
    assert [round(place) for place in x] == [8]
    assert 0 < y[0] < latency.getViewBox().viewRange()[1][1]


def test_bars_and_lines_equal_the_events(run, plots):
    acceptance, latency = plots
    steps = append(run, random_steps(30))
    for plot in plots:
        plot.settle(is_over=True)
    assert acceptance.accepted_bars.opts["height"].tolist() == [step.num_accepted for step in steps]
    assert acceptance.drafted_bars.opts["height"].tolist() == [step.num_draft_tokens for step in steps]
    assert acceptance.accepted_bars.opts["x"].tolist() == list(range(1, 31))
    assert acceptance.plain_bars.opts["x"].tolist() == [
        n for n, step in enumerate(steps, 1) if not step.num_draft_tokens
    ]
    blocks = np.maximum.accumulate([sum(step.num_draft_tokens > 0 for step in steps[: n + 1]) for n in range(30)])
    np.testing.assert_allclose(
        acceptance.rate_line.yData, np.cumsum([step.num_accepted for step in steps]) / np.maximum(blocks, 1)
    )
    columns = run.counts.columns
    predicted = np.array(columns[Column.PREDICTED_RATE]) * columns[Column.MEAN_DRAFTED]
    np.testing.assert_allclose(acceptance.predicted_line.yData, predicted)
    for part, name in zip(latency.parts, ("draft_ms", "verify_ms", "sample_ms"), strict=True):
        per_token = [getattr(step, name) / len(step.emitted) for step in steps]
        assert part.opts["height"].tolist() == pytest.approx(per_token)
    assert latency.parts[0].opts["y0"].tolist() == [0] * 30
    below = [(step.draft_ms + step.verify_ms) / len(step.emitted) for step in steps]
    assert latency.parts[2].opts["y0"].tolist() == pytest.approx(below)
    times, tokens = (np.cumsum(values) for values in zip(*((s.total_ms, len(s.emitted)) for s in steps), strict=True))
    np.testing.assert_allclose(latency.mean_line.yData, times / tokens)
    shown = dict(latency.details(7))
    assert shown["verify"] == f"{steps[7].verify_ms:.2f} ms"
    assert shown["per token"] == f"{steps[7].total_ms / len(steps[7].emitted):.2f} ms"


def test_the_k_that_a_policy_chose_is_a_line_over_the_steps_and_none_if_it_is_fixed(run, plots):
    acceptance = plots[0]
    steps = append(run, random_steps(6))
    acceptance.settle(is_over=True)
    assert not acceptance.chosen_line.isVisible()
    assert acceptance.chosen_sample.isHidden()
    run.begin(replace(REQUEST, num_draft_tokens=None, length_policy=LengthPolicy.ADAPTIVE))
    for step in steps:
        run.apply(step)
    acceptance.settle(is_over=True)
    assert acceptance.chosen_line.isVisible()
    assert not acceptance.chosen_sample.isHidden()
    assert acceptance.chosen_line.yData.tolist() == [step.num_draft_tokens for step in steps for _ in range(2)]
    tiles = MetricTiles()
    tiles.show_run(run)
    assert not tiles.chosen.isHidden()
    assert tiles.chosen.value.text() == str(steps[-1].num_draft_tokens)
    mean = sum(step.num_draft_tokens for step in steps) / 6
    assert tiles.chosen.note.text().startswith(f"by adaptive, {mean:.1f} on average")
    run.begin(REQUEST)
    tiles.show_run(run)
    assert tiles.chosen.isHidden()


def test_the_run_before_is_a_faint_line_until_it_is_switched_off(run, plots):
    before = append(run, random_steps(40))
    for plot in plots:
        plot.settle(is_over=True)
        assert plot.previous_line.xData is None or not len(plot.previous_line.xData)
        assert plot._previous_sample.isHidden()
    run.begin(REQUEST)
    append(run, random_steps(10))
    ms = np.cumsum([step.total_ms for step in before]) / np.cumsum([len(step.emitted) for step in before])
    for plot in plots:
        plot.settle(is_over=False)
        assert not plot._previous_sample.isHidden()
        assert len(plot.previous_line.yData) == 40, "further than the current run has come"
    np.testing.assert_allclose(plots[1].previous_line.yData, ms)
    assert plots[1].getViewBox().viewRange()[1][1] >= ms.max()
    for plot in plots:
        plot.show_previous(False)
        assert plot.previous_line.xData is None or not len(plot.previous_line.xData)
        assert plot._previous_sample.isHidden()


def test_a_running_plot_draws_the_latest_steps_only_and_a_long_run_as_means_over_bins(run, plots):
    first, *others = random_steps(5000)
    steps = append(run, [replace(first, verify_ms=math.nan, total_ms=math.nan), *others])
    plots[0].settle(is_over=False)
    drawn = plots[0].accepted_bars.opts["x"]
    assert drawn[-1] == 5000
    assert len(drawn) <= FOLLOWED_STEPS + 2
    plots[1].settle(is_over=True)
    heights, width = plots[1].parts[1].opts["height"], math.ceil(5000 / MAX_BARS)
    assert len(heights) <= MAX_BARS
    for place, binned in enumerate((steps[1:width], steps[width : 2 * width])):  # The first step has no time.
        of_bin = sum(step.verify_ms for step in binned) / sum(len(step.emitted) for step in binned)
        assert heights[place] == pytest.approx(of_bin)


def test_the_view_follows_until_it_is_moved_by_hand_and_again_after_a_double_click(run, plots):
    plot = plots[0]
    append(run, random_steps(200))
    plot.settle(is_over=False)
    plot.getViewBox().setXRange(10, 40, padding=0)
    plot.getViewBox().sigRangeChangedManually.emit([True, False])
    append(run, random_steps(50))
    plot.refresh()
    assert plot.getViewBox().viewRange()[0] == pytest.approx([10, 40])
    plot._on_mouse_clicked(SimpleNamespace(double=lambda: True))
    assert plot.getViewBox().viewRange()[0][1] > 240


def test_the_baseline_line_is_at_its_mean_and_inside_the_view(run, plots):
    latency = plots[1]
    append(run, random_steps(10))
    latency.settle(is_over=True)
    run.apply(BaselineStep(make_step(0, 9, num_draft_tokens=0, num_accepted=0, ms=40.0 / 0.56)))
    latency.refresh()
    assert latency.baseline_line.isVisible()
    assert latency.baseline_line.value() == pytest.approx(40.0)
    assert latency.getViewBox().viewRange()[1][1] > 40
    run.begin(REQUEST)
    latency.refresh()
    assert not latency.baseline_line.isVisible()
    assert not latency._baseline_sample.isHidden(), "it is to come"
    run.apply(Finished(make_summary([], FinishReason.CANCELLED)))
    latency.refresh()
    assert latency._baseline_sample.isHidden(), "it is not"


def test_the_run_page_shows_all_of_its_plots_without_a_scroll_bar_at_1280_by_800(make_window, qtbot):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    area = window.findChild(QScrollArea, "runPlots")
    for _ in range(2):  # The second has the first in its plots' legends.
        with qtbot.waitSignal(window.live.run_shown):
            window.prompt.run_button.click()
        # Three lines, as above a slow run.
        window.conclusion.advice.text.setText("Try this: set K to 2.")
        window.conclusion.advice.text.show()
        window.conclusion.show()
        qtbot.waitUntil(lambda: window.conclusion.isVisible() and area.verticalScrollBar().maximum() == 0)
    assert not window.measurements.acceptance._previous_sample.isHidden()
    for card in window.measurements.cards[:3]:
        assert card.plot.getViewBox().height() >= 45, "high enough to be read"


def test_a_low_plot_keeps_the_unit_of_its_vertical_title(show_at, run):
    plot = show_at(LatencyPlot(run), 300, 240)
    axis = plot.getPlotItem().getAxis("left")
    for height, title in ((240, "ms per token"), (80, "ms"), (240, "ms per token")):
        plot.resize(300, height)
        assert (axis.labelText, axis.label.opacity()) == (title, 1.0)
    plot.resize(300, 80)
    feed(run)
    plot.refresh()
    assert (axis.labelText, axis.label.opacity()) == ("ms", 1.0), "with its first data"


def test_the_axes_of_a_plot_that_shrank_are_those_of_a_low_one(show_at, run):
    found = []
    for before in (80, 209):
        plot = show_at(AcceptancePlot(run), 290, before)
        plot.resize(290, 80)
        found.append((plot.getPlotItem().getAxis("bottom").geometry(), plot.getViewBox().geometry()))
    assert found[0] == found[1]
