"""The window of kept runs: listed, searched, named, deleted and brought back, opened, replayed and taken away."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QLineEdit

from app.controller import RunState
from app.runs_desk import BUSY
from app.view_models.run_list import RunColumn
from app.widgets.runs_panel import COMPARE, LIST, NO_MATCH, NO_RUN
from core.runs import KeptState
from core.trace import read_run_log
from core.types import Coupling, SamplingParams
from tests.fakes_app import fake_services
from tests.fakes_runs import keep_run


def until(qtbot, holds):
    """Wait longer than anything here takes, even on a machine that does much else."""
    qtbot.waitUntil(holds, timeout=30_000)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def open_runs(make_window, qtbot):
    """Opens the window of kept runs, and waits until it has listed all."""

    def build(count, services=None):
        window = make_window(services)
        window.runs.open()
        panel = window.runs.window
        until(qtbot, lambda: panel._is_complete and panel.table.count() == count)
        return window, panel

    return build


def names(panel):
    return [run.title for run in panel.table.runs()]


def cells(panel, row):
    model = panel.table.model()
    return [model.index(row, column).data() for column in RunColumn]


def shown_whole(window):
    return bool(window.live.kept_title) and window.live._kept is None


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


def test_without_runs_the_list_says_how_there_will_be_some(open_runs):
    _, panel = open_runs(0)
    assert panel.empty.text() == NO_RUN
    assert not panel.open_button.isEnabled()
    assert not panel.delete_button.isEnabled()


def test_the_list_is_sorted_by_a_click_on_its_head_and_keeps_what_is_selected(open_runs, folder):
    for index, k in enumerate((6, 10, 2)):
        keep_run(folder, index, num_draft_tokens=k)
    _, panel = open_runs(3)
    (selected,) = panel.table.selected_runs()
    panel.table.sortByColumn(RunColumn.K, Qt.SortOrder.AscendingOrder)
    assert [cells(panel, row)[RunColumn.K] for row in range(3)] == ["2", "6", "10"]
    assert [run.id for run in panel.table.selected_runs()] == [selected.id]
    panel.table.sortByColumn(-1, Qt.SortOrder.AscendingOrder)
    assert names(panel) == ["prompt 2", "prompt 1", "prompt 0"]


def test_the_search_finds_words_and_settings(open_runs, folder):
    keep_run(folder, 0, prompt="a poem")
    keep_run(folder, 1, prompt="a proof", num_draft_tokens=7)
    _, panel = open_runs(2)
    panel.search.setText("POEM")
    assert names(panel) == ["a poem"]
    assert "1 of 2 runs" in panel.foot.text()
    panel.search.setText("K=7")
    assert names(panel) == ["a proof"]
    panel.search.setText("nowhere")
    assert panel.table.count() == 0
    assert panel.empty.text() == NO_MATCH
    panel.search.clear()
    assert panel.table.count() == 2


def test_a_run_is_renamed_in_place_and_keeps_its_name(open_runs, folder, qtbot, make_window):
    keep_run(folder)
    _, panel = open_runs(1)
    panel.show()
    qtbot.keyClick(panel.table, Qt.Key.Key_F2)
    editor = panel.table.findChild(QLineEdit, "runNameEdit")
    qtbot.keyClicks(editor, "my run")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    until(qtbot, lambda: names(panel) == ["my run"])
    _, again = open_runs(1)
    assert names(again) == ["my run"]


def test_a_list_that_comes_while_a_name_is_typed_waits(open_runs, folder, qtbot):
    keep_run(folder)
    window, panel = open_runs(1)
    panel.show()
    panel.rename_button.click()
    keep_run(folder, 1)
    with qtbot.waitSignal(window.runs.reader.found):
        window.runs.refresh()
    assert panel.table.state() is QAbstractItemView.State.EditingState
    qtbot.keyClick(panel.table.findChild(QLineEdit, "runNameEdit"), Qt.Key.Key_Escape)
    until(qtbot, lambda: panel.table.count() == 2)


def test_deleted_runs_come_back_one_deletion_at_a_time(open_runs, folder, qtbot):
    ids = [keep_run(folder, index) for index in range(4)]
    window, panel = open_runs(4)
    panel.table.select(ids[:2])
    qtbot.keyClick(panel.table, Qt.Key.Key_Delete)
    until(qtbot, lambda: panel.table.count() == 2)
    assert panel.undo_text.text() == "Deleted 2 runs."
    panel.table.select(ids[2:3])
    panel.delete_button.click()
    until(qtbot, lambda: panel.table.count() == 1)
    panel.undo_button.click()
    until(qtbot, lambda: panel.table.count() == 2)
    assert panel.undo_text.text() == "Deleted 2 runs."
    panel.undo_button.click()
    until(qtbot, lambda: panel.table.count() == 4)
    assert panel.undo_line.isHidden()
    panel.delete_button.click()
    until(qtbot, lambda: panel.table.count() == 3)
    window.close()
    until(qtbot, lambda: window.threads.is_closed)
    assert len(list(folder.glob("**/*.jsonl"))) == 3


def test_a_kept_run_is_shown_as_it_was(open_runs, folder, qtbot, session, run_to_end):
    keep_run(folder, prompt="the prompt", baseline=True)
    window, panel = open_runs(1)
    assert not window.menus.export.isEnabled()
    panel.table.activated.emit(panel.table.currentIndex())
    until(qtbot, lambda: shown_whole(window))
    (run,) = panel.table.runs()
    assert window.transcript.view.toPlainText() == "the prompt" + window.run_view.summary.text
    assert window.measurements.tiles.speedup.value.text() == f"{run.summary['measured_speedup']:.2f}×"
    assert len(window.run_view.baseline_steps) == run.summary["num_tokens"]
    assert window.status.stage.text() == "Kept run 'the prompt' · Done: reached the length asked for"
    assert window.menus.export.isEnabled()
    assert session.requests == []
    run_to_end(window)
    assert window.status.stage.text() == "Done: reached the length asked for"


def test_a_long_run_is_opened_in_pieces(open_runs, folder, qtbot, monkeypatch):
    keep_run(folder, max_new_tokens=200)
    window, panel = open_runs(1)
    monkeypatch.setattr("app.live_view.KEPT_SHARE_S", 0.0)
    seen = []
    window.live._timer.timeout.connect(lambda: seen.append(len(window.run_view.steps)))
    panel.open_button.click()
    until(qtbot, lambda: shown_whole(window))
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert window.transcript.view.toPlainText() == "prompt 0" + window.run_view.summary.text


def test_a_run_that_is_opened_while_the_engine_starts_is_shown_whole(open_runs, folder, qtbot, monkeypatch):
    keep_run(folder, max_new_tokens=200)
    window, panel = open_runs(1)
    monkeypatch.setattr("app.live_view.KEPT_SHARE_S", 0.0)
    panel.open_button.click()
    until(qtbot, lambda: len(window.run_view.steps) > 1)
    window.controller.engine_ready.emit()
    until(qtbot, lambda: shown_whole(window))


def test_a_run_that_was_cut_off_opens_as_far_as_it_came(open_runs, folder, qtbot):
    keep_run(folder, lines=4)
    window, panel = open_runs(1)
    assert cells(panel, 0)[RunColumn.STATE] == "Cut off"
    panel.open_button.click()
    until(qtbot, lambda: shown_whole(window))
    assert len(window.run_view.steps) == 3
    assert window.measurements.tiles.speed.value.text() != "–"
    assert window.banner.sentence() == panel.banner.sentence() == ""


def test_the_next_start_says_that_the_last_run_was_cut_off(make_window, folder, qtbot):
    keep_run(folder, lines=4)
    window = make_window(is_shown=True)
    until(qtbot, lambda: "was cut off" in window.status.stage.text())


def test_a_damaged_run_is_listed_and_says_why_it_does_not_open(open_runs, folder):
    folder.mkdir()
    (folder / "20260101-000000-000000.jsonl").write_bytes(b"garbage\n")
    _, panel = open_runs(1)
    assert cells(panel, 0)[RunColumn.STATE] == "Damaged"
    assert not panel.open_button.isEnabled()
    panel.table.activated.emit(panel.table.currentIndex())
    assert "not a run log" in panel.banner.sentence()
    assert panel.delete_button.isEnabled()


def test_a_run_that_vanished_meanwhile_is_explained(open_runs, folder, qtbot):
    run_id = keep_run(folder)
    _, panel = open_runs(1)
    (folder / f"{run_id}.jsonl").unlink()
    panel.open_button.click()
    until(qtbot, lambda: "There is no file" in panel.banner.sentence())


def test_the_run_that_goes_is_marked_and_neither_opened_nor_deleted(open_runs, folder, qtbot, session):
    session.gate = threading.Semaphore(3)
    keep_run(folder)
    window, panel = open_runs(1)
    window.prompt.run_button.click()
    until(qtbot, lambda: panel.table.count() == 2)
    until(qtbot, lambda: any(run.state is KeptState.GOING for run in panel.table.runs()))
    going = next(run for run in panel.table.runs() if run.state is KeptState.GOING)
    panel.table.select([going.id])
    assert not panel.open_button.isEnabled()
    assert not panel.delete_button.isEnabled()
    panel.delete_requested.emit((going.id,))
    assert "is going" in panel.banner.sentence()
    panel.table.select([run.id for run in panel.table.runs() if run.id != going.id])
    panel.open_button.click()
    assert panel.banner.sentence() == BUSY
    session.gate.release(1000)
    until(qtbot, lambda: all(run.state is KeptState.FINISHED for run in panel.table.runs()))


def test_a_replay_runs_with_the_same_settings_and_shows_them(open_runs, folder, qtbot, session):
    keep_run(
        folder,
        prompt="again",
        num_draft_tokens=7,
        seed=5,
        coupling=Coupling.GUMBEL,
        sampling=SamplingParams(0.35, top_k=9, top_p=0.9, min_p=0.05),
        max_new_tokens=30,
    )
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    (request,) = session.requests
    assert (request.prompt, request.num_draft_tokens, request.seed) == ("again", 7, 5)
    assert request.sampling == SamplingParams(0.35, top_k=9, top_p=0.9, min_p=0.05)
    assert (request.coupling, request.max_new_tokens, request.baseline) == (Coupling.GUMBEL, 30, False)
    assert window.controls.request(window.prompt.text()) == replace(
        request, method_options=window.controls.request("x").method_options, inspect=False
    )
    assert request.inspect
    assert window.status.stage.text() == "Replayed 'again': the same text, character for character"
    until(qtbot, lambda: panel.table.count() == 2)


def test_a_replay_that_writes_another_text_says_so(open_runs, folder, qtbot):
    run_id = keep_run(folder)
    path = folder / f"{run_id}.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps({**json.loads(last), "text": "something else"})]) + "\n")
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    assert window.status.stage.text().startswith("Replayed 'prompt 0': the text differs")


def test_a_replay_without_its_models_says_what_the_engine_says(open_runs, folder, qtbot, session):
    from core.errors import ModelNotFoundError

    session.fail_before = ModelNotFoundError("There is no model 'gone' here.")
    keep_run(folder, target="gone")
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    assert window.banner.sentence() == "There is no model 'gone' here."
    assert session.requests[0].target == "gone"


def test_a_run_whose_log_lacks_settings_is_shown_but_not_replayed(open_runs, folder, qtbot, session):
    run_id = keep_run(folder)
    path = folder / f"{run_id}.jsonl"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": null'))
    window, panel = open_runs(1)
    panel.replay_button.click()
    until(qtbot, lambda: "lacks seed" in panel.banner.sentence())
    panel.open_button.click()
    until(qtbot, lambda: shown_whole(window))
    assert session.requests == []
    assert window.controller.state is RunState.IDLE


def test_a_kept_run_is_exported_as_a_log_or_a_table(open_runs, folder, qtbot, dialogs, tmp_path):
    run_id = keep_run(folder)
    window, panel = open_runs(1)
    for name in ("out.jsonl", "out.csv"):
        dialogs.export_path = tmp_path / name
        panel.export_button.click()
        until(qtbot, lambda name=name: name in window.status.stage.text())
    assert read_run_log(tmp_path / "out.jsonl").run["id"] == run_id
    assert (tmp_path / "out.csv").read_text().startswith("index,")
    dialogs.export_path = folder / f"{run_id}.jsonl"
    panel.export_button.click()
    until(qtbot, lambda: "choose another place" in panel.banner.sentence())
    dialogs.export_path = tmp_path / "nowhere" / "out.jsonl"
    panel.export_button.click()
    until(qtbot, lambda: "There is no folder" in panel.banner.sentence())


def test_a_folder_that_can_not_be_listed_is_explained(open_runs, session, tmp_path):
    (tmp_path / "file").write_text("")
    services = replace(fake_services(session, tmp_path), runs_folder=lambda: tmp_path / "file")
    _, panel = open_runs(0, services)
    assert "can't be read" in panel.banner.sentence()


def test_the_window_is_worked_by_keys(open_runs, folder, qtbot):
    for index in range(2):
        keep_run(folder, index)
    window, panel = open_runs(2)
    panel.show()
    assert [keys.toString() for keys in window.menus.runs.shortcuts()] == ["Ctrl+O", "Ctrl+Shift+R"]
    panel.table.selectAll()
    panel.compare_button.click()
    until(qtbot, lambda: panel.pages.currentIndex() == COMPARE)
    qtbot.keyClick(panel, Qt.Key.Key_Escape)
    assert panel.pages.currentIndex() == LIST
    assert panel.isVisible()
    qtbot.keyClick(panel, Qt.Key.Key_Escape)
    assert not panel.isVisible()


@pytest.mark.parametrize(("width", "scale"), [(980, 1.0), (1200, 1.5), (1800, 1.0)])
def test_names_keep_their_room_at_every_size(open_runs, folder, qtbot, width, scale):
    from app.text_size import set_text_scale

    keep_run(folder)
    window, panel = open_runs(1)
    try:
        set_text_scale(window, scale)
        panel.resize(width, 600)
        until(qtbot, lambda: panel.width() == width)
        assert panel.table.columnWidth(RunColumn.NAME) >= 190 * scale
        end = panel.table.horizontalHeader().length()
        assert end >= panel.table.viewport().width()
    finally:
        set_text_scale(window, 1.0)


def test_everything_that_takes_keys_has_a_name(open_runs, folder):
    keep_run(folder)
    _, panel = open_runs(1)
    parts = [*panel.findChildren(QLineEdit), *panel.findChildren(QAbstractButton), panel.table]
    nameless = [
        part
        for part in parts
        if part.isEnabled()
        and part.focusPolicy() != Qt.FocusPolicy.NoFocus
        and not (part.accessibleName() or (isinstance(part, QAbstractButton) and part.text()))
    ]
    assert [part.objectName() or part for part in nameless] == []
