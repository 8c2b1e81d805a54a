"""Models in sentences are called as everywhere else in the window: by their titles."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.setup.model_library import ModelLibrary
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin

SMALL = ModelEntry("small", "Small one", Path("/n/s"), ModelFormat.SAFETENSORS, 1, ModelOrigin.EMBEDDED)
SMALL_DRAFT = replace(SMALL, ref="small-draft", title="Small draft")
HUB = replace(SMALL, ref="owner/model.v2", title="model.v2", origin=ModelOrigin.HUB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("K = 2 with small-draft:int8=no is fastest.", "K = 2 with Small draft:int8=no is fastest."),
        ("Take owner/model.v2.", "Take model.v2."),
        ("small-draft for small", "Small draft for Small one"),
        ("smaller, other/small, small/other and owner/model.v2.1 stay", None),
        ("", None),
    ],
)
def test_whole_references_become_titles(text, expected):
    library = ModelLibrary([SMALL, SMALL_DRAFT, HUB])
    assert library.in_titles(text) == (text if expected is None else expected)


def test_two_models_of_one_title_are_told_apart_by_their_references():
    twins = [replace(HUB, ref="a/twin", title="twin"), replace(HUB, ref="b/twin", title="twin")]
    assert ModelLibrary(twins).in_titles("a/twin beats b/twin") == "a/twin beats b/twin"
    assert ModelLibrary().in_titles("a/twin") == "a/twin"
