"""What `outrider run` makes of its flags, of the models named, and of the prompt."""

import functools
import os
import sys

import pytest

from app.__main__ import main
from core.models.catalogue import (
    DEFAULT_DRAFT,
    DEFAULT_TARGET,
    EMBEDDED,
    SMOLLM2_DRAFTER,
    ModelEntry,
    ModelFormat,
    ModelOrigin,
)
from core.settings import Coupling, LengthPolicy
from tests.fakes_cache import write_snapshot
from tests.fakes_cli import outrider, piped, refused, request_of
from tests.fakes_log import write

pytestmark = pytest.mark.usefixtures("clean_environment")


# --- Flags ------------------------------------------------------------------------------------------------------


def test_with_only_a_prompt_the_embedded_pair_runs():
    request = request_of()
    assert (request.target, request.draft, request.method) == (DEFAULT_TARGET, DEFAULT_DRAFT, "draft-model")
    assert (request.num_draft_tokens, request.sampling.temperature, request.seed) == (3, 0.7, 0)
    assert (request.max_new_tokens, request.chat, request.baseline, request.stop) == (128, None, False, ())


def test_every_flag_reaches_the_request():
    models = ["--target", "T", "--draft", "D", "--method", "draft-model", "--device", "cpu", "--dtype", "float32"]
    filters = ["--temperature", "0.5", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.1"]
    sampling = ["-k", "7", *filters, "--seed", "3", "--coupling", "gumbel", "--max-new-tokens", "5", "--baseline"]
    output = ["--raw", "--stop", "END", "--stop", "\n\n", "--inspect", "--log", "run.jsonl"]
    request = request_of(*models, *sampling, *output)
    sampling = request.sampling
    assert (request.target, request.draft, request.num_draft_tokens) == ("T", "D", 7)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 9, 0.9, 0.1)
    assert (request.seed, request.coupling, request.max_new_tokens) == (3, Coupling.GUMBEL, 5)
    assert (request.chat, request.stop, request.baseline) == (False, ("END", "\n\n"), True)
    assert (request.device, request.dtype, request.inspect) == ("cpu", "float32", True)


def test_auto_lets_the_engine_choose_k_and_a_methods_options_become_flags():
    assert request_of("-k", "auto").num_draft_tokens is request_of("--k", "AUTO").num_draft_tokens is None
    request = request_of("--method", "prompt-lookup", "--max-ngram", "5", "--min-ngram", "2")
    assert dict(request.method_options) == {"max_ngram": 5, "min_ngram": 2}
    assert dict(request_of("--method", "prompt-lookup").method_options) == {}
    assert dict(request_of("--no-int8").method_options) == {"int8": False}


BAD = {
    "-k": ("-1", "99", "4.5", "many"),
    "--temperature": ("-1", "nan", "hot"),
    "--top-k": ("-1", "x"),
    "--top-p": ("0", "1.1"),
    "--min-p": ("-0.1",),
    "--seed": ("-1", "1.5", "9" * 40),
    "--coupling": ("loose",),
    "--max-new-tokens": ("0",),
    "--stop": ("",),
    "--device": ("tpu",),
    "--dtype": ("int3",),
    "--method": ("magic",),
    "--max-ngram": ("3",),
    "--target": (" ",),
    "--prompt-file": ("f",),
    "--log": ("missing/folder/run.jsonl", "."),
    "--tempera": ("1",),
}
LOOKUP = ["--method", "prompt-lookup"]
TOGETHER = [
    ["--method", "draft-model", "--target", "T"],
    [*LOOKUP, "--draft", "D"],
    [*LOOKUP, "--max-ngram", "99"],
    ["--method", "draft-tree", "--verification", "block"],
    ["--coupling", "gumbel", "--verification", "typical"],
    ["--method", "draft-tree", "-k", "10000"],
    [*LOOKUP, "--max-ngram", "1", "--min-ngram", "2"],
    *(["--chat", "--raw"], ["-k"], ["--inspect"], ["--log"], ["--unknown"], ["stray"]),
]


