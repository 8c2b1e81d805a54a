"""`outrider probe`: a ranking on standard output, JSON beside it, a sentence for everything that is wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import app.cli.probe as command
from app.__main__ import build_parser, main
from core.analysis import run_probe
from core.analysis.probe import Costs
from core.errors import PairMismatchError
from core.runlog.log import RunLogWriter
from core.settings import RunRequest, SamplingParams
from core.types import Finished, RunStarted, Step
from tests.fakes import is_sentence, tiny_model
from tests.fakes_app import FakeSession
from tests.fakes_cli import BrokenStream, finished, refused


class TinyEngine:
    """Loads random models of a few thousand weights, whatever their names."""

    def load(self, request, controls):
        yield from ()
        if request.draft == "odd":
            raise PairMismatchError("The tokenizers differ: id 3 is 'a' in the draft and 'b' in the target.")
        target, far = (tiny_model(seed=seed, is_fused=True, max_position_embeddings=512) for seed in (1, 2))
        return SimpleNamespace(target=target, draft=far if request.draft == "far" else target)


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(command, "make_engine", TinyEngine)
    monkeypatch.setattr(command, "resolve", lambda ref: ref)
    monkeypatch.setattr(run_probe, "resolve", lambda ref: ref)
    monkeypatch.setattr(command, "drafts_here", lambda target: ("same",))
    monkeypatch.setattr(command, "read_details", lambda entry: SimpleNamespace(is_instruct=False))
    monkeypatch.setattr("core.analysis.run_probe._ROUNDS", 3)


def test_drafts_are_ranked_on_standard_output_and_written_as_json(capsys, tmp_path, monkeypatch):
    # What forwards of a few microseconds take is chance: here each draft costs a tenth, and scoring is free.
    costs = Costs(target_step_ms=10.0, draft_step_ms=1.0, verify_ms=((17, 10.0),), level_ms=0.1)
    monkeypatch.setattr(run_probe, "measure", lambda *arguments: costs)
    path = tmp_path / "probe.json"
    text = tmp_path / "text.txt"
    text.write_text("Some text that both of them read, and a little more of it.\n", "utf-8")
    code = main(["probe", "--draft", "odd, far,same", "--text-file", str(text), "--json", str(path)])
    out, err = capsys.readouterr()
    assert code == 0
    assert out.index("same ") < out.index("far ")
    assert "odd: The tokenizers differ" in out
    assert "Comparing far" in err
    assert " ".join(out.split()).rpartition("Use ")[2].count("K = ") == 2, "a chain, and the tree that is faster"
    assert "tokens/forward" in out
    record = json.loads(path.read_text("utf-8"))
    assert record["schema"] == "outrider.probe/1"
    assert [item["draft"] for item in record["drafts"]] == ["same", "far", "odd"]
    assert record["drafts"][0]["agreement"]["acceptance"]["value"] == pytest.approx(1.0, abs=1e-4)
    assert len(record["drafts"][0]["speedup"]["values"]) == 17
    assert record["drafts"][2] == {"draft": "odd", "problem": record["drafts"][2]["problem"]}


def test_a_text_that_the_target_wrote_is_called_its_own(capsys):
    assert main(["probe", "--prompt", "abc", "--generate", "30", "--temperature", "0.7", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "30 positions, temperature 0.7" in out
    assert "the target's own" in out


def test_a_reader_that_goes_away_loses_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", BrokenStream())
    path = tmp_path / "probe.json"
    assert main(["probe", "--prompt", "some text", "--quiet", "--json", str(path)]) == 130
    assert json.loads(path.read_text("utf-8"))["drafts"]


def write_log(path, *, steps=True, **config):
    head = FakeSession()._head(RunRequest("t", "d", "x", sampling=SamplingParams(temperature=0.8)))
    with RunLogWriter(path) as log:
        log.write(RunStarted("id", head.started_at, "0", {**head.config, **config}, {}))
        if steps:
            session = FakeSession()
            request = RunRequest("t", "d", "x", sampling=SamplingParams(temperature=0.8), max_new_tokens=40)
            for event in session.run(request, command.RunControls.from_request(request)):
                if isinstance(event, Step):
                    # The script's ids are words; a tiny model has 257.
                    ids = tuple(token % 250 for token in event.emitted)
                    log.write(replace(event, emitted=ids))
        log.write(Finished(finished("x").summary))
    return str(path)


def test_a_kept_run_is_probed_at_its_own_settings(capsys, tmp_path):
    log = write_log(tmp_path / "run.jsonl")
    assert main(["probe", "--log", log, "--draft", "far", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("t, 40 positions, temperature 0.8")
    assert "the target's own" in out
    assert main(["probe", "--log", log, "--draft", "far", "--temperature", "1", "--quiet"]) == 0
    assert "was not written by the target at these settings" in capsys.readouterr().out
    lossy = write_log(tmp_path / "lossy.jsonl", verification="typical", lossy=True)
    assert main(["probe", "--log", lossy, "--draft", "far", "--quiet"]) == 0
    assert "was not written by the target at these settings" in capsys.readouterr().out


@pytest.mark.parametrize("at", [1, 3])
def test_a_text_that_lacks_a_step_is_not_the_targets_own(capsys, tmp_path, at):
    log = write_log(tmp_path / "run.jsonl")
    lines = Path(log).read_bytes().splitlines(keepends=True)
    Path(log).write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
    assert main(["probe", "--log", log, "--draft", "far", "--quiet"]) == 0
    assert "was not written by the target at these settings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "system"), [([], "Be brief."), (["--system", ""], ""), (["--system", "No."], "No."), (["--raw"], "")]
)
def test_a_kept_runs_system_prompt_applies_unless_another_or_none_is_given(monkeypatch, tmp_path, given, system):
    monkeypatch.setattr(command, "read_details", lambda entry: SimpleNamespace(is_instruct=True))
    log = write_log(tmp_path / "run.jsonl", chat=True, system="Be brief.")
    request = command.build_request(build_parser().parse_args(["probe", "--log", log, *given]))
    assert request.system == system


def test_a_kept_run_that_read_its_prompt_raw_is_probed_raw(tmp_path):
    log = write_log(tmp_path / "run.jsonl", chat=False, requested_chat=None)
    assert command.build_request(build_parser().parse_args(["probe", "--log", log])).chat is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", " , "], "--draft must be a name"),
        (["--temperature", "hot"], "--temperature must be a number"),
        (["--temperature", "-1"], "Temperature must be"),
        (["--generate", "-3"], "0 or more"),
        (["--places", "0"], "--places must be a whole number, 1 or more"),
        (["--places", "9999999"], "from 1 to 100,000"),
        (["--text-file", "/nowhere/text.txt"], "There is no file"),
        (["--text-file", "x", "--prompt", "y"], "not allowed with"),
        (["--log", "/nowhere/run.jsonl"], "run.jsonl"),
        (["--prompt", "x", "--raw"], "too short"),
        (["--prompt", ""], "too short"),
        (["--prompt", "some text", "--system", "Be brief."], "takes no system prompt"),
        (["--json", "/", "--prompt", "some text"], "folder"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, words):
    said = refused(capsys, "probe", "--quiet", *arguments)
    assert words in said
    assert is_sentence(said)


def test_a_servers_run_whose_ids_are_not_all_known_is_probed_by_its_text(capsys, tmp_path):
    path = tmp_path / "run.jsonl"
    records = [json.loads(line) for line in Path(write_log(path)).read_text("utf-8").splitlines()]
    for record in records:
        if record["type"] == "step":
            record |= {"source": "chunks", "emitted": [None] * len(record["emitted"])}
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    assert main(["probe", "--log", str(path), "--draft", "far", "--quiet"]) == 0
    assert "was not written by the target at these settings" in capsys.readouterr().out


def test_an_empty_text_a_log_without_one_and_generate_beside_a_log_are_refused(capsys, tmp_path):
    empty, log = write_log(tmp_path / "a.jsonl", steps=False), write_log(tmp_path / "b.jsonl")
    (tmp_path / "empty.txt").write_text(" \n", "utf-8")
    for arguments, words in (
        (["--log", empty], "generated no text"),
        (["--log", log, "--generate", "5"], "leave out --generate"),
        (["--text-file", str(tmp_path / "empty.txt")], "contains no text"),
    ):
        assert words in refused(capsys, "probe", "--quiet", *arguments)


def test_a_probe_that_is_stopped_before_its_first_draft_blames_no_draft_and_keeps_an_earlier_result(
    capsys, monkeypatch, tmp_path
):
    class Stopped(TinyEngine):
        def load(self, request, controls):
            controls.cancel()
            controls.check_cancelled()
            yield

    earlier = f'{{"schema": "{command.SCHEMA}", "drafts": [{{"draft": "near"}}]}}\n'
    (tmp_path / "probe.json").write_text(earlier, "utf-8")
    monkeypatch.setattr(command, "make_engine", Stopped)
    said = refused(capsys, "probe", "--json", tmp_path / "probe.json", code=130)
    assert said == "Stopped before a draft was probed."
    assert (tmp_path / "probe.json").read_text("utf-8") == earlier
