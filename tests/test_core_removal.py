"""Removing a model: all of it goes that is Outrider's to remove, and nothing else."""

import pytest
from filelock import FileLock

from core.errors import ModelNotFoundError, RemovalError
from core.models import hub
from core.models.catalogue import DEFAULT_TARGET, resolve
from core.models.downloads import download, plan_removal, remove
from tests.fakes import is_sentence
from tests.fakes_downloads import REF, SIZE, WEIGHTS, content, fresh_home, interrupt, model_files, serving
from tests.hub_server import Repository


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    return fresh_home(tmp_path, monkeypatch)


@pytest.fixture
def server(monkeypatch):
    with serving(monkeypatch) as server:
        yield server


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


def test_a_copy_of_the_model_under_another_id_stays(server):
    server.repositories["owner/other"] = Repository(model_files())
    kept = download("owner/other")
    download(REF)
    remove(REF)
    assert resolve("owner/other").path == kept.path
    assert (kept.path / WEIGHTS).read_bytes() == content()


def test_a_model_that_is_being_downloaded_is_not_removed(server):
    interrupt()
    (partial,) = hub.repository_folder(REF).rglob(f"*{hub.PARTIAL_SUFFIX}")
    with FileLock(hub.lock_folder(REF) / f"{partial.stem}.lock"):
        with pytest.raises(RemovalError, match="being downloaded") as caught:
            remove(REF)
        assert is_sentence(str(caught.value))
        assert partial.exists()
    assert remove(REF) > 0
    assert not hub.repository_folder(REF).exists()


def test_an_interrupted_download_can_be_removed(server):
    kept = interrupt()
    removal = plan_removal(REF)
    assert "interrupted" in removal.note
    assert removal.frees_bytes > kept
    remove(REF)
    assert hub.interrupted_refs() == []
    assert not hub.repository_folder(REF).exists()


@pytest.mark.parametrize("ref", ["folder", "file.gguf", DEFAULT_TARGET])
def test_what_is_the_users_own_is_not_removed(tmp_path, monkeypatch, ref):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    for name in {ref, ref if ref == DEFAULT_TARGET else str(tmp_path / ref)}:
        with pytest.raises(RemovalError) as caught:
            remove(name)
        assert is_sentence(str(caught.value))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("ref", ["owner/nothing", "a/b/c", "../x"])
def test_what_is_not_here_can_not_be_removed(ref):
    with pytest.raises(ModelNotFoundError) as caught:
        plan_removal(ref)
    assert is_sentence(str(caught.value))
