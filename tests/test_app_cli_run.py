"""`outrider run` with a played engine: streams, exit codes, the log, and Ctrl-C."""

import errno
import json
import os
import signal
import sys

import pytest

from app.cli import run
from core.errors import GenerationError, ModelNotFoundError, OutOfMemoryError, PairMismatchError
from core.files import FileClaim
from core.runlog.reading import read_run_log
from core.types import BaselineStep, FinishReason, StageChanged
from tests.errors import failing
from tests.fakes_cli import STARTED, BrokenStream, finished, outrider, refused, step

pytestmark = pytest.mark.usefixtures("clean_environment")


def words(text):
    return " ".join(text.split())


# --- Streams ----------------------------------------------------------------------------------------------------


def test_the_text_and_nothing_else_goes_to_stdout_and_quiet_says_nothing_more(play, capfdbinary):
    play()
    assert outrider() == 0
    out, err = capfdbinary.readouterr()
    assert out == b"def f(x):\n\n"
    err = err.decode()
    assert "Loading the target" in err
    for figure in ("123.4", "75.0\u00a0%", "3 of 4", "1.50×", "12.3 ms", "2.00"):
        assert figure in err
    assert "\x1b" not in err
    play()
    assert outrider("--quiet") == 0
    assert capfdbinary.readouterr() == (b"def f(x):\n\n", b"")


def test_the_context_is_named_as_the_end_if_fewer_tokens_came_than_requested(play, capsys):
    for length, expected in ("4", "the requested length"), ("5", "the end of the model's context"):
        play()
        assert outrider("--max-new-tokens", length) == 0
        assert f"ended at {expected}" in words(capsys.readouterr().err)


def test_the_baseline_is_reported_and_its_text_is_not_printed(play, capsys):
    figures = {"measured_speedup": 1.23, "measured_speedup_interval": (1.1, 1.4)}
    summary = finished("def f", baseline_tokens_per_second=100.5, **figures)
    play(STARTED, step("def", " f"), StageChanged("Running the baseline"), BaselineStep(step("def")), summary)
    assert outrider("--baseline") == 0
    out, err = capsys.readouterr()
    assert out == "def f\n"
    assert "100.5" in err
    assert "1.23×" in err
    assert "95 % interval 1.10 to 1.40" in words(err)


def test_a_reproducible_run_reports_the_acceptance_that_rejection_would_have(play, capsys):
    for flags, is_reported in ((["--coupling", "gumbel"], True), ([], False)):
        play(STARTED, step("def", " f"), finished("def f", expected_acceptance_rate=0.781))
        assert outrider(*flags) == 0
        assert ("rejection sampling would reach 78.1 %" in words(capsys.readouterr().err)) is is_reported


def test_with_a_closed_stdout_the_log_is_still_written(play, monkeypatch, log):
    monkeypatch.setattr(sys, "stdout", None)
    play()
    assert outrider("--log", str(log)) == 0
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert [record["type"] for record in records] == ["run", "step", "step", "summary"]
    assert (records[-1]["text"], records[-1]["finish_reason"]) == ("def f(x):\n", "length")


@pytest.mark.parametrize(("number", "code", "words"), [(errno.EPIPE, 130, ""), (errno.ENOSPC, 1, "No space left on")])
def test_a_reader_that_goes_away_ends_the_run_silently_and_a_full_disk_is_a_sentence(
    play, monkeypatch, capsys, log, number, code, words
):
    monkeypatch.setattr(sys, "stdout", BrokenStream(number))
    play()
    assert outrider("--quiet", "--log", str(log)) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == bool(words)
    assert read_run_log(log).summary["finish_reason"] == "cancelled"


def test_a_reader_of_the_log_that_goes_away_ends_the_run_silently(play, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    play()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert outrider("--quiet", "--log", "-") == 130
    assert capsys.readouterr().err == ""


# --- Ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFoundError("There is no model 'x'."), 2),
        (PairMismatchError("The tokenizers differ."), 2),
        (OutOfMemoryError("The model does not fit."), 1),
        (GenerationError("The model returned NaN."), 1),
    ],
)
def test_what_the_engine_refuses_is_one_sentence_and_an_old_log_survives(play, capsys, log, error, code):
    engine = play(StageChanged("Loading"), error)
    log.write_text("old")
    assert refused(capsys, "run", "Hi", "--quiet", "--log", log, "--force", code=code) == str(error)
    assert engine.closed
    assert log.read_text() == "old"


