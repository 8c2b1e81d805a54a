"""`outrider run` on the models that ship with it and on a small one, from the command line to the log."""

import json
import re
import shlex
from pathlib import Path

import pytest

from app.__main__ import main
from core.runlog.reading import read_run_log
from tests.fakes import byte_tokenizer, save_model
from tests.fakes_log import CONFIG, ENVIRONMENT, STEP, SUMMARY
from tests.test_core_loading import TEMPLATE

pytestmark = pytest.mark.slow


def outrider(log, *arguments):
    return main(["run", "--prompt", "class Stack:", "--device", "cpu", "--log", str(log), *arguments])


def test_without_a_model_the_embedded_pair_writes_text_and_a_log_that_follows_the_schema(log, capfdbinary):
    assert outrider(log, "--max-new-tokens", "24", "--quiet") == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    run, *steps, summary = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert run["schema"] == "outrider.run/1"
    assert list(run["config"])[: len(CONFIG)] == CONFIG
    assert list(run["environment"])[: len(ENVIRONMENT)] == ENVIRONMENT
    assert all(value is not None for value in run["environment"].values())
    assert all(list(step)[1 : 1 + len(STEP)] == STEP for step in steps)
    assert list(summary)[1 : 1 + len(SUMMARY)] == SUMMARY
    assert out == summary["text"].encode() + b"\n"
    assert "".join(step["emitted_text"] for step in steps) == summary["text"]
    assert sum(len(step["emitted"]) for step in steps) == summary["num_tokens"] == 24
    for step in steps:
        drafted = step["num_draft_tokens"]
        lists = ("drafted", "draft_probs", "target_probs", "acceptance_probs", "expected_acceptance")
        assert [len(step[name]) for name in lists] == [drafted] * len(lists)
        assert all(0 <= value <= 1 for value in step["acceptance_probs"])
        assert len(step["emitted"]) == len(step["emitted_kinds"])
        assert step["draft_ms"] + step["verify_ms"] + step["sample_ms"] <= step["total_ms"] + 0.01


def test_greedy_text_equals_the_baselines(log):
    arguments = ("--temperature", "0", "--dtype", "float32", "--max-new-tokens", "32", "--baseline", "--quiet")
    assert outrider(log, *arguments) == 0
    summary = read_run_log(log).summary
    assert summary["text"] == summary["baseline_text"]
    assert summary["measured_speedup"] > 0


@pytest.mark.parametrize("stop", ["\n", "e"])
def test_the_text_printed_is_the_text_logged_where_a_stop_text_ends_it(log, capfdbinary, stop):
    assert outrider(log, "--max-new-tokens", "32", "--quiet", "--stop", stop, "--stop", "never there") == 0
    summary = read_run_log(log).summary
    assert capfdbinary.readouterr().out == summary["text"].encode() + b"\n"
    assert summary["finish_reason"] == "stop"
    assert stop not in summary["text"]


def test_a_system_prompt_reaches_the_chat_template_and_is_refused_without_one(log, tmp_path, capsys):
    tokenizer = byte_tokenizer()
    for template, code in ((TEMPLATE, 0), (None, 2)):
        tokenizer.chat_template = template
        target = str(save_model(tmp_path / f"{code}", tokenizer=tokenizer))
        assert outrider(log, "--target", target, "--system", "Be brief.", "--max-new-tokens", "2") == code
    assert "takes no system prompt" in capsys.readouterr().err
    config = read_run_log(log).run["config"]
    assert config["system"] == "Be brief."
    read = tokenizer.decode(config["prompt_token_ids"])
    assert read == "<system>Be brief.<user>class Stack:<assistant>"


def test_the_readmes_run_and_its_exports_work_one_after_the_other(tmp_path, monkeypatch):
    readme = Path(__file__).resolve().parents[1] / "README.md"
    lines = re.findall(r"(?:^\$ |`)outrider ((?:run|export) .*?)(?:  +#|`)", readme.read_text("utf-8"), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    local = [shlex.split(line) for line in lines if "--engine" not in line]
    assert [command for command, *_ in local] == ["run", "export", "export"]
    for arguments in local:
        assert main([*arguments, *(["-n", "8"] if arguments[0] == "run" else [])]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "report.html", "FOLDER"}
