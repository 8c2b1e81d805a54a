"""`outrider models remove`: asked for with what to know, and never what is the user's own."""

import functools
import io
from types import SimpleNamespace

import pytest

from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from tests.fakes import is_sentence
from tests.fakes_shelf import empty_shelf, models, open_terminal, put_into_cache, write_model


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    return empty_shelf(tmp_path, monkeypatch)


@pytest.fixture
def cached(shelf):
    return functools.partial(put_into_cache, shelf)


@pytest.fixture
def terminal(monkeypatch):
    return functools.partial(open_terminal, monkeypatch)


@pytest.fixture
def removal(monkeypatch, tmp_path):
    """A model that can be removed; the names of those that were."""
    entry = ModelEntry("owner/model", "model", tmp_path, ModelFormat.SAFETENSORS, 5, ModelOrigin.HUB)
    plan = SimpleNamespace(entry=entry, frees_bytes=269_000_000, note="Other programs use it too.")
    removed = []
    monkeypatch.setattr("core.models.downloads.plan_removal", lambda ref: plan)
    monkeypatch.setattr("core.models.downloads.remove", lambda ref: removed.append(ref) or plan.frees_bytes)
    return removed


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_remove_asks_with_the_bytes_and_what_to_know(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 0
    assert removal == ["owner/model"]
    text = streams.err.text
    assert "269 MB" in text
    assert "Other programs use it too." in text
    assert text.rstrip().endswith("Removed owner/model; 269 MB are free again.")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yikes\n"])
def test_any_other_answer_leaves_the_model(removal, terminal, answer):
    streams = terminal(typed=answer)
    assert models("remove", "owner/model") == 130
    assert removal == []
    assert "Nothing was removed." in streams.err.text


def test_without_a_terminal_remove_wants_yes(removal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert models("remove", "owner/model") == 2
    assert removal == []
    assert "--yes" in capsys.readouterr().err
    assert models("remove", "owner/model", "--yes") == 0
    assert removal == ["owner/model"]


def test_a_model_of_the_cache_is_gone_after_remove(cached, capsys):
    folder = cached("owner/small")
    assert models("remove", "owner/small", "--yes") == 0
    assert not folder.exists()
    assert models("info", "owner/small") == 2


def test_a_folder_of_the_users_own_is_never_removed(shelf, capsys):
    folder = write_model(shelf / "mine")
    assert models("remove", folder, "--yes") == 2
    assert (folder / "model.safetensors").exists()
    assert is_sentence(capsys.readouterr().err.rstrip("\n"))
