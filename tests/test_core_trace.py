"""The run log holds to its schema, and is written line by line as the run goes."""

import errno
import math
import os
from dataclasses import replace

import pytest

from core.errors import RunLogError
from core.runlog.log import RunLogWriter, event_line, to_line, to_record
from core.types import Finished, PrefillDone, StageChanged
from tests.fakes_log import CONFIG, ENVIRONMENT, RUN, STARTED, STEP, STEP_EVENT, SUMMARY, SUMMARY_EVENT, lines, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


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


@pytest.mark.parametrize(
    "changed",
    [{}, {"expected_acceptance": (math.nan, 0.5)}, {"emitted_texts": ("\udce9", "é\u2028"), "total_ms": math.inf}],
)
def test_a_step_that_is_written_as_it_is_makes_the_line_that_its_record_makes(changed):
    event = replace(STEP_EVENT, **changed)
    assert event_line(event) == to_line(to_record(event))


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
