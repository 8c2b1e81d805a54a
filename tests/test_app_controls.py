"""Every control changes the request, and nothing that can't be run gets into one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from PySide6.QtCore import QLocale, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QAbstractSlider, QAbstractSpinBox, QApplication, QCheckBox, QComboBox, QLineEdit, QWidget

from app.settings import ChatTemplate
from core.drafters.registry import METHODS
from core.settings import Coupling, Device, DType, LengthPolicy

NAMES = (
    "targetCombo",
    "draftCombo",
    "methodCombo",
    "kSlider",
    "temperatureSlider",
    "promptEdit",
    "runButton",
    "stopButton",
    "transcript",
    "acceptancePlot",
    "latencyPlot",
)


def request(window):
    return window.controls.request(window.prompt.text())


def choose(combo: QComboBox, index: int) -> None:
    combo.setCurrentIndex(index)
    combo.activated.emit(index)


CHANGES = {
    "target": (lambda w: choose(w.controls.target.combo, 1), lambda r: r.target, "tiny-draft"),
    "draft": (lambda w: choose(w.controls.draft.combo, 0), lambda r: r.draft, "tiny-target"),
    "method": (
        lambda w: w.controls.method.combo.setCurrentIndex(1),
        lambda r: (r.method, r.draft),
        ("prompt-lookup", None),
    ),
    "k slider": (lambda w: w.controls.draft_length.number.slider.setValue(7), lambda r: r.num_draft_tokens, 7),
    "k spin": (lambda w: w.controls.draft_length.number.spin.setValue(16), lambda r: r.num_draft_tokens, 16),
    "auto k": (
        lambda w: w.controls.draft_length.policy.choose(LengthPolicy.AUTO),
        lambda r: (r.num_draft_tokens, r.length_policy),
        (None, LengthPolicy.AUTO),
    ),
    "adaptive k": (
        lambda w: w.controls.draft_length.policy.choose(LengthPolicy.ADAPTIVE),
        lambda r: (r.num_draft_tokens, r.length_policy),
        (None, LengthPolicy.ADAPTIVE),
    ),
    "coupling": (lambda w: w.controls.sampling.coupling.choose(Coupling.GUMBEL), lambda r: r.coupling, Coupling.GUMBEL),
    "reproducible": (
        lambda w: w.findChild(QCheckBox, "couplingCheck").click(),
        lambda r: r.coupling,
        Coupling.GUMBEL,
    ),
    "temperature slider": (
        lambda w: w.controls.sampling.temperature.slider.setValue(150),
        lambda r: r.sampling.temperature,
        1.5,
    ),
    "temperature spin": (
        lambda w: w.controls.sampling.temperature.spin.setValue(0.0),
        lambda r: r.sampling.temperature,
        0.0,
    ),
    "top-k": (lambda w: w.controls.sampling.top_k.setValue(40), lambda r: r.sampling.top_k, 40),
    "top-p": (lambda w: w.controls.sampling.top_p.setValue(0.9), lambda r: r.sampling.top_p, 0.9),
    "min-p": (lambda w: w.controls.sampling.min_p.setValue(0.05), lambda r: r.sampling.min_p, 0.05),
    "seed": (lambda w: w.controls.sampling.seed.setText("9223372036854775807"), lambda r: r.seed, 2**63 - 1),
    "length": (lambda w: w.controls.run.length.setValue(77), lambda r: r.max_new_tokens, 77),
    "chat": (lambda w: w.controls.run.chat.choose(ChatTemplate.OFF), lambda r: r.chat, False),
    "device": (lambda w: w.controls.run.device.choose(Device.CPU), lambda r: r.device, Device.CPU),
    "dtype": (lambda w: w.controls.run.dtype.choose(DType.FLOAT32), lambda r: r.dtype, DType.FLOAT32),
    "baseline": (lambda w: w.controls.run.baseline.click(), lambda r: r.baseline, False),
    "prompt": (lambda w: w.prompt.edit.setPlainText("once\tupon"), lambda r: r.prompt, "once\tupon"),
}


@pytest.mark.parametrize("control", CHANGES)
def test_every_control_changes_the_request(window, control):
    change, read, expected = CHANGES[control]
    assert read(request(window)) != expected
    change(window)
    assert read(request(window)) == expected


def test_the_reproducible_tick_says_what_it_does_and_costs_and_follows_the_settings(window):
    tick = window.findChild(QCheckBox, "couplingCheck")
    assert tick.text() == "Reproducible"
    assert "plain sampling" in tick.toolTip()
    assert "acceptance" in tick.toolTip()
    assert not tick.isChecked()
    settings = window.controls.settings("")
    window.controls.apply(replace(settings, coupling=Coupling.GUMBEL))
    assert tick.isChecked()
    tick.click()
    assert window.controls.settings("").coupling is Coupling.REJECTION


def test_what_a_seed_does_not_repeat_is_said(window):
    for widget in (window.controls.draft_length.policy, window.controls.sampling.seed):
        assert "Reproducible" in widget.toolTip()


def test_a_methods_options_form_is_made_from_its_dataclass_and_reaches_the_request(window):
    window.controls.method.combo.setCurrentIndex(1)
    form = window.controls.method.options
    assert set(form.values()) == {"max_ngram", "min_ngram"}
    spin = form.findChild(QAbstractSpinBox, "option_max_ngram")
    assert (spin.minimum(), spin.maximum(), spin.value()) == (1, 10, 3)
    assert "look up first" in spin.toolTip()
    spin.setValue(5)
    assert request(window).method_options == {"max_ngram": 5, "min_ngram": 1}


def test_options_that_do_not_fit_together_are_explained_and_stop_the_run(window):
    window.controls.method.combo.setCurrentIndex(1)
    window.controls.method.options.findChild(QAbstractSpinBox, "option_min_ngram").setValue(9)
    assert "must not be longer" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()


def test_options_survive_a_look_at_another_method(window):
    combo = window.controls.method.combo
    combo.setCurrentIndex(1)
    window.controls.method.options.findChild(QAbstractSpinBox, "option_max_ngram").setValue(6)
    combo.setCurrentIndex(0)
    combo.setCurrentIndex(1)
    assert request(window).method_options["max_ngram"] == 6


def test_the_draft_can_only_be_chosen_where_the_method_has_one(window):
    for index, method in enumerate(METHODS.values()):
        window.controls.method.combo.setCurrentIndex(index)
        assert window.controls.draft.combo.isEnabled() is method.needs_draft_model


@pytest.mark.parametrize("policy", [LengthPolicy.AUTO, LengthPolicy.ADAPTIVE])
def test_k_can_not_be_set_while_the_engine_chooses_it(window, policy):
    form = window.controls.draft_length
    form.number.set_value(9)
    form.policy.choose(policy)
    assert not form.number.slider.isEnabled()
    assert not form.number.spin.isEnabled()
    form.policy.choose(LengthPolicy.FIXED)
    assert request(window).num_draft_tokens == 9


def test_slider_and_spin_box_follow_each_other_and_tell_a_value_once(window, qtbot):
    k = window.controls.draft_length.number
    told = []
    k.value_changed.connect(told.append)
    k.slider.setValue(9)
    assert k.spin.value() == 9
    k.spin.setValue(3)
    assert k.slider.value() == 3
    k.spin.setValue(3)
    assert told == [9, 3]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 2.1])
def test_no_number_outside_the_range_gets_into_the_temperature(window, value):
    temperature = window.controls.sampling.temperature
    assert temperature.set_value(value) is False
    temperature.spin.setValue(value)
    assert 0.0 <= request(window).sampling.temperature <= 2.0


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e9", "abc", "½", ""])
def test_junk_typed_into_the_temperature_leaves_a_number(window, qtbot, text):
    spin = window.controls.sampling.temperature.spin
    spin.selectAll()
    qtbot.keyClicks(spin, text)
    qtbot.keyClick(spin, Qt.Key.Key_Return)
    assert 0.0 <= request(window).sampling.temperature <= 2.0


@pytest.mark.parametrize("text", ["", "nan", "-1", "1.5", "0x10", "9223372036854775808", "9" * 5000, "١٢", "seed"])
def test_a_seed_that_is_none_gets_a_sentence_and_stops_the_run(window, text):
    window.controls.sampling.seed.setText(text)
    assert "whole number" in window.controls.sampling.problem_label.text()
    assert "whole number" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()
    window.controls.sampling.seed.setText("5")
    assert window.prompt.run_button.isEnabled()
    assert not window.controls.sampling.problem_label.isVisibleTo(window)


def test_new_seed_draws_another_one(window):
    before = request(window).seed
    window.controls.sampling.new_seed.click()
    assert request(window).seed != before or request(window).seed >= 0


def test_an_empty_prompt_is_explained_next_to_run(window):
    window.prompt.edit.clear()
    assert "prompt is empty" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()


def test_a_preset_fills_the_prompt_and_can_be_undone(window):
    before = window.prompt.text()
    actions = [action for action in window.prompt.presets_button.menu().actions() if action.isEnabled()]
    assert len(actions) >= 5
    actions[0].trigger()
    actions[1].trigger()
    assert window.prompt.text() == actions[1].data() != before
    window.prompt.edit.undo()
    assert window.prompt.text() == actions[0].data()


def test_the_wheel_does_not_change_a_field_that_it_passes(make_window):
    window = make_window(is_shown=True)
    slider = window.controls.draft_length.number.slider
    window.prompt.edit.setFocus()
    here = QPointF(5, 5)
    wheel = QWheelEvent(
        here,
        slider.mapToGlobal(here),
        QPoint(0, 0),
        QPoint(0, 120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    before = slider.value()
    QApplication.sendEvent(slider, wheel)
    assert slider.value() == before


def test_every_control_has_a_name_of_its_own_and_one_for_assistive_technology(window):
    for name in NAMES:
        assert len(window.findChildren(QWidget, name)) == 1, name
    kinds = (QAbstractSlider, QAbstractSpinBox, QComboBox, QCheckBox)
    controls = [w for kind in kinds for w in window.controls.findChildren(kind) if not w.inherits("QScrollBar")]
    assert len(controls) > 10
    for control in [*controls, *window.controls.findChildren(QLineEdit, "seedEdit")]:
        assert control.objectName(), control
        assert control.accessibleName(), control.objectName()


def test_numbers_are_written_as_on_the_command_line_in_every_language(make_window):
    before = QLocale()
    QLocale.setDefault(QLocale(QLocale.Language.German))
    try:
        window = make_window()
        assert window.controls.sampling.temperature.spin.text() == "0.80"
    finally:
        QLocale.setDefault(before)


def test_the_baseline_is_not_said_to_have_the_runs_length(window):
    # Above temperature 0 it is another draw, which may end elsewhere.
    text = window.controls.run.baseline.toolTip()
    assert "same limit of new tokens" in text
    assert "as many" not in text
