"""The run log holds to its schema, is written as the run goes, and is read back as far as it is whole."""

import csv
import errno
import math
from dataclasses import replace

import pytest

from core.errors import RunLogError
from core.export.files import export_csv, export_jsonl
from core.runlog.log import BASELINE_STEP_FIELDS, BASELINE_TIMES, RunLogWriter, event_line, to_line, to_record
from core.runlog.reading import read_run_log
from core.runlog.replay import events, summary_from_record
from core.settings import LengthPolicy
from core.types import BaselineStep, Finished
from tests.fakes_log import CONFIG, ENVIRONMENT, RUN, STARTED, STEP, STEP_EVENT, SUMMARY, SUMMARY_EVENT, lines, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


# --- The schema -------------------------------------------------------------------------------------------------


def test_every_line_has_the_listed_fields_in_the_listed_order_with_unchanged_values(path):
    run, step, summary = lines(write(path))
    assert list(run)[: len(RUN)] == RUN
    assert run["schema"] == "outrider.run/1"
    assert list(run["config"])[: len(CONFIG)] == CONFIG
    assert list(run["environment"])[: len(ENVIRONMENT)] == ENVIRONMENT
    assert list(step)[: 1 + len(STEP)] == ["type", *STEP]
    assert list(summary)[: 1 + len(SUMMARY)] == ["type", *SUMMARY]
    assert [run["type"], step["type"], summary["type"]] == ["run", "step", "summary"]
    assert (run["id"], run["started_at"], run["outrider_version"]) == ("r1", STARTED.started_at, "0.1.0")
    assert run["config"]["prompt"] == "naïve\u2028 prompt\n"
    assert run["config"]["method_options"] == {"max_ngram": 3}
    assert (step["emitted_text"], step["emitted_kinds"]) == ('a "c",\n', ["accepted", "correction"])
    assert (step["drafted"], step["acceptance_probs"]) == ([11, 12], [1.0, 0.5])
    assert (step["draft_ms"], step["verify_ms"], step["sample_ms"], step["total_ms"]) == (1.0, 2.0, 0.5, 3.75)
    assert (summary["finish_reason"], summary["num_accepted_tokens_per_pos"]) == ("length", [1, 0])
    assert summary["peak_memory_mb"] is None


@pytest.mark.parametrize(
    "changed",
    [{}, {"expected_acceptance": (math.nan, 0.5)}, {"emitted_texts": ("\udce9", "é\u2028"), "total_ms": math.inf}],
)
def test_a_step_s_line_is_the_line_of_its_record(changed):
    event = replace(STEP_EVENT, **changed)
    assert event_line(event) == to_line(to_record(event))


def test_the_baseline_is_in_the_summary_only_if_it_ran():
    without = to_record(Finished(replace(SUMMARY_EVENT, was_busy=True)))
    assert not any("baseline" in name or name.startswith("measured_speedup") for name in without)
    assert without["was_busy"], "as its own steps show"
    found = {"measured_speedup": 1.78, "measured_speedup_interval": (1.5, 2.0), "was_busy": True}
    summary = replace(SUMMARY_EVENT, baseline_tokens_per_second=300.0, baseline_text="x", **found)
    record = to_record(Finished(summary))
    assert (record["baseline_tokens_per_second"], record["measured_speedup"]) == (300.0, 1.78)
    assert summary_from_record(record, SUMMARY_EVENT) == summary
    for bad in (None, [1.5], [1.5, "x"], [1.5, True], {}):
        assert (
            summary_from_record({**record, "measured_speedup_interval": bad}, summary).measured_speedup_interval is None
        )


def test_nan_infinity_and_lone_surrogates_do_not_stop_the_log(path):
    step = replace(STEP_EVENT, draft_probs=(math.nan, 0.5), verify_ms=math.inf, emitted_texts=("a\ud800",))
    record = lines(write(path, [STARTED, step]))[1]
    assert record["draft_probs"] == [None, 0.5]
    assert record["verify_ms"] is None
    assert record["emitted_text"] == "a\ud800"


# --- Writing ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing/run.jsonl", "no folder"), ("", "is a folder"), ("file/run.jsonl", "Not a directory")],
)
def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path, name, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match=words):
        RunLogWriter(tmp_path / name)


def test_a_disk_that_fills_up_keeps_the_whole_lines(path):
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
    for _ in range(2):
        with pytest.raises(RunLogError, match="no space left"):
            log.write(STEP_EVENT)
    real.close()
    assert path.read_bytes().endswith(b"\n")
    assert [record["type"] for record in lines(path)] == ["run"]


def test_an_error_inside_the_run_is_not_hidden_by_the_log(path):
    def run():
        with RunLogWriter(path) as log:
            log.write(STARTED)
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert len(lines(path)) == 1


# --- Reading ----------------------------------------------------------------------------------------------------


def test_a_whole_log_reads_back_and_is_exported_as_it_was_written(path, tmp_path):
    plain = BaselineStep(replace(STEP_EVENT, emitted_texts=("x",), total_ms=3.5))
    log = read_run_log(write(path, [STARTED, STEP_EVENT, plain, plain, Finished(SUMMARY_EVENT)]))
    assert log.problems == []
    assert list(log.records()) == lines(path)
    assert (len(log.steps), len(log.baseline_steps)) == (1, 2)
    assert list(log.baseline_steps[0]) == ["type", *BASELINE_STEP_FIELDS, *BASELINE_TIMES]
    assert (log.baseline_steps[0]["emitted_text"], log.baseline_steps[0]["total_ms"]) == ("x", 3.5)
    export_jsonl(tmp_path / "copy.jsonl", log)
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes()