@pytest.mark.parametrize(
    "arguments", [*TOGETHER, *([flag, value] for flag, values in BAD.items() for value in values)], ids=" ".join
)
def test_bad_input_is_one_sentence_and_exit_2_before_anything_is_loaded(play, capsys, arguments):
    engine = play()
    err = refused(capsys, "run", "--prompt", "Hi", *arguments)
    assert err.endswith(".")
    assert err[0].isupper() or err[0] in "-'"
    assert "Traceback" not in err
    assert "usage:" not in err
    assert engine.requests == []


def test_options_may_follow_a_methods_name_in_every_command(capsys):
    request = request_of("--method", "prompt-lookup:max-ngram=5", "--min-ngram", "2")
    assert (request.method, dict(request.method_options)) == ("prompt-lookup", {"max_ngram": 5, "min_ngram": 2})
    config = ["export", "--target", "t", "--config", "vllm", "--method"]
    assert main([*config, "prompt-lookup:max-ngram=5"]) == 0
    assert '"prompt_lookup_max": 5' in capsys.readouterr().out
    for command in (["run", "--method"], ["check", "--method"], config):
        said = refused(capsys, *command, "prompt-lookup:a=5")
        assert "no option 'a'" in said
        assert "start Outrider" not in said


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["models"], ["export"]])
def test_an_unknown_command_is_one_sentence(capsys, arguments):
    refused(capsys, *arguments)


# --- Models -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(shelf, monkeypatch):
    """Puts models into an empty cache, beside an embedded drafter for a target that is not there."""
    drafter = ModelEntry(
        "the-drafter", "Drafter", shelf, ModelFormat.SAFETENSORS, 5, ModelOrigin.EMBEDDED, serves="owner/served"
    )
    monkeypatch.setattr("app.cli.parsing.embedded_models", lambda: (drafter,))
    return functools.partial(write_snapshot, main=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("draft-model", DEFAULT_TARGET, DEFAULT_DRAFT)),
        (["--target", DEFAULT_TARGET], ("draft-model", DEFAULT_TARGET, DEFAULT_DRAFT)),
        (["--target", DEFAULT_TARGET, "--method", "draft-tree"], ("draft-tree", DEFAULT_TARGET, DEFAULT_DRAFT)),
        (["--draft", "D"], ("draft-model", DEFAULT_TARGET, "D")),
        (["--method", "prompt-lookup"], ("prompt-lookup", DEFAULT_TARGET, None)),
        (["--target", "owner/served"], ("draft-model", "owner/served", "the-drafter")),
        (["--target", "owner/served", "--draft", "other"], ("draft-model", "owner/served", "other")),
        (["--target", "owner/served", "--method", "prompt-lookup"], ("prompt-lookup", "owner/served", None)),
        (["--target", "owner/other"], ("prompt-lookup", "owner/other", None)),
        (["--target", "owner/missing"], ("prompt-lookup", "owner/missing", None)),
    ],
)
def test_method_and_draft_follow_from_the_models_named(cached, arguments, expected):
    cached("owner/other")
    request = request_of(*arguments)
    assert (request.method, request.target, request.draft) == expected


def test_naming_the_default_target_by_its_path_changes_nothing():
    request = request_of("--target", str(EMBEDDED / DEFAULT_TARGET))
    assert (request.method, request.draft, request.num_draft_tokens) == ("draft-model", DEFAULT_DRAFT, 3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], 3), (["--draft", "D"], LengthPolicy.AUTO), (["--draft", "D", "-k", "5"], 5),
     (["--draft", SMOLLM2_DRAFTER], 2), (["--method", "prompt-lookup"], 4)],
)  # fmt: skip
def test_k_is_what_was_measured_to_pay_for_the_draft_and_auto_where_nothing_is_known(arguments, expected):
    assert request_of(*arguments).draft_length == expected


