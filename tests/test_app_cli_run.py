"""`outrider run` without a model: arguments, streams, exit codes, the log, and Ctrl-C."""

import contextlib
import errno
import io
import json
import signal
import sys
from dataclasses import replace

import pytest
from cli_fakes import GOOD, STARTED, FakeEngine, finished, step

from app.__main__ import build_parser, main
from app.cli import run
from app.cli.run_arguments import build_request
from core.errors import DeviceError, GenerationError, ModelNotFoundError, OutOfMemoryError, PairMismatchError
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.trace import read_run_log
from core.types import BaselineStep, Coupling, FinishReason, StageChanged


@pytest.fixture
def play(monkeypatch):
    """Put a fake engine in the real one's place; nothing of torch is imported."""

    def put(*script):
        engine = FakeEngine(script or GOOD)
        monkeypatch.setattr(run, "make_engine", lambda: engine)
        return engine

    return put


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # So that no test leaves it behind.


def outrider(*arguments, prompt="Hi"):
    return main(["run", *(["--prompt", prompt] if prompt is not None else []), *arguments])


def request_of(*arguments):
    return build_request(build_parser().parse_args(["run", "--prompt", "Hi", *arguments]))


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


def piped(data):
    return io.TextIOWrapper(io.BytesIO(data))


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


# --- Streams ----------------------------------------------------------------------------------------------------


def test_the_text_and_nothing_else_goes_to_stdout(play, capfdbinary):
    play()
    assert outrider() == 0
    out, err = capfdbinary.readouterr()
    assert out == b"def f(x):\n\n"
    err = err.decode()
    assert "Loading the target" in err
    for figure in ("123.4", "75.0%", "3 of 4", "1.50×", "12.3 ms", "2.00"):
        assert figure in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("length", "expected"), [("4", "ended by the length asked for"), ("5", "ended by the end of the model's context")]
)
def test_the_end_is_the_contexts_where_fewer_tokens_came_than_were_asked_for(play, capsys, length, expected):
    play()
    assert outrider("--max-new-tokens", length) == 0
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", "of this process so far"), ("cuda:0", "on the device, in this run")]
)
def test_the_peak_of_memory_says_what_it_is_of(play, capsys, device, expected):
    started = replace(STARTED, config={"target": "t", "device": device})
    play(started, step("a", "b"), finished("ab", peak_memory_mb=321.0))
    assert outrider() == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "peak memory" in line]
    assert "321 MB" in line
    assert expected in line


