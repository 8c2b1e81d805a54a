"""The window of kept runs: listed, searched, named, deleted and restored, by keys too."""

from __future__ import annotations

import json

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QAbstractItemView, QLineEdit

from app.theme import ui_font
from app.tools.runs.table import _subtitle
from app.tools.runs.window import COMPARE, DIFFERENT, LIST, NO_MATCH, NO_RUN, SELECT_MORE
from app.widgets.title_delegate import BADGE_ROLE, first_parts
from tests.errors import failing
from tests.fakes_runs import RunColumn, cells, keep_run, names, until


def test_runs_are_listed_with_their_settings_and_results(open_runs, folder):
    keep_run(folder, 0, num_draft_tokens=None, method="prompt-lookup", draft=None)
    keep_run(folder, 1, baseline=True, temperature=0.5)
    _, panel = open_runs(2)
    newest, oldest = cells(panel, 0), cells(panel, 1)
    assert newest[RunColumn.NAME] == "prompt 1"
    assert newest[RunColumn.TARGET : RunColumn.TEMPERATURE + 1] == ["tiny-target", "tiny-draft", "4", "0.5"]
    assert newest[RunColumn.SPEEDUP].endswith("×")
    assert newest[RunColumn.STATE] == "Finished"
    assert oldest[RunColumn.DRAFT : RunColumn.K + 1] == ["Prompt lookup", "auto"]
    assert oldest[RunColumn.SPEEDUP] == "–"
    assert "2 runs" in panel.foot.text()


def test_in_a_narrow_column_the_last_details_are_left_out_whole(qapp):
    whole, metrics = "95 %: 1.31 to 1.55 · seed 0 · 64 tokens", QFontMetrics(ui_font(12))
    found = {first_parts(whole, room, metrics) for room in range(600)}
    assert found == {whole, "95 %: 1.31 to 1.55 · seed 0", "95 %: 1.31 to 1.55"}
    shorter = "busy · 95 %: 1.31 to 1.55 · seed 0"
    assert "busy · seed 0" in {first_parts(shorter, room, metrics) for room in range(600)}, "one that fits"


def test_the_second_line_tells_what_the_hidden_columns_would_and_the_interval_before_the_seed(open_runs, folder, qtbot):
    path = folder / f"{keep_run(folder, 0, baseline=True, temperature=0.5)}.jsonl"
    *lines, last = path.read_text("utf-8").splitlines()
    last = json.dumps({**json.loads(last), "measured_speedup_interval": [0.93, 1.35]})
    path.write_text("\n".join([*lines, last, ""]), "utf-8")
    _, panel = open_runs(1)
    table, first = panel.table, panel.table.model().index(0, 0)

    def second_line():
        return table.itemDelegateForIndex(first).subtitle(first, table)

    panel.resize(1280, 800)
    qtbot.waitUntil(lambda: not table.isColumnHidden(RunColumn.TEMPERATURE))
    assert second_line().startswith("95 %: 0.93 to 1.35 · seed ")
    assert "\n95 %: 0.93 to 1.35 · seed " in first.data(Qt.ItemDataRole.ToolTipRole)
    assert "T = " not in second_line()
    panel.resize(panel.minimumSize())
    qtbot.waitUntil(lambda: table.isColumnHidden(RunColumn.TEMPERATURE))
    assert second_line().startswith("95 %: 0.93 to 1.35 · T = 0.5")
    assert ("tiny-target" in second_line()) is table.isColumnHidden(RunColumn.TARGET)
    for column in (RunColumn.TARGET, RunColumn.WHEN):
        table.setColumnHidden(column, True)
    assert f" · {cells(panel, 0)[RunColumn.WHEN]} · seed 0 · tiny-target" in second_line()


def test_runs_that_differ_only_in_their_method_or_server_are_told_apart_and_found(open_runs, folder):
    for index, changes in enumerate(({}, {"method": "draft-tree"})):
        keep_run(folder, index, **changes)
    path = folder / f"{keep_run(folder, 2)}.jsonl"
    engine = '"config": {"engine": {"product": "vllm", "version": "0.32.0", "address": "http://127.0.0.1:9"}, '
    path.write_text(path.read_text("utf-8").replace('"config": {', engine, 1), "utf-8")
    _, panel = open_runs(3)
    lines = {run.id: _subtitle(run) for run in panel.table.items()}
    assert ["Draft tree" in line for _, line in sorted(lines.items())] == [False, True, False]
    assert "vLLM 0.32.0" in lines[path.stem]
    panel.search.setText("127.0.0.1:9")
    assert [run.id for run in panel.table.items()] == [path.stem]