def test_a_drafter_is_found_for_its_target_under_another_name(cached):
    folder = str(cached("owner/served"))
    request = request_of("--target", folder)
    assert (request.method, request.target, request.draft) == ("draft-model", folder, "the-drafter")


def test_running_a_model_that_is_not_here_says_how_to_get_it(cached, capsys):
    assert main(["run", "--target", "owner/missing", "--prompt", "Hi"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "`outrider models get owner/missing`" in err


# --- The prompt -------------------------------------------------------------------------------------------------


def test_a_prompt_file_loses_one_line_end_only_and_a_piped_prompt_is_used_where_none_is_named(
    play, tmp_path, monkeypatch
):
    engine = play()
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfdef f():\r\n    \n\r\n")
    assert outrider("--prompt-file", str(file), prompt=None) == 0
    monkeypatch.setattr(sys, "stdin", piped("naïve\n".encode()))
    assert outrider(prompt=None) == 0
    monkeypatch.setattr(sys, "stdin", piped(b"dash"))
    assert outrider("--prompt-file", "-", prompt=None) == 0
    assert [request.prompt for request in engine.requests] == ["def f():\r\n    \n", "naïve", "dash"]


@pytest.mark.parametrize("flags", [("-k", "99"), ("--temperature", "-1"), ("--max-new-tokens", "0"), ("--stop", "")])
def test_a_mistake_in_the_flags_is_reported_before_the_prompt_is_read(play, monkeypatch, capsys, flags):
    play()
    stdin = piped(b"typed in by hand")
    monkeypatch.setattr(sys, "stdin", stdin)
    refused(capsys, "run", *flags)
    assert stdin.read() == "typed in by hand"


def test_an_empty_prompt_is_refused_and_the_error_for_a_missing_one_says_how_to_give_it(play, monkeypatch, capsys):
    engine = play()
    assert "prompt is empty" in refused(capsys, "run", "--prompt", "")
    assert engine.requests == []
    terminal = piped(b"")
    terminal.isatty = lambda: True
    for stdin in (terminal, None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "--prompt-file" in refused(capsys, "run")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xfd", b""])
def test_a_prompt_file_that_cannot_be_used_is_a_sentence(play, tmp_path, capsys, content):
    play()
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    refused(capsys, "run", "--prompt-file", file)
    assert "is a folder" in refused(capsys, "run", "--prompt-file", tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such devices here")
def test_a_prompt_that_never_comes_or_never_ends_is_refused(play, tmp_path, monkeypatch, capsys):
    play()
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero"):
        assert "a pipe or a device" in refused(capsys, "run", "--prompt-file", name)
    with open("/dev/zero") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        for name in ("-", f"/dev/fd/{endless.fileno()}"):
            assert "larger than 256 MB" in refused(capsys, "run", "--quiet", "--prompt-file", name)


LONG = "a" * 300


@pytest.mark.parametrize("command", [
    "run hi --log", "run --prompt-file", "sweep --yes --out", "sweep --out x --yes --csv",
    "sweep --out x --prompts", "check --prompts", "check --json", "bench --out",
    "bench --prompts", "probe --json", "probe --log", "distill outrider-code-target --out",
])  # fmt: skip
def test_a_file_name_that_is_too_long_is_refused_before_anything_is_loaded(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, *command.split(), LONG)
    assert "too long" in error
    assert "unexpectedly" not in error
    assert "Loading" not in error


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder that is in use")
def test_a_current_folder_that_was_removed_is_a_sentence(capsys, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        tmp_path.rmdir()
        assert refused(capsys, "sweep", "--yes", "--out", "x.jsonl").startswith("The current folder no longer exists")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("command", ["run hi --log", "export run.jsonl --csv", "probe --json", "check --json"])
def test_a_pipe_that_nobody_reads_is_refused_not_waited_for(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run.jsonl")
    os.mkfifo("pipe")
    said = refused(capsys, *command.split(), "pipe")
    assert said == "No program reads the pipe 'pipe'; start one first, or choose a file."
