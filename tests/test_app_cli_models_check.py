"""`outrider models check`: whether a draft suits a target, with memory by part, in words and in exit codes."""

import functools
import json
from types import SimpleNamespace

import pytest

from core.models.fit import MemoryForecast, PairVerdict
from tests.fakes import is_sentence
from tests.fakes_shelf import empty_shelf, fields, models, open_terminal, put_into_cache


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


def test_models_that_mean_different_text_by_the_same_id_are_told_apart(cached, capsys):
    cached("owner/target", layers=3)
    cached("owner/stranger", tokens=("a", "y", "c"))
    assert models("check", "owner/stranger", "owner/target") == 1
    assert "'y'" in fields(capsys.readouterr().out)["verdict"]
