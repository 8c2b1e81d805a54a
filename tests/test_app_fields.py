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