def test_the_help_names_every_kind_of_model_that_can_be_loaded(capsys):
    with contextlib.suppress(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "a catalogue name, a Hub id, a local folder (safetensors) or a .gguf file" in text


def test_quiet_leaves_the_text_only(play, capsys):
    play()
    assert outrider("--quiet") == 0
    assert capsys.readouterr() == ("def f(x):\n\n", "")


def test_the_baseline_is_reported_and_its_text_is_not_printed(play, capsys):
    summary = finished("def f", baseline_tokens_per_second=100.5, measured_speedup=1.23)
    play(STARTED, step("def", " f"), StageChanged("Running the baseline"), BaselineStep(step("def")), summary)
    assert outrider("--baseline") == 0
    out, err = capsys.readouterr()
    assert out == "def f\n"
    assert "100.5" in err
    assert "1.23×" in err


def test_a_reproducible_run_reports_the_acceptance_that_rejection_would_have(play, capsys):
    for flags, is_told in ((["--coupling", "gumbel"], True), ([], False)):
        play(STARTED, step("def", " f"), finished("def f", expected_acceptance_rate=0.781))
        assert outrider(*flags) == 0
        assert ("rejection would be 78.1%" in " ".join(capsys.readouterr().err.split())) is is_told


def test_the_help_says_which_texts_a_seed_repeats(capsys):
    with contextlib.suppress(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "a seed repeats its text only with --coupling gumbel or at temperature 0" in text


def test_text_in_any_script_survives_an_old_encoding(play, monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="cp1252", newline=None)
    monkeypatch.setattr(sys, "stdout", stream)
    play(STARTED, step("日本\r\n", "é"), finished("日本\r\né"))
    assert outrider() == 0
    assert raw.getvalue() == "日本\r\né\n".encode()


def test_a_closed_stdout_means_that_only_the_log_is_wanted(play, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    play()
    assert outrider("--log", str(tmp_path / "run.jsonl")) == 0
    assert read_run_log(tmp_path / "run.jsonl").summary["finish_reason"] == "length"


class BrokenStream(io.TextIOWrapper):
    def __init__(self, error):
        super().__init__(io.BytesIO())
        self.error = error

    @property
    def buffer(self):
        return self

    def write(self, _):
        raise self.error


def test_a_reader_that_goes_away_ends_the_run_silently_and_the_log_is_whole(play, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "stdout", BrokenStream(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    play()
    log = tmp_path / "run.jsonl"
    assert outrider("--quiet", "--log", str(log)) == 130
    assert capsys.readouterr().err == ""
    assert read_run_log(log).summary["finish_reason"] == "cancelled"


def test_a_full_disk_behind_stdout_is_a_sentence(play, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", BrokenStream(OSError(errno.ENOSPC, "No space left on device")))
    play()
    assert outrider("--quiet") == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert err.count("\n") == 1


# --- Ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFoundError("There is no model 'x'."), 2),
        (PairMismatchError("The tokenizers differ."), 2),
        (DeviceError("There is no GPU here."), 2),
        (OutOfMemoryError("The model does not fit."), 1),
        (GenerationError("The model returned NaN."), 1),
    ],
)
def test_what_the_engine_refuses_is_its_sentence(play, capsys, tmp_path, error, code):
    engine = play(StageChanged("Loading"), error)
    log = tmp_path / "run.jsonl"
    assert outrider("--quiet", "--log", str(log)) == code
    assert capsys.readouterr() == ("", f"{error}\n")
    assert engine.closed
    assert not log.exists()


def test_a_failure_in_the_middle_keeps_text_and_log(play, capsys, tmp_path):
    play(STARTED, step("def", " f"), finished("def f", FinishReason.ERROR, error="The device failed; try again."))
    log = tmp_path / "run.jsonl"
    assert outrider("--quiet", "--log", str(log)) == 1
    assert capsys.readouterr() == ("def f\n", "The device failed; try again.\n")
    assert read_run_log(log).summary["error"] == "The device failed; try again."


def test_an_unexpected_error_is_one_sentence_with_a_hint(play, capsys, monkeypatch):
    play(STARTED, TypeError("odd\nthing"))
    assert outrider("--quiet") == 1
    err = capsys.readouterr().err
    assert "TypeError: odd thing" in err
    assert "OUTRIDER_DEBUG=1" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("OUTRIDER_DEBUG", "1")
    assert outrider("--quiet") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_engine_without_a_result_is_a_failure(play, capsys):
    play(STARTED)
    assert outrider("--quiet") == 1
    assert "without a result" in capsys.readouterr().err


def interrupt(_):
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_the_text_so_far_and_the_summary(play, capsys, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    play(STARTED, step("def", " f"), interrupt, finished("def f"))
    log = tmp_path / "run.jsonl"
    assert outrider("--log", str(log)) == 130
    out, err = capsys.readouterr()
    assert out == "def f\n"
    assert "your stop" in err
    assert read_run_log(log).summary["finish_reason"] == "cancelled"
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_the_baseline_keeps_the_run_and_says_stopped(play, capsys):
    def last_word(controls):
        assert controls.is_cancelled

    engine = play(STARTED, step("def", " f"), StageChanged("Measuring the baseline"), interrupt, last_word)
    engine.keep = finished("def f")
    assert outrider("--baseline") == 130
    out, err = capsys.readouterr()
    assert out == "def f\n"
    assert "the baseline did not finish" in err


@pytest.mark.parametrize("script", [[StageChanged("Loading"), interrupt], [STARTED, step("a"), interrupt, interrupt]])
def test_ctrl_c_during_a_load_or_twice_leaves_at_once(play, capsys, script):
    engine = play(*script, finished("never"))
    assert outrider("--quiet") == 130
    out, err = capsys.readouterr()
    assert "never" not in out
    assert err == "Stopped.\n"
    assert engine.closed


# --- The log ----------------------------------------------------------------------------------------------------


def test_the_log_holds_the_run(play, tmp_path):
    play()
    log = tmp_path / "run.jsonl"
    assert outrider("--log", str(log)) == 0
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [record["type"] for record in records] == ["run", "step", "step", "summary"]
    assert records[-1]["text"] == "def f(x):\n"


def test_a_log_that_cannot_be_written_is_said_once_and_the_text_goes_on(play, capsys, monkeypatch):
    def fail(*_):
        raise run.RunLogError("There is no space left to write 'run.jsonl'; free some.")

    monkeypatch.setattr(run.RunLogWriter, "__init__", lambda *_: None)
    monkeypatch.setattr(run.RunLogWriter, "write", fail)
    monkeypatch.setattr(run.RunLogWriter, "close", lambda _: None)
    play()
    assert outrider("--quiet", "--log", "run.jsonl") == 1
    out, err = capsys.readouterr()
    assert out == "def f(x):\n\n"
    assert err.count("no space left") == 1


def test_an_old_log_survives_a_run_that_does_not_start(play, tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text("old")
    play(ModelNotFoundError("There is no model 'x'."))
    assert outrider("--log", str(log)) == 2
    assert log.read_text() == "old"
