"""A sweep's file: written run by run, continued, and never written over what is not a sweep."""

import csv
import io
import json
import os

import pytest

import core.experiments.sweep_file as sweep_file
from core.controls import RunControls
from core.errors import RunLogError
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep import sweep
from core.experiments.sweep_file import SCHEMA, SweepFile, plan_from_config, plan_to_config, read_sweep
from core.experiments.sweep_plan import DrafterChoice, FileFailed, RunMeasured, SweepFinished, SweepStarted
from core.experiments.sweep_results import SweepResults
from core.export.sweep_table import to_csv
from core.runlog.reading import read_run_log
from core.settings import LengthPolicy, VerificationRule
from tests.fakes import is_sentence, refusal
from tests.fakes_sweep import FakeSweepSession, fails_at, plan_of


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def run(plan, out, session=None, **settings):
    return list(sweep(plan, (session or FakeSweepSession()).run, out=out, **settings))


def stopped_after(count, plan, out) -> None:
    """Leave a sweep's file with so many runs."""
    controls = RunControls()
    for event in sweep(plan, FakeSweepSession().run, out=out, controls=controls):
        if isinstance(event, RunMeasured) and event.num_done == count:
            controls.cancel()


# --- What is in it ----------------------------------------------------------------------------------------------


def test_the_first_line_is_the_plan_and_every_run_has_a_line(out, tmp_path):
    plan = plan_of(num_draft_tokens=(1, LengthPolicy.ADAPTIVE))
    run(plan, out, logs=tmp_path / "logs")
    head, *runs = lines(out)
    assert (head["schema"], head["type"], head["environment"]["device_name"]) == (SCHEMA, "sweep", "an abacus")
    assert "process" not in head["environment"]
    assert head["config"]["num_draft_tokens"] == [1, "adaptive"]
    assert plan_from_config(head["config"]) == plan
    assert [item["index"] for item in runs] == list(range(12))
    assert {item["cell"]["method"] for item in runs} == {"plain", "draft-model"}
    assert runs[0]["summary"]["tokens_per_second"] > 0
    assert (tmp_path / runs[0]["log"]).stem == runs[0]["id"]
    plain = next(item for item in read_sweep(out).measurements if item.run.cell.is_baseline)
    config = read_run_log(plain.log).run["config"]
    assert (config["method"], config["num_draft_tokens"]) == ("plain", 0)


def test_what_is_read_is_what_was_measured(out, tmp_path):
    plan = plan_of(drafters=(DrafterChoice("draft-model", "D", {"int8": False}), DrafterChoice("prompt-lookup")))
    events = run(plan, out, logs=tmp_path / "logs")
    log = read_sweep(out)
    assert log.plan == plan
    assert log.measurements == [event.measurement for event in events if isinstance(event, RunMeasured)]
    assert SweepResults(log.plan, log.measurements).all() == events[-1].results


def test_a_table_has_a_row_for_each_cell_and_for_each_of_its_suites(out):
    run(plan_of(), out)
    log = read_sweep(out)
    rows = list(csv.DictReader(io.StringIO(to_csv(SweepResults(log.plan, log.measurements)))))
    assert len(rows) == 3 + 2 * 3
    best = next(row for row in rows if row["num_draft_tokens"] == "2" and not row["suite"])
    assert (best["speedup"], best["speedup_q1"], best["num_measured"], best["num_failed"]) == ("3.0", "3.0", "4", "0")
    plain = next(row for row in rows if row["method"] == "plain")
    assert (plain["speedup"], plain["draft_acceptance_rate"]) == ("", "")


# --- Continuing -------------------------------------------------------------------------------------------------


def test_a_sweep_continues_where_it_stopped(out):
    plan = plan_of()
    stopped_after(5, plan, out)
    session = FakeSweepSession()
    events = run(plan, out, session)
    assert (events[0].num_done, len(session.calls), events[-1].is_complete) == (5, 7, True)
    assert [item.get("type") for item in lines(out)].count("resumed") == 1
    assert sorted(item.index for item in read_sweep(out).measurements) == list(range(12))
    again = FakeSweepSession()
    assert run(plan, out, again)[-1].results == events[-1].results
    assert not again.calls
    assert not again.warm_ups


def test_a_torn_last_line_is_reported_and_measured_again(out):
    plan = plan_of()
    stopped_after(5, plan, out)
    out.write_bytes(out.read_bytes()[:-20])
    first = run(plan, out)[0]
    (problem,) = first.problems
    assert first.num_done == 4
    assert is_sentence(problem)
    assert len(read_sweep(out).measurements) == 12
    assert not read_sweep(out).problems


