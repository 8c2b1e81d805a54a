"""The window of sweeps: from the form to the plan, and from the engine to the heatmap; stopping and continuing."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import Qt

from app.settings import sweeps_folder
from app.tools.sweep import files
from app.tools.sweep.form import NO_FILE
from app.tools.sweep.results import NO_RUNS, NONE_MEASURED
from core.experiments.sweep_file import read_sweep
from core.settings import LengthPolicy
from tests.fakes_app import cell, texts
from tests.fakes_sweep import FakeSweepSession, choose_small, fails_at


@pytest.fixture
def engine():
    return FakeSweepSession()


@pytest.fixture
def window(make_window, engine, tmp_path):
    return make_window(lambda: engine)


def start(window, **choices):
    """Start a small sweep: a baseline and K = 1, 2, twice each."""
    sweeps = choose_small(window, **choices)
    sweeps.form.start_button.click()
    return sweeps


def finish(qtbot, window):
    qtbot.waitUntil(lambda: not window.sweep.is_running, timeout=20_000)


def speedups(sweeps):
    """What the first row of the heatmap shows, plain decoding first."""
    return texts(sweeps.heatmap)[0]


def words(sweeps):
    return [line.word for line in sweeps.verdicts.lines]


class Pause:
    """For `on_run`: waits at the nth run until it is let go, or the run is stopped."""

    def __init__(self, at):
        self.at, self.count = at, 0
        self.reached, self.gate = threading.Event(), threading.Event()

    def __call__(self, _request, controls):
        self.count += 1
        if self.count == self.at:
            self.reached.set()
            while not controls.is_cancelled and not self.gate.wait(0.005):
                pass


# --- The form ---


def test_what_is_chosen_becomes_the_plan(window):
    sweeps = choose_small(window, lengths="1-3, 6", temperatures="0, 0.5")
    form = sweeps.form
    form.methods.tick(["draft-model", "prompt-lookup"])
    form.policies.tick(["auto", "adaptive"])
    form.suites.tick(["code", "maths"])
    form.prompts_each.setValue(2)
    form.seed.setValue(11)
    window.prompt.set_text("my prompt")
    window.controls.fields["system"].setText("Answer in French.")
    plan = form.plan()
    assert (plan.system, form.quick_request().system) == ("Answer in French.",) * 2, "the input of a run"
    assert plan.num_draft_tokens == (1, 2, 3, 6, LengthPolicy.AUTO, LengthPolicy.ADAPTIVE)
    assert plan.temperatures == (0.0, 0.5)
    drafters = [(item.method, item.draft) for item in plan.drafters]
    assert drafters == [("draft-model", "tiny-draft"), ("prompt-lookup", None)]
    assert [prompt.suite for prompt in plan.prompts] == ["own", "code", "code", "maths", "maths"]
    assert plan.prompts[0].text == "my prompt"
    assert (plan.target, plan.repeats, plan.max_new_tokens, plan.seed) == ("tiny-target", 2, 16, 11)


def test_the_shapes_of_trees_become_rows_of_the_heatmap(window, qtbot):
    sweeps = choose_small(window)
    form = sweeps.form
    box = form.shapes["depth"].parentWidget()
    assert not box.isVisibleTo(form)
    form.methods.tick(["draft-model", "draft-tree"])
    form.judge()
    assert box.isVisibleTo(form)
    form.shapes["depth"].setText("2-3")
    form.rules.tick(["independent", "best"])
    assert [dict(item.options) for item in form.plan().drafters[1:]] == [
        {"depth": depth, "branching": 3, "rule": rule} for depth in (2, 3) for rule in ("independent", "best")
    ]
    form.shapes["branching"].setText("17")
    assert form.problem.text() == "Branching must be a whole number from 1 to 16, not 17."
    form.shapes["branching"].setText("2")
    form.start_button.click()
    finish(qtbot, window)
    heads = [sweeps.heatmap.verticalHeaderItem(row).text() for row in range(sweeps.heatmap.rowCount())]
    assert heads[0].endswith("Tiny draft")
    assert heads[1:3] == ["T = 0, tree, independent\n2 deep, 2 wide", "T = 0, tree, best\n2 deep, 2 wide"]


def test_the_form_begins_with_the_windows_own_choice_and_says_how_many_runs_that_is(window):
    window.controls.fields["temperature"].set_value(0.6)
    window.menus.sweep.trigger()
    plan = window.sweep.form.plan()
    assert plan.temperatures == (0.6,)
    assert (plan.target, plan.drafters[0].draft) == ("tiny-target", "tiny-draft")
    assert [prompt.text for prompt in plan.prompts] == [window.prompt.text()]
    form = choose_small(window).form
    assert form.extent.text().startswith("6 runs: 2 cells and 1 baseline, each on 1 prompt, 2 repeats.")
    assert "A verdict needs 6 runs of each cell: raise Repeats, or add prompts." in form.extent.text()
    form.repeats.setValue(6)
    assert "A verdict needs" not in form.extent.text()
    form.repeats.setValue(500)
    assert "1,500 runs" in form.extent.text()
    assert "asked to confirm" in form.extent.text()


BAD_INPUT = (
    (lambda form: form.lengths.setText("1-x"), "K must be a whole number"),
    (lambda form: form.lengths.setText("8-1"), "backwards"),
    (lambda form: form.lengths.setText(""), "at least one K"),
    (lambda form: form.temperatures.setText("warm"), "Temperatures are numbers"),
    (lambda form: form.temperatures.setText("nan"), "Temperature must be"),
    (lambda form: form.methods.boxes["draft-model"].setChecked(False), "at least one method"),
    (lambda form: form.drafts.boxes["tiny-draft"].setChecked(False), "needs a draft model"),
    (lambda form: form.own_prompt.setChecked(False), "at least one prompt suite"),
    (lambda form: form.lengths.setText("1-16") or form.temperatures.setText(" ".join(f".{n:03}" for n in range(900))),
     "more than 200,000"),
)  # fmt: skip


def test_bad_input_is_one_sentence_beside_the_form_and_nothing_is_lost(window, engine):
    form = choose_small(window).form
    form.repeats.setValue(20)
    for change, words in BAD_INPUT:
        form.begin_with(window.controls.settings("my prompt"))
        form.drafts.tick(["tiny-draft"])
        change(form)
        assert words in form.problem.text()
        assert not form.problem.isHidden()
        before = (form.lengths.text(), form.temperatures.text())
        form.start_button.click()
        assert not window.sweep.is_running
        assert (form.lengths.text(), form.temperatures.text()) == before
    assert engine.calls == []


def test_prompts_come_from_a_file_and_a_bad_one_is_a_sentence(window, dialogs, qtbot, tmp_path):
    sweeps = choose_small(window)
    dialogs.prompts_path = tmp_path / "mine.txt"
    sweeps.form.file_button.click()
    qtbot.waitUntil(lambda: "can't be read" in sweeps.form.problem.text())
    dialogs.prompts_path.write_text("one\ntwo\n", "utf-8")
    sweeps.form.file_button.click()
    qtbot.waitUntil(lambda: "2 prompts" in sweeps.form.file_note.text())
    assert sweeps.form.problem.isHidden()
    assert "3 prompts" in sweeps.form.extent.text()
    sweeps.form.no_file_button.click()
    assert sweeps.form.file_note.text() == NO_FILE
    assert "1 prompt," in sweeps.form.extent.text()
    assert sweeps.form.no_file_button.isHidden()


def test_a_file_named_like_a_ticked_suite_is_a_suite_of_its_own(window, dialogs, qtbot, tmp_path):
    form = choose_small(window).form
    dialogs.prompts_path = tmp_path / "code.txt"
    dialogs.prompts_path.write_text("one\ntwo\n", "utf-8")
    form.file_button.click()
    qtbot.waitUntil(lambda: "2 prompts" in form.file_note.text())
    form.own_prompt.setChecked(False)
    form.suites.tick(["code"])
    form.prompts_each.setValue(1)
    assert [prompt.suite for prompt in form.plan().prompts] == ["code", "code (2)"]
    form.suites.tick([])
    dialogs.prompts_path = dialogs.prompts_path.rename(tmp_path / "own.txt")
    form.file_button.click()
    qtbot.waitUntil(lambda: "own.txt" in form.file_note.text())
    form.own_prompt.setChecked(True)
    assert [prompt.suite for prompt in form.plan().prompts] == ["own", "own (2)"], "the window's prompt is another"


# --- Running ---


def test_a_sweep_fills_the_heatmap_and_says_what_to_use(window, qtbot):
    sweeps = choose_small(window)
    assert not sweeps.bar.isVisible()
    sweeps.form.start_button.click()
    assert sweeps.bar.isVisible()
    finish(qtbot, window)
    assert speedups(sweeps) == ["1.00×", "2.00×", "3.00×"]
    assert words(sweeps) == ["Too few runs"]
    assert "K = 2" in sweeps.verdicts.lines[0].sentence
    assert sweeps.progress.text() == "All 6 runs done"
    assert not sweeps.bar.isVisible()
    assert sweeps.form.start_button.isVisible()
    assert sweeps.form.stop_button.isHidden()
    assert not sweeps.continue_button.isEnabled()
    (kept,) = sweeps_folder().glob("*.jsonl")
    assert len(read_sweep(kept).measurements) == 6
    assert len(list(kept.with_suffix("").glob("*.jsonl"))) == 6
    assert "at the speed of the last sweep" in sweeps.form.extent.text()


def test_cells_fill_as_runs_end_a_sweep_and_a_run_exclude_each_other_and_each_sweep_has_its_own_file(
    window, engine, qtbot
):
    sweeps = start(window)
    finish(qtbot, window)
    engine.on_run = pause = Pause(at=4)
    sweeps.form.start_button.click()
    assert speedups(sweeps) == ["", "", ""]
    qtbot.waitUntil(lambda: window.sweep.view.num_done == 3)
    assert "3 of 6 runs · about" in sweeps.progress.text()
    assert sweeps.cell.table.hint.text() == NO_RUNS
    assert sum(bool(text) for text in speedups(sweeps)) == 3
    assert words(sweeps) == ["So far"]
    assert sweeps.form.start_button.isHidden()
    assert sweeps.form.stop_button.isVisible()
    window.prompt.run_button.click()
    assert "A sweep is " in window.banner.sentence()
    pause.gate.set()
    finish(qtbot, window)
    assert window.banner.sentence() == ""
    assert len(list(sweeps_folder().glob("*.jsonl"))) == 2
    engine.on_run = second = Pause(at=1)
    window.prompt.run_button.click()
    qtbot.waitUntil(second.reached.is_set)
    sweeps.form.start_button.click()
    assert sweeps.banner.sentence() == window.controller.busy_sentence() != ""
    second.gate.set()
    qtbot.waitUntil(lambda: not window.controller.busy_sentence())
    assert sweeps.banner.sentence() == ""


def test_escape_stops_a_sweep_and_only_then_closes_the_window_and_it_can_be_continued(window, engine, qtbot):
    engine.on_run = pause = Pause(at=3)
    sweeps = start(window)
    qtbot.waitUntil(pause.reached.is_set)
    qtbot.keyClick(sweeps, Qt.Key.Key_Escape)
    finish(qtbot, window)
    assert sweeps.isVisible()
    assert "2 of 6 runs · stopped" in sweeps.progress.text()
    assert sweeps.form.start_button.property("stands") == "back", "Continue stands out"
    engine.calls.clear()
    sweeps.continue_button.click()
    finish(qtbot, window)
    assert len(engine.calls) == 4
    assert sweeps.progress.text() == "All 6 runs done"
    assert not sweeps.form.start_button.property("stands")
    assert speedups(sweeps) == ["1.00×", "2.00×", "3.00×"]
    qtbot.keyClick(sweeps, Qt.Key.Key_Escape)
    assert not sweeps.isVisible()


def test_a_cell_that_fails_says_why_and_the_others_stay(window, engine, qtbot):
    engine.on_run = fails_at(2)
    sweeps = choose_small(window)
    sweeps.form.repeats.setValue(6)
    sweeps.form.start_button.click()
    finish(qtbot, window)
    assert speedups(sweeps) == ["1.00×", "2.00×", "failed"]
    assert "ran out of memory" in cell(sweeps.heatmap, 0, 2, Qt.ItemDataRole.ToolTipRole)
    assert sweeps.progress.text() == "12 of 18 measured, 5 failed, 1 not tried; Continue tries again"
    sweeps.heatmap.setCurrentCell(0, 2)
    assert "ran out of memory" in cell(sweeps.cell.table, 0, 7, Qt.ItemDataRole.ToolTipRole)
    assert sweeps.cell.problem.text() == "The draft ran out of memory."
    assert not sweeps.cell.use_button.isEnabled()
    engine.on_run = lambda request, controls: None
    sweeps.continue_button.click()
    finish(qtbot, window)
    assert speedups(sweeps) == ["1.00×", "2.00×", "3.00×"]
    assert sweeps.cell.problem.isHidden()


def test_where_nothing_pays_it_says_not_to_speculate_and_a_target_that_can_not_be_loaded_is_a_sentence(
    window, engine, qtbot
):
    def run(_request, _controls):
        raise OSError("no such model")
        yield

    engine.speed = lambda request, is_plain: 10.0 if is_plain else 8.0
    sweeps = start(window)
    finish(qtbot, window)
    assert words(sweeps) == ["Too few runs"]
    sweeps.form.repeats.setValue(6)
    sweeps.form.start_button.click()
    finish(qtbot, window)
    assert words(sweeps) == ["Don't speculate"]
    assert "don't speculate" in sweeps.verdicts.lines[0].sentence
    assert "best" in cell(sweeps.heatmap, role=Qt.ItemDataRole.AccessibleTextRole)
    engine.run = run
    sweeps.form.start_button.click()
    finish(qtbot, window)
    assert "no such model" in sweeps.banner.sentence()
    assert sweeps.progress.text() == "0 of 18 runs · failed; Continue tries again"
    assert "at the speed" not in sweeps.form.extent.text(), "it measured nothing"
    sweeps.heatmap.setCurrentCell(0, 1)
    assert sweeps.cell.table.hint.isVisible()
    assert sweeps.cell.table.hint.text() == NONE_MEASURED
    assert sweeps.form.start_button.isEnabled()
    whole = max(sweeps_folder().glob("*.jsonl"), key=lambda path: len(read_sweep(path).measurements))
    whole.write_bytes(whole.read_bytes()[:-20])
    sweeps.open_sweep(whole)
    qtbot.waitUntil(lambda: sweeps.view.path == whole)
    assert sweeps.progress.text() == "17 of 18 runs · stopped; Continue measures the rest", "another sweep failed"


def test_a_disk_error_is_reported_and_the_sweep_continues(window, qtbot, monkeypatch, tmp_path):
    (tmp_path / "sweep").write_text("in the way", "utf-8")
    monkeypatch.setattr(files, "new_path", lambda *_: tmp_path / "sweep.jsonl")
    sweeps = start(window)
    finish(qtbot, window)
    assert sweeps.banner.sentence().endswith("The sweep continues.")
    assert speedups(sweeps) == ["1.00×", "2.00×", "3.00×"]
    sweeps.heatmap.setCurrentCell(0, 1)
    sweeps.cell.table.selectRow(0)
    assert not sweeps.cell.open_button.isEnabled()


def test_a_long_sweep_asks_after_its_first_run(window, engine, qtbot, monkeypatch):
    monkeypatch.setattr("core.experiments.sweep_plan.ASK_ABOVE", 4)
    sweeps = choose_small(window)
    for button, num_done in ((sweeps.no_button, 1), (sweeps.yes_button, 6)):
        engine.calls.clear()
        sweeps.form.start_button.click()
        qtbot.waitUntil(lambda: not sweeps.question.isHidden())
        assert len(engine.calls) == 1
        assert sweeps.question.sentence().startswith("5 runs are left, which will take about")
        button.click()
        finish(qtbot, window)
        assert window.sweep.view.num_done == num_done
        assert sweeps.question.isHidden()


# --- Closing ---


@pytest.mark.parametrize("which", ["sweep", "main", "asked"])
def test_closing_in_the_middle_stops_in_order_and_keeps_what_is_measured(
    window, engine, qtbot, tmp_path, monkeypatch, which
):
    if which == "asked":
        monkeypatch.setattr("core.experiments.sweep_plan.ASK_ABOVE", 2)
    engine.on_run = Pause(at=2)
    sweeps = start(window)
    qtbot.waitUntil(lambda: window.sweep.view.num_done == 1)
    (sweeps if which == "sweep" else window).close()
    assert not sweeps.isVisible()
    if which in {"main", "asked"}:
        qtbot.waitUntil(lambda: window.controller.is_closed)
    finish(qtbot, window)
    (kept,) = sweeps_folder().glob("*.jsonl")
    assert len(read_sweep(kept).measurements) == 1
    if which == "sweep":
        window.menus.sweep.trigger()
        assert sweeps.continue_button.isEnabled()
