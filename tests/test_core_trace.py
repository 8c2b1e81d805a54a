"""The run log holds to its schema, survives what cuts it off, and is never half written at export."""

import csv
import errno
import json
import math
import os
import sys
from dataclasses import replace

import pytest

from core.errors import RunLogError
from core.files import write_atomically
from core.records import BASELINE_STEP_FIELDS, BASELINE_TIMES
from core.trace import RunLogWriter, export_csv, export_jsonl, read_run_log, run_csv_rows, to_record
from core.types import BaselineStep, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step, Summary
from core.types import TokenKind as Kind

# The schema as the design lists it, written out again here so that a renamed field fails.
RUN = ["schema", "type", "id", "started_at", "outrider_version", "config", "environment"]
CONFIG = [
    "target",
    "draft",
    "method",
    "revision",
    "device",
    "dtype",
    "num_draft_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "coupling",
    "max_new_tokens",
    "prompt",
    "prompt_token_ids",
    "chat",
]
ENVIRONMENT = ["python", "torch", "transformers", "platform", "device_name", "threads"]
STEP = [
    "index",
    "position",
    "num_draft_tokens",
    "temperature",
    "drafted",
    "draft_probs",
    "target_probs",
    "acceptance_probs",
    "expected_acceptance",
    "num_accepted",
    "emitted",
    "emitted_kinds",
    "emitted_text",
    "draft_ms",
    "verify_ms",
    "sample_ms",
    "total_ms",
]
SUMMARY = [
    "finish_reason",
    "text",
    "num_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_accepted_tokens_per_pos",
    "draft_acceptance_rate",
    "block_efficiency",
    "cost_coefficient",
    "tokens_per_second",
    "prefill_ms",
    "peak_memory_mb",
    "predicted_speedup",
]

