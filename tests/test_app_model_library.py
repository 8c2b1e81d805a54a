"""The words on models, and the library: what is known of models and pairs, and what is asked again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from app.setup.model_library import ModelLibrary, parameters_text
from app.tools.models.models import find_details, find_models, find_problem
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin, embedded_models, resolve
from core.text import bytes_of_text, bytes_text
from tests.fakes import failing, is_sentence, save_model
from tests.fakes_models import DRAFT, TARGET

SMALL = ModelEntry("small", "Small one", Path("/n/s"), ModelFormat.SAFETENSORS, 1, ModelOrigin.EMBEDDED)
SMALL_DRAFT = replace(SMALL, ref="small-draft", title="Small draft")
HUB = replace(SMALL, ref="owner/model.v2", title="model.v2", origin=ModelOrigin.HUB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((bytes_text(count), text) for count, text in (
            (0, "0 B"), (999, "999 B"), (269_060_552, "269 MB"), (3_422_777_952, "3.4 GB"), (999_960_000, "1.0 GB"))),
        (bytes_of_text(312_000_000, 724_000_000), "312 of 724 MB"),
        (bytes_of_text(312_000_000, 7_240_000_000), "312 MB of 7.2 GB"),
        *((parameters_text(count), text) for count, text in (
            (16_500_000, "16.5 M"), (134_515_008, "135 M"), (1_711_376_384, "1.71 B"), (999_900_000, "1.00 B"))),
    ],
)  # fmt: skip
def test_sizes_and_counts(text, expected):
    assert text == expected


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


def test_two_models_of_one_title_are_distinguished_by_their_references():
    twins = [replace(HUB, ref="a/twin", title="twin"), replace(HUB, ref="b/twin", title="twin")]
    assert ModelLibrary(twins).in_titles("a/twin beats b/twin") == "a/twin beats b/twin"
    assert ModelLibrary().in_titles("a/twin") == "a/twin"


def test_the_library_asks_again_about_a_model_that_was_replaced():
    library = ModelLibrary((TARGET, DRAFT))
    library.record(TARGET.ref, {TARGET.ref: None, DRAFT.ref: "No."})
    assert library.unchecked_drafts(TARGET.ref) == ()
    library.add(DRAFT)
    assert library.unchecked_drafts(TARGET.ref) == (DRAFT.ref,)
    assert library.default_draft == DRAFT.ref


@pytest.mark.parametrize(("layers", "fits"), [(3, True), (4, False), (6, False)])
def test_drafts_are_smaller_by_their_parameters_whatever_their_bits(tmp_path, layers, fits):
    target = resolve(str(save_model(tmp_path / "target", num_hidden_layers=4)))
    draft = replace(resolve(str(save_model(tmp_path / "draft", num_hidden_layers=layers))), size_bytes=1)
    library = ModelLibrary([target, draft])
    library.record(target.ref, {target.ref: None, draft.ref: None})
    assert library.best_draft(target.ref) == draft.ref, "as far as their sizes tell"
    library.record_details({entry.ref: find_details(entry) for entry in (target, draft)})
    assert library.best_draft(target.ref) == (draft.ref if fits else "")


def test_a_draft_whose_weights_are_cut_off_has_a_reason_before_anything_is_loaded(tmp_path):
    target, draft = save_model(tmp_path / "target"), save_model(tmp_path / "draft")
    assert find_problem(str(target), str(draft)) is None
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    problem = find_problem(str(target), str(draft))
    assert problem
    assert is_sentence(problem)
    assert "model.safetensors" in problem


def test_models_are_found_although_the_free_space_for_downloads_is_not_known(monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", failing(PermissionError("no")))
    found = find_models()
    assert found.free_bytes is None
    assert [entry.ref for entry in found.entries][: len(embedded_models())] == [x.ref for x in embedded_models()]


def test_a_scan_looks_anew_at_opened_models_that_were_trained_again_or_deleted(tmp_path):
    target, draft, spare = (save_model(tmp_path / name) for name in ("target", "draft", "spare"))
    library = ModelLibrary()
    for folder in (target, draft, spare):
        library.add(resolve(str(folder)))
    library.record(str(target), {str(draft): "It doesn't fit.", str(spare): None})
    library.record_details({str(draft): "It is damaged."})
    shutil.rmtree(spare)
    found = find_models(library.opened)
    library.take_scan(found.entries, found.gone, found.states)
    assert library.problem(str(draft), str(target)) is None
    assert library.details_problem(str(draft)) == ""
    assert str(draft) in library.take_questions(str(target))
    assert str(spare) not in library.refs, "the deleted one is gone"
    (draft / "config.json").unlink()
    found = find_models(library.opened)
    library.take_scan(found.entries, found.gone, found.states)
    assert str(draft) in library.refs, "a folder that is being written stays"
    library.record(str(target), {str(target): "It doesn't fit."})
    shutil.copytree(target, spare)
    found = find_models(library.opened)
    library.take_scan(found.entries, found.gone, found.states)
    assert str(spare) in library.refs, "its disk is back"
    assert library.problem(str(target), str(target)), "nothing changed there"
