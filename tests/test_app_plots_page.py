"""The plots that look at a run as a whole: they show its figures, look closer by wheel and key, and rest unseen."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolTip

from app.run.run_counts import Column, PositionCounts
from app.run.run_plots import MAX_POINTS, PlotsPage, stairs
from app.run.run_view import RunView
from app.theme import LIGHT
from core.analysis.expectation import BlockSums, wilson
from core.settings import RunRequest
from core.text import percent_text
from core.types import BaselineStep
from tests.fakes_app import make_step

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
def run():
    view = RunView()
    view.begin(REQUEST)
    return view


@pytest.fixture
def page(show_at, run):
    made = show_at(PlotsPage(run), 384, 640)
    made.begin()
    return made


def test_the_stairs_reach_every_steps_end_and_count(page, run):
    feed(run, 40, plain=25)
    page.end()
    for curve, steps in ((page.timeline.ours_line, run.steps), (page.timeline.plain_line, run.baseline_steps)):
        x, y = curve.getData()
        ends = np.cumsum([step.total_ms for step in steps]) / 1000
        counts = np.cumsum([len(step.emitted) for step in steps])
        np.testing.assert_allclose(x, np.concatenate([[0], np.repeat(ends, 2)]))
        np.testing.assert_allclose(y, np.repeat(np.concatenate([[0], counts]), 2)[:-1])


def test_a_long_run_is_drawn_with_few_points_that_end_where_it_ends(run):
    feed(run, 6000)
    line = run.counts.timeline
    x, y = stairs(line, 0.0, line.end_ms)
    assert len(x) == len(y) <= 2 * MAX_POINTS + 1
    assert (x[0], y[0]) == (0, 0)
    assert (x[-1], y[-1]) == pytest.approx((line.end_ms / 1000, line.num_tokens))
    middle = line.ends_ms[3000]
    x, _ = stairs(line, middle, middle + 200)
    assert x[0] * 1000 <= middle
    assert x[-1] * 1000 >= middle + 200
    assert len(x) < 200


def test_an_empty_plot_has_titles_and_neither_numbers_nor_lines(page, run):
    def axes():
        return [card.plot.getPlotItem().getAxis(name) for card in page.cards for name in ("left", "bottom")]

    page.end()
    assert not any(axis.style["showValues"] or axis.grid for axis in axes())
    assert {axis.pen().style() for axis in axes()} == {Qt.PenStyle.NoPen}
    feed(run, 60)
    page.end()
    assert all(axis.style["showValues"] for axis in axes())
    assert {axis.pen().style() for axis in axes()} == {Qt.PenStyle.SolidLine}
    assert {axis.labelStyle["color"] for axis in axes()} == {LIGHT.muted}


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


def test_tooltips_give_counts_and_units(page, run):
    run.apply(make_step(0, 9, num_draft_tokens=2, num_accepted=1, ms=10.0))
    run.apply(make_step(1, 11, num_draft_tokens=2, num_accepted=0, ms=10.0))
    page.end()
    assert dict(page.positions.details(0))["of all drafted"] == "50.0\u00a0% (1 of 2)"
    assert dict(page.positions.details(1))["if all before were accepted"] == "0.0\u00a0% (0 of 1)"
    assert page.positions.readout(1) == "position 2: 0\u00a0%, 0\u00a0% of tested"
    assert page.timeline.details(8) == [("0.01 s", ""), ("speculative", "2 tokens")]
    run.apply(BaselineStep(make_step(0, 9, num_draft_tokens=0, num_accepted=0, ms=10.0)))
    page.end()
    assert page.timeline.readout(8) == "0.01 s: 2 against 1 tokens"


def test_the_tooltip_appears_over_the_place_that_is_pointed_at(page, run, qtbot):
    feed(run)
    page.end()
    plot = page.positions
    box = plot.getViewBox()
    point = plot.mapFromScene(box.mapViewToScene(box.viewRect().center()))
    QTest.mouseMove(plot.viewport(), point)
    plot._on_mouse_moved(box.mapViewToScene(box.viewRect().center()))
    assert page.cards[1]._readout.text().startswith("position ")
    event = QHelpEvent(QEvent.Type.ToolTip, point, plot.viewport().mapToGlobal(point))
    assert page.cards[1].eventFilter(plot.viewport(), event)
    assert "of all drafted" in QToolTip.text()
    plot.leaveEvent(QEvent(QEvent.Type.Leave))
    assert page.cards[1]._readout.text() == ""


def test_nothing_is_drawn_while_the_page_is_not_seen_and_all_of_it_when_it_is(page, run, qtbot):
    page.hide()
    feed(run, 30)
    page.refresh(has_news=True)
    page.end()
    assert page.timeline._hint.isVisible()
    page.show()
    assert page.timeline.ours.num_tokens == run.tokens.num_tokens
    assert not page.timeline._hint.isVisible()
    assert len(page.positions.bars.opts["height"]) == 6


def test_a_running_run_grows_and_the_next_starts_from_nothing(page, run):
    feed(run, 10)
    page.refresh(has_news=True)
    first = page.timeline.ours.num_tokens
    assert first == run.tokens.num_tokens
    feed(run, 10, plain=3)
    page.refresh(has_news=True)
    assert page.timeline.ours.num_tokens == run.tokens.num_tokens > first
    assert page.timeline.plain.num_tokens == 3
    run.begin(REQUEST)
    page.begin()
    assert (page.timeline.ours.num_tokens, len(page.positions.counts)) == (0, 0)
    assert page.timeline._hint.isVisible()
    assert page.positions._hint.isVisible()


def test_keys_zoom_and_pan_and_bring_all_back(page, run):
    feed(run, 40)
    page.end()
    plot = page.timeline
    whole = plot.getViewBox().viewRange()
    plot.setFocus()
    QTest.keyClick(plot, Qt.Key.Key_Plus)
    closer = plot.getViewBox().viewRange()[0]
    assert closer[1] - closer[0] == pytest.approx(0.8 * (whole[0][1] - whole[0][0]))
    QTest.keyClick(plot, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert plot.getViewBox().viewRange()[0][0] > closer[0]
    feed(run, 5)
    page.end()
    assert plot.getViewBox().viewRange()[0][0] > closer[0], "a view that was moved by hand stays"
    QTest.keyClick(plot, Qt.Key.Key_Home)
    assert plot.getViewBox().viewRange()[0][0] == 0


def test_the_band_around_the_running_rate_is_that_of_the_run_so_far(window, run_to_end):
    run_to_end(window)
    metrics, sums = window.run_view.metrics, BlockSums()
    for index, step in enumerate(window.run_view.steps):
        sums.add(step.num_draft_tokens, step.num_accepted)
        shown = (metrics.column(Column.RATE_LOW)[index], metrics.column(Column.RATE_HIGH)[index])
        expected = sums.interval()
        assert np.isnan(shown).all() if expected is None else shown == pytest.approx(expected)
    upper = window.measurements.acceptance.band_edges[1].getData()[1]
    assert upper[-1] == pytest.approx(sums.interval()[1])
    details = dict(window.measurements.acceptance.details(len(metrics) - 1))
    assert details["95 % band"] == " to ".join(percent_text(bound, 1) for bound in sums.interval())
    assert dict(window.measurements.latency.details(0))["verify"].endswith(" ms")


def test_the_live_page_draws_nothing_behind_another_and_all_of_it_in_front(make_window):
    window = make_window(is_shown=True)
    panel, run = window.measurements, window.run_view
    window.side.show_page(window.plots)
    run.begin(REQUEST)
    panel.begin()
    feed(run, 12)
    panel.refresh(has_news=True)
    assert len(panel.acceptance.accepted_bars.opts["x"]) == 0
    window.side.show_page(panel)
    assert len(panel.acceptance.accepted_bars.opts["x"]) == 12
    assert panel.tiles.speed.value.text() != "–"


def counted(blocks):
    """Counts over blocks of (drafted, accepted)."""
    counts = PositionCounts()
    for drafted, accepted in blocks:
        counts.add(make_step(0, 9, num_draft_tokens=drafted, num_accepted=accepted))
    return counts


def test_positions_count_what_was_drafted_tested_and_accepted():
    counts = counted([(4, 4), (4, 1), (2, 2), (0, 0), (4, 0)])
    assert counts.drafted == [4, 4, 3, 3]
    assert counts.tested == [4, 3, 1, 1]
    assert counts.accepted == [3, 2, 1, 1]
    assert counts.of_drafted(1) == 0.5
    assert counts.of_tested(1) == pytest.approx(2 / 3)
    assert [counted([(3, 0)]).of_tested(position) for position in range(3)] == [0.0, None, None]


def test_conditional_rates_multiply_to_the_unconditional_ones_where_all_blocks_are_as_long():
    source = random.Random(4)
    counts = counted([(5, source.choice((0, 1, 3, 5))) for _ in range(200)])
    product = 1.0
    for position in range(5):
        product *= counts.of_tested(position)
        assert counts.of_drafted(position) == pytest.approx(product)
