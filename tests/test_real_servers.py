"""Runs on real servers, whose addresses are in the environment; tests/servers.md says how to start them."""

from __future__ import annotations

import os

import pytest

from app.__main__ import main
from core.runlog.reading import RunLog, read_run_log

ADDRESSES = {name: os.environ.get(f"OUTRIDER_{name}_URL", "") for name in ("VLLM", "LLAMA", "SGLANG")}
PRODUCTS = {"VLLM": "vllm", "LLAMA": "llama-server", "SGLANG": "sglang"}
SERVERS = [
    pytest.param(name, marks=pytest.mark.skipif(not address, reason=f"OUTRIDER_{name}_URL is not set"))
    for name, address in ADDRESSES.items()
]
PROMPT = "Write the numbers from one to ten in words, twice."

pytestmark = [pytest.mark.real_server, pytest.mark.parametrize("name", SERVERS), pytest.mark.timeout(600)]


@pytest.fixture
def run(name, tmp_path):
    """Runs a prompt on the server, and returns the log."""

    def run(*more: str) -> RunLog:
        path = tmp_path / "run.jsonl"
        words = ["run", "--engine", ADDRESSES[name], "--max-new-tokens", "24", "--log", str(path), "--force"]
        assert main([*words, *more, "--prompt", PROMPT]) == 0
        return read_run_log(path)

    return run


@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_a_run_is_logged_step_by_step_and_its_sums_agree(name, run, temperature):
    log = run("--temperature", temperature)
    assert log.run["config"]["engine"]["product"] == PRODUCTS[name]
    assert log.problems == []
    summary = log.summary
    assert summary is not None
    assert summary["finish_reason"] in {"length", "eos"}
    assert sum(len(step["emitted"]) for step in log.steps) == summary["num_tokens"]
    assert "".join(step["emitted_text"] for step in log.steps) == summary["text"]
    if summary.get("num_draft_tokens") is not None:
        assert 0 <= summary["num_accepted_tokens"] <= summary["num_draft_tokens"]


def test_greedy_text_is_the_same_twice(name, run):
    first, second = run("--temperature", "0").summary, run("--temperature", "0").summary
    assert first is not None
    assert second is not None
    assert first["text"] == second["text"] != ""


def test_bad_input_gets_one_sentence(name, capsys):
    address = ADDRESSES[name]
    for words in (["--engine", f"{address}/nowhere"], ["--engine", address, "--target", "no-such-model"]):
        assert main(["run", *words, "--max-new-tokens", "4", "--prompt", PROMPT]) in {1, 2}
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.strip()
