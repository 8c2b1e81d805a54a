"""Runs side by side: what differs first, the results, and the curves over one another."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics

import core.export.run_data
from app.theme import DARK, LIGHT, contrast, scaled
from app.tools.runs.compare_page import AGREEING, DIFFERING, MEANS, MEANS_WITH_BEST, WITH_BEST, ComparePage
from app.tools.runs.comparison import MAX_POINTS, MAX_RUNS, Curve, compare, curves, mean_curve
from app.tools.runs.overlay_plot import DASHES, MARKERS, SAMPLE_WIDTH, RunSample, run_color
from app.widgets.legend import flow
from app.widgets.pictures import to_csv
from core.analysis.run_counts import RunCounts
from core.errors import OutriderError
from core.export.run_data import FIGURES
from core.runlog.store import Label, RunStore
from tests.fakes_app import MIN_BAR_CONTRAST, make_step
from tests.fakes_runs import keep_run

CELL_PADDING = 24


def comparison(folder, **how):
    """All kept runs, the oldest first."""
    store = RunStore(folder)
    return compare([(run, store.load(run.id)) for run in sorted(store.runs(), key=lambda run: run.id)], **how)


def shown(samples):
    return [sample for sample in samples if not sample.isHidden()]


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


def test_columns_are_named_by_what_differs_or_by_the_user_never_by_ids(folder):
    keep_run(folder, 0, prompt="p", num_draft_tokens=4, draft="somebody/tiny-draft")
    ids = [keep_run(folder, 1, prompt="p", num_draft_tokens=8, method="prompt-lookup", draft=None)]
    assert comparison(folder).names == ("K 4 · tiny-draft · draft-model", "K 8 · prompt-lookup")
    keep_run(folder, 0, prompt="p", num_draft_tokens=4)
    keep_run(folder, 1, prompt="p", num_draft_tokens=8)
    ids += [keep_run(folder, 2, prompt="q", num_draft_tokens=8)]
    assert comparison(folder).names == ("K 4 · p", "K 8 · p", "K 8 · q")
    RunStore(folder).label(Label.NAME, "mine", ids[1])
    keep_run(folder, 3, prompt="p", num_draft_tokens=8)
    assert comparison(folder).names == ("K 4 · p", "K 8 · p · no. 2", "mine", "K 8 · p · no. 4")


def test_models_of_the_same_name_in_different_folders_are_two_settings_and_numbered(folder):
    for index, place in enumerate(("/a/step-1000/model", "/b/step-9000/model", "/a/step-1000/model")):
        keep_run(folder, index, prompt="p", draft=place, step_ms=5.0 if index == 1 else 9.0)
    found = comparison(folder, grouped=True)
    assert row(found.differing, "Draft").texts == ("model", "model (2)")
    assert found.names == ("model · mean of 2", "model (2)")
    assert row(found.results, "Tokens per second").best == {1}, "the drafts make the difference"


def test_a_sign_that_tells_no_more_columns_apart_leaves_room_for_one_that_does(folder):
    for index, (k, t, rule) in enumerate([(4, 0.5, "token"), (4, 0.5, "block"), (8, 1.0, "token")]):
        draft = "a" if k == 4 else "b"
        keep_run(folder, index, prompt="p", num_draft_tokens=k, temperature=t, draft=draft, verification=rule)
    assert comparison(folder).names == ("K 4 · T 0.5 · token", "K 4 · T 0.5 · block", "K 8 · T 1 · token")


def test_a_setting_without_a_sign_of_its_own_tells_columns_apart_before_a_number_does(folder):
    for index, length in enumerate((20, 20, 24, 24)):
        keep_run(folder, index, prompt="p", seed=index, max_new_tokens=length)
    names = comparison(folder, grouped=True).names
    assert names == ("Maximum new tokens 20 · mean of 2", "Maximum new tokens 24 · mean of 2")


def test_runs_with_the_same_settings_become_their_mean_with_its_range(folder):
    for index in range(3):
        keep_run(folder, index, seed=index, num_draft_tokens=4, step_ms=8.0 + index)
    for index in range(3, 5):
        keep_run(folder, index, num_draft_tokens=8, step_ms=9.0)
    alone, found = comparison(folder), comparison(folder, grouped=True)
    assert alone.can_group
    assert len(alone.names) == 5
    assert found.names == ("K 4 · mean of 3", "K 8 · mean of 2")
    assert [len(column) for column in found.columns] == [3, 2]
    assert "Text" not in [line.title for line in found.results]
    speeds = [run.summary["tokens_per_second"] for run in found.runs]
    expected = [f"{np.mean(part):,.1f} ({min(part):,.1f} to {max(part):,.1f})" for part in (speeds[:3], speeds[3:])]
    shown_speeds = row(found.results, "Tokens per second")
    assert shown_speeds.texts == (expected[0], f"{speeds[3]:,.1f}"), "equal figures have no range"
    assert shown_speeds.best == frozenset(), "the means are within half a range"
    shares = found.acceptance[0]
    assert 0.0 <= np.nanmin(shares.low) <= np.nanmax(shares.high) <= 1.0
    assert found.time[0].x[-1] == max(curve.x[-1] for curve in alone.time[:3]), "until the last one ends"
    assert found.time[1].low is not None, "two runs have a range, too"
    keep_run(folder, 5, num_draft_tokens=2)
    assert comparison(folder, grouped=True).names[2] == "K 2"


def test_a_group_says_in_how_many_of_its_runs_the_interval_of_the_speedup_includes_1(page, folder, monkeypatch):
    found = {"a": (0.90, 1.20), "b": (1.10, 1.30), "c": (0.996, 1.40), "d": None, "e": (1.05, 1.33)}
    interval = property(lambda run: found[run.setting("prompt")])
    monkeypatch.setattr("core.export.run_data.RunData.interval", interval)
    for path in folder.iterdir():
        path.unlink()
    for index, prompt in enumerate(found):
        keep_run(folder, index, prompt=prompt, baseline=True, num_draft_tokens=8 if prompt == "e" else 4)
    grouped = comparison(folder, grouped=True)
    titles = [line.title for line in grouped.results]
    assert titles.index("Speedup, 95 % interval") == titles.index("Measured speedup") + 1
    assert row(grouped.results, "Speedup, 95 % interval").texts == ("includes 1.00× in 2 of 3 runs", "1.05 to 1.33")
    assert row(grouped.results, "Runs").texts == ("4", "1")
    run_id = keep_run(folder, 5, num_draft_tokens=4)
    lone = row(comparison(folder, grouped=True).results, "Measured speedup").texts
    assert lone[0].endswith(" in 4 of 5 runs"), "one ran no baseline"
    assert " in " not in lone[1]
    (folder / f"{run_id}.jsonl").unlink()
    page.show_comparison(grouped)
    assert {MEANS, MEANS_WITH_BEST} & cells(page).keys()


def test_what_differs_within_a_group_is_listed_as_differing(folder):
    for index in range(2):
        keep_run(folder, index, seed=index)
    found = comparison(folder, grouped=True)
    assert row(found.differing, "Seed").texts == ("0, 1",)
    assert "Seed" not in [line.title for line in found.agreeing]


def test_more_settings_than_columns_are_refused(folder):
    for index in range(MAX_RUNS + 1):
        keep_run(folder, index, num_draft_tokens=index + 1)
    with pytest.raises(OutriderError, match="7 different combinations of settings"):
        comparison(folder)
    with pytest.raises(OutriderError, match="Select fewer"):
        comparison(folder, grouped=True)


def test_results_are_those_of_the_logs_and_the_best_are_marked(folder):
    keep_run(folder, 0, step_ms=10.0, baseline=True, num_draft_tokens=4)
    keep_run(folder, 1, step_ms=5.0, num_draft_tokens=8)
    store = RunStore(folder)
    found = comparison(folder)
    speeds = [run.summary["tokens_per_second"] for run in found.runs]
    assert row(found.results, "Tokens per second").texts == tuple(f"{speed:,.1f}" for speed in speeds)
    assert row(found.results, "Tokens per second").best == {1}
    speedup = row(found.results, "Measured speedup")
    assert speedup.texts[1] == "–"
    assert speedup.best == frozenset(), "one figure is no contest"
    titles = [line.title for line in found.results]
    between = found.results[titles.index("Measured speedup") + 1]
    low, high = map(float, between.texts[0].split(" to "))
    assert low <= float(speedup.texts[0].rstrip("×")) <= high
    assert (between.title, between.texts[1]) == ("Speedup, 95 % interval", "–")
    steps = store.load(found.runs[0].id).steps
    mean = sum(step["verify_ms"] for step in steps) / len(steps)
    assert row(found.results, "  verify, ms").texts[0] == f"{mean:.2f}"


def test_nothing_is_best_among_runs_that_differ_only_in_their_seed_or_on_a_busy_machine(folder, monkeypatch):
    keep_run(folder, 0, step_ms=10.0)
    keep_run(folder, 1, step_ms=5.0)
    assert row(comparison(folder).results, "Tokens per second").best == frozenset()
    keep_run(folder, 2, step_ms=5.0, num_draft_tokens=8)
    assert row(comparison(folder).results, "Tokens per second").best
    monkeypatch.setattr(core.export.run_data, "busy_note", lambda run, *_: "busy" if run.num_steps else "")
    found = comparison(folder)
    assert row(found.results, "Tokens per second").best == frozenset()
    assert row(found.results, "Machine").texts == ("busy",) * 3
    assert row(comparison(folder, grouped=True).results, "Machine").texts == ("busy", "busy")
    seen = iter(("busy", "", ""))
    monkeypatch.setattr(core.export.run_data, "busy_note", lambda *_: next(seen))
    spreads = iter((0.1, 0.1, None))
    monkeypatch.setattr("app.tools.runs.comparison.unsteadiness", lambda *_: next(spreads))
    assert row(comparison(folder).results, "Machine").texts == ("busy", "steady", "–")
    seen, spreads = iter(("busy", "", "")), iter((0.9, 0.1, 0.1))
    assert row(comparison(folder, grouped=True).results, "Machine").texts == ("busy in 1 of 2", "steady")
    assert row(found.results, title := "Acceptance, of drafted tokens").best, "only times depend on a busy machine"
    keep_run(folder, 3, method="draft-tree")
    monkeypatch.undo()
    assert not row(comparison(folder).results, title).best, "most nodes of a tree can't be accepted"


def test_branches_with_different_forced_tokens_differ_are_named_by_them_and_have_no_mean(folder):
    for index, word in enumerate(("\n cat", " dog", " dog", "")):
        keep_run(folder, index, prompt="p", forced_text=word)
    found = comparison(folder, grouped=True)
    assert [(line.title, line.texts) for line in found.differing] == [("Begins with", ("\n cat", " dog", "–"))]
    assert found.names == ("Begins with cat", "Begins with dog · mean of 2", "p")


def test_runs_with_temperatures_that_were_changed_differently_are_told_apart(folder):
    for index, temperature in enumerate((0.1, 1.5)):
        path = folder / f"{keep_run(folder, index)}.jsonl"
        lines = path.read_text().splitlines()
        lines[2] = json.dumps({**json.loads(lines[2]), "temperature": temperature})
        path.write_text("\n".join(lines) + "\n")
    keep_run(folder, 2)
    found = comparison(folder, grouped=True)
    assert row(found.differing, "Temperature").texts == (
        "0.8, then 0.1 from step 2, 0.8 from step 3",
        "0.8, then 1.5 from step 2, 0.8 from step 3",
        "0.8",
    )
    assert found.names == ("T 0.8, then 0.1 from step…", "T 0.8, then 1.5 from step…", "T 0.8")


def test_runs_without_steps_or_summary_can_be_compared(folder):
    keep_run(folder, 0, lines=1)
    keep_run(folder, 1, lines=4)
    found = comparison(folder)
    assert row(found.results, "Ended by").texts == ("no end in its log",) * 2
    assert row(found.results, "Steps").texts == ("0", "3")
    assert found.acceptance[0].x.tolist() == [0.0]


def test_curves_add_up_and_are_thinned_out_with_both_ends_kept():
    steps = [make_step(index, 9 + 3 * index, num_accepted=2) for index in range(5000)]
    counts = RunCounts()
    for step in steps:
        counts.add(step)
    acceptance, time = curves(counts)
    assert acceptance.x.size <= MAX_POINTS
    assert (acceptance.x[0], acceptance.x[-1]) == (0, 15_000)
    assert time.x[-1] == pytest.approx(sum(step.total_ms for step in steps) / 1000)
    assert np.isnan(acceptance.y[0])
    assert acceptance.y[-1] == pytest.approx(0.5)


@pytest.fixture
def page(qtbot, folder):
    """A page that shows three runs, of which one was cut off at once."""
    keep_run(folder, 0, prompt="first")
    keep_run(folder, 1, prompt="second", num_draft_tokens=8)
    keep_run(folder, 2, prompt="third", lines=1)
    page = ComparePage(lambda: None, print, print)
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

    assert sections() == [DIFFERING, WITH_BEST]
    assert cells(page)["K"].background().color().name() == LIGHT.correction_tint
    assert cells(page)["Tokens per second"].background().style() is Qt.BrushStyle.NoBrush
    page.agreeing.click()
    assert sections() == [DIFFERING, WITH_BEST, AGREEING]
    page.agreeing.click()
    assert sections() == [DIFFERING, WITH_BEST]


def test_long_prompts_are_shown_from_where_they_differ_and_whole_in_the_tooltip(page, folder):
    for index, end in enumerate(("Write fib.", "Write a poem.", "Write tests.")):
        keep_run(folder, index, prompt="You are given some Python. " * 12 + end)
    page.show_comparison(comparison(folder))
    assert cells(page)["Prompt"].text() == "…thon. Write fib."
    assert "You are given" in cells(page)["Prompt"].toolTip()


def test_every_result_has_a_title_that_is_shown_whole_and_tells_it_from_its_neighbours(page):
    metrics, room = QFontMetrics(page.table.font()), page.table.columnWidth(0) - scaled(CELL_PADDING)
    assert [figure.title for figure in FIGURES if metrics.horizontalAdvance(figure.title) > room] == []
    found = cells(page)
    assert {"Predicted speedup (total times)", "Block efficiency, all steps"} <= set(found)
    assert found["α, of tested tokens"].text().endswith("%")
    assert found["Acceptance, of drafted tokens"].text().endswith("%")


def test_the_titles_of_the_rows_stay_when_the_table_is_scrolled_to_the_last_run(page, apply_theme, folder, qtbot):
    apply_theme(LIGHT, 1.5)
    keep_run(folder, 3, prompt="fourth", num_draft_tokens=2)
    page.show_comparison(comparison(folder))
    page.resize(760, 700)
    page.show()
    table, titles = page.table, page.table.titles
    assert not titles.isVisible(), "the table has its own"
    table.horizontalScrollBar().setValue(table.horizontalScrollBar().maximum())
    table.verticalScrollBar().setValue(20)
    assert titles.isVisible()
    row = table.rowAt(60)
    ours, own = (view.viewport().mapTo(table, view.visualRect(view.model().index(row, 0)).topLeft())
                 for view in (titles, table))  # fmt: skip
    assert ours.y() == own.y()
    assert 0 <= ours.x() < 3 > own.x()
    assert titles.width() == table.columnWidth(0)
    own_index = titles.model().index(row, 0)
    last = table.visualRect(table.model().index(row, table.columnCount() - 1))
    assert last.right() <= table.viewport().width()
    assert last.left() >= titles.width(), "the last run is not covered"
    before = table.horizontalScrollBar().value()
    qtbot.mouseClick(titles.viewport(), Qt.MouseButton.LeftButton, pos=titles.visualRect(own_index).center())
    assert titles.selectionModel().isRowSelected(row)
    assert table.horizontalScrollBar().value() == before, "what was scrolled to stays"
    table.setCurrentIndex(table.model().index(row, table.columnCount() - 1))
    while (column := table.currentIndex().column()) > 1:
        qtbot.keyClick(table, Qt.Key.Key_Left)
        assert table.visualRect(table.currentIndex()).left() >= titles.width(), column


def test_each_run_has_a_curve_in_both_plots_under_its_name_until_the_next_comparison(page, folder):
    names = [page.table.horizontalHeaderItem(column).toolTip() for column in (1, 2, 3)]
    assert names == ["K 4 · first", "K 8 · second", "K 4 · third"]
    for plot in (page.acceptance, page.time):
        assert len(plot.lines) == len(plot.markers) == 3
        assert len({plot.lines[index].opts["pen"].color().name() for index in range(3)}) == 3
    assert page.time.readout(0) == "0.00 s: 0 · 0 · 0"
    assert [name for name, _ in page.time.details(0)[1:]] == names
    assert page.time.details(10)[3] == (names[2], "ended")
    assert page.time.readout(10).endswith(" · –")
    assert to_csv(page.acceptance.table()).startswith("run,tokens,running_acceptance")
    store = RunStore(folder)
    page.show_comparison(compare([(run, store.load(run.id)) for run in list(store.runs())[1:]]))
    assert page.table.columnCount() == 3
    assert len(page.acceptance.lines) == 2


def test_a_group_of_runs_has_a_band_around_its_curve_and_in_the_saved_figures(page, folder):
    for index in range(3):
        keep_run(folder, index, seed=index, step_ms=8.0 + index)
    page.show_comparison(comparison(folder, grouped=True))
    assert page.grouping.isChecked()
    assert page.table.item(page.table.rowCount() - 1, 1).text() == "length reached"
    for plot in (page.acceptance, page.time):
        assert list(plot.bands) == [0]
        assert plot.bands[0].brush().color().alpha() < 255
    for card in page.cards:
        assert [sample.accessibleName()[:23] for sample in shown(card.plot.samples)] == ["mean, lowest to highest"]
        names = [sample.accessibleName().split(":")[0] for sample, _ in flow(card.samples, 900, 14)]
        assert names == ["mean of 3", "mean, lowest to highest"], "in a saved plot, whose runs are named as well"
    assert re.search(r"\d+ \(\d+ to \d+\)", page.time.readout(50))
    assert to_csv(page.time.table()).splitlines()[0] == "run,time_s,tokens,low,high"
    page.show_comparison(comparison(folder))
    assert not page.acceptance.bands
    assert not [sample for card in page.cards for sample in shown(card.plot.samples)]
    assert page.grouping.isEnabled()


def test_a_mean_goes_to_the_end_of_the_last_run_and_one_that_has_ended_keeps_its_count():
    tokens = np.array([0.0, 10.0, 20.0])
    mean = mean_curve([Curve(seconds * np.array([0.0, 1.0, 2.0]), tokens) for seconds in (1.0, 2.0, 3.0)])
    for at, counts in ((1.5, (15.0, 7.5, 5.0)), (5.0, (20.0, 20.0, 50 / 3))):
        figures = [np.interp(at, mean.x, edge) for edge in (mean.y, mean.low, mean.high)]
        assert figures == pytest.approx([np.mean(counts), min(counts), max(counts)], rel=1e-3)
    assert (mean.x[-1], mean.low[-1], mean.y[-1], mean.high[-1]) == (6.0, 20.0, 20.0, 20.0)


def test_a_run_without_drafts_or_steps_leaves_the_mean_of_the_others_as_it_is():
    x = np.array([0.0, 1.0, 2.0])
    known = [Curve(x, np.array([np.nan, 0.5, last])) for last in (0.6, 0.8)]
    unknown = [Curve(x, x * np.nan), Curve(x[:1], x[:1])]
    found, expected = mean_curve([*unknown, *known]), mean_curve(known)
    for name in ("x", "y", "low", "high"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert mean_curve(unknown) is unknown[0]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_no_two_runs_share_a_colour_a_line_style_or_a_marker_and_all_stand_out(theme, qtbot, apply_theme):
    apply_theme(theme)
    colors = [run_color(theme, index) for index in range(MAX_RUNS)]
    assert len(set(colors)) == len(set(DASHES)) == len(set(MARKERS)) == MAX_RUNS
    assert all(contrast(color, theme.surface) >= MIN_BAR_CONTRAST for color in colors)
    for index in range(MAX_RUNS):
        sample = RunSample("a run with a long name that has to be cut somewhere", index, 190)
        qtbot.addWidget(sample)
        picture = sample.grab().toImage()
        line = {picture.pixelColor(x, picture.height() // 2).name() for x in range(SAMPLE_WIDTH)}
        assert line & set(colors) == {colors[index]}
        above = [picture.pixelColor(x, picture.height() // 2 - 3).name() for x in range(SAMPLE_WIDTH)]
        assert len(set(above)) > 1, "the marker"
        assert sample.sizeHint().width() < 260
