"""Fields show each setting as it is, whatever its declaration, and what they show is what runs."""

from __future__ import annotations

import math
from dataclasses import make_dataclass, replace

import pytest
from PySide6.QtCore import QMimeData, Qt, QUrl
from PySide6.QtGui import QGuiApplication

from app.setup.setting_fields import SettingsForm
from core.settings import SamplingParams, declared, setting


def form_of(qtbot, default, *, name="size", **rules):
    """A form for one option of somebody's drafter."""
    declaration = setting(default, label="Size", help="How many.", **{"min": 0, "step": 1, **rules})
    items = declared(make_dataclass("Options", [(name, type(default), declaration)]))
    form = SettingsForm(items, {name: f"option_{name}"})
    qtbot.addWidget(form)
    return form


@pytest.mark.parametrize("bound", [3_000_000_000, 2**63 - 1, math.inf])
def test_a_whole_number_without_a_limit_that_qt_knows_has_a_field_of_as_many_as_qt_can_show(qtbot, bound):
    form = form_of(qtbot, 5, min=-bound, max=bound)
    assert form.values() == {"size": 5}
    field = form.fields["size"]
    assert (field.minimum(), field.maximum()) == (-(2**31), 2**31 - 1)


def test_a_drafters_option_is_shown_by_its_own_declaration_though_the_run_has_a_setting_of_that_name(qtbot):
    form = form_of(qtbot, 3, name="seed", max=99)
    seed = form.fields["seed"]
    assert (seed.value(), seed.maximum(), seed.accessibleName()) == (3, 99, "Size")
    form = form_of(qtbot, 0.5, name="coupling", max=1.0)
    assert form.values() == {"coupling": 0.5}


@pytest.mark.parametrize(("default", "step"), [(1e-5, 0.1), (1e-8, 1e-8), (3e-7, 1), (2.5, 0.1)])
def test_a_small_number_of_a_drafter_is_shown_and_runs_as_it_is_declared(qtbot, default, step):
    form = form_of(qtbot, default, step=step, max=10.0)
    assert form.values() == {"size": default}
    assert float(form.fields["size"].text()) == default


@pytest.mark.parametrize(
    ("temperature", "text"), [(0.125, "0.125"), (0.004, "0.004"), (1 / 3, "0.3333"), (0.7, "0.70")]
)
def test_the_temperature_that_is_shown_is_the_one_that_runs_and_0_can_be_typed_over_it(
    window, qtbot, temperature, text
):
    field = window.controls.fields["temperature"]

    def runs():
        return window.controls.request("x").sampling.temperature

    window.controls.change({"temperature": temperature})
    assert (field.spin.text(), runs()) == (text, float(text))
    field.spin.selectAll()
    qtbot.keyClicks(field.spin, "0")
    qtbot.keyClick(field.spin, Qt.Key.Key_Return)
    assert (field.spin.text(), runs()) == ("0.00", 0.0)


def test_run_again_repeats_a_temperature_that_the_slider_does_not_have_and_so_does_run_after_it(window, qtbot, session):
    request = replace(window.controls.request("x = "), sampling=SamplingParams(0.333), max_new_tokens=4, baseline=False)
    with qtbot.waitSignal(window.live.run_shown):
        window.starter.replay(request)
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
    assert [each.sampling.temperature for each in session.requests] == [0.333, 0.333]
    assert window.controls.fields["temperature"].spin.text() == "0.333"


@pytest.mark.parametrize(
    ("name", "typed", "expected"),
    [("temperature", "0,7", 0.7), ("temperature", "1,25", 1.25), ("top_p", "0,9", 0.9), ("min_p", "0,05", 0.05)],
)
def test_a_decimal_comma_is_read_as_a_point(window, qtbot, name, typed, expected):
    window.controls.change({"temperature": 1.5, "top_p": 0.5, "min_p": 0.5})
    field = window.controls.fields[name]
    spin = getattr(field, "spin", field)
    spin.selectAll()
    qtbot.keyClicks(spin, typed)
    qtbot.keyClick(spin, Qt.Key.Key_Return)
    assert getattr(window.controls.request("x").sampling, name) == expected


def test_a_tiny_temperature_does_not_become_greedy(window):
    temperature = window.controls.fields["temperature"]
    temperature.set_value(0.00004)
    assert (temperature.value(), temperature.spin.text()) == (0.0001, "0.0001")


def test_a_long_system_prompt_reaches_the_request_whole(window):
    window.controls.fields["system"].setText("x" * 40_000)
    assert len(window.controls.request("p").system) == 40_000


def test_files_dropped_or_pasted_on_the_prompt_are_refused_and_a_text_or_a_link_is_not(window):
    for url, is_taken in (("file:///run.jsonl", False), ("https://example.org/", True)):
        data = QMimeData()
        data.setUrls([QUrl(url)])
        data.setText(url)
        assert window.prompt.edit.canInsertFromMimeData(data) is is_taken, url
        QGuiApplication.clipboard().setMimeData(data)
        before = window.prompt.text()
        window.prompt.edit.paste()
        assert (window.prompt.text() != before) is is_taken, url
    data = QMimeData()
    data.setText("def f():")
    assert window.prompt.edit.canInsertFromMimeData(data)


def test_the_help_of_k_says_that_a_policy_takes_it_out_of_the_users_hands(window):
    tip = window.controls.fields["num_draft_tokens"].spin.toolTip()
    assert "mid-run, unless Auto or Adaptive" in tip