def test_a_failure_in_the_middle_keeps_text_and_log(play, capsys, log):
    play(STARTED, step("def", " f"), finished("def f", FinishReason.ERROR, error="The device failed; try again."))
    assert outrider("--quiet", "--log", str(log)) == 1
    assert capsys.readouterr() == ("def f\n", "The device failed; try again.\n")
    assert read_run_log(log).summary["error"] == "The device failed; try again."


def test_no_result_is_a_failure_and_an_unexpected_error_is_one_sentence_with_a_hint(play, capsys, monkeypatch):
    play(STARTED)
    assert outrider("--quiet") == 1
    assert "without a result" in capsys.readouterr().err
    play(STARTED, TypeError("odd\nthing"))
    assert outrider("--quiet") == 1
    err = capsys.readouterr().err
    assert "TypeError: odd thing" in err
    assert "OUTRIDER_DEBUG=1" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("OUTRIDER_DEBUG", "1")
    assert outrider("--quiet") == 1
    assert "Traceback" in capsys.readouterr().err


def interrupt(_):
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_keeps_the_text_so_far_and_the_summary(play, capsys, log):
    before = signal.getsignal(signal.SIGINT)
    play(STARTED, step("def", " f"), interrupt, finished("def f"))
    assert outrider("--log", str(log)) == 130
    out, err = capsys.readouterr()
    assert out == "def f\n"
    assert "because you stopped it" in words(err)
    assert read_run_log(log).summary["finish_reason"] == "cancelled"
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_the_baseline_keeps_the_run_and_exits_as_stopped(play, capsys):
    begun = BaselineStep(step("def"))
    for script, what in ([begun, interrupt], "did not finish"), ([interrupt], "did not run"):
        engine = play(STARTED, step("def", " f"), StageChanged("Measuring the baseline"), *script)
        engine.keep = finished("def f")
        assert outrider("--baseline") == 130
        out, err = capsys.readouterr()
        assert out == "def f\n"
        assert f"the baseline {what}" in err


@pytest.mark.parametrize("script", [[StageChanged("Loading"), interrupt], [STARTED, step("a"), interrupt, interrupt]])
def test_ctrl_c_during_a_load_or_twice_exits_at_once(play, capsys, script):
    engine = play(*script, finished("never"))
    assert outrider("--quiet") == 130
    out, err = capsys.readouterr()
    assert "never" not in out
    assert err == "Stopped.\n"
    assert engine.closed


def test_a_log_that_cannot_be_written_is_reported_once_and_the_text_continues(play, capsys, monkeypatch, log):
    monkeypatch.setattr(
        run.RunLogWriter, "write", failing(run.RunLogError("There is no space left to write 'run.jsonl'; free some."))
    )
    play()
    assert outrider("--quiet", "--log", str(log)) == 1
    out, err = capsys.readouterr()
    assert out == "def f(x):\n\n"
    assert err.count("no space left") == 1


def test_a_log_replaces_no_file_without_force(play, capsys, log):
    log.write_text("my notes")
    play(STARTED, finished("a"))
    assert outrider("--log", str(log)) == 2
    assert log.read_text() == "my notes"
    assert outrider("--log", str(log), "--force") == 0
    first = log.read_bytes()
    play(STARTED, finished("b"))
    assert outrider("--log", str(log)) == 0
    assert log.read_bytes() == first
    assert read_run_log(log.with_stem(f"{log.stem}-2")).summary["text"] == "b"
    assert "is kept" in capsys.readouterr().err


def test_two_runs_never_write_one_log(play, capsys, log):
    claim = FileClaim(log)
    assert claim.take()
    play(STARTED, finished("a"))
    assert "Another run" in refused(capsys, "run", "Hi", "--quiet", "--log", log)
    claim.give_back()
    play(STARTED, finished("a"))
    assert outrider("--log", str(log)) == 0


def test_a_log_on_standard_output_takes_the_place_of_the_text(play, capfd):
    play(STARTED, step("a"), finished("a"))
    assert outrider("--log", "-") == 0
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["run", "step", "summary"]