def test_an_exported_log_names_models_without_the_folders_they_are_in(path, tmp_path):
    log = read_run_log(write(path, [STARTED, STEP_EVENT, Finished(SUMMARY_EVENT)]))
    log.summary["error"] = "There is no local model '/home/me/big'."
    log.run["config"] |= {"target": "/home/me/big", "draft": "org/small", "method_options": {"heads": "/home/me/heads"}}
    export_jsonl(tmp_path / "copy.jsonl", log)
    copy = read_run_log(tmp_path / "copy.jsonl")
    config = copy.run["config"]
    assert copy.summary["error"] == "There is no local model 'big'."
    assert (config["target"], config["draft"], config["method_options"]) == ("big", "org/small", {"heads": "heads"})


def test_a_sleep_of_the_machine_during_the_baseline_is_kept(path):
    log = read_run_log(write(path, [STARTED, BaselineStep(replace(STEP_EVENT, absent_ms=2500.0))]))
    (step,) = [event.step for event in events(log) if isinstance(event, BaselineStep)]
    assert step.absent_ms == 2500.0


@pytest.mark.parametrize("missing_bytes", [1, 2, 40])
def test_a_torn_last_line_is_left_out_and_named(path, missing_bytes):
    whole = write(path, [STARTED, STEP_EVENT, replace(STEP_EVENT, index=1)]).read_bytes()
    path.write_bytes(whole[:-missing_bytes])
    log = read_run_log(path)
    is_whole = missing_bytes == 1  # only the line's end is missing
    assert len(log.steps) == (2 if is_whole else 1)
    assert any("Line 3 is cut off" in problem for problem in log.problems) is not is_whole
    assert log.summary is None
    assert any("no summary" in problem for problem in log.problems)


def test_a_last_line_that_has_an_end_is_damaged_and_not_cut_off(path):
    whole = write(path, [STARTED, STEP_EVENT]).read_bytes()
    for end, words in ((b"\n", "is damaged"), (b"", "is cut off")):
        path.write_bytes(whole + b'{"type": "step", "ind' + end)
        assert any(f"Line 3 {words}" in problem for problem in read_run_log(path).problems)


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        (b'{"type": "step", "ind\n', "is damaged"),
        (b"\xff\xfe\n", "is damaged"),
        (b"[1]\n", "is damaged"),
        (b'{"type": "step"}\n', "lacks index"),
        (b'{"type": "baseline_step", "index": 0}\n', "lacks position, emitted, emitted_text, total_ms"),
        (b'{"type": "evidence"}\n', "evidence of an unknown step"),
        (b'{"type": "evidence", "index": -1}\n', "evidence of an unknown step"),
        (b'{"type": "note"}\n', ""),
    ],
)
def test_a_line_that_does_not_fit_is_left_out_and_named_by_its_number(path, junk, words):
    first, second, third = write(path).read_bytes().splitlines(keepends=True)
    path.write_bytes(first + junk + second + third)
    log = read_run_log(path)
    assert (len(log.steps), log.baseline_steps, log.summary["text"]) == (1, [], 'a "c",\n')
    assert [problem.startswith("Line 2 ") and words in problem for problem in log.problems] == [True] * bool(words)


def test_a_second_run_in_a_file_is_left_out_with_all_after_it(path, tmp_path):
    baseline, other = to_record(BaselineStep(replace(STEP_EVENT, index=1))), {"type": "note", "text": "kept"}
    whole = write(path).read_bytes() + to_line(baseline) + to_line(other)
    path.write_bytes(whole)
    one = read_run_log(path)
    assert (one.problems, one.has_more, len(one.baseline_steps), len(one.others)) == ([], False, 1, 1)
    path.write_bytes(whole * 2)
    both = read_run_log(path)
    assert both.problems == ["Line 6 begins another run; it and all after it were left out."]
    assert (list(both.records()), both.has_more) == (list(one.records()), True)


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
        (None, "no file"),
        ("folder", "is a folder"),
    ],
)
def test_what_is_not_a_run_log_is_refused_in_one_sentence(path, content, sentence):
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(RunLogError, match=sentence) as caught:
        read_run_log(path)
    assert "\n" not in str(caught.value)


def test_csv_has_a_row_a_step_and_keeps_the_text(path, tmp_path):
    odd = {"verify_ms": math.nan, "drafted": (), "num_accepted": 0, "emitted": (13,), "emitted_kinds": ("bonus",)}
    odd |= {"emitted_texts": ("a\r\n;,'",), "draft_length": LengthPolicy.ADAPTIVE}
    steps = [STEP_EVENT, replace(STEP_EVENT, index=1, **odd)]
    export_csv(tmp_path / "run.csv", read_run_log(write(path, [STARTED, *steps])))
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*STEP, "verification", "draft_length"]
    assert [(row["verification"], row["draft_length"]) for row in rows] == [("token", ""), ("token", "adaptive")]
    assert (rows[0]["drafted"], rows[0]["emitted_kinds"]) == ("11 12", "accepted correction")
    assert rows[0]["emitted_text"] == 'a "c",\n'
    assert rows[1]["emitted_text"] == "a\r\n;,'"
    assert (rows[1]["verify_ms"], rows[1]["drafted"]) == ("", "")
