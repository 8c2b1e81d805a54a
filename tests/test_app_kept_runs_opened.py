"""Kept runs: opened as they were, replayed with the same settings, and taken away."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QTimer

from app.controller import RunState
from app.tools.runs.window import COMPARE
from core.errors import ModelNotFoundError, PromptError
from core.evidence import PackedEvidence
from core.runlog.reading import read_run_log
from core.runlog.store import KeptState, Label, RunStore
from core.settings import Coupling, SamplingParams
from tests.fakes import save_model
from tests.fakes_runs import RunColumn, cells, keep_run, shown_whole, until

SAME_TEXT = "Ran 'again' again: the same text, character for character"


def test_a_kept_run_is_shown_as_it_was(open_runs, folder, qtbot, session, run_to_end):
    keep_run(folder, prompt="the prompt", baseline=True)
    window, panel = open_runs(1)
    assert not window.menus.export.isEnabled()
    panel.table.activated.emit(panel.table.currentIndex())
    until(qtbot, lambda: shown_whole(window))
    (run,) = panel.table.items()
    assert window.transcript.view.toPlainText() == "the prompt" + window.run_view.summary.text
    assert window.measurements.tiles.speedup.value.text() == f"{run.summary['measured_speedup']:.2f}×"
    assert len(window.run_view.baseline_steps) == run.summary["num_tokens"]
    assert window.status.stage.text() == "Kept run 'the prompt' · Done: reached the requested length"
    assert window.menus.export.isEnabled()
    assert session.requests == []
    session.fail_before = PromptError("The prompt is too long.")
    run_to_end(window)
    assert window.status.stage.text() == "The run did not start", "the kept one did"
    assert window.transcript.whose.text() == "This is the kept run 'the prompt': the new one did not start."
    session.fail_before = None
    run_to_end(window)
    assert window.status.stage.text() == "Done: reached the requested length"


def test_a_long_run_is_opened_in_pieces(open_runs, folder, qtbot, monkeypatch):
    keep_run(folder)
    window, panel = open_runs(1)
    monkeypatch.setattr("app.run.live.APPLY_S", 0.0)
    seen = []
    window.live._text_timer.timeout.connect(lambda: seen.append(len(window.run_view.steps)))
    panel.open_button.click()
    until(qtbot, lambda: shown_whole(window))
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert window.transcript.view.toPlainText() == "prompt 0" + window.run_view.summary.text


def test_a_run_that_was_cut_off_opens_up_to_its_last_step_and_the_next_start_says_so(
    open_runs, folder, qtbot, make_window
):
    keep_run(folder, lines=4)
    window, panel = open_runs(1)
    assert cells(panel, 0)[RunColumn.STATE] == "Cut off"
    panel.open_button.click()
    until(qtbot, lambda: shown_whole(window))
    assert len(window.run_view.steps) == 3
    assert window.measurements.tiles.speed.value.text() != "–"
    assert window.banner.sentence() == panel.banner.sentence() == ""
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


def test_the_run_in_progress_is_marked_and_neither_opened_nor_deleted(open_runs, folder, qtbot, session):
    session.gate = threading.Semaphore(3)
    keep_run(folder)
    window, panel = open_runs(1)
    window.prompt.run_button.click()
    until(qtbot, lambda: panel.table.count() == 2)
    until(qtbot, lambda: any(run.state is KeptState.RUNNING for run in panel.table.items()))
    running = next(run for run in panel.table.items() if run.state is KeptState.RUNNING)
    panel.table.select([running.id])
    assert not panel.open_button.isEnabled()
    assert not panel.delete_button.isEnabled()
    panel.delete((running.id,))
    assert "has not ended" in panel.banner.sentence()
    panel.table.select([run.id for run in panel.table.items() if run.id != running.id])
    panel.open_button.click()
    assert panel.banner.sentence().startswith("The run is in progress. Stop it, or wait for it to end,")
    session.gate.release(1000)
    until(qtbot, lambda: all(run.state is KeptState.FINISHED for run in panel.table.items()))
    assert panel.banner.sentence() == ""


def test_the_run_before_can_be_deleted_while_the_next_one_loads(open_runs, folder, qtbot, session, run_to_end):
    keep_run(folder)
    window, panel = open_runs(1)
    run_to_end(window)
    until(qtbot, lambda: panel.table.count() == 2)
    before = window.run_view.started.run_id
    session.load_gate = threading.Event()
    window.prompt.run_button.click()
    until(qtbot, lambda: window.live.upcoming is not None)
    panel.delete((before,))
    until(qtbot, lambda: panel.table.count() == 1)
    assert panel.banner.sentence() == ""
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        session.load_gate.set()


def test_a_replay_runs_with_the_same_settings_and_shows_them(open_runs, folder, qtbot, session):
    sampling = SamplingParams(0.35, top_k=9, top_p=0.9, min_p=0.05)
    settings = {"num_draft_tokens": 7, "seed": 5, "coupling": Coupling.GUMBEL, "max_new_tokens": 30}
    keep_run(folder, prompt="again", sampling=sampling, **settings)
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    (request,) = session.requests
    assert (request.prompt, request.num_draft_tokens, request.seed) == ("again", 7, 5)
    assert request.sampling == sampling
    assert (request.coupling, request.max_new_tokens, request.baseline) == (Coupling.GUMBEL, 30, False)
    assert window.controls.request(window.prompt.text()) == replace(
        request, method_options=window.controls.request("x").method_options, inspect=False
    )
    assert request.inspect
    assert window.status.stage.text() == SAME_TEXT
    until(qtbot, lambda: panel.table.count() == 2)


def test_a_replay_shows_a_model_that_is_not_in_the_list_yet(open_runs, folder, tmp_path, qtbot, session):
    keep_run(folder, target=str(model := save_model(tmp_path / "elsewhere")))
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    until(qtbot, lambda: window.controls.settings("x").target == str(model))


def test_what_is_said_of_a_replay_stays_when_its_end_is_shown_late(monkeypatch, open_runs, folder, qtbot):
    monkeypatch.setattr("app.run.live.TEXT_MS", 60_000)
    monkeypatch.setattr("app.run.live.PANELS_MS", 10)  # The plots' timer shows the last steps, and the end.
    monkeypatch.setattr("app.run.live.APPLY_S", 0.0)
    keep_run(folder, prompt="again")
    window, panel = open_runs(1)
    said = []
    window.live.run_shown.connect(lambda: QTimer.singleShot(0, lambda: said.append(window.status.stage.text())))
    panel.replay_button.click()
    until(qtbot, lambda: bool(said))
    assert said == [SAME_TEXT]


def test_a_replay_that_writes_another_text_says_so(open_runs, folder, qtbot):
    run_id = keep_run(folder)
    path = folder / f"{run_id}.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps({**json.loads(last), "text": "something else"})]) + "\n")
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    assert window.status.stage.text().startswith("Ran 'prompt 0' again: the text differs")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "http://127.0.0.1:9", "num_draft_tokens": None}, "A server draws with its own random numbers"),
        ({"num_draft_tokens": None}, "With Auto, K depends on"),
        ({"num_draft_tokens": None, "coupling": Coupling.GUMBEL}, "A model or a version is different"),
        ({"num_draft_tokens": None, "sampling": SamplingParams(temperature=0.0)}, "A model or a version is different"),
    ],
)
def test_that_k_depends_on_timing_is_named_only_where_the_text_depends_on_k(finished, changes, words):
    request = replace(finished.run_view.request, **changes)
    assert words in finished.runs._verdict(SimpleNamespace(title="x"), request, "another text")


def test_a_replay_that_never_started_is_not_compared(open_runs, folder, qtbot, session):
    keep_run(folder)
    window, panel = open_runs(1)
    panel.open_button.click()
    until(qtbot, lambda: window.live.kept_title != "" and window.run_view.summary is not None)
    session.load_gate = threading.Event()
    with qtbot.waitSignal(window.live.run_shown), qtbot.assertNotEmitted(window.runs.reported):
        panel.replay_button.click()
        until(qtbot, lambda: bool(session.requests))
        window.controller.stop()


def test_a_replay_without_its_models_says_what_the_engine_says(open_runs, folder, qtbot, session):
    session.fail_before = ModelNotFoundError("There is no model 'gone' here.")
    keep_run(folder, target="gone")
    window, panel = open_runs(1)
    with qtbot.waitSignal(window.live.run_shown, timeout=30_000):
        panel.replay_button.click()
    assert window.banner.sentence() == "There is no model 'gone' here."


def test_a_replay_on_a_server_that_is_not_listed_says_so_where_it_was_asked_for(open_runs, folder, qtbot, session):
    path = folder / f"{keep_run(folder)}.jsonl"
    path.write_text(
        path.read_text().replace('"config": {', '"config": {"engine": {"address": "http://127.0.0.1:9"}, ', 1)
    )
    _, panel = open_runs(1)
    panel.replay_button.click()
    until(qtbot, lambda: "Add that server under Engine first" in panel.banner.sentence())
    assert session.requests == []


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


def test_runs_are_compared_with_their_evidence_packed_and_a_single_log_is_exported_as_it_is(
    open_runs, folder, qtbot, dialogs, tmp_path, monkeypatch
):
    load, loaded = RunStore.load, []

    def keep(*given, **settings):
        loaded.append(load(*given, **settings))
        return loaded[-1]

    monkeypatch.setattr(RunStore, "load", keep)
    position = {"ids": [1], "texts": ["a"], "target_probs": [1.0], "target_tail": 0.0, "target_entropy": 0.0, "new": 1}
    for index in range(2):
        path = folder / f"{keep_run(folder, index)}.jsonl"
        first, step, *lines = path.read_text("utf-8").splitlines()
        step = json.dumps({**json.loads(step), "evidence": [position]})
        path.write_text("\n".join([first, step, *lines, ""]), "utf-8")
    window, panel = open_runs(2)
    dialogs.export_path = tmp_path / "out.jsonl"
    panel.export_button.click()
    until(qtbot, lambda: "out.jsonl" in window.status.stage.text())
    assert read_run_log(dialogs.export_path).steps[0]["evidence"] == [position]
    loaded.clear()
    window.runs.store.label(Label.NAME, "a <new> draft", panel.table.items()[0].id)
    panel.refresh()
    until(qtbot, lambda: any(run.name for run in panel.table.items()))
    panel.table.selectAll()
    panel.compare_button.click()
    until(qtbot, lambda: panel.pages.currentIndex() == COMPARE)
    dialogs.export_path = tmp_path / "both.html"
    panel.compare_page.export.click()
    until(qtbot, dialogs.export_path.exists)
    assert re.search("Run [12]: a &lt;new&gt; draft<", dialogs.export_path.read_text("utf-8"))
    assert [type(log.steps[0]["evidence"]) for log in loaded] == [PackedEvidence] * 4
