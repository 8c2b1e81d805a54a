"""`outrider run --engine`: the same text, figures, log and exit codes on a server."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from app.cli.console import NONE
from app.cli.parsing import find_servers
from core.engines import session, steps
from core.runlog.reading import read_run_log
from tests.fake_servers import Answer, FakeServer, Fault, llama_server, recorded, vllm
from tests.fakes_cli import outrider, refused

pytestmark = pytest.mark.usefixtures("clean_environment", "keys")


def words(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split())


def test_text_figures_and_log_of_a_run_on_a_server(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    with FakeServer(llama_server()) as fake:
        assert outrider("--engine", fake.url, "--temp", "0", "-n", "24", "--log", str(log)) == 0
    shown = capsys.readouterr()
    kept = read_run_log(log)
    assert kept.summary is not None
    assert shown.out == f"{kept.summary['text']}\n"
    assert kept.run["config"]["engine"]["address"] == fake.url
    accepted = f"{kept.summary['num_accepted_tokens']} of {kept.summary['num_draft_tokens']} drafted tokens"
    for part in (f"smol on llama-server b0-unknown at {fake.url}", accepted, "first token"):
        assert part in words(shown.err)
    for absent in ("peak memory", "predicted speedup", "baseline", "inferred", "None"):
        assert absent not in shown.err


def test_what_is_inferred_is_labelled_and_the_flag_that_would_report_it_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat = recorded("vllm-draft", "run-chat-greedy")
    quiet = Answer([str(chunk).replace('"metrics":', '"other":') for chunk in chat.chunks], 200, chat.headers)
    with FakeServer(vllm(chat=quiet)) as fake:
        assert outrider("--engine", fake.url, "-n", "99") == 0
    shown = words(capsys.readouterr().err)
    assert "ended at the server's own length limit" in shown
    assert "inferred" in shown
    assert "--per-request-spec-decode-metrics detailed" in shown


def test_a_text_that_comes_at_once_shows_no_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    monkeypatch.setattr(steps, "SHORTEST_MS", 1e9)
    with FakeServer(vllm()) as fake:
        assert outrider("--engine", fake.url, "-n", "24", "--log", str(log)) == 0
    assert f"tokens/s {NONE} too few steps to tell, or all arrived at once" in words(capsys.readouterr().err)
    assert "tokens_per_second" not in (read_run_log(log).summary or {})


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("-k", "4"), "-k"),
        (("-k", "0"), "-k"),
        (("--raw", "--system", "Be brief."), "system prompt"),
        (("--draft", "x"), "--draft"),
        (("--method", "prompt-lookup"), "--method"),
        (("--device", "cpu"), "--device"),
        (("--max-ngram", "3"), "--max-ngram"),
        (("--baseline",), "baseline"),
        (("--coupling", "gumbel"), "Gumbel"),
        (("--inspect",), "evidence"),
        (("--target", "nix"), "no model 'nix'"),
    ],
)
def test_what_a_server_cannot_take_is_refused_in_a_sentence(
    flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(vllm()) as fake:
        assert named in refused(capsys, "run", "--prompt", "Hi", "--engine", fake.url, *flags)
        assert not fake.bodies("/v1/chat/completions")


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(vllm()) as fake:
        gone = fake.url
    assert outrider("--engine", gone) == 1
    assert outrider("--engine", "ftp://x") == 2
    with FakeServer(vllm(), key="right") as fake:
        assert outrider("--engine", fake.url) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_a_stream_that_dies_keeps_text_and_log(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    chat = recorded("vllm-draft", "run-chat-sampled").cut(6, Fault.DIES)
    with FakeServer(vllm(chat=chat)) as fake:
        assert outrider("--engine", fake.url, "--log", str(log)) == 1
    kept, shown = read_run_log(log), capsys.readouterr()
    assert kept.summary is not None
    assert kept.summary["finish_reason"] == "error"
    assert shown.out.strip() == kept.summary["text"].strip() != ""
    assert kept.steps
    assert not kept.problems
    assert "in the middle" in shown.err
    assert "vLLM reports each step's counts only at the end of a text" in shown.err
    assert "--per-request" not in shown.err


def test_ctrl_c_ends_the_request_and_completes_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    make = session._Run._tokens

    def interrupted(self: Any, chunk: Any) -> Any:
        yield from make(self, chunk)
        if len(self._maker.steps) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session._Run, "_tokens", interrupted)
    chat = recorded("vllm-draft", "run-chat-sampled").cut(6, Fault.WAITS)
    with FakeServer(vllm(chat=chat)) as fake:
        assert outrider("--engine", fake.url, "--log", str(log)) == 130
        assert fake.hung_up.wait(10)
    kept = read_run_log(log)
    assert kept.summary is not None
    assert kept.summary["finish_reason"] == "cancelled"
    assert len(kept.steps) == 3
    assert "ended because you stopped it" in words(capsys.readouterr().err)


def test_a_key_is_read_from_the_environment_and_written_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_API_KEY", "sk-secret")
    with FakeServer(vllm(), key="sk-secret") as fake:
        assert outrider("--engine", fake.url, "--log", str(log)) == 0
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err + log.read_text("utf-8")
    assert json.loads(log.read_text("utf-8").partition("\n")[0])["schema"] == "outrider.run/1"


@pytest.mark.parametrize(("host", "sees"), [("127.0.0.1", True), ("localhost", False)])
def test_a_key_in_the_environment_is_for_the_host_of_engine_only(
    host: str, sees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_API_KEY", "sk-secret")
    with FakeServer(vllm(), key="sk-secret") as fake, FakeServer(vllm()) as other:
        args = argparse.Namespace(engine=fake.url, baseline_engine=other.url.replace("127.0.0.1", host))
        find_servers(args)
        assert {"authorization" in headers for _, headers, _ in other.requests} == {sees}
