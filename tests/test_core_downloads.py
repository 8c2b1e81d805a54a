"""Downloads: whole and checked or not there, resumed at the byte where they stopped, and removed whole."""

import itertools
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from core.controls import Cancelled
from core.errors import HubUnreachableError, ModelNotFoundError, OfflineError, RemovalError
from core.models.catalogue import DEFAULT_TARGET, ModelFormat, ModelOrigin, local_models, resolve
from core.models.remote import hub
from core.models.remote.downloads import download
from core.models.remote.hub import Meter
from core.models.remote.removal import plan_removal, remove
from tests import fakes
from tests.children import imports_of
from tests.fakes import failing, is_sentence
from tests.fakes_downloads import REF, SIZE, WEIGHTS, content, interrupt, model_files, refusal
from tests.hub_server import Repository

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def no_sockets(monkeypatch):
    """Fails a test that opens a connection."""
    refuse = failing(AssertionError("a socket was opened"))
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_model_is_downloaded_whole_and_found_by_its_id(server):
    entry = download(REF)
    assert (entry.ref, entry.title, entry.origin) == (REF, "tiny-model", ModelOrigin.HUB)
    assert (entry.format, entry.size_bytes, entry.revision) == (ModelFormat.SAFETENSORS, SIZE, "a" * 40)
    assert resolve(REF) == entry
    assert entry in local_models()
    assert {path.name: path.read_bytes() for path in entry.path.iterdir()} == model_files()


def test_other_programs_find_it_in_the_cache(server):
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    entry = download(REF)
    cache = hub.cache_folder()
    assert snapshot_download(REF, cache_dir=cache, local_files_only=True) == str(entry.path)
    assert try_to_load_from_cache(REF, WEIGHTS, cache_dir=cache) == str(entry.path / WEIGHTS)


def test_only_what_is_needed_is_fetched(server):
    clutter = {"README.md": b"read", "pytorch_model.bin": b"pickle", "tiny.gguf": b"GGUF", "model.onnx": b"o",
               "consolidated.safetensors": b"twice", "original/params.json": b"{}", "generation_config.json": b"{}",
               "chat_template.jinja": b"{{ messages }}", "tokenizer.model": b"m"}  # fmt: skip
    server.repositories[REF] = Repository({**model_files(), **clutter})
    entry = download(REF)
    wanted = {*model_files(), "generation_config.json", "chat_template.jinja", "tokenizer.model"}
    assert {path.name for path in entry.path.iterdir()} == wanted
    # The configuration first and the weights last: a model with weights is a whole one.
    fetched = [path.rpartition("/")[2] for path in server.requests if "/resolve/" in path]
    assert (fetched[0], fetched[-1]) == ("config.json", WEIGHTS)


def test_weights_in_several_files_come_with_their_index(server):
    shards = {f"model-0000{n}-of-00002.safetensors": content(50_000, n) for n in (1, 2)}
    index = {"model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors",'
                                             b' "b": "model-00002-of-00002.safetensors"}}'}  # fmt: skip
    files = {**model_files(), **shards, **index, "extra.safetensors": b"e"}
    del files[WEIGHTS]
    server.repositories[REF] = Repository(files)
    entry = download(REF)
    assert entry.size_bytes == 100_000
    assert not (entry.path / "extra.safetensors").exists()