def test_the_list_is_sorted_and_searched_and_keeps_what_is_selected(open_runs, folder):
    for index, k in enumerate((6, 10, 2, 4, 8)):
        keep_run(folder, index, num_draft_tokens=k)
    _, panel = open_runs(5)

    def selected():
        return [run.config["num_draft_tokens"] for run in panel.table.selected()]

    ids = {run.config["num_draft_tokens"]: run.id for run in panel.table.items()}
    panel.table.select([ids[k] for k in (8, 4, 10)])
    assert selected() == [8, 4, 10]
    panel.table.sortByColumn(RunColumn.K, Qt.SortOrder.DescendingOrder)
    assert [cells(panel, row)[RunColumn.K] for row in range(5)] == ["10", "8", "6", "4", "2"]
    assert selected() == [10, 8, 4]
    panel.search.setText("K>4")
    assert selected() == [10, 8]
    panel.search.clear()
    assert selected() == [10, 8]
    panel.search.setText("K=2")
    assert selected() == [2]
    panel.search.setText("nowhere")
    assert panel.table.count() == 0
    assert panel.table.hint.text() == NO_MATCH
    panel.search.setText("K=8 PROMPT")
    assert names(panel) == ["prompt 4"]
    assert "1 of 5 runs" in panel.foot.text()
    panel.search.clear()
    panel.table.sortByColumn(-1, Qt.SortOrder.AscendingOrder)
    assert names(panel) == [f"prompt {index}" for index in (4, 3, 2, 1, 0)]


def test_a_run_is_renamed_in_place_and_keeps_its_name_and_a_new_list_waits_meanwhile(open_runs, folder, qtbot):
    keep_run(folder)
    window, panel = open_runs(1)
    panel.show()
    qtbot.keyClick(panel.table, Qt.Key.Key_F2)
    editor = panel.table.findChild(QLineEdit, "runNameEdit")
    qtbot.keyClicks(editor, "my run")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    until(qtbot, lambda: names(panel) == ["my run"])
    # A list that comes while a name is typed waits.
    panel.rename_button.click()
    keep_run(folder, 1)
    window.runs.refresh()
    until(qtbot, lambda: panel.table._waiting is not None)
    assert panel.table.state() is QAbstractItemView.State.EditingState
    qtbot.keyClick(panel.table.findChild(QLineEdit, "runNameEdit"), Qt.Key.Key_Escape)
    until(qtbot, lambda: panel.table.count() == 2)
    _, again = open_runs(2)
    assert names(again) == ["prompt 1", "my run"]


def test_tags_and_a_note_are_given_to_the_selected_runs_and_found_again(open_runs, folder, qtbot):
    ids = [keep_run(folder, index) for index in range(3)]
    _, panel = open_runs(3)
    tags, note = panel.labels.values()

    def labels():
        return [(run.tags, run.note) for run in sorted(panel.table.items(), key=lambda run: run.id)]

    panel.table.select(ids[:2])
    qtbot.keyClicks(tags, "gpu, old")
    # Selecting other runs saves what was typed, for the runs that it was typed for.
    panel.table.select(ids[1:2])
    until(qtbot, lambda: labels() == [("gpu, old", ""), ("gpu, old", ""), ("", "")])
    assert tags.text() == "gpu, old"
    qtbot.keyClicks(note, "slow")
    qtbot.keyClick(note, Qt.Key.Key_Return)
    until(qtbot, lambda: labels()[1] == ("gpu, old", "slow"))
    panel.table.select(ids[1:])
    assert (tags.text(), tags.placeholderText()) == ("", DIFFERENT)
    panel.search.setText("tag=gpu slow")
    assert names(panel) == ["prompt 1"]
    assert panel.table.items()[0].tags in panel.table.model().index(0, 0).data(BADGE_ROLE)


def test_deleted_runs_come_back_one_deletion_at_a_time(open_runs, folder, qtbot):
    ids = [keep_run(folder, index) for index in range(4)]
    window, panel = open_runs(4)
    panel.table.select(ids[:2])
    qtbot.keyClick(panel.table, Qt.Key.Key_Delete)
    until(qtbot, lambda: panel.table.count() == 2)
    assert panel.undo_text.text() == "Deleted 2 runs."
    panel.table.select(ids[2:3])
    qtbot.keyClick(panel.table, Qt.Key.Key_Backspace)
    until(qtbot, lambda: panel.table.count() == 1)
    panel.delete(ids[:2])  # As where another window had deleted them.
    until(qtbot, lambda: window.jobs.is_idle)
    assert panel.undo_text.text() == "Deleted 1 run."
    panel.undo_button.click()
    until(qtbot, lambda: panel.table.count() == 2)
    assert panel.undo_text.text() == "Deleted 2 runs."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window.runs.store, "restore", failing(OSError("The disk is gone.")))
        panel.undo_button.click()
        until(qtbot, lambda: "could not be restored" in panel.banner.sentence())
    panel.undo_button.click()
    until(qtbot, lambda: panel.table.count() == 4)
    assert panel.undo_line.isHidden()
    panel.delete_button.click()
    until(qtbot, lambda: panel.table.count() == 3)
    window.close()
    until(qtbot, lambda: window.jobs.is_idle)
    assert len(list(folder.glob("**/*.jsonl"))) == 3


