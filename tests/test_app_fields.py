"""Fields show each setting as it is, whatever its declaration, and what they show is what runs."""

from __future__ import annotations

import math
from dataclasses import make_dataclass

import pytest

from app.setup.setting_fields import SettingsForm
from core.settings import declared, setting


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
