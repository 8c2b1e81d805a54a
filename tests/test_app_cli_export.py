"""`outrider export`: reports and configurations, and files that are there already."""

from __future__ import annotations

import csv
import json
import shlex

import pytest

from app.__main__ import main
from core.runlog.log import to_line, to_record
from core.runlog.reading import read_run_log
from tests.fakes_cli import STARTED, finished, refused, step

CONFIG = {
    **{"target": "owner/target", "draft": "owner/draft", "prompt": "p", "seed": 0, "num_draft_tokens": 4},
    **{"target_source": "hub", "draft_source": "hub"},
    **{"temperature": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_new_tokens": 16},
}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    records = [to_record(event) for event in (STARTED, step("a", "<b>"), step("c", index=1), finished("a<b>c"))]
    records[0]["config"] |= CONFIG
    records[-1]["measured_speedup"] = 0.8
    path.write_bytes(b"".join(map(to_line, records)))
    return path


def test_a_report_of_one_run_or_several_is_written_completely(log, tmp_path, capsys):
    assert main(["export", str(log), "--html", str(tmp_path / "run.html")]) == 0
    source = (tmp_path / "run.html").read_text("utf-8")
    assert source.startswith("<!doctype html>")
    assert source.rstrip().endswith("</html>")
    assert "&lt;b&gt;" in source
    assert main(["export", str(log), str(log), "--html", str(tmp_path / "both.html")]) == 0
    assert "2 runs compared" in (tmp_path / "both.html").read_text("utf-8")
    assert capsys.readouterr() == ("", "")


def test_a_log_becomes_csv_and_its_own_whole_lines(log, tmp_path, capsys):
    assert main(["export", str(log), "--csv", str(tmp_path / "run.csv")]) == 0
    assert main(["export", str(log), "--jsonl", str(tmp_path / "copy.jsonl")]) == 0
    assert capsys.readouterr() == ("", "")
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        assert [row["emitted_text"] for row in csv.DictReader(file)] == ["a<b>", "c"]
    assert (tmp_path / "copy.jsonl").read_bytes() == log.read_bytes()
    log.write_bytes(log.read_bytes()[:-20])
    assert main(["export", str(log), "--jsonl", str(log)]) == 0
    assert "Line 4 is cut off" in capsys.readouterr().err
    assert len(read_run_log(log).steps) == 2


def test_a_file_of_several_runs_gives_the_first_and_is_not_replaced_by_it(log, tmp_path, capsys):
    one = log.read_bytes()
    log.write_bytes(one * 2)
    assert main(["export", str(log), "--jsonl", str(log), "--force"]) == 2
    assert "Line 5 begins another run" in (said := capsys.readouterr().err)
    assert "would lose what follows; name another file" in said
    assert log.read_bytes() == one * 2
    assert main(["export", str(log), "--jsonl", str(tmp_path / "first.jsonl")]) == 0
    assert "Line 5 begins another run" in capsys.readouterr().err
    assert (tmp_path / "first.jsonl").read_bytes() == one


def test_a_table_leaves_out_damaged_steps_and_says_so(log, tmp_path, capsys):
    head, first, second, end = map(json.loads, log.read_text("utf-8").splitlines())
    first["draft_ms"], second["emitted"] = None, "x"
    log.write_bytes(b"".join(map(to_line, (head, first, second, end))))
    assert main(["export", str(log), "--csv", str(tmp_path / "run.csv")]) == 0
    assert capsys.readouterr().err == "1 of the log's 2 steps are damaged and were left out.\n"
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        assert [(row["emitted_text"], row["draft_ms"]) for row in csv.DictReader(file)] == [("a<b>", "")]


@pytest.mark.parametrize("flag", ["--csv", "--jsonl", "--html"])
def test_an_existing_file_is_replaced_only_with_force(log, tmp_path, capsys, flag):
    there = tmp_path / "there"
    there.write_text("precious")
    assert "--force" in refused(capsys, "export", log, flag, there)
    assert there.read_text() == "precious"
    assert main(["export", str(log), flag, str(there), "--force"]) == 0
    assert there.read_text() != "precious"


@pytest.mark.parametrize("flag", ["--csv", "--jsonl", "--html"])
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: text[:-20], "Line 4 is cut off"),
        (lambda text: text.partition("\n")[0] + "\n", "no summary"),
        (lambda text: text.replace('_ms": 1.0', '_ms": NaN').replace('_ms": 3.0', '_ms": 1e999'), ""),
    ],
    ids=["torn", "no steps", "NaN"],
)
def test_a_log_that_lacks_something_is_exported_as_far_as_possible(log, tmp_path, capsys, flag, damage, sentence):
    log.write_text(damage(log.read_text("utf-8")), encoding="utf-8")
    assert main(["export", str(log), flag, str(tmp_path / "out")]) == 0
    assert sentence in capsys.readouterr().err
    out = (tmp_path / "out").read_text("utf-8")
    assert not any(word in out for word in ("NaN", "Infinity", ",inf"))