def test_a_second_sweep_in_a_file_is_left_out_and_never_written_over(out):
    plan = plan_of()
    stopped_after(5, plan, out)
    one = read_sweep(out)
    whole = out.read_bytes()
    out.write_bytes(whole * 2)
    both = read_sweep(out)
    assert (both.measurements, both.length, both.has_more) == (one.measurements, len(whole), True)
    (problem,) = both.problems
    assert "Line 7 " in problem
    assert "begins another sweep" in problem
    assert is_sentence(problem)
    assert "holds more than one sweep" in refusal(RunLogError, run, plan, out)
    assert out.read_bytes() == whole * 2


def test_damaged_lines_are_left_out_one_by_one(out):
    plan = plan_of()
    run(plan, out)
    rows = out.read_bytes().splitlines(keepends=True)
    bad = json.loads(rows[3])
    out.write_bytes(
        b"".join(rows[:3])
        + json.dumps({**bad, "repeat": 99}).encode() + b"\n"
        + b"\xff\xfe\n"
        + json.dumps({**bad, "cell": {**bad["cell"], "temperature": 5.0}}).encode() + b"\n"
        + json.dumps({**bad, "summary": None}).encode() + b"\n"
        + json.dumps({"type": "note"}).encode() + b"\n"
        + b"".join(rows[4:])
    )  # fmt: skip
    log = read_sweep(out)
    assert len(log.measurements) == 11
    assert len(log.problems) == 4
    assert run(plan, out)[-1].is_complete


def test_invalid_figures_count_as_missing(out):
    plan = plan_of()
    run(plan, out)
    out.write_text(out.read_text("utf-8").replace('"tokens_per_second": 30.0', '"tokens_per_second": NaN'), "utf-8")
    log = read_sweep(out)
    results = {item.cell.num_draft_tokens: item for item in SweepResults(log.plan, log.measurements).all()}
    assert results[1].speedup.median == 2.0
    assert results[2].speedup is results[2].tokens_per_second is None


def test_runs_that_failed_are_tried_again(out):
    plan, session = plan_of(), FakeSweepSession()
    events = run(plan, out, FakeSweepSession(on_run=fails_at(2)))
    assert sum("error" in item and item["error"] is not None for item in lines(out)) == 4
    assert events[-1].is_complete
    again = run(plan, out, session)
    assert len(session.calls) == 4
    assert all(result.num_measured == 4 and not result.errors for result in again[-1].results)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_draft_tokens": (1, 2, 3)}, r"K \(1, 2 there, 1, 2, 3 here\)"),
        ({"temperatures": (0.0, 0.5)}, "the temperatures"),
        ({"target": "U", "repeats": 9}, r"the target \(T there, U here\) and the number of repeats"),
        ({"prompts": plan_of().prompts[:1]}, "the prompts"),
        ({"drafters": (DrafterChoice("prompt-lookup"),)}, "the drafters"),
        ({"system": "Be brief."}, r"the system prompt \(none there, Be brief. here\)"),
        ({"verification": VerificationRule.TYPICAL}, r"the verification \(token there, typical here\)"),
    ],
)
def test_another_plan_is_refused_with_its_differences_unless_restarted(out, changes, words):
    run(plan_of(), out)
    before = out.read_bytes()
    other = plan_of(**changes)
    refusal(RunLogError, run, other, out, match=words)
    assert out.read_bytes() == before
    run(other, out, restart=True)
    assert read_sweep(out).plan == other
    assert len(read_sweep(out).measurements) == other.num_runs


def test_a_sweep_whose_suites_had_other_names_goes_on_with_those_of_its_file(out):
    before = plan_of(prompts=(Prompt("one", "def f", suite="own"), Prompt("two", "def g", suite="own")))
    stopped_after(3, before, out)
    started, *_, finished = run(plan_of(), out)
    assert (started.num_done, started.plan) == (3, before)
    assert finished.is_complete
    log = read_sweep(out)
    assert (log.plan, len(log.measurements)) == (before, 12)
    assert {record["suite"] for record in lines(out) if record["type"] == "run"} == {"own"}
    with pytest.raises(RunLogError, match="differs in the prompts"):
        run(plan_of(prompts=(*before.prompts, Prompt("three", "def h", suite="own"))), out)


def test_a_lossy_plan_says_so_and_an_older_file_was_verified_token_by_token_without_a_system_prompt():
    config = plan_to_config(plan_of(verification=VerificationRule.TYPICAL))
    assert (config["verification"], config["lossy"]) == ("typical", True)
    assert plan_from_config(config).is_lossy
    older = plan_to_config(plan_of())
    assert "lossy" not in older
    del older["verification"], older["system"]
    assert plan_from_config(older) == plan_of()


def test_times_of_two_devices_are_not_mixed(out):
    stopped_after(5, plan_of(), out)
    out.write_text(out.read_text("utf-8").replace("an abacus", "a slide rule"), "utf-8")
    session = FakeSweepSession()
    refusal(RunLogError, run, plan_of(), out, session, match="a slide rule, and this is an abacus")
    assert not session.calls