STARTED = RunStarted(
    run_id="r1",
    started_at="2026-01-02T03:04:05+00:00",
    version="0.1.0",
    config={**dict.fromkeys(reversed(CONFIG), 1), "prompt": "naïve\u2028 prompt\n", "method_options": {"max_ngram": 3}},
    environment=dict.fromkeys(ENVIRONMENT, "x"),
)
STEP_EVENT = Step(
    index=0,
    position=5,
    num_draft_tokens=2,
    temperature=0.7,
    drafted=(11, 12),
    drafted_texts=("a", " b"),
    draft_probs=(0.5, 0.25),
    target_probs=(0.75, 0.125),
    acceptance_probs=(1.0, 0.5),
    expected_acceptance=(0.9, 0.8),
    uniforms=(0.1, 0.6),
    num_accepted=1,
    emitted=(11, 13),
    emitted_kinds=(Kind.ACCEPTED, Kind.CORRECTION),
    emitted_texts=("a", ' "c",\n'),
    draft_ms=1.0,
    verify_ms=2.0,
    sample_ms=0.5,
    total_ms=3.75,
)
SUMMARY_EVENT = Summary(
    finish_reason=FinishReason.LENGTH,
    text='a "c",\n',
    num_tokens=2,
    num_steps=1,
    num_drafts=1,
    num_draft_tokens=2,
    num_accepted_tokens=1,
    num_accepted_tokens_per_pos=(1, 0),
    draft_acceptance_rate=0.5,
    block_efficiency=2.0,
    cost_coefficient=0.1,
    tokens_per_second=533.3,
    prefill_ms=12.0,
    peak_memory_mb=None,
    predicted_speedup=1.5,
)
EVENTS = [StageChanged("Loading"), STARTED, PrefillDone(5, 12.0, 2.0), STEP_EVENT, Finished(SUMMARY_EVENT)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def write(path, events=EVENTS):
    with RunLogWriter(path) as log:
        for event in events:
            log.write(event)
    return path


def lines(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


# --- The schema -------------------------------------------------------------------------------------------------


def test_every_line_has_the_listed_fields_in_the_listed_order(path):
    run, step, summary = lines(write(path))
    assert list(run)[: len(RUN)] == RUN
    assert run["schema"] == "outrider.run/1"
    assert list(run["config"])[: len(CONFIG)] == CONFIG
    assert list(run["environment"])[: len(ENVIRONMENT)] == ENVIRONMENT
    assert list(step)[: 1 + len(STEP)] == ["type", *STEP]
    assert list(summary)[: 1 + len(SUMMARY)] == ["type", *SUMMARY]
    assert [run["type"], step["type"], summary["type"]] == ["run", "step", "summary"]


def test_values_arrive_unchanged(path):
    run, step, summary = lines(write(path))
    assert (run["id"], run["started_at"], run["outrider_version"]) == ("r1", STARTED.started_at, "0.1.0")
    assert run["config"]["prompt"] == "naïve\u2028 prompt\n"
    assert run["config"]["method_options"] == {"max_ngram": 3}
    assert step["emitted_text"] == 'a "c",\n'
    assert step["emitted_kinds"] == ["accepted", "correction"]
    assert step["drafted"] == [11, 12]
    assert step["acceptance_probs"] == [1.0, 0.5]
    assert (step["draft_ms"], step["verify_ms"], step["sample_ms"], step["total_ms"]) == (1.0, 2.0, 0.5, 3.75)
    assert summary["finish_reason"] == "length"
    assert summary["num_accepted_tokens_per_pos"] == [1, 0]
    assert summary["peak_memory_mb"] is None


def test_a_value_that_the_engine_left_out_is_null_and_not_missing():
    record = to_record(replace(STARTED, config={"target": "t"}, environment={}))
    assert list(record["config"]) == CONFIG
    assert record["config"]["draft"] is None


def test_the_baseline_stands_in_the_summary_only_where_it_ran():
    without = to_record(Finished(SUMMARY_EVENT))
    assert not any("baseline" in name or name == "measured_speedup" for name in without)
    summary = replace(SUMMARY_EVENT, baseline_tokens_per_second=300.0, measured_speedup=1.78, baseline_text="x")
    record = to_record(Finished(summary))
    assert (record["baseline_tokens_per_second"], record["measured_speedup"]) == (300.0, 1.78)


def test_nan_and_infinity_become_null(path):
    step = replace(STEP_EVENT, draft_probs=(math.nan, 0.5), verify_ms=math.inf)
    record = lines(write(path, [STARTED, step]))[1]
    assert record["draft_probs"] == [None, 0.5]
    assert record["verify_ms"] is None


def test_a_lone_surrogate_does_not_stop_the_log(path):
    step = replace(STEP_EVENT, emitted_texts=("a\ud800",))
    assert lines(write(path, [STARTED, step]))[1]["emitted_text"] == "a\ud800"


def test_events_that_are_not_logged_leave_no_line(path):
    for event in (StageChanged("x"), PrefillDone(1, 1.0, 1.0)):
        assert to_record(event) is None
    assert len(lines(write(path))) == 3


def test_the_baselines_steps_are_kept_apart_from_the_steps_and_survive_an_export(path, tmp_path):
    plain = BaselineStep(replace(STEP_EVENT, emitted_texts=("x",), total_ms=3.5))
    log = read_run_log(write(path, [STARTED, STEP_EVENT, plain, plain, Finished(SUMMARY_EVENT)]))
    assert log.problems == []
    assert (len(log.steps), len(log.baseline_steps)) == (1, 2)
    assert list(log.baseline_steps[0]) == ["type", *BASELINE_STEP_FIELDS, *BASELINE_TIMES]
    assert (log.baseline_steps[0]["emitted_text"], log.baseline_steps[0]["total_ms"]) == ("x", 3.5)
    copy = tmp_path / "copy.jsonl"
    export_jsonl(copy, log)
    assert copy.read_bytes() == path.read_bytes()


def test_a_baseline_step_that_lacks_a_field_is_left_out_and_said(path):
    write(path, [STARTED, STEP_EVENT])
    with path.open("a") as file:
        file.write('{"type": "baseline_step", "index": 0}\n')
    log = read_run_log(path)
    assert log.baseline_steps == []
    assert "position, emitted, emitted_text, total_ms" in log.problems[0]


# --- Writing as the run goes ------------------------------------------------------------------------------------


def test_each_line_can_be_read_as_soon_as_it_is_written(path):
    with RunLogWriter(path) as log:
        log.write(STARTED)
        assert len(lines(path)) == 1
        log.write(STEP_EVENT)
        assert len(lines(path)) == 2


def test_a_run_that_never_starts_leaves_no_file_and_an_old_log_intact(path):
    with RunLogWriter(path):
        assert path.exists()
    assert not path.exists()
    path.write_text("old")
    with RunLogWriter(path):
        pass
    assert path.read_text() == "old"
    write(path, [STARTED])
    assert len(lines(path)) == 1


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(RunLogError, match="no folder"):
        RunLogWriter(tmp_path / "missing" / "run.jsonl")
    with pytest.raises(RunLogError, match="is a folder"):
        RunLogWriter(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunLogError, match="a part of its path is a file"):
        RunLogWriter(file / "run.jsonl")


def test_a_disk_that_fills_up_keeps_the_whole_lines(path, monkeypatch):
    log = RunLogWriter(path)
    log.write(STARTED)
    real = log._file

    class FullDisk:
        closed = False

        def write(self, data):
            real.write(bytes(data)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(real, name)

    log._file = FullDisk()
    with pytest.raises(RunLogError, match="no space left"):
        log.write(STEP_EVENT)
    with pytest.raises(RunLogError, match="no space left"):
        log.write(STEP_EVENT)
    real.close()
    assert path.read_bytes().endswith(b"\n")
    assert [record["type"] for record in lines(path)] == ["run"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_device_is_a_sentence():
    with RunLogWriter("/dev/full") as log, pytest.raises(RunLogError, match="no space left"):
        log.write(STARTED)


def test_an_error_inside_the_run_is_not_hidden_by_the_log(path):
    def run():
        with RunLogWriter(path) as log:
            log.write(STARTED)
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert len(lines(path)) == 1


# --- Reading ----------------------------------------------------------------------------------------------------


def test_a_whole_log_reads_back_as_it_was_written(path):
    log = read_run_log(write(path))
    assert log.problems == []
    assert list(log.records()) == lines(path)
    assert log.summary["text"] == 'a "c",\n'


@pytest.mark.parametrize("missing_bytes", [1, 2, 40])
def test_a_torn_last_line_is_left_out_and_named(path, missing_bytes):
    whole = write(path, [STARTED, STEP_EVENT, replace(STEP_EVENT, index=1)]).read_bytes()
    path.write_bytes(whole[:-missing_bytes])
    log = read_run_log(path)
    whole_line = missing_bytes == 1  # only the line's end is missing
    assert len(log.steps) == (2 if whole_line else 1)
    assert any("Line 3 is cut off" in problem for problem in log.problems) is not whole_line
    assert log.summary is None
    assert any("no summary" in problem for problem in log.problems)


@pytest.mark.parametrize("junk", [b'{"type": "step", "ind\n', b"\xff\xfe\n", b"[1]\n", b'{"type": "step"}\n'])
def test_a_damaged_line_in_the_middle_is_named_by_its_number(path, junk):
    first, second, third = write(path).read_bytes().splitlines(keepends=True)
    path.write_bytes(first + junk + second + third)
    log = read_run_log(path)
    assert len(log.steps) == 1
    assert log.summary is not None
    assert [problem.split(" ")[:2] for problem in log.problems] == [["Line", "2"]]


def test_lines_of_an_unknown_type_are_passed_over(path):
    whole = write(path).read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + b'{"type": "note"}\n' + b"".join(whole[1:]))
    log = read_run_log(path)
    assert (len(log.steps), log.problems) == (1, [])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"hello\n", "not a run log"),
        (b"\x00\xff\x80", "not a run log"),
        (b'{"type": "run"}\n', "not a run log"),
        (b"[" * 100_000, "not a run log"),
        (b'{"schema": "other/1"}\n', "other/1"),
        (b'{"schema": "outrider.run/2", "type": "run"}\n', "newer Outrider"),
        (b'{"schema": "outrider.run/1", "type": "step"}\n', "damaged"),
    ],
)
def test_what_is_not_a_run_log_is_refused_in_one_sentence(path, content, sentence):
    path.write_bytes(content)
    with pytest.raises(RunLogError, match=sentence) as caught:
        read_run_log(path)
    assert "\n" not in str(caught.value)


