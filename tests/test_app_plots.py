"""What the plots draw is what the events say."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from app.run.run_counts import Column, StepMetrics
from app.run.step_plots import FOLLOWED_STEPS, MAX_BARS, AcceptancePlot, LatencyPlot
from app.theme import LIGHT
from core.analysis.expectation import expected_accepted
from core.text import percent_text
from tests.fakes_app import make_step


def random_steps(count, seed=0):
    source = random.Random(seed)
    for index in range(count):
        k = source.choice((0, 1, 4, 8))
        yield make_step(
            index, 3 * index, num_draft_tokens=k, num_accepted=source.randint(0, k), ms=source.uniform(5, 15)
        )


@pytest.fixture
def metrics():
    return StepMetrics(capacity=4)


@pytest.fixture
def plots(qtbot, sound_binding, metrics):
    made = (AcceptancePlot(metrics), LatencyPlot(metrics))
    for plot in made:
        qtbot.addWidget(plot)
        plot.resize(420, 220)
        plot.set_theme(LIGHT)
    return made


def feed(metrics, steps):
    steps = list(steps)
    for step in steps:
        metrics.append(step)
    return steps


def test_columns_hold_what_the_steps_say_while_the_buffer_doubles(metrics):
    steps = feed(metrics, random_steps(37))
    assert len(metrics) == 37
    assert metrics.column(Column.NUM_DRAFTED).tolist() == [step.num_draft_tokens for step in steps]
    assert metrics.column(Column.NUM_ACCEPTED).tolist() == [step.num_accepted for step in steps]
    assert metrics.column(Column.TOTAL_MS).tolist() == [step.total_ms for step in steps]
    assert metrics.column(Column.VERIFY_MS, 30, 99).tolist() == [step.verify_ms for step in steps[30:]]


def test_running_rates_are_those_of_the_run_so_far(metrics):
    steps = feed(metrics, random_steps(25, seed=3))
    for end in range(1, 26):
        drafted = sum(step.num_draft_tokens for step in steps[:end])
        shown = metrics.column(Column.RUNNING_RATE)[end - 1]
        predicted = metrics.column(Column.PREDICTED_RATE)[end - 1]
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
    assert tile.note.text().startswith("predicted")
    assert plot.predicted_sample.accessibleName().startswith("predicted: ")
    window.controls.sampling.coupling.click()
    run_to_end(window)
    rate = window.run_view.metrics.totals.predicted_acceptance_rate
    assert tile.note.text() == f"rejection would be {percent_text(rate)}"
    assert plot.predicted_line.isVisible()
    assert plot.predicted_sample.accessibleName().startswith("by rejection: ")
    assert window.run_view.metrics.column(Column.PREDICTED_RATE)[-1] == pytest.approx(rate)


def test_bars_and_lines_equal_the_events(metrics, plots):
    acceptance, latency = plots
    steps = feed(metrics, random_steps(30))
    for plot in plots:
        plot.settle(is_over=True)
    shares = [step.num_accepted / step.num_draft_tokens if step.num_draft_tokens else 0 for step in steps]
    assert acceptance.accepted_bars.opts["height"].tolist() == pytest.approx(shares)
    assert acceptance.drafted_bars.opts["height"].tolist() == [float(step.num_draft_tokens > 0) for step in steps]
    assert acceptance.accepted_bars.opts["x"].tolist() == list(range(30))
    np.testing.assert_array_equal(acceptance.rate_line.yData, metrics.column(Column.RUNNING_RATE))
    np.testing.assert_array_equal(acceptance.predicted_line.yData, metrics.column(Column.PREDICTED_RATE))
    for part, name in zip(latency.parts, ("draft_ms", "verify_ms", "sample_ms"), strict=True):
        assert part.opts["height"].tolist() == pytest.approx([getattr(step, name) for step in steps])
    assert latency.parts[0].opts["y0"].tolist() == [0] * 30
    assert latency.parts[2].opts["y0"].tolist() == pytest.approx([step.draft_ms + step.verify_ms for step in steps])


def test_a_running_plot_draws_a_window_of_the_latest_steps_only(metrics, plots):
    feed(metrics, random_steps(500))
    for plot in plots:
        plot.settle(is_over=False)
    drawn = plots[0].accepted_bars.opts["x"]
    assert drawn[-1] == 499
    assert len(drawn) <= FOLLOWED_STEPS + 2


def test_a_long_run_is_drawn_as_means_over_bins(metrics, plots):
    steps = feed(metrics, random_steps(5000))
    plots[1].settle(is_over=True)
    heights = plots[1].parts[1].opts["height"]
    assert len(heights) <= MAX_BARS
    assert heights.mean() == pytest.approx(sum(step.verify_ms for step in steps) / 5000, rel=0.01)


@pytest.mark.parametrize(("width", "expected"), [(1, [1, math.nan, 3, 5, 7]), (2, [1, 4, 7]), (5, [4])])
def test_bins_are_means_that_leave_out_what_is_not_there(width, expected):
    metrics = StepMetrics()
    metrics.append(make_step(0, 0))
    metrics.totals = type(metrics.totals)(steps=5)
    metrics._buffer[Column.ACCEPTED_SHARE, :5] = [1, math.nan, 3, 5, 7]
    np.testing.assert_array_equal(metrics.binned(Column.ACCEPTED_SHARE, 0, 5, width), expected)


def test_the_view_follows_until_the_user_moves_it_and_again_after_a_double_click(metrics, plots):
    plot = plots[0]
    feed(metrics, random_steps(200))
    plot.settle(is_over=False)
    plot.getViewBox().setXRange(10, 40, padding=0)
    plot.getViewBox().sigRangeChangedManually.emit([True, False])
    feed(metrics, random_steps(50))
    plot.refresh()
    assert plot.getViewBox().viewRange()[0] == pytest.approx([10, 40])

    class DoubleClick:
        def double(self):
            return True

    plot._on_mouse_clicked(DoubleClick())
    assert plot.getViewBox().viewRange()[0][1] > 240


def test_the_baseline_line_is_at_its_mean_and_inside_the_view(metrics, plots):
    latency = plots[1]
    feed(metrics, random_steps(10))
    latency.settle(is_over=True)
    latency.set_baseline(40.0)
    assert latency.baseline_line.isVisible()
    assert latency.baseline_line.value() == 40.0
    assert latency.getViewBox().viewRange()[1][1] > 40
    latency.set_baseline(None)
    assert not latency.baseline_line.isVisible()


def test_the_step_under_the_pointer_is_put_into_words(metrics, plots):
    metrics.append(make_step(0, 0, num_draft_tokens=4, num_accepted=3, ms=10.0))
    metrics.append(make_step(1, 4, num_draft_tokens=0, num_accepted=0))
    assert plots[0].readout(0) == "step 0: 3 of 4, running 75\u00a0%"
    assert "nothing drafted" in plots[0].readout(1)
    assert plots[1].readout(0) == "step 0: 4.00 + 5.00 + 0.60 = 9.60 ms"
