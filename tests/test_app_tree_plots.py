"""Plots and figures of a run that drafts trees: bars in tokens, nodes, acceptance by rank, verify time, formulas."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from PySide6.QtCore import QPointF
from PySide6.QtWidgets import QScrollArea

from app.run.measurements import MeasurementsPanel, MetricTiles
from app.run.plots.acceptance_plot import AcceptancePlot
from app.run.plots.tree_plots import CostPlot, RankPlot
from app.run.speed.speed import speed_report
from app.theme import DARK, LIGHT, apply_style, contrast
from core.analysis.diagnosis import LEAST_TIMED
from core.analysis.run_counts import MOST_RANKS
from core.settings import RunRequest
from core.types import BaselineStep, PrefillDone
from tests.fakes_app import make_step, run_of
from tests.fakes_trees import random_tree, tree_step
from tests.test_core_tree_forecast import tree_step as given_step

REQUEST = RunRequest(target="t", draft="d", prompt="x", method="draft-tree")


def feed(run, count=40, seed=0):
    """Plain steps, chains and trees, as auto may choose them."""
    source, position = random.Random(seed), 9
    for index in range(count):
        parents, path = random_tree(source, source.randint(2, 14))
        ms = source.uniform(5, 15)
        k = source.choice((0, 1, 2))
        made = [
            tree_step(index, position, parents, path, ms=ms),
            make_step(index, position, num_draft_tokens=k, num_accepted=source.randint(0, k), ms=ms),
        ]
        run.apply(made[source.random() < 0.4])
        position += len(run.steps[-1].emitted)


@pytest.fixture
def plot(qtbot, sound_binding, run):
    made = AcceptancePlot(run)
    qtbot.addWidget(made)
    made.resize(420, 260)
    return made


def test_no_cards_name_or_readout_makes_the_plots_wider_than_their_column(qtbot, sound_binding, run):
    apply_style(LIGHT, 1.5)
    page = MeasurementsPanel(run)
    qtbot.addWidget(page)
    feed(run)
    page.resize(412, 500)
    page.show()
    assert not page.tree_cards[0].isHidden()
    for card in page.cards:
        card._readout.setText("depth 3, rank 2: 64 %, and more than there is room for")
        card._readout.show()
    plots = page.findChild(QScrollArea, "runPlots")
    try:
        qtbot.waitUntil(lambda: 0 < plots.widget().width() <= plots.viewport().width())
        assert plots.widget().minimumSizeHint().width() <= plots.viewport().width()
    finally:
        apply_style(LIGHT, 1.0)


def test_a_bar_is_as_high_as_the_tree_is_deep_on_one_scale_and_plain_steps_are_hollow(run, plot):
    feed(run)
    plot.settle(is_over=True)
    steps = run.steps
    assert plot.drafted_bars.opts["height"].tolist() == [step.depth for step in steps]
    assert plot.accepted_bars.opts["height"].tolist() == [step.num_accepted for step in steps]
    assert plot.plain_bars.opts["x"].tolist() == [n for n, step in enumerate(steps, 1) if not step.num_draft_tokens]
    assert plot.plain_bars.opts["brush"] is None
    assert not plot.plain_sample.isHidden()
    axis = plot.getPlotItem().getAxis("left")
    assert axis.labelText == "tokens"
    (ticks,) = axis._tickLevels
    assert all(text == f"{place}" for place, text in ticks)
    low, high = plot.getViewBox().viewRange()[1]
    assert low == 0.0
    assert high > max(step.depth for step in steps)
    number, step = next((n, step) for n, step in enumerate(steps) if step.depth < step.num_draft_tokens)
    assert plot.readout(number) == f"step {number + 1}: {step.num_accepted} of {step.depth}, {len(step.drafted)} nodes"
    assert dict(plot.details(number))["nodes scored"].startswith(f"{len(step.drafted)}, ")
    assert plot.table()["drafted_depth"] == [step.depth for step in steps]


def test_a_chain_has_the_same_scale(run, plot):
    for index in range(9):
        run.apply(make_step(index, 9 + 3 * index))
    plot.settle(is_over=True)
    assert plot.getViewBox().viewRange()[1][0] == 0.0
    assert plot._labels["left"] == "tokens"
    assert plot.plain_sample.isHidden()
    assert plot.readout(0) == "step 1: 2 of 4, so far 50\u00a0%"


def test_the_tile_names_the_nodes_their_useful_share_and_the_most_that_one_path_allows(run, qtbot, sound_binding):
    tiles = MetricTiles()
    qtbot.addWidget(tiles)
    for index in range(4):
        run.apply(tree_step(index, 9 + 3 * index, [-1, -1, 0, 0, 1, 1, 2, 2], [0, 2]))
    tiles.show_run(run)
    most = "of 32 nodes, at most 38\u00a0%"  # Depth 3 of 8 nodes.
    assert (tiles.acceptance.value.text(), tiles.acceptance.note.text()) == ("25\u00a0%", most)


# --- Plots ---


@pytest.fixture
def page(show_at, run):
    made = show_at(MeasurementsPanel(run), 384, 900)
    made.begin()
    return made


def test_a_run_of_trees_has_its_own_plots_and_the_next_one_of_chains_the_plot_by_position(page, run):
    shown = (page.positions.isVisible(), page.ranks.isVisible(), page.costs.isVisible())
    assert shown == (False, True, True), "before the first block, too"
    feed(run)
    page.refresh(has_news=True)
    assert (page.positions.isVisible(), page.ranks.isVisible(), page.costs.isVisible()) == (False, True, True)
    run.begin(REQUEST)
    page.begin()
    assert page.ranks.isVisible(), "a tree may be on its way"
    assert page.tiles.acceptance.heading.text() == "Nodes accepted"
    assert not page.ranks.cells
    run.apply(make_step(0, 9))
    page.end()
    assert (page.positions.isVisible(), page.ranks.isVisible()) == (True, False)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_each_cell_is_the_share_of_the_candidates_tested_there_that_were_accepted(page, run, theme, apply_theme):
    apply_theme(theme)
    feed(run, 60, seed=3)
    page.end()
    plot, tested, accepted = page.ranks, Counter(), Counter()
    for step in run.steps:
        parents, siblings = step.parents or range(-1, len(step.drafted) - 1), Counter()
        for node, parent in enumerate(parents):
            cell = step.depths[node], min(siblings[parent], MOST_RANKS - 1)
            siblings[parent] += 1
            tested[cell] += node in step.tested
            accepted[cell] += node in step.path
    assert sum(accepted.values()) == sum(step.num_accepted for step in run.steps)
    shown = [text for text in plot._texts if text.isVisible()]
    assert len(shown) == sum(count > 0 for count in tested.values())
    assert plot.untested_sample.isVisibleTo(page) == (0 in tested.values())
    for index, cell in enumerate(plot.cells):
        rate = accepted[cell] / tested[cell] if tested[cell] else None
        assert plot.rate(cell) == rate
        if rate is None:
            assert plot.bars.opts["brushes"][index].alpha() == 0, "an empty cell"
            assert "never tested" in plot.readout(index)
            continue
        text = plot._texts[index]
        assert text.textItem.toPlainText() == f"{100 * rate:.0f}"
        assert (text.pos().x(), text.pos().y()) == (cell[0] + 1, cell[1] + 1)
        assert contrast(text.color.name(), plot.bars.opts["brushes"][index].name()) >= 3.5
    table = plot.table()
    assert sum(table["tested_tokens"]) == sum(tested.values())


def test_the_cell_under_the_pointer_is_found_by_depth_and_rank(page, run):
    feed(run)
    page.end()
    plot = page.ranks
    for index, (depth, rank) in enumerate(plot.cells):
        point = plot.getViewBox().mapViewToScene(QPointF(depth + 1.2, rank + 0.8))
        assert plot._place_under(point) == index
        assert plot.details(index)[0][0].startswith(f"Depth {depth + 1}, rank {rank + 1}")
    assert plot.getViewBox().yInverted(), "the first candidate is at the top"


def test_verify_time_is_the_median_by_nodes_with_plain_steps_at_0(page, run):
    run.apply(PrefillDone(9, 12.0, 4.0))
    feed(run, 80)
    page.end()
    plot, times = page.costs, {}
    for step in run.steps:
        times.setdefault(step.num_draft_tokens, []).append(step.verify_ms)
    x, y = plot.line.getData()
    assert x.tolist() == sorted(times)
    assert y.tolist() == pytest.approx([statistics.median(times[nodes]) for nodes in sorted(times)])
    assert plot.plain_line.value() == 4.0
    often = [len(times[nodes]) >= LEAST_TIMED for nodes in sorted(times)]
    assert any(often)
    assert not all(often)
    joined = [a and b for a, b in itertools.pairwise(often)]
    assert plot.line.opts["connect"].tolist()[:-1] == joined, "a median of few steps is not part of a trend"
    for _ in range(20):
        run.apply(BaselineStep(replace(run.steps[0], emitted=run.steps[0].emitted[:1], verify_ms=3.0)))
    plot.refresh()
    assert plot.plain_line.value() == 3.0, "the baseline's own forwards are the measure once there are enough"
    assert dict(plot.details(0))["steps"] == f"{len(times[0])}"
    assert plot.readout(0) == f"0 nodes: {statistics.median(times[0]):.2f} ms"
    assert plot.table()["nodes"] == sorted(times)
    assert (plot._place_at(0.3), plot._place_at(max(times) + 3)) == (0, -1)


@pytest.mark.parametrize("kind", [RankPlot, CostPlot])
def test_an_empty_plot_says_what_it_will_show(qtbot, sound_binding, run, kind):
    made = kind(run)
    qtbot.addWidget(made)
    made.refresh()
    assert made._hint.isVisible()
    assert not any(made.table().values())


def test_beside_a_run_of_trees_stands_the_formula_of_the_trees_that_ran_not_of_the_best_depth():
    trees = [given_step((-1, 0, -1, 1, 2), path) for path in ((0, 1), (2,), ()) for _ in range(20)]
    run = run_of(trees)
    report = speed_report(run)
    compared = {row.title: row for row in report.compared}
    tokens = sum(len(step.emitted) for step in trees) / len(trees)
    assert report.theory.trees.depths[5] == 2, "the deepest level was never accepted"
    assert (compared["τ, block efficiency"].value, compared["τ, block efficiency"].interval) == (f"{tokens:.2f}", "–")
    theory, plain = report.theory, run.plain_step.forward_ms
    drafting = sum(step.draft_ms for step in trees) / len(trees) / plain
    shown = compared["Speedup"].interval
    assert shown == f"{tokens / (drafting + theory.verify.values[5]):.2f}×"
    assert shown != f"{theory.measured_verify.values[5]:.2f}×"
    assert {"τ by formula, depth 2", "Speedup by formula, depth 2"} <= {row.title for row in report.figures}