def test_a_missing_log_and_a_folder_are_refused(path, tmp_path):
    with pytest.raises(RunLogError, match="no file"):
        read_run_log(path)
    with pytest.raises(RunLogError, match="is a folder"):
        read_run_log(tmp_path)


# --- Taking a run away ------------------------------------------------------------------------------------------


def test_jsonl_export_is_the_log_again(path, tmp_path):
    log = read_run_log(write(path))
    export_jsonl(tmp_path / "copy.jsonl", log)
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes()
    export_jsonl(tmp_path / "copy2.jsonl", [to_record(STARTED), to_record(STEP_EVENT)])
    assert read_run_log(tmp_path / "copy2.jsonl").steps == log.steps


def test_csv_has_a_row_a_step_and_keeps_the_text(path, tmp_path):
    steps = [STEP_EVENT, replace(STEP_EVENT, index=1, verify_ms=math.nan, drafted=(), emitted_texts=("a\r\n;,'",))]
    log = read_run_log(write(path, [STARTED, *steps]))
    export_csv(tmp_path / "run.csv", log)
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == STEP
    assert rows[0]["drafted"] == "11 12"
    assert rows[0]["emitted_kinds"] == "accepted correction"
    assert rows[0]["emitted_text"] == 'a "c",\n'
    assert rows[1]["emitted_text"] == "a\r\n;,'"
    assert (rows[1]["verify_ms"], rows[1]["drafted"]) == ("", "")
    assert len(list(run_csv_rows(log))) == 3


# --- Files that are whole or not there --------------------------------------------------------------------------


def test_a_file_is_replaced_whole_with_its_rights(tmp_path):
    path = tmp_path / "f.txt"
    write_atomically(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    if os.name == "posix":
        umask = os.umask(0)
        os.umask(umask)
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask
        path.chmod(0o640)
    write_atomically(path, b"\x00\r\n")
    assert path.read_bytes() == b"\x00\r\n"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "f.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(RunLogError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EACCES, "not allowed"),
        (errno.EROFS, "not allowed"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EIO, "can't be written"),
    ],
)
def test_each_refusal_says_what_to_do(tmp_path, monkeypatch, code, sentence):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(RunLogError, match=sentence) as caught:
        write_atomically(tmp_path / "f.txt", "new")
    assert "choose" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_and_a_folder_are_refused(tmp_path):
    with pytest.raises(RunLogError, match="no folder"):
        write_atomically(tmp_path / "missing" / "f.txt", "new")
    with pytest.raises(RunLogError, match="is a folder"):
        write_atomically(tmp_path, "new")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_keeps_pointing_at_its_file(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_is_written_to_and_not_replaced():
    with pytest.raises(RunLogError, match="no space left"):
        write_atomically("/dev/full", "new")
    assert not os.path.isfile("/dev/full")
