"""Runs side by side: what differs first, the results, and the curves over one another."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PySide6.QtCore import QRectF, Qt

from app.theme import DARK, LIGHT
from app.tools.runs.compare import AGREEING, DIFFERING, RESULTS, ComparePage
from app.tools.runs.comparison import MAX_POINTS, MAX_RUNS, compare, curve
from app.tools.runs.overlay_plot import DASHES, MARKERS, RunSample, run_color
from app.widgets.pictures import to_csv
from core.analysis.run_counts import RunCounts
from core.runlog.store import RunStore
from tests.fakes_app import MIN_BAR_CONTRAST, contrast, make_step
from tests.fakes_runs import keep_run


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def comparison(folder):
    """All kept runs, the oldest first."""
    store = RunStore(folder)
    return compare([(run, store.load(run.id)) for run in sorted(store.runs(), key=lambda run: run.id)])


def row(rows, title):
    return next(found for found in rows if found.title == title)


def test_settings_that_differ_come_first_and_the_same_run_twice_differs_in_nothing(folder):
    keep_run(folder, 0, prompt="p", num_draft_tokens=4)
    keep_run(folder, 1, prompt="p", num_draft_tokens=4)
    found = comparison(folder)
    assert found.differing == ()
    assert all(line.best == frozenset() for line in found.results)
    assert row(found.results, "Text").texts == ("reference", "same")
    keep_run(folder, 1, prompt="p", num_draft_tokens=8, temperature=0.2)
    found = comparison(folder)
    assert [line.title for line in found.differing] == ["K", "Temperature"]
    assert row(found.differing, "K").texts == ("4", "8")
    assert row(found.agreeing, "Target").texts == ("tiny-target", "tiny-target")
    assert {"Prompt", "Seed", "Coupling"} <= {line.title for line in found.agreeing}


def test_runs_with_the_same_name_are_distinguished_by_a_setting_or_a_number(folder):
    keep_run(folder, 0, prompt="p", num_draft_tokens=4)
    keep_run(folder, 1, prompt="p", num_draft_tokens=8)
    keep_run(folder, 2, prompt="q", num_draft_tokens=8)
    assert comparison(folder).names == ("p · K 4", "p · K 8", "q")
    keep_run(folder, 3, prompt="p", num_draft_tokens=8)
    assert comparison(folder).names == ("p · no. 1", "p · no. 2", "q", "p · no. 4")


def test_results_are_those_of_the_logs_and_the_best_are_marked(folder):
    keep_run(folder, 0, step_ms=10.0, baseline=True)
    keep_run(folder, 1, step_ms=5.0)
    store = RunStore(folder)
    found = comparison(folder)
    speeds = [run.summary["tokens_per_second"] for run in found.runs]
    assert row(found.results, "Tokens per second").texts == tuple(f"{speed:,.1f}" for speed in speeds)
    assert row(found.results, "Tokens per second").best == {1}
    speedup = row(found.results, "Measured speedup")
    assert speedup.texts[1] == "–"
    assert speedup.best == frozenset(), "one figure is no contest"
    steps = store.load(found.runs[0].id).steps
    mean = sum(step["verify_ms"] for step in steps) / len(steps)
    assert row(found.results, "  verify, ms").texts[0] == f"{mean:.2f}"


def test_a_changed_temperature_is_reported(folder):
    run_id = keep_run(folder, 0)
    keep_run(folder, 1)
    path = folder / f"{run_id}.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "temperature": 0.1})
    path.write_text("\n".join(lines) + "\n")
    assert row(comparison(folder).differing, "Temperature").texts == ("0.8, changed during the run", "0.8")


def test_runs_without_steps_or_summary_can_be_compared(folder):
    keep_run(folder, 0, lines=1)
    keep_run(folder, 1, lines=4)
    found = comparison(folder)
    assert row(found.results, "End").texts == ("cut off", "cut off")
    assert row(found.results, "Steps").texts == ("0", "3")
    assert found.curves[0].tokens.tolist() == [0.0]


def test_curves_add_up_and_are_thinned_out_with_both_ends_kept():
    steps = [make_step(index, 9 + 3 * index, num_accepted=2) for index in range(5000)]
    counts = RunCounts()
    for step in steps:
        counts.add(step)
    found = curve(counts)
    assert found.tokens.size <= MAX_POINTS
    assert (found.tokens[0], found.tokens[-1]) == (0, 15_000)
    assert found.seconds[-1] == pytest.approx(sum(step.total_ms for step in steps) / 1000)
    assert np.isnan(found.acceptance[0])
    assert found.acceptance[-1] == pytest.approx(0.5)


@pytest.fixture
def page(qtbot, folder):
    """A page that shows three runs, of which one was cut off at once."""
    keep_run(folder, 0, prompt="first")
    keep_run(folder, 1, prompt="second", num_draft_tokens=8)
    keep_run(folder, 2, prompt="third", lines=1)
    page = ComparePage(lambda: None, print)
    qtbot.addWidget(page)
    page.show_comparison(comparison(folder))
    return page


def cells(page):
    """The first run's cells by the titles of their rows."""
    table = page.table
    return {table.item(row, 0).text(): table.item(row, 1) for row in range(table.rowCount())}


def test_the_page_lists_differences_then_results_and_shared_settings_on_request(page):
    def sections():
        return [title for title, cell in cells(page).items() if cell is None]

    assert sections() == [DIFFERING, RESULTS]
    assert cells(page)["K"].background().color().name() == LIGHT.correction_tint
    assert cells(page)["Tokens per second"].background().style() is Qt.BrushStyle.NoBrush
    page.agreeing.click()
    assert sections() == [DIFFERING, RESULTS, AGREEING]
    page.agreeing.click()
    assert sections() == [DIFFERING, RESULTS]


def test_each_run_has_a_curve_in_both_plots_under_its_name_until_the_next_comparison(page, folder):
    names = [page.table.horizontalHeaderItem(column).toolTip() for column in (1, 2, 3)]
    assert names == ["first", "second", "third"]
    assert [sample.toolTip() for sample in page.samples] == names
    for plot in (page.acceptance, page.time):
        assert len(plot.lines) == len(plot.markers) == 3
        assert len({plot.lines[index].opts["pen"].color().name() for index in range(3)}) == 3
    assert page.time.readout(0) == "0.00 s: 0 · 0 · 0"
    assert [name for name, _ in page.time.details(0)[1:]] == names
    assert page.time.details(10)[3] == ("third", "ended")
    assert to_csv(page.acceptance.table()).startswith("run,tokens,running_acceptance")
    store = RunStore(folder)
    page.show_comparison(compare([(run, store.load(run.id)) for run in list(store.runs())[1:]]))
    assert page.table.columnCount() == 3
    assert len(page.acceptance.lines) == len(page.samples) == 2


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_no_two_runs_share_a_colour_a_line_style_or_a_marker_and_all_stand_out(theme, qtbot, apply_theme):
    apply_theme(theme)
    colors = [run_color(theme, index) for index in range(MAX_RUNS)]
    assert len(set(colors)) == len(set(DASHES)) == len(set(MARKERS)) == MAX_RUNS
    assert all(contrast(color, theme.surface) >= MIN_BAR_CONTRAST for color in colors)
    for index in range(MAX_RUNS):
        sample = RunSample("a run with a long name that has to be cut somewhere", index)
        qtbot.addWidget(sample)
        picture = sample.grab().toImage()
        middle = QRectF(0, 0, 32, picture.height()).center().toPoint()
        assert picture.pixelColor(middle).name() == colors[index]
        assert sample.sizeHint().width() < 260