def test_a_run_that_is_gone_for_good_blocks_no_earlier_undo(open_runs, folder, qtbot):
    ids = [keep_run(folder, index) for index in range(3)]
    window, panel = open_runs(3)
    for deleted in (ids[:1], ids[1:]):
        panel.delete(deleted)
        until(qtbot, lambda: window.jobs.is_idle)
    (window.runs.store._trash / f"{ids[1]}.jsonl").unlink()
    panel.undo_button.click()
    until(qtbot, lambda: "deleted permanently" in panel.banner.sentence() and panel.table.count() == 1)
    panel.undo_button.click()
    until(qtbot, lambda: panel.table.count() == 2)
    assert panel.undo_line.isHidden()


def test_the_button_that_groups_runs_stays_as_it_is_where_they_can_not_be_compared(open_runs, folder, qtbot):
    ids = [keep_run(folder, index, prompt="p", seed=index) for index in range(2)]
    _, panel = open_runs(2)
    panel.table.selectAll()
    panel.compare_button.click()
    until(qtbot, lambda: panel.pages.currentIndex() == COMPARE)
    path = folder / f"{ids[0]}.jsonl"
    path.rename(folder / "aside")
    panel.compare_page.grouping.click()
    until(qtbot, lambda: panel.banner.sentence() != "")
    assert not panel.compare_page.grouping.isChecked()
    (folder / "aside").rename(path)
    panel.compare_page.grouping.click()
    until(qtbot, panel.compare_page.grouping.isChecked)


def test_without_runs_the_list_says_how_there_will_be_some_and_a_folder_that_can_not_be_read_is_explained(
    open_runs, tmp_path
):
    _, panel = open_runs(0)
    assert panel.table.hint.text() == NO_RUN
    assert not panel.open_button.isEnabled()
    assert not panel.delete_button.isEnabled()
    (tmp_path / "runs").write_text("")
    _, panel = open_runs(0)
    assert "can't be read" in panel.banner.sentence()


def test_why_runs_can_not_be_compared_is_said_at_the_button(open_runs, folder):
    keep_run(folder, 0)
    (folder / "20260101-000000-broken.jsonl").write_text('{"schema": "outrider.run/1"')
    _, panel = open_runs(2)
    compare = panel.compare_button
    panel.table.select([panel.table.items()[0].id])
    assert (compare.isEnabled(), compare.toolTip()) == (False, SELECT_MORE)
    panel.table.selectAll()
    damaged = next(run for run in panel.table.items() if not run.is_readable)
    assert not compare.isEnabled()
    assert damaged.title in compare.toolTip()
    assert "Can't be read" in compare.toolTip()


def test_a_comparison_is_exported_but_never_over_a_runs_log_and_left_by_escape(
    open_runs, folder, dialogs, qtbot, tmp_path
):
    kept = [keep_run(folder, index) for index in range(2)]
    window, panel = open_runs(2)
    assert [keys.toString() for keys in window.menus.runs.shortcuts()] == ["Ctrl+O", "Ctrl+Shift+R"]
    panel.table.selectAll()
    panel.compare_button.click()
    until(qtbot, lambda: panel.pages.currentIndex() == COMPARE)
    panel.compare_page.export.click()
    assert dialogs.asked[-1] == "comparison.html"
    dialogs.export_path = tmp_path / "both.html"
    with qtbot.waitSignal(window.runs.reported):
        panel.compare_page.export.click()
    assert panel.foot.isVisible()
    assert f"Exported to {dialogs.export_path}" in panel.foot.toolTip()
    pictures = []
    for ending in "ab":
        panel.foot.setText(f"Exported to {'x' * 999}{ending}")
        pictures.append(panel.foot.grab().toImage())
    assert pictures[0] != pictures[1], "a path that doesn't fit is cut in its middle"
    page = dialogs.export_path.read_text("utf-8")
    assert "2 runs compared" in page
    assert all(run_id in page for run_id in kept)
    dialogs.export_path = folder / f"{kept[1]}.jsonl"
    before = dialogs.export_path.read_bytes()
    panel.compare_page.export.click()
    until(qtbot, lambda: "choose another place" in panel.banner.sentence())
    assert dialogs.export_path.read_bytes() == before
    panel.show()
    qtbot.keyClick(panel, Qt.Key.Key_Escape)
    assert panel.pages.currentIndex() == LIST
    assert panel.isVisible()
    qtbot.keyClick(panel, Qt.Key.Key_Escape)
    assert not panel.isVisible()
    panel.show()
    panel.compare_button.click()
    until(qtbot, lambda: panel.pages.currentIndex() == COMPARE)
    panel.close()
    assert not panel.isVisible(), "a window's own button closes it from any page"
