"""What `outrider run` makes of its flags and of the prompt, wherever that comes from."""

import functools
import sys

import pytest

from app.__main__ import main
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.types import Coupling
from tests.fakes_cli_run import clear_environment, outrider, piped, play_engine, request_of


@pytest.fixture
def play(monkeypatch):
    return functools.partial(play_engine, monkeypatch)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    clear_environment(monkeypatch)


# --- Arguments --------------------------------------------------------------------------------------------------


def test_with_no_argument_but_a_prompt_the_embedded_pair_runs():
    request = request_of()
    assert (request.target, request.draft, request.method) == (DEFAULT_TARGET, DEFAULT_DRAFT, "draft-model")
    assert (request.num_draft_tokens, request.sampling.temperature, request.seed) == (4, 1.0, 0)
    assert (request.max_new_tokens, request.chat, request.baseline, request.stop) == (128, None, False, ())


def test_every_flag_reaches_the_request():
    models = ["--target", "T", "--draft", "D", "--method", "draft-model", "--device", "cpu", "--dtype", "float32"]
    filters = ["--temperature", "0.5", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.1"]
    sampling = ["-k", "7", *filters, "--seed", "3", "--coupling", "gumbel", "--max-new-tokens", "5", "--baseline"]
    request = request_of(*models, *sampling, "--raw", "--stop", "END", "--stop", "\n\n")
    sampling = request.sampling
    assert (request.target, request.draft, request.num_draft_tokens) == ("T", "D", 7)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 9, 0.9, 0.1)
    assert (request.seed, request.coupling, request.max_new_tokens) == (3, Coupling.GUMBEL, 5)
    assert (request.chat, request.stop, request.baseline) == (False, ("END", "\n\n"), True)
    assert (request.device, request.dtype) == ("cpu", "float32")


def test_inspect_asks_the_engine_for_the_evidence_of_each_step():
    assert request_of("--inspect", "--log", "run.jsonl").inspect
    assert not request_of("--log", "run.jsonl").inspect


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--target", "T"], ("prompt-lookup", "T", None)),
        (["--draft", "D"], ("draft-model", DEFAULT_TARGET, "D")),
        (["--method", "prompt-lookup"], ("prompt-lookup", DEFAULT_TARGET, None)),
        (["--method", "draft-model", "--target", DEFAULT_TARGET], ("draft-model", DEFAULT_TARGET, DEFAULT_DRAFT)),
    ],
)
def test_the_method_follows_from_the_models_named(arguments, expected):
    request = request_of(*arguments)
    assert (request.method, request.target, request.draft) == expected


def test_auto_lets_the_engine_choose_k():
    assert request_of("-k", "auto").num_draft_tokens is None
    assert request_of("--k", "AUTO").num_draft_tokens is None


def test_a_methods_options_become_flags():
    request = request_of("--method", "prompt-lookup", "--max-ngram", "5", "--min-ngram", "2")
    assert dict(request.method_options) == {"max_ngram": 5, "min_ngram": 2}
    assert dict(request_of("--method", "prompt-lookup").method_options) == {}


BAD = [
    ["-k", "0"],
    ["-k", "99"],
    ["-k", "-1"],
    ["-k", "4.5"],
    ["-k", "many"],
    ["-k"],
    ["--temperature", "-1"],
    ["--temperature", "nan"],
    ["--temperature", "inf"],
    ["--temperature", "hot"],
    ["--top-k", "-1"],
    ["--top-k", "x"],
    ["--top-p", "0"],
    ["--top-p", "1.1"],
    ["--min-p", "-0.1"],
    ["--min-p", "nan"],
    ["--seed", "-1"],
    ["--seed", "1.5"],
    ["--seed", "9" * 40],
    ["--coupling", "loose"],
    ["--max-new-tokens", "0"],
    ["--max-new-tokens", "x"],
    ["--stop", ""],
    ["--device", "tpu"],
    ["--dtype", "int3"],
    ["--method", "magic"],
    ["--method", "draft-model", "--target", "T"],
    ["--method", "prompt-lookup", "--draft", "D"],
    ["--max-ngram", "3"],
    ["--method", "prompt-lookup", "--max-ngram", "99"],
    ["--method", "prompt-lookup", "--max-ngram", "1", "--min-ngram", "2"],
    ["--target", " "],
    ["--chat", "--raw"],
    ["--prompt-file", "f"],
    ["--inspect"],
    ["--log"],
    ["--log", "missing/folder/run.jsonl"],
    ["--log", "."],
    ["--unknown"],
    ["--temp", "1"],
    ["stray"],
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_sentence_and_exit_2_before_anything_is_loaded(play, capsys, arguments):
    engine = play()
    assert outrider(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.rstrip().endswith(".")
    assert err[0].isupper() or err[0] in "-'"
    assert "Traceback" not in err
    assert "usage:" not in err
    assert engine.requests == []


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["models"], ["export"]])
def test_a_command_that_is_not_there_is_one_sentence(capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- The prompt -------------------------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused(play, capsys):
    engine = play()
    assert outrider(prompt="") == 2
    assert "prompt is empty" in capsys.readouterr().err
    assert engine.requests == []


def test_a_prompt_file_loses_one_line_end_only(play, tmp_path):
    engine = play()
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfdef f():\r\n    \n\r\n")
    assert outrider("--prompt-file", str(file), prompt=None) == 0
    assert engine.requests[0].prompt == "def f():\r\n    \n"


def test_a_piped_prompt_is_used_where_none_is_named(play, monkeypatch):
    engine = play()
    monkeypatch.setattr(sys, "stdin", piped("naïve\n".encode()))
    assert outrider(prompt=None) == 0
    monkeypatch.setattr(sys, "stdin", piped(b"dash"))
    assert outrider("--prompt-file", "-", prompt=None) == 0
    assert [request.prompt for request in engine.requests] == ["naïve", "dash"]


@pytest.mark.parametrize("flags", [("-k", "99"), ("--temperature", "-1"), ("--max-new-tokens", "0"), ("--stop", "")])
def test_a_mistake_in_the_flags_is_said_before_the_prompt_is_read(play, monkeypatch, capsys, flags):
    play()
    stdin = piped(b"typed in by hand")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert outrider(*flags, prompt=None) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert stdin.read() == "typed in by hand"


def test_without_any_prompt_a_terminal_is_told_how_to_give_one(play, monkeypatch, capsys):
    play()
    terminal = piped(b"")
    terminal.isatty = lambda: True
    for stdin in (terminal, None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert outrider(prompt=None) == 2
        assert "--prompt-file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xfd", b""])
def test_a_prompt_file_that_cannot_be_used_is_a_sentence(play, tmp_path, capsys, content):
    play()
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    assert outrider("--prompt-file", str(file), prompt=None) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert outrider("--prompt-file", str(tmp_path), prompt=None) == 2
    assert "is a folder" in capsys.readouterr().err
