"""`outrider models check` and `remove`: verdicts in words and exit codes; nothing that is the user's own is deleted."""

import functools
import io
import json
from types import SimpleNamespace

import pytest

from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.models.fit import MemoryForecast, PairVerdict
from tests.fakes import is_sentence
from tests.fakes_cache import empty_shelf, fields, models, open_terminal, put_into_cache, write_model


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
def verdict(monkeypatch, cached):
    """A verdict in the real one's place, on two models that are here; what it was asked."""
    cached("owner/target", layers=3)
    cached("owner/draft")
    given = SimpleNamespace(
        verdict=PairVerdict(None, ("The draft is large.",), MemoryForecast(1_000, 200, 30, 4_000_000), 0.125),
        asked=None,
    )

    def pair_verdict(draft, target, **options):
        given.asked = (draft, target, options)
        return given.verdict

    monkeypatch.setattr("core.models.fit.pair_verdict", pair_verdict)
    return given


def test_a_pair_that_can_work_is_exit_0_with_memory_by_part_and_cost(verdict, capsys):
    arguments = ("--device", "cpu", "--dtype", "float32", "--context", "512")
    assert models("check", "owner/draft", "owner/target", *arguments) == 0
    assert verdict.asked == (
        "owner/draft", "owner/target", {"device": "cpu", "dtype": "float32", "context": 512}
    )  # fmt: skip
    shown = fields(capsys.readouterr().out)
    assert shown["verdict"] == "owner/draft can draft for owner/target."
    assert shown["warnings"] == "The draft is large."
    assert [int(shown[f"{part}_bytes"]) for part in ("weights", "cache", "working", "total", "available")] == [
        1_000, 200, 30, 1_230, 4_000_000
    ]  # fmt: skip
    assert (shown["fits"], shown["cost_coefficient"]) == ("yes", "0.125")


def test_a_pair_that_cannot_work_is_exit_1_with_the_reason(verdict, capsys):
    verdict.verdict = PairVerdict("The tokenizers differ: id 7.", (), None, None)
    assert models("check", "owner/draft", "owner/target", "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["can_work"], record["verdict"]) == (False, "The tokenizers differ: id 7.")
    assert (record["total_bytes"], record["warnings"]) == (None, [])


def test_a_terminal_shows_the_verdict_in_words(verdict, terminal):
    streams = terminal(width=80)
    assert models("check", "owner/draft", "owner/target") == 0
    text = streams.out.text
    assert "4.0 MB" in text
    assert "c ≈ 0.12" in text
    assert "note" in text
    verdict.verdict = PairVerdict(None, (), None, None)
    streams = terminal(width=80)
    assert models("check", "owner/draft", "owner/target") == 0
    assert "note" not in streams.out.text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments",
    [["owner/draft"], ["owner/draft", "owner/missing"], ["owner/missing", "owner/target"],
     ["owner/draft", "owner/target", "--context", "0"], ["owner/draft", "owner/target", "--context", "x"],
     ["owner/draft", "owner/target", "--device", "tpu"]],
    ids=" ".join,
)  # fmt: skip
def test_check_refuses_a_wrong_command_with_exit_2(verdict, capsys, arguments):
    assert models("check", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert is_sentence(err.rstrip("\n"))
    assert verdict.asked is None


def test_models_that_mean_different_text_by_the_same_id_are_distinguished(cached, capsys):
    cached("owner/target", layers=3)
    cached("owner/stranger", tokens=("a", "y", "c"))
    assert models("check", "owner/stranger", "owner/target") == 1
    assert "'y'" in fields(capsys.readouterr().out)["verdict"]


# --- remove ---------------------------------------------------------------------------------------------------------


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
