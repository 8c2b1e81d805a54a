"""What `outrider run` makes of the models named: a drafter for its target, and how to get what is not here."""

import functools

import pytest
from app.cli.run_arguments import build_request

from app.__main__ import main
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from tests.fakes_shelf import empty_shelf, put_into_cache


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    return empty_shelf(tmp_path, monkeypatch)


@pytest.fixture
def cached(shelf):
    return functools.partial(put_into_cache, shelf)


@pytest.fixture
def drafter(shelf, monkeypatch):
    """An embedded drafter that borrows the tables of a model that is not here."""
    drafter = ModelEntry(
        "the-drafter", "Drafter", shelf, ModelFormat.SAFETENSORS, 5, ModelOrigin.EMBEDDED, serves="owner/served"
    )
    monkeypatch.setattr("app.cli.run_arguments.embedded_models", lambda: (drafter,))


def chosen(*arguments):
    from app.__main__ import build_parser

    request = build_request(build_parser().parse_args(["run", "--prompt", "Hi", *map(str, arguments)]))
    return request.method, request.target, request.draft


def test_a_target_that_an_embedded_drafter_serves_gets_it(drafter):
    expected = ("draft-model", "owner/served", "the-drafter")
    assert chosen("--target", "owner/served") == expected
    assert chosen("--target", "owner/served", "--method", "draft-model") == expected


def test_the_drafter_is_found_for_its_target_under_another_name(drafter, cached):
    folder = cached("owner/served")
    assert chosen("--target", folder) == ("draft-model", str(folder), "the-drafter")


def test_what_is_named_goes_before_the_drafter(drafter):
    assert chosen("--target", "owner/served", "--draft", "other") == ("draft-model", "owner/served", "other")
    method, _, draft = chosen("--target", "owner/served", "--method", "prompt-lookup")
    assert (method, draft) == ("prompt-lookup", None)


def test_any_other_target_is_drafted_from_the_prompt(drafter, cached):
    cached("owner/other")
    assert chosen("--target", "owner/other") == ("prompt-lookup", "owner/other", None)
    assert chosen("--target", "owner/missing") == ("prompt-lookup", "owner/missing", None)


def test_running_a_model_that_is_not_here_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # So that no other test finds it changed.
    assert main(["run", "--target", "owner/missing", "--prompt", "Hi"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "`outrider models get owner/missing`" in err