def test_a_log_with_a_newer_schema_is_refused_in_a_sentence(log, tmp_path, capsys):
    log.write_text(log.read_text("utf-8").replace("outrider.run/1", "outrider.run/2"), encoding="utf-8")
    for arguments in (["--html", tmp_path / "x"], ["--config", "vllm"]):
        assert "newer Outrider" in refused(capsys, "export", log, *arguments)


# --- Configurations -----------------------------------------------------------------------------------------------


def test_a_sweep_among_run_logs_is_named_as_a_sweep(log, tmp_path, capsys):
    sweep = tmp_path / "sweep.jsonl"
    sweep.write_text('{"schema": "outrider.sweep/1", "type": "sweep", "config": {}}\n', "utf-8")
    for arguments in ([sweep, "--config", "vllm"], [log, sweep, "--html", tmp_path / "a.html"]):
        assert "is a sweep's file" in refused(capsys, "export", *arguments)


def test_a_runs_configuration_goes_to_standard_output_and_a_warning_beside_it(log, capsys):
    assert main(["export", str(log), "--config", "vllm"]) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out, comments=True)
    assert words[:3] == ["vllm", "serve", "owner/target"]
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 4
    assert "Drafting did not pay" in err
    # Another K is no longer what was measured.
    assert main(["export", str(log), "--config", "mlx", "-k", "7"]) == 0
    out, err = capsys.readouterr()
    assert "--num-draft-tokens 7" in out
    assert "did not pay" not in out + err


@pytest.mark.parametrize("options", [{"depth": "3"}, {"branching": 0}, {"nonsense": 1}])
def test_a_run_with_options_that_its_method_cannot_have_is_not_deployed(log, capsys, options):
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    records[0]["config"] |= {"method": "draft-tree", "method_options": options}
    log.write_bytes(b"".join(map(to_line, records)))
    for engine in ("sglang", "vllm"):
        assert next(iter(options)) in refused(capsys, "export", log, "--config", engine).lower()


def test_a_run_that_drafted_nothing_is_deployed_with_a_k_that_is_given(log, capsys):
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    records[0]["config"]["num_draft_tokens"] = 0
    log.write_bytes(b"".join(map(to_line, (records[0], records[-1]))))
    assert "With K = 0 nothing is drafted" in refused(capsys, "export", log, "--config", "mlx")
    assert main(["export", str(log), "--config", "mlx", "-k", "7"]) == 0
    out = capsys.readouterr().out
    assert "--num-draft-tokens 7" in out
    assert "K differs from the run's." in out


def test_another_k_leaves_the_note_about_a_temperature_that_was_changed(log, capsys):
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    records[0]["config"]["temperature"] = 0.35
    log.write_bytes(b"".join(map(to_line, records)))
    assert main(["export", str(log), "--config", "vllm", "-k", "7"]) == 0
    out = " ".join(capsys.readouterr().out.replace("\n# ", " ").split())
    assert "K differs from the run's. The temperature was changed during the run, which began with 0.35." in out


def test_settings_can_replace_a_run(capsys):
    arguments = ["--target", "o/t", "--draft", "o/d", "-k", "3", "--temperature", "0"]
    assert main(["export", "--config", "all", *arguments]) == 0
    out, _ = capsys.readouterr()
    for words in ("vllm serve o/t", "assistant_model=draft", "STANDALONE", "llama-server", "mlx_lm.generate"):
        assert words in out
    assert main(["export", "--config", "all", "--target", "/home/me/t", "--draft", "/home/me/d"]) == 0
    out, _ = capsys.readouterr()
    assert "vllm serve /home/me/t" in out
    assert not [line for line in out.splitlines() if line.startswith("#") and "/home" in line]


@pytest.mark.parametrize(
    "arguments",
    [
        "--config ollama",
        "--config mlx --method prompt-lookup",
        "--config vllm -k 99",
        "--config vllm -k 0",
        "run.jsonl --config vllm -k 0",
        "--config vllm -k many",
        "--config vllm --temperature nan",
        "--config vllm --target o/t --method magic",
        "run.jsonl --config vllm --target o/t",
        "run.jsonl run.jsonl --config vllm",
        "run.jsonl run.jsonl --csv x.csv",
        "run.jsonl --csv x.csv --temperature 1",
        "--html x.html",
        "missing.jsonl --csv out.csv",
        "run.jsonl",
        "run.jsonl --csv a --jsonl b",
        "run.jsonl --csv missing/out.csv",
        "run.jsonl --csv -",
        "run.jsonl --html -",
        "run.jsonl --csv .",
        ". --csv out.csv",
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(log, tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    refused(capsys, "export", *arguments.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]
