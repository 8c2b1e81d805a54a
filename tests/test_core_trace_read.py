"""A run log reads back as it was written, damaged ones as far as they go, and is taken away whole."""

import csv
import math
from dataclasses import replace

import pytest

from core.errors import RunLogError
from core.export.files import export_csv, export_jsonl
from core.runlog.log import (
    BASELINE_STEP_FIELDS,
    BASELINE_TIMES,
    read_run_log,
)
from core.types import BaselineStep, Finished
from tests.fakes_log import STARTED, STEP, STEP_EVENT, SUMMARY_EVENT, lines, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


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


def test_jsonl_export_is_the_log_again(path, tmp_path):
    log = read_run_log(write(path))
    export_jsonl(tmp_path / "copy.jsonl", log)
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes()


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
