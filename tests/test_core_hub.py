"""The Hub's cache is where its own tools look, every model in it is found or refused in a sentence; suggestions."""

import shutil

import pytest

from core.errors import ModelNotFoundError, ModelUnreadableError
from core.models.catalogue import (
    SMOLLM2_DRAFTER,
    SUGGESTIONS,
    ModelOrigin,
    embedded_models,
    local_models,
    resolve,
    source_kind,
    suggested_drafts,
)
from core.models.remote import hub, wheel
from tests import fakes
from tests.children import run_code
from tests.errors import failing
from tests.fakes_cache import NEW, OLD, REF, write_model, write_snapshot

pytestmark = pytest.mark.usefixtures("shelf")


def refusal(error, ref=REF) -> str:
    return fakes.refusal(error, resolve, str(ref))


@pytest.mark.parametrize(("variables", "expected"), [
    ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"), ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
    ({"HF_HOME": "/h"}, "/h/hub"), ({"HF_HOME": None, "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ({"HF_HOME": "$BASE/hf", "BASE": "/b"}, "/b/hf/hub"), ({"HF_HOME": "~/hf", "HOME": "/me"}, "/me/hf/hub"),
    ({"HF_HOME": None, "XDG_CACHE_HOME": None, "HOME": "/me"}, "/me/.cache/huggingface/hub"),
])  # fmt: skip
def test_the_cache_is_where_the_hubs_own_tools_look(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert str(hub.cache_folder()) == expected
    done = run_code("import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)")
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("", False)])
def test_offline_mode_follows_the_users_environment(monkeypatch, value, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.is_offline() == offline


def test_a_model_in_the_cache_is_found_by_its_id():
    folder = write_snapshot(main=True)
    entry = resolve(REF)
    assert (entry.path, entry.origin, entry.revision, entry.title) == (folder, ModelOrigin.HUB, OLD, "tiny-model")
    kinds = [source_kind(ref) for ref in (REF, str(folder), "owner/nothing")]
    assert kinds == ["hub", "local", None]
    assert entry.size_bytes == (folder / "model.safetensors").stat().st_size
    assert local_models() == (entry,)


def test_the_branch_main_comes_before_what_is_newer():
    write_snapshot(commit=OLD, main=True, age=100)
    write_snapshot(commit=NEW)
    assert resolve(REF).revision == OLD
    hub.set_main(REF, "c" * 40)  # A revision that was deleted.
    assert resolve(REF).revision == NEW


def test_a_revision_with_weights_comes_before_one_without():
    write_snapshot(commit=OLD, age=100)
    write_snapshot(commit=NEW, main=True, files={"model.safetensors": None})
    assert resolve(REF).revision == OLD


@pytest.mark.parametrize("ref", ["owner/missing", "Qwen/Qwen3-0.6B"])
def test_a_model_that_is_not_downloaded_yet_says_how_to_get_it(ref):
    assert f"`outrider models get {ref}`" in refusal(ModelNotFoundError, ref)
    write_snapshot(ref, main=True, files={"model.safetensors": None})  # As `models check` leaves it.
    assert f"`outrider models get {ref}`" in refusal(ModelNotFoundError, ref)


def test_a_folder_without_permission_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("pathlib.Path.is_dir", failing(PermissionError(13, "Permission denied")))
    assert "You have no permission to read" in refusal(ModelUnreadableError, tmp_path)


@pytest.mark.parametrize(("changes", "words"), [
    ({"config.json": None}, "config.json"), ({"config.json": "{"}, "config.json"),
    ({"model.safetensors": None, "pytorch_model.bin": "p"}, "pickle"),
    ({"model.safetensors": None, "model-00001-of-00002.safetensors": "w", "model.safetensors.index.json":
      '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'},
     "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_a_damaged_model_is_refused_and_left_out_of_the_list(changes, words):
    write_snapshot(main=True, files=changes)
    write_snapshot("owner/sound", main=True)
    assert words in refusal(ModelUnreadableError)
    assert [entry.ref for entry in local_models()] == ["owner/sound"]


def test_a_link_out_of_the_cache_is_refused(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    folder = write_snapshot(main=True)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(secret)
    message = refusal(ModelUnreadableError)
    assert "tokenizer.json" in message
    assert "link" in message
    assert local_models() == ()


def test_a_model_that_was_moved_to_another_disk_as_a_whole_is_found_and_a_folder_comes_first(tmp_path, monkeypatch):
    write_snapshot(main=True)
    shutil.move(hub.repository_folder(REF), tmp_path / "elsewhere")
    hub.repository_folder(REF).symlink_to(tmp_path / "elsewhere")
    assert resolve(REF).revision == OLD
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / REF)
    assert resolve(REF).origin is ModelOrigin.FOLDER


@pytest.mark.parametrize("config", ["[]", '{"architectures": 3}', '"text"', '{"architectures": [null]}',
                                    '{"architectures": ["BertModel"]}'])  # fmt: skip
def test_other_things_in_the_cache_are_not_models(shelf, config):
    assert local_models() == ()
    write_snapshot(main=True)
    write_snapshot("owner/odd", main=True, files={"config.json": config})
    write_model(shelf / "hub" / "datasets--owner--data" / "snapshots" / OLD)
    (shelf / "hub" / "models--torn").mkdir()
    (shelf / "hub" / "notes.txt").write_text("notes")
    is_listed = not config.startswith('{"architectures": [')
    assert {entry.ref for entry in local_models()} == {REF, *(["owner/odd"] if is_listed else [])}


def test_a_drafter_says_which_target_it_serves(tmp_path):
    write_model(tmp_path / "embedded" / SMOLLM2_DRAFTER, shares_tables_with={"model": "owner/target"})
    (entry,) = embedded_models()
    assert (entry.serves, entry.embedded, entry.ref) == ("owner/target", True, SMOLLM2_DRAFTER)
    assert resolve(str(entry.path)).serves == "owner/target"


# --- Suggestions ----------------------------------------------------------------------------------------------------


def test_suggested_drafts_are_smaller_and_of_the_targets_family():
    known = {suggestion.ref: suggestion for suggestion in SUGGESTIONS}
    assert len(known) == len(SUGGESTIONS)
    for suggestion in SUGGESTIONS:
        assert hub.is_hub_id(suggestion.ref)
        assert suggestion.download_bytes > 1.9 * suggestion.num_parameters
        for ref in suggestion.drafts:
            if ref != SMOLLM2_DRAFTER:
                assert known[ref].num_parameters < suggestion.num_parameters
                assert (known[ref].family, known[ref].is_instruct) == (suggestion.family, suggestion.is_instruct)


def test_drafts_are_suggested_by_the_targets_id():
    assert suggested_drafts(wheel.REF) == (SMOLLM2_DRAFTER,)
    assert suggested_drafts("openai-community/gpt2-xl")[0] == "openai-community/gpt2"
    assert suggested_drafts("owner/unknown") == ()