def test_without_links_the_files_are_in_the_snapshot(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    entry = download(REF)
    assert not any(path.is_symlink() for path in entry.path.iterdir())
    server.sent.clear()
    download(REF)
    assert server.sent == {}


def test_a_new_commit_replaces_the_old_one(server):
    old = download(REF)
    server.repositories[REF] = Repository(model_files(model__safetensors=content(seed=1)), commit="b" * 40)
    server.sent.clear()
    new = download(REF)
    assert set(server.sent) == {WEIGHTS}
    assert (old.revision, new.revision, resolve(REF)) == ("a" * 40, "b" * 40, new)
    assert plan_removal(REF).frees_bytes > 2 * SIZE


def test_an_old_model_is_downloaded_as_the_safetensors_that_the_hub_converted(server):
    converted = Repository(model_files(), commit="c" * 40)
    pull_request = {"num": 7, "title": "Adding `safetensors` variant of this model", "status": "open",
                    "isPullRequest": True, "author": {"name": "SFconvertbot"}, "createdAt": "2024-01-01T00:00:00.000Z",
                    "repo": {"name": REF, "type": "model"}}  # fmt: skip
    server.repositories[REF] = Repository(
        model_files(model__safetensors=None, pytorch_model__bin=b"p"),
        discussions=[{**pull_request, "num": 6, "author": {"name": "somebody"}}, pull_request],
        revisions={"refs/pr/7": converted},
    )
    assert download(REF).revision == "c" * 40
    assert resolve(REF).size_bytes == SIZE
    assert not (hub.repository_folder(REF) / "refs" / "main").exists()


def test_offline_mode_opens_no_socket(server, home, monkeypatch, no_sockets):
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            assert "offline mode" in refusal(OfflineError)
            assert "offline mode" in refusal(OfflineError, "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert not home.exists()
    assert server.requests == []


def whole_weights() -> bytes:
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return len(header).to_bytes(8, "little") + header + bytes(8)


def test_a_complete_local_model_needs_no_network(server, monkeypatch):
    server.repositories[REF] = Repository(model_files(model__safetensors=whole_weights()))
    entry = download(REF)
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert download(REF).path == entry.path
        refusal(HubUnreachableError, restart=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(server.requests)
    assert download(REF).path == entry.path
    refusal(OfflineError, restart=True)
    (entry.path / WEIGHTS).write_bytes(whole_weights()[:-1])
    assert "offline mode" in refusal(OfflineError)
    assert len(server.requests) == asked


@pytest.mark.parametrize("name", ["..\\..\\evil.safetensors", "C:evil.safetensors", "sub\\tokenizer.model"])
def test_a_name_that_leads_out_of_the_folder_on_some_system_is_skipped(server, name):
    server.repositories[REF] = Repository(model_files(**{WEIGHTS: None, "model-1.safetensors": b"w", name: b"evil"}))
    assert {path.name for path in download(REF).path.iterdir()} == {*model_files(), "model-1.safetensors"} - {WEIGHTS}


def test_a_drafter_that_borrows_its_tables_needs_no_tokenizer(server):
    config = b'{"shares_tables_with": {"model": "owner/target"}}'
    server.repositories[REF] = Repository({"config.json": config, WEIGHTS: content()})
    assert download(REF).serves == "owner/target"


def test_reading_the_cache_imports_nothing_heavy():
    code = "import core.models.remote.downloads, core.models.catalogue as c; c.embedded_models()"
    assert imports_of(code, "torch", "transformers", "huggingface_hub") == []


# --- Progress, stopping and resuming --------------------------------------------------------------------------------


def test_progress_knows_the_total_before_the_first_byte_and_ends_at_it(server):
    seen = []
    download(REF, on_progress=seen.append)
    total = sum(len(data) for data in model_files().values())
    assert seen[0].stage == "Asking the Hub…"
    assert (seen[1].stage, seen[1].done_bytes, seen[1].total_bytes) == ("Downloading", 0, total)
    assert {(progress.stage, progress.file) for progress in seen} >= {("Downloading", WEIGHTS), ("Checking…", WEIGHTS)}
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == total


def test_the_meter_reports_ten_times_a_second_with_a_rate_and_the_time_left():
    now = itertools.count(step=0.01)
    seen = []
    meter = Meter(seen.append, total_bytes=100_000, clock=lambda: next(now))
    meter.enter("Downloading", "file")
    for _ in range(500):
        meter.count(100)
    # The clock is read twice where something is measured.
    assert 40 <= len(seen) <= 60
    last = seen[-1]
    assert last.bytes_per_second == pytest.approx(10_000, rel=0.15)
    assert last.seconds_left == pytest.approx((100_000 - last.done_bytes) / last.bytes_per_second)
    meter.enter("Checking…", "file")
    assert (seen[-1].bytes_per_second, seen[-1].seconds_left) == (None, None)


def test_a_cancelled_download_continues_at_the_byte_where_it_stopped(server):
    kept = interrupt()
    assert hub.interrupted_refs() == [REF]
    assert REF not in [entry.ref for entry in local_models()]
    seen = []
    entry = download(REF, on_progress=seen.append)
    assert server.sent[WEIGHTS][1] == SIZE - kept
    assert (entry.path / WEIGHTS).read_bytes() == content()
    assert hub.interrupted_refs() == []
    first = next(progress for progress in seen if progress.file == WEIGHTS)
    assert first.done_bytes > kept


def test_what_is_left_of_an_older_revision_goes_unless_another_program_downloads_it(server):
    interrupt()
    (partial,) = hub.repository_folder(REF).rglob(f"*{hub.PARTIAL_SUFFIX}")
    server.repositories[REF] = Repository(model_files(model__safetensors=content(seed=1)), commit="b" * 40)
    with FileLock(hub.lock_folder(REF) / f"{partial.stem}.lock"):
        download(REF)
        assert hub.interrupted_refs() == [REF]
    assert download(REF) == resolve(REF)
    assert hub.interrupted_refs() == []
    assert not partial.exists()


def test_a_restart_keeps_what_is_sound_and_repairs_what_is_not(server):
    entry = download(REF)
    blob = (entry.path / WEIGHTS).resolve()
    blob.write_bytes(content(seed=9))
    server.sent.clear()
    assert download(REF) == resolve(REF)
    assert server.sent == {}
    download(REF, restart=True)
    assert set(server.sent) == {WEIGHTS}
    assert (entry.path / WEIGHTS).read_bytes() == content()
    blob.write_bytes(b"")
    download(REF)
    assert blob.read_bytes() == content()


def test_a_restart_discards_what_an_interrupted_download_left(server):
    interrupt()
    download(REF, restart=True)
    assert server.sent[WEIGHTS][1] == SIZE


def test_a_restart_leaves_other_revisions_whole(server):
    old = download(REF)
    server.repositories[REF] = Repository(model_files(tokenizer_config__json=b'{"new": 1}'), commit="b" * 40)
    server.sent.clear()

    def stop_at_once() -> None:
        if server.sent:
            raise Cancelled

    with pytest.raises(Cancelled):
        download(REF, restart=True, check_cancelled=stop_at_once)
    assert (old.path / WEIGHTS).read_bytes() == content()
    new = download(REF)
    assert (new.revision, set(server.sent)) == ("b" * 40, {"tokenizer_config.json"})


def test_a_hub_that_can_not_resume_sends_the_whole_file(server):
    interrupt()
    server.ignores_ranges = True
    assert (download(REF).path / WEIGHTS).read_bytes() == content()
    assert server.sent[WEIGHTS][1] == SIZE


def test_a_broken_connection_is_resumed(server):
    server.break_after[WEIGHTS] = 100_000
    assert (download(REF).path / WEIGHTS).read_bytes() == content()
    assert len(server.sent[WEIGHTS]) >= 3
    assert sum(server.sent[WEIGHTS]) < 2 * SIZE


# --- Removal --------------------------------------------------------------------------------------------------------


def test_a_removed_model_is_gone_with_all_its_revisions(server):
    download(REF)
    removal = plan_removal(REF)
    assert removal.frees_bytes > SIZE
    assert "Other programs" in removal.note
    assert is_sentence(removal.note)
    assert resolve(REF) == removal.entry
    assert remove(REF) == removal.frees_bytes
    assert not hub.repository_folder(REF).exists()
    with pytest.raises(ModelNotFoundError):
        resolve(REF)


def test_of_a_folder_that_is_a_link_only_the_link_is_removed(server, tmp_path):
    download(REF)
    folder, disk = hub.repository_folder(REF), tmp_path / "disk"
    folder.rename(disk)
    folder.symlink_to(disk, target_is_directory=True)
    removal = plan_removal(REF)
    assert removal.frees_bytes == 0
    assert "only that is removed" in removal.note
    assert is_sentence(removal.note)
    assert remove(REF) == 0
    assert not os.path.lexists(folder)
    assert any(disk.rglob("*.safetensors"))


def test_a_model_whose_weights_the_system_does_not_delete_stays_whole(server, monkeypatch):
    """As on Windows, while a program has them mapped."""
    entry, unlink = download(REF), os.unlink
    before = sorted(hub.repository_folder(REF).rglob("*"))

    def refuse_weights(path, *, dir_fd=None):
        if os.stat(path, dir_fd=dir_fd).st_size >= SIZE:
            raise PermissionError(13, "Access is denied", str(path))
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse_weights)
        assert "could not be removed: close the programs that use it" in fakes.refusal(RemovalError, remove, REF)
    assert sorted(hub.repository_folder(REF).rglob("*")) == before
    assert resolve(REF) == entry
    assert remove(REF) > SIZE


def test_a_junction_is_removed_without_what_it_leads_to(server, tmp_path, monkeypatch):
    """Windows' links of folders, which Python calls no links."""
    junction, lstat, unlink = download(REF).path / "junction", os.lstat, os.unlink
    junction.mkdir()
    (junction / "own.txt").write_text("own", "utf-8")

    def tagged(path, **how):
        is_junction = Path(path) == junction
        return SimpleNamespace(st_size=0, st_mode=0, st_reparse_tag=0xA0000003) if is_junction else lstat(path, **how)

    def unlink_junction(path, **how):
        unlink(path, **how) if path != junction else path.rename(tmp_path / "led to")

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", tagged)
        patched.setattr(os, "unlink", unlink_junction)
        remove(REF)
    assert (tmp_path / "led to" / "own.txt").read_text("utf-8") == "own"
    assert not hub.repository_folder(REF).exists()


@pytest.mark.parametrize("refuses", [False, True])
def test_a_file_that_is_gone_already_does_not_stop_a_removal_which_says_if_it_stays_incomplete(
    server, monkeypatch, refuses
):
    """Another program removes the weights in between."""
    download(REF)
    unlink = os.unlink

    def vanish(path, *, dir_fd=None):
        size = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_size
        if refuses and size < SIZE:
            raise PermissionError(13, "Access is denied", str(path))
        unlink(path, dir_fd=dir_fd)
        if size >= SIZE:
            raise FileNotFoundError(2, "No such file", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", vanish)
        patched.setattr("core.models.remote.removal.shutil.rmtree", lambda *_, **__: None)
        assert "could not be removed completely: " in fakes.refusal(RemovalError, remove, REF)
    left = [path for path in hub.repository_folder(REF).rglob("*") if not path.is_dir()]
    assert bool(left) == refuses


def test_a_model_that_is_being_downloaded_is_not_removed(server):
    kept = interrupt()
    assert "interrupted" in plan_removal(REF).note
    (partial,) = hub.repository_folder(REF).rglob(f"*{hub.PARTIAL_SUFFIX}")
    with FileLock(hub.lock_folder(REF) / f"{partial.stem}.lock"):
        assert "being downloaded" in fakes.refusal(RemovalError, remove, REF)
        assert partial.exists()
    assert remove(REF) > kept
    assert hub.interrupted_refs() == []
    assert not hub.repository_folder(REF).exists()


@pytest.mark.parametrize("ref", ["folder", "file.gguf", DEFAULT_TARGET])
def test_the_users_own_models_are_not_removed(tmp_path, monkeypatch, ref):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    for name in {ref, ref if ref == DEFAULT_TARGET else str(tmp_path / ref)}:
        fakes.refusal(RemovalError, remove, name)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("ref", ["owner/nothing", "a/b/c", "../x"])
def test_a_missing_model_can_not_be_removed(ref, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fakes.refusal(ModelNotFoundError, plan_removal, ref)