@pytest.mark.parametrize("name", ["", "arm", "arm GPU", "i386"])
def test_a_sweep_of_a_mac_that_an_earlier_version_did_not_name_goes_on(out, name):
    stopped_after(5, plan_of(), out)
    out.write_text(out.read_text("utf-8").replace("an abacus", name), "utf-8")
    assert run(plan_of(), out)[-1].results


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a diary\n", "is not a sweep: its first line"),
        (b'{"schema": "outrider.run/1", "type": "run", "config": {}}\n', "is not a sweep: its schema"),
        (b'{"schema": "outrider.sweep/2", "type": "sweep", "config": {}}\n', None),
        (b'{"schema": "outrider.sweep/1", "type": "sweep"}\n', None),
        (b'{"schema": "outrider.swe', "is not a sweep"),
        (b"\x00\xff", "is not a sweep"),
    ],
)
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_not_a_sweep_is_never_written_over(out, content, words, restart):
    out.write_bytes(content)
    session = FakeSweepSession()
    refusal(RunLogError, run, plan_of(), out, session, restart=restart, match=words)
    assert out.read_bytes() == content
    assert not session.calls


def test_a_sweep_with_a_damaged_plan_is_a_sentence(out):
    run(plan_of(), out)
    head, *rest = out.read_text("utf-8").splitlines(keepends=True)
    nameless = {"method": None, "draft": None, "method_options": {}}
    for changes in (
        {"repeats": -1},
        {"drafters": [nameless]},
        {"prompts": [{}]},
        {"coupling": "none"},
        {"temperatures": None},
    ):
        record = json.loads(head)
        record["config"] |= changes
        out.write_text(json.dumps(record) + "\n" + "".join(rest), "utf-8")
        refusal(RunLogError, read_sweep, out)


@pytest.mark.parametrize("text", ["x" * 11_000_000, "," * 3_000_000])
def test_prompts_that_the_file_could_not_be_read_with_are_refused_before_anything_runs(out, text):
    session, prompts = FakeSweepSession(), [Prompt(name, text) for name in "abc"]
    refusal(RunLogError, run, plan_of(prompts=tuple(prompts)), out, session, match="shorter prompts")
    assert not session.warm_ups
    assert not out.exists()


@pytest.mark.parametrize("name", ["", "missing/sweep.jsonl"])
def test_a_place_that_cannot_be_written_is_reported_before_anything_runs(tmp_path, name):
    session = FakeSweepSession()
    refusal(RunLogError, run, plan_of(), tmp_path / name, session)
    assert not session.warm_ups


def test_a_sweep_without_a_run_leaves_no_file_and_a_restart_the_old_one(out):
    events = sweep(plan_of(), FakeSweepSession().run, out=out)
    assert isinstance(next(events), SweepStarted)
    events.close()
    assert not out.exists()
    run(plan_of(), out)
    before = out.read_bytes()
    controls = RunControls()
    controls.cancel()
    run(plan_of(seed=3), out, restart=True, controls=controls)
    assert out.read_bytes() == before


# --- A disk that fills ------------------------------------------------------------------------------------------


class Disk:
    """A file that has no room while `is_full`; a part of what is written gets through."""

    is_full = False

    def __init__(self, file):
        self._file = file

    def write(self, data):
        if self.is_full:
            self._file.write(bytes(data[:5]))
            raise OSError(28, os.strerror(28))
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        return self._file.__exit__(*details)


@pytest.mark.parametrize("has_room_again", [False, True])
def test_a_disk_that_fills_is_reported_once_and_nothing_written_is_lost(out, monkeypatch, has_room_again):
    monkeypatch.setattr(sweep_file, "open", lambda *a, **k: Disk(open(*a, **k)), raising=False)  # noqa: SIM115
    events = []
    for event in sweep(plan_of(), FakeSweepSession().run, out=out):
        if isinstance(event, RunMeasured):
            Disk.is_full = 4 <= event.num_done < (8 if has_room_again else 99)
        events.append(event)
    (failure,) = [event.sentence for event in events if isinstance(event, FileFailed)]
    assert "no space" in failure
    assert is_sentence(failure)
    assert events[-1].is_complete
    assert events[-1].num_unsaved == (0 if has_room_again else 8)
    log = read_sweep(out)
    assert len(log.measurements) == (12 if has_room_again else 4)
    assert not log.problems


def test_two_sweeps_do_not_write_over_each_others_runs(out):
    first = sweep(plan_of(), FakeSweepSession().run, out=out)
    for event in first:
        if isinstance(event, RunMeasured):
            break
    refusal(RunLogError, run, plan_of(), out, match="Another sweep is writing")
    assert isinstance(list(first)[-1], SweepFinished)
    assert len(read_sweep(out).measurements) == 12
    assert os.listdir(out.parent) == [out.name]
    SweepFile(out, plan_of()).close()
