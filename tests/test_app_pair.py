"""A pair's needs are shown before it is loaded, and the prompt can be shown as the target reads it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from app.controller import RunState
from app.setup.model_picker import ModelRole
from app.setup.prompt import WAITING, PromptReading
from app.theme import DARK, LIGHT
from core.errors import OutriderError
from core.models.fit import MemoryForecast, PairVerdict
from core.models.prompting import RenderedPrompt
from core.settings import Device, DType
from tests.fakes_models import DRAFT, TARGET, hub_entry, until

COST_ONLY = "Draft step: 0.13 of a target step, estimated"
FITS = f"{COST_ONLY}\nMemory: needs 1.9 of 22.0 GB free"
TOO_MUCH = MemoryForecast(30_000_000_000, 500_000_000, 0, 22_000_000_000)


def line(window):
    return window.controls.models.verdict.line


def warm_up(window, qtbot):
    with qtbot.waitSignal(window.controller.engine_ready):
        window.controller.warm_up()


def test_models_of_one_title_are_listed_by_their_references(window, hub):
    form, refs = window.controls.models, ["Qwen/Qwen3-0.6B", "unsloth/Qwen3-0.6B"]
    for ref in refs:
        form.add_model(hub_entry(ref, 1_500_000_000))
    for combo in (form.target.combo, form.draft.combo):
        assert all(combo.findText(ref) >= 0 for ref in refs)
    form.add_model(hub_entry("owner/large", 9_000_000_000))
    form.choose(ModelRole.TARGET, "owner/large")
    form.choose(ModelRole.DRAFT, refs[0])
    assert any(form.draft.combo.itemText(row).endswith(f"· {refs[0]}") for row in range(form.draft.combo.count()))
    form.library.record("owner/large", dict.fromkeys(refs))
    window.menus.sweep.trigger()
    sweep = window.sweep.form
    assert all(sweep.target.findText(ref) >= 0 for ref in refs)
    assert {sweep.drafts.boxes[ref].text() for ref in refs} == set(refs)


# --- The verdict ---


def test_the_cost_is_shown_at_once_and_memory_once_the_engine_is_loaded(window, hub, qtbot):
    until(qtbot, lambda: line(window).text() == COST_ONLY)
    assert not any(settings["with_memory"] for _, _, settings in hub.judged)
    warm_up(window, qtbot)
    until(qtbot, lambda: line(window).text() == FITS)
    assert "Weights: 1.5 GB" in line(window).toolTip()
    assert "Free on the device: 22.0 GB" in line(window).toolTip()


def test_a_run_of_the_pair_shows_the_cost_that_it_measured_in_place_of_the_forecast(window, hub, run_to_end, qtbot):
    warm_up(window, qtbot)
    until(qtbot, lambda: line(window).text() == FITS)
    run_to_end(window)
    measured = FITS.replace("0.13 of a target step, estimated", "0.20 of a target step, as\u00a0last\u00a0measured")
    until(qtbot, lambda: line(window).text() == measured)
    assert "From the numbers of parameters, 0.13 is expected." in line(window).toolTip()
    window.controls.fields["dtype"].choose(DType.FLOAT32)
    window.controls.changed.emit()
    until(qtbot, lambda: line(window).text() == FITS)


def test_only_a_run_that_was_not_stepped_and_has_its_baseline_measures_the_cost(window, hub, run_to_end, qtbot):
    window.controls.fields["baseline"].setChecked(False)
    run_to_end(window)
    until(qtbot, lambda: "0.13 of a target step, estimated" in line(window).text())
    window.controls.fields["baseline"].setChecked(True)
    run_to_end(window)
    until(qtbot, lambda: "0.20 of a target step, as\u00a0last\u00a0measured" in line(window).text())
    view, whole = window.run_view, window.run_view.summary
    for changes in ({"was_stepped": True}, {"baseline_tokens_per_second": None}):
        view.summary = replace(whole, cost_coefficient=1.13, **changes)
        window.live.run_shown.emit()
        assert "0.20 of a target step, as\u00a0last\u00a0measured" in line(window).text(), "the earlier value stays"


def test_a_cost_that_another_method_or_option_measured_is_not_shown_as_measured(window, hub, run_to_end, qtbot):
    run_to_end(window)
    until(qtbot, lambda: "0.20 of a target step, as\u00a0last\u00a0measured" in line(window).text())
    for method, options in (("draft-tree", {}), ("draft-model", {"draft-model": {"int8": False}})):
        window.controls.method.apply(method, options)
        window.controls.changed.emit()
        until(qtbot, lambda: "0.13 of a target step, estimated" in line(window).text())
        window.controls.method.apply("draft-model", {})
        window.controls.changed.emit()
        until(qtbot, lambda: "0.20 of a target step, as\u00a0last\u00a0measured" in line(window).text())


@pytest.mark.parametrize("size", [(1280, 800), (1024, 700)])
def test_nothing_below_the_verdict_moves_whatever_it_says(make_window, hub, qtbot, size):
    window = make_window(is_shown=True)
    window.resize(*size)
    until(qtbot, lambda: COST_ONLY in line(window).text())
    verdict, below, places = window.controls.models.verdict, window.controls.fields["num_draft_tokens"], set()
    large = (
        "A step of the draft is expected to cost 1.00 of a target step, which leaves little to gain. Choose a "
        "smaller draft, or a larger target."
    )
    short = "Beyond the limit of the draft, 2,048 tokens, the target continues alone, as far as 131,072 tokens."
    fits = PairVerdict(None, (), hub.memory, 0.13)
    too_large = PairVerdict(None, (large,), TOO_MUCH, 1.0)
    for each in (None, replace(fits, memory=None), fits, too_large, replace(fits, warnings=(large, short))):
        verdict.show_verdict(each)
        QApplication.processEvents()
        places.add(below.mapTo(window, QPoint()).y())
        assert verdict.line.heightForWidth(verdict.line.width()) <= verdict.height(), "no line is cut"
    assert verdict.line.text() == large
    assert short in verdict.line.toolTip()
    assert len(places) == 1
    assert window.controls.verticalScrollBar().maximum() == 0


def test_a_warning_takes_the_place_of_the_figures_and_the_question_follows_the_settings(make_window, hub, qtbot):
    hub.warnings = ("The draft is nearly as large as the target.",)
    window = make_window()
    until(qtbot, lambda: line(window).text() == hub.warnings[0])
    assert line(window).property("role") == "warning"
    assert COST_ONLY in line(window).toolTip()
    until(qtbot, lambda: bool(hub.judged))
    window.controls.fields["max_new_tokens"].setValue(4096)
    until(qtbot, lambda: bool(hub.judged) and hub.judged[-1][2]["context"] > 4096)
    draft, target, settings = hub.judged[0]
    assert (target, draft, settings["device"], settings["dtype"]) == (TARGET.ref, DRAFT.ref, "auto", "auto")
    assert 128 < settings["context"] <= 128 + 512


def test_a_pair_that_is_chosen_again_at_once_has_its_figures_again(make_window, hub, qtbot):
    hub.judge_gate = threading.Event()
    window = make_window()
    until(qtbot, lambda: line(window).text() == COST_ONLY)
    window.controls.models.choose(ModelRole.TARGET, DRAFT.ref)
    until(qtbot, lambda: not window.jobs.is_idle)
    window.controls.models.choose(ModelRole.TARGET, TARGET.ref)
    hub.judge_gate.set()
    until(qtbot, lambda: window.jobs.is_idle)
    assert line(window).text() == COST_ONLY
    window.controls.method.combo.setCurrentIndex(1)
    assert line(window).text() == "", "no draft model"


def test_a_forecast_that_fails_is_silent_and_blocks_nothing(make_window, hub, qtbot):
    hub.forecast_error = OutriderError("no")
    window = make_window()
    until(qtbot, lambda: len(hub.judged) == 1)
    until(qtbot, lambda: window.jobs.is_idle)
    assert line(window).text() == ""
    assert window.prompt.run_button.isEnabled()


def test_a_pair_that_is_too_large_is_loaded_only_after_a_yes_once_for_each_precision(
    make_window, hub, dialogs, session, run_to_end, qtbot
):
    hub.memory = TOO_MUCH
    window = make_window()
    warm_up(window, qtbot)
    until(qtbot, lambda: line(window).text().startswith("Too large for memory: needs 30.5 GB, and 22.0 GB is free"))
    assert line(window).property("role") == "problem"
    window.prompt.run_button.click()
    assert (dialogs.asked, session.requests) == (["Too large for memory: needs 30.5 GB, and 22.0 GB is free"], [])
    dialogs.says_yes = True
    run_to_end(window)
    run_to_end(window)
    assert (len(dialogs.asked), len(session.requests)) == (2, 2), "a pair that has run is not asked about again"
    window.controls.fields["dtype"].choose(DType.FLOAT32)
    window.controls.changed.emit()
    until(qtbot, lambda: hub.judged[-1][2]["dtype"] == "float32")
    until(qtbot, lambda: window.forecast._answer[0].dtype == "float32")
    run_to_end(window)
    assert len(dialogs.asked) == 3


def test_a_pair_chosen_a_moment_ago_is_judged_before_it_is_loaded(
    make_window, hub, dialogs, session, run_to_end, qtbot
):
    window = make_window()
    warm_up(window, qtbot)
    run_to_end(window)
    hub.memory, before = TOO_MUCH, window.run_view.request
    window.runs.replay_wanted.emit(replace(before, dtype=DType.FLOAT16))
    assert (len(dialogs.asked), len(session.requests)) == (1, 1)
    dialogs.says_yes = True
    with qtbot.waitSignal(window.live.run_shown):
        window.controls.fields["dtype"].choose(DType.FLOAT32)
        window.controls.changed.emit()
        window.prompt.run_button.click()
    assert [request.dtype for request in session.requests] == [before.dtype, DType.FLOAT32]
    assert len(dialogs.asked) == 2


def test_the_forecast_knows_what_loaded_models_hold(make_window, hub, session, run_to_end, qtbot):
    session.held = 3_000_000
    window = make_window()
    until(qtbot, lambda: bool(hub.judged))
    run_to_end(window)
    until(qtbot, lambda: hub.judged[-1][2]["held_bytes"] == 3_000_000)
    assert hub.judged[0][2]["held_bytes"] == 0
    window.controls.fields["device"].choose(Device.CPU)
    window.controls.changed.emit()
    until(qtbot, lambda: hub.judged[-1][2]["device"] == "cpu")
    assert hub.judged[-1][2]["held_bytes"] == 0


def test_a_pair_with_a_problem_has_no_figures(make_window, hub, qtbot):
    hub.problems = {(DRAFT.ref, TARGET.ref): "They differ."}
    window = make_window()
    until(qtbot, lambda: window.prompt.note.text() == "They differ.")
    window.controls.models.choose(ModelRole.DRAFT, TARGET.ref)
    until(qtbot, lambda: window.prompt.run_button.isEnabled())


def test_a_problem_that_only_the_engine_knows_takes_the_place_of_the_figures(window, hub, qtbot, monkeypatch):
    def judge(*pair, with_memory=True, **settings):
        if with_memory:
            return PairVerdict("It is of an unknown kind.")
        return hub.pair_verdict(*pair, with_memory=False, **settings)

    monkeypatch.setattr("core.models.fit.pair_verdict", judge)
    until(qtbot, lambda: line(window).text() == COST_ONLY)
    warm_up(window, qtbot)
    until(qtbot, lambda: line(window).text() == "It is of an unknown kind.")
    assert line(window).property("role") == "problem"


# --- What the target reads ---


def test_the_prompt_can_be_seen_as_the_model_reads_it(window, hub, qtbot):
    window.prompt.set_text("Hello")
    window.menus.show_reading.setChecked(True)
    reading = window.prompt.reading
    until(qtbot, lambda: "<|im_start|>user\nHello<|im_end|>" in reading.toPlainText())
    assert window.prompt.note.text() == "3 tokens · chat template applied"
    assert reading.isReadOnly()
    assert window.prompt.text() == "Hello"
    window.prompt.reading_button.click()
    assert not window.menus.show_reading.isChecked()
    assert "Ctrl+Enter" in window.prompt.note.text()
    window.prompt.reading_button.click()
    window.controls.fields["chat"].choose(False)
    until(qtbot, lambda: "raw" in window.prompt.note.text())
    assert reading.toPlainText() == "Hello"
    assert hub.rendered[-1] == (TARGET.ref, "Hello", False, "")


def test_special_tokens_are_set_apart(window, qtbot):
    window.prompt.set_text("a 🙂 b")
    window.prompt.reading_button.click()
    reading = window.prompt.reading
    until(qtbot, lambda: "im_end" in reading.toPlainText())
    document = reading.document()
    is_apart = {
        text: document.find(text).charFormat().background().style() is not Qt.BrushStyle.NoBrush
        for text in ("<|im_start|>", "user", "a 🙂", "b", "<|im_end|>", "assistant")
    }
    assert [text for text, apart in is_apart.items() if apart] == ["<|im_start|>", "<|im_end|>"]
    for theme in (DARK, LIGHT):
        window.menus.theme_actions[theme.name].trigger()
        assert document.find("<|im_end|>").charFormat().background().color().name() == theme.selection


def test_many_special_tokens_are_set_apart_in_one_edit(qapp):
    reading, changes = PromptReading(), []
    reading.document().contentsChange.connect(lambda *change: changes.append(change))
    counts = []
    for count in (1, 50):
        reading.show_rendered(RenderedPrompt("<s>a" * count, count, True, ("<s>",)))
        counts.append(len(changes))
        changes.clear()
    assert counts[0] == counts[1] > 0


def test_a_prompt_that_can_not_be_rendered_says_why(make_window, hub, qtbot):
    hub.render_problem = "The target has no chat template. Run it raw."
    window = make_window()
    window.prompt.reading_button.click()
    until(qtbot, lambda: window.prompt.note.text() == hub.render_problem)
    assert window.prompt.note.property("role") == "problem"


def test_a_prompt_that_could_not_be_rendered_is_tried_again_after_a_run(make_window, hub, qtbot):
    hub.render_problem = "Run it once to see its prompts formatted."
    window = make_window()
    window.prompt.reading_button.click()
    until(qtbot, lambda: window.prompt.note.text() == hub.render_problem)
    hub.render_problem = ""
    window.prompt.show_state(RunState.IDLE, None)
    until(qtbot, lambda: "chat template applied" in window.prompt.note.text())


def test_nothing_is_rendered_while_hidden(window, hub, qtbot):
    window.prompt.set_text("one")
    window.prompt.reading_button.click()
    assert window.prompt.note.text() in {WAITING, "3 tokens · chat template applied"}
    until(qtbot, lambda: len(hub.rendered) == 1)
    window.prompt.reading_button.click()
    window.prompt.set_text("two")
    window.controls.fields["max_new_tokens"].setValue(2000)
    until(qtbot, lambda: bool(hub.judged) and hub.judged[-1][2]["context"] > 2000)
    assert len(hub.rendered) == 1


def test_a_preset_leads_back_to_the_editor(window):
    window.prompt.reading_button.click()
    action = next(action for action in window.prompt.presets_button.menu().actions() if action.isEnabled())
    action.trigger()
    assert not window.prompt.is_reading
    assert window.prompt.text() == action.data().text
