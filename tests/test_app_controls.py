"""Every control changes the request, and nothing that can't be run gets into one."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import replace

import pytest
from PySide6.QtCore import QLocale, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QAbstractSpinBox, QApplication, QCheckBox, QComboBox, QLabel, QSlider, QWidget

from app.controller import RunState
from app.setup.method_form import MethodForm
from app.setup.prompt import Preset
from core.drafters.registry import METHODS, Method, PromptLookupOptions
from core.settings import Coupling, Device, DType, LengthPolicy

NAMES = ("targetCombo", "draftCombo", "methodCombo", "kSlider", "temperatureSlider", "promptEdit", "runButton",
         "stopButton", "transcript", "acceptancePlot", "latencyPlot")  # fmt: skip


def request(window):
    return window.controls.request(window.prompt.text())


def choose(combo: QComboBox, index: int) -> None:
    combo.setCurrentIndex(index)
    combo.activated.emit(index)


CHANGES = {
    "target": (lambda c: choose(c.target.combo, 1), lambda r: r.target, "tiny-draft"),
    "draft": (lambda c: choose(c.draft.combo, 0), lambda r: r.draft, "tiny-target"),
    "method": (lambda c: c.method.combo.setCurrentIndex(1), lambda r: (r.method, r.draft), ("prompt-lookup", None)),
    "k slider": (lambda c: c.fields["num_draft_tokens"].slider.setValue(7), lambda r: r.num_draft_tokens, 7),
    "k spin": (lambda c: c.fields["num_draft_tokens"].spin.setValue(16), lambda r: r.num_draft_tokens, 16),
    "coupling": (lambda c: c.fields["coupling"].choose(Coupling.GUMBEL), lambda r: r.coupling, Coupling.GUMBEL),
    "reproducible": (lambda c: c.findChild(QCheckBox, "couplingCheck").click(), lambda r: r.coupling, Coupling.GUMBEL),
    "temperature slider": (
        lambda c: c.fields["temperature"].slider.setValue(150),
        lambda r: r.sampling.temperature,
        1.5,
    ),
    "temperature spin": (lambda c: c.fields["temperature"].spin.setValue(0.0), lambda r: r.sampling.temperature, 0.0),
    "top-k": (lambda c: c.fields["top_k"].setValue(40), lambda r: r.sampling.top_k, 40),
    "top-p": (lambda c: c.fields["top_p"].setValue(0.9), lambda r: r.sampling.top_p, 0.9),
    "min-p": (lambda c: c.fields["min_p"].setValue(0.05), lambda r: r.sampling.min_p, 0.05),
    "seed": (lambda c: c.fields["seed"].setText("9223372036854775807"), lambda r: r.seed, 2**63 - 1),
    "new seed": (lambda c: c.fields["seed"].new_button.click(), lambda r: r.seed != 0, True),
    "length": (lambda c: c.fields["max_new_tokens"].setValue(77), lambda r: r.max_new_tokens, 77),
    "chat": (lambda c: c.fields["chat"].choose(False), lambda r: r.chat, False),
    "device": (lambda c: c.fields["device"].choose(Device.CPU), lambda r: r.device, Device.CPU),
    "dtype": (lambda c: c.fields["dtype"].choose(DType.FLOAT32), lambda r: r.dtype, DType.FLOAT32),
    "system": (lambda c: c.fields["system"].setText(" Be brief. "), lambda r: r.system, "Be brief."),
    "baseline": (lambda c: c.fields["baseline"].click(), lambda r: r.baseline, False),
}


def test_every_control_changes_the_request_and_every_name_that_scripts_use_exists_once(window):
    assert [name for name in NAMES if len(window.findChildren(QWidget, name)) != 1] == []
    saved = window.controls.settings("p")
    for control, (change, read, expected) in CHANGES.items():
        assert read(request(window)) != expected, control
        change(window.controls)
        assert read(request(window)) == expected, control
        window.controls.apply(saved)


def test_k_counts_the_nodes_of_a_tree_up_to_64_and_the_tokens_of_a_chain_up_to_16(window):
    controls, k = window.controls, window.controls.fields["num_draft_tokens"]
    trees, chains = (64, "K, nodes"), (16, "K, draft tokens")
    for method, (most, title) in {"draft-tree": trees, "medusa": trees, "prompt-lookup": chains}.items():
        controls.method.choose(method)
        assert k.slider.maximum() == k.spin.maximum() == most
        assert k.slider.accessibleName() == k.spin.accessibleName() == k._label.text() == title
        k.slider.setValue(most)
        assert request(window).num_draft_tokens == most
        k.spin.setValue(most + 1)
        assert request(window).num_draft_tokens == most
        controls.method.choose("draft-model")
        assert request(window).num_draft_tokens == 16, "no chain is as long as a tree may be large"
    saved = replace(window.controls.settings("p"), method="draft-tree", num_draft_tokens=40)
    window.controls.apply(saved)
    assert request(window).num_draft_tokens == 40
    window.controls.apply(replace(saved, method="draft-model"))
    assert request(window).num_draft_tokens == 16


def test_a_filter_that_is_off_says_so_and_a_number_can_still_be_typed(window, qtbot):
    filters = {name: window.controls.fields[name] for name in ("top_k", "top_p", "min_p")}
    assert {spin.text() for spin in filters.values()} == {"off"}
    spin = filters["top_p"]
    for typed, value, text in (("0.9", 0.9, "0.9"), ("off", 1.0, "off"), ("0.05", 0.05, "0.05"), ("1", 1.0, "off")):
        spin.selectAll()
        qtbot.keyClicks(spin, typed)
        qtbot.keyClick(spin, Qt.Key.Key_Return)
        assert (spin.value(), spin.text()) == (value, text)
        assert request(window).sampling.top_p == value
    spin.stepDown()
    assert spin.text() == "0.95"


def test_a_methods_options_reach_the_request_outlive_another_method_and_are_checked(window):
    assert request(window).method_options == {"int8": True}
    window.controls.method.combo.setCurrentIndex(1)
    form = window.controls.method.options["prompt-lookup"]
    assert set(form.values()) == {"max_ngram", "min_ngram"}
    spin = form.findChild(QAbstractSpinBox, "option_max_ngram")
    assert (spin.minimum(), spin.maximum(), spin.value()) == (1, 10, 3)
    spin.setValue(5)
    window.controls.method.combo.setCurrentIndex(0)
    window.controls.method.combo.setCurrentIndex(1)
    assert request(window).method_options == {"max_ngram": 5, "min_ngram": 1}
    form.findChild(QAbstractSpinBox, "option_min_ngram").setValue(9)
    assert "must not be longer" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()


def test_a_drafter_of_somebody_else_is_offered_and_a_broken_one_is_named(qtbot, monkeypatch):
    other = Method("other:Drafter", "Other", "Somebody else's.", False, PromptLookupOptions, "other:Drafter")
    monkeypatch.setattr(METHODS, "_methods", {**METHODS, other.name: other})
    monkeypatch.setattr(METHODS, "problems", ["The method 'gone' can't be used."])
    form = MethodForm()
    qtbot.addWidget(form)
    form.choose(other.name)
    assert form.method is other
    assert form.values() == {"max_ngram": 3, "min_ngram": 1}
    assert form.findChild(QLabel, "methodLeftOut").text() == METHODS.problems[0]


def test_the_folded_settings_say_how_many_differ_no_scroll_bar_is_needed_and_the_wheel_changes_nothing(make_window):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    QApplication.processEvents()
    controls = window.controls
    assert controls.verticalScrollBar().maximum() == 0
    assert controls.advanced.button.text() == "▸ Advanced"
    assert not controls.fields["top_k"].isVisible()
    controls.fields["top_k"].setValue(40)
    controls.fields["chat"].choose(False)
    assert controls.advanced.button.text() == "▸ Advanced · 2 changed"
    controls.advanced.button.click()
    assert controls.fields["top_k"].isVisible()
    slider = window.controls.fields["num_draft_tokens"].slider
    window.prompt.edit.setFocus()
    here, before = QPointF(5, 5), slider.value()
    none = (Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase)
    wheel = QWheelEvent(here, slider.mapToGlobal(here), QPoint(0, 0), QPoint(0, 120), *none, False)
    QApplication.sendEvent(slider, wheel)
    assert slider.value() == before


def test_slider_and_spin_box_agree_and_k_can_not_be_set_by_hand_while_the_engine_chooses_it(window):
    values, k = [], window.controls.fields["num_draft_tokens"]
    k.value_changed.connect(values.append)
    k.slider.setValue(9)
    assert k.spin.value() == 9
    k.spin.setValue(3)
    assert k.slider.value() == 3
    k.spin.setValue(3)
    assert values == [9, 3], "each value is signalled once"
    number, chosen_by = (window.controls.fields[name] for name in ("num_draft_tokens", "length_policy"))
    number.set_value(9)
    for policy in (LengthPolicy.AUTO, LengthPolicy.ADAPTIVE):
        chosen_by.choose(policy)
        assert (request(window).num_draft_tokens, request(window).length_policy) == (None, policy)
        assert not number.slider.isEnabled()
        assert not number.spin.isEnabled()
        chosen_by.choose(LengthPolicy.FIXED)
        assert request(window).num_draft_tokens == 9


def test_a_pair_that_is_chosen_starts_with_the_k_that_was_measured_for_it_or_with_auto(window, monkeypatch):
    controls = window.controls
    controls.fields["num_draft_tokens"].set_value(9)
    choose(controls.draft.combo, 0)
    assert controls.draft_length() is LengthPolicy.AUTO
    monkeypatch.setattr("app.setup.settings_panel.usual_draft_length", lambda draft: {"tiny-draft": 2}.get(draft))
    choose(controls.draft.combo, 1)
    assert controls.draft.ref == "tiny-draft"
    assert controls.draft_length() == 2


def test_neither_numbers_outside_the_range_nor_junk_get_into_the_temperature(window, qtbot):
    temperature = window.controls.fields["temperature"]
    for value in (math.nan, math.inf, -math.inf, -0.1, 2.1):
        assert temperature.set_value(value) is False
        temperature.spin.setValue(value)
        assert 0.0 <= request(window).sampling.temperature <= 2.0, value
    for text in ("nan", "inf", "-1", "1e9", "abc", "½", ""):
        temperature.spin.selectAll()
        qtbot.keyClicks(temperature.spin, text)
        qtbot.keyClick(temperature.spin, Qt.Key.Key_Return)
        assert 0.0 <= request(window).sampling.temperature <= 2.0, text


def test_an_invalid_seed_gets_a_sentence_and_prevents_the_run(window):
    seed = window.controls.fields["seed"]
    for text in ("", "nan", "-1", "1.5", "0x10", "9223372036854775808", "9" * 5000, "١٢", "seed"):
        seed.setText(text)
        assert seed.property("invalid"), text
        assert "whole number" in window.prompt.note.text(), text
        assert not window.prompt.run_button.isEnabled()
        seed.setText("5")
        assert window.prompt.run_button.isEnabled()
        assert not seed.property("invalid")


def test_an_empty_prompt_is_explained_beside_run_and_a_preset_fills_it_and_can_be_undone(window):
    window.prompt.edit.clear()
    assert "prompt is empty" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()
    before = window.prompt.text()
    actions = [action for action in window.prompt.presets_button.menu().actions() if action.isEnabled()]
    assert len(actions) >= 5
    actions[0].trigger()
    actions[1].trigger()
    assert window.prompt.text() == actions[1].data().text != before
    window.prompt.edit.undo()
    assert window.prompt.text() == actions[0].data().text


def test_numbers_are_written_as_on_the_command_line_in_every_language(make_window):
    before = QLocale()
    QLocale.setDefault(QLocale(QLocale.Language.German))
    try:
        window = make_window()
        assert window.controls.fields["temperature"].spin.text() == "0.70"
    finally:
        QLocale.setDefault(before)


def change_something(window, source: random.Random):
    """Change one of the settings at the left, at random."""
    kinds = (QSlider, QAbstractSpinBox, QCheckBox, QComboBox)
    fields = [field for kind in kinds for field in window.controls.findChildren(kind)]
    field = source.choice([field for field in fields if field.isEnabled()])
    if isinstance(field, QSlider):
        field.setValue(source.randint(field.minimum(), field.maximum()))
    elif isinstance(field, QAbstractSpinBox):
        field.stepBy(source.choice([-3, -1, 1, 3]))
    elif isinstance(field, QCheckBox):
        field.click()
    else:
        field.setCurrentIndex(source.randrange(field.count()))


def test_hundreds_of_changes_in_the_middle_of_a_run_leave_a_window_that_runs_what_it_shows(
    window, qtbot, session, run_to_end
):
    session.gate = threading.Semaphore(0)
    source, sentences = random.Random(0), []
    window.controller.failed.connect(sentences.append)
    asked = request(window)
    window.prompt.run_button.click()
    for number in range(300):
        change_something(window, source)
        if number % 50 == 0:
            session.gate.release()
            qtbot.waitUntil(lambda number=number: len(window.run_view.steps) == number // 50 + 1)
    assert window.run_view.request.sampling == asked.sampling  # A run's request is a snapshot.
    assert session.controls[0].sampling.temperature == pytest.approx(window.controls.fields["temperature"].value())
    session.gate.release(1_000)
    qtbot.waitUntil(lambda: window.controller.state is RunState.IDLE, timeout=10_000)
    assert sentences == []
    window.controls.apply(window.state.settings.run)
    run_to_end(window)
    assert window.run_view.request.num_draft_tokens == asked.num_draft_tokens


def test_the_k_of_a_tree_prepared_for_the_next_run_does_not_reach_a_chain_nor_the_other_way_round(
    window, qtbot, session
):
    fields, method = window.controls.fields, window.controls.method
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(session.controls) == 1)
    before = session.controls[0].num_draft_tokens
    method.choose("draft-tree")
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(48)
    assert session.controls[0].num_draft_tokens == before
    method.choose("prompt-lookup")
    fields["num_draft_tokens"].set_value(9)
    assert session.controls[0].num_draft_tokens == 9
    method.choose("draft-tree")
    fields["num_draft_tokens"].set_value(48)
    with qtbot.waitSignal(window.controller.run_ended):
        session.gate.release(1000)
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(session.controls) == 2)
    fields["num_draft_tokens"].set_value(40)
    method.choose("draft-model")
    fields["num_draft_tokens"].set_value(5)
    assert session.controls[1].num_draft_tokens == 40
    with qtbot.waitSignal(window.controller.run_ended):
        session.gate.release(1000)


def test_a_run_keeps_its_k_whatever_is_chosen_for_the_next_one_until_the_user_changes_k(window, qtbot, session):
    fields, choose = window.controls.fields, window.controls.models.method_chosen.emit
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(7)
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(session.controls) == 1)
    choose("draft-tree")
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(12)
    assert session.controls[0].num_draft_tokens == 7, "of a tree"
    choose("draft-model")
    assert window.controls.draft_length() != 7
    assert session.controls[0].num_draft_tokens == 7
    fields["length_policy"].choose(LengthPolicy.FIXED)
    fields["num_draft_tokens"].set_value(5)
    assert session.controls[0].num_draft_tokens == 5
    with qtbot.waitSignal(window.controller.run_ended):
        session.gate.release(1000)


def test_settings_filled_in_for_the_next_run_leave_the_current_one_as_it_is(window, qtbot, session):
    session.gate = threading.Semaphore(1)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: len(window.run_view.steps) == 1)
    controls, fields = session.controls[0], window.controls.fields
    before = controls.sampling.temperature, controls.num_draft_tokens
    window.prompt.show_preset(Preset("code", "Loop", "for", 0.31))
    window.controls.models.method_chosen.emit("draft-tree")
    window.controls.apply(replace(window.controls.settings("x"), num_draft_tokens=9))
    assert (controls.sampling.temperature, controls.num_draft_tokens) == before
    fields["temperature"].spin.setValue(0.6)
    assert controls.sampling.temperature == 0.6, "what the user moves is live"
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.stop_button.click()
