"""Kept runs: listed by their first and last lines, named, deleted and brought back, and found by words."""

import json
import os
import time

import pytest

from core.controls import RunControls
from core.errors import RunLogError
from core.files import FileClaim
from core.runlog.log import to_line, to_record
from core.runlog.search import matches
from core.runlog.store import KeptState, Label, RunStore
from core.settings import RunRequest, SamplingParams
from tests.errors import failing
from tests.fakes_app import FakeSession


def log_lines(**changes):
    """The lines of a scripted run."""
    settings = {"target": "tiny-target", "draft": "tiny-draft", "prompt": "def f(x):", "max_new_tokens": 24, **changes}
    request = RunRequest(**settings)
    events = FakeSession().run(request, RunControls.from_request(request))
    return [to_line(record) for event in events if (record := to_record(event)) is not None]


@pytest.fixture
def keep(tmp_path):
    """Puts a log into the folder; by default a whole one."""

    def put(run_id, lines=None):
        path = tmp_path / f"{run_id}.jsonl"
        path.write_bytes(b"".join(log_lines() if lines is None else lines))
        return path

    return put


def runs(folder, **changes):
    return {run.id: run for run in RunStore(folder).runs(**changes)}


def test_runs_are_listed_newest_first_with_their_settings_and_results(tmp_path, keep):
    keep("20260101-1")
    keep("20260102-1", log_lines(num_draft_tokens=7, sampling=SamplingParams(0.5)))
    newest, oldest = RunStore(tmp_path).runs()
    assert (newest.id, oldest.id) == ("20260102-1", "20260101-1")
    assert (newest.config["num_draft_tokens"], newest.config["temperature"]) == (7, 0.5)
    assert newest.state is KeptState.FINISHED
    assert newest.summary["tokens_per_second"] > 0
    assert newest.num_steps == len(RunStore(tmp_path).load(newest.id).steps) > 0
    assert newest.num_bytes == newest.path.stat().st_size


def test_a_log_of_another_name_is_listed_where_it_started(tmp_path, keep):
    head, *rest = log_lines()
    moments = {"run": "2025-02-01T10:00:00+00:00", "later": "2026-01-03T00:00:00+00:00"}
    for name, moment in moments.items():
        keep(name, [to_line({**json.loads(head), "started_at": moment}), *rest])
    keep("broken", [b"garbage"])
    keep("20260102-000000-abcdef")
    assert [run.id for run in RunStore(tmp_path).runs()] == ["later", "20260102-000000-abcdef", "run", "broken"]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs a time zone of its own")
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_date_without_a_local_time_is_left_out(tmp_path, keep, zone):
    head, *rest = log_lines()
    for year in ("0001-01-01T00:00:00", "9999-12-31T23:59:59"):
        keep(year[:4], [to_line({**json.loads(head), "started_at": f"{year}+00:00"}), *rest])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            assert len([run.started_at.astimezone() for run in RunStore(tmp_path).runs()]) == 2
    finally:
        time.tzset()


def test_a_list_holds_neither_texts_nor_the_ids_of_the_prompt(tmp_path, keep):
    keep("long", log_lines(prompt="x" * 100_000))
    (run,) = RunStore(tmp_path).runs()
    assert len(json.dumps([run.config, run.summary])) < 8_000


def test_an_empty_folder_and_a_missing_one_hold_no_runs_and_a_file_is_explained(tmp_path):
    assert list(RunStore(tmp_path).runs()) == []
    assert list(RunStore(tmp_path / "nowhere").runs()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match="can't be read"):
        list(RunStore(tmp_path / "file").runs())


@pytest.mark.parametrize("torn", [0, 1, 20, 200], ids=lambda torn: f"{torn} bytes of another")
@pytest.mark.parametrize("keeps", [1, 2, 5, 9], ids=lambda keeps: f"{keeps} lines")
def test_a_run_without_a_summary_was_cut_off_and_opens_up_to_its_last_step(tmp_path, keep, keeps, torn):
    lines = log_lines()
    keep("x", [*lines[:keeps], lines[keeps][:torn]])
    (run,) = RunStore(tmp_path).runs()
    assert (run.state, run.num_steps) == (KeptState.CUT_OFF, keeps - 1)
    assert len(RunStore(tmp_path).load("x").steps) == keeps - 1


def test_a_run_that_was_stopped_or_failed_says_so(tmp_path, keep):
    *lines, last = log_lines()
    states = {"cancelled": KeptState.STOPPED, "error": KeptState.FAILED, "eos": KeptState.FINISHED}
    for reason in states:
        keep(reason, [*lines, to_line({**json.loads(last), "finish_reason": reason})])
    assert {run.id: run.state for run in RunStore(tmp_path).runs()} == states


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\0\xff\xfe garbage", "not a run log"),
        (b'{"schema": "outrider.run/9", "type": "run", "config": {}}\n', "newer Outrider"),
        (b'{"schema": "outrider.run/1", "type": "run"}\n', "damaged"),
    ],
)
def test_what_can_not_be_read_is_listed_as_damaged_with_a_sentence(tmp_path, keep, content, words):
    keep("good")
    (tmp_path / "bad.jsonl").write_bytes(content)
    found = runs(tmp_path)
    assert found["good"].state is KeptState.FINISHED
    assert found["bad"].state is KeptState.DAMAGED
    assert words in found["bad"].problem
    assert matches(found["bad"], "damaged")
    assert not matches(found["bad"], "K=4")


@pytest.mark.parametrize("value", [float("nan"), None, "fast", [1]])
def test_invalid_figures_leave_a_run_in_the_list(tmp_path, keep, value):
    *lines, last = log_lines()
    # A summary that is longer than the piece that is read first.
    odd = {**json.loads(last), "tokens_per_second": value, "num_steps": value, "text": "é" * 300_000}
    keep("x", [*lines, json.dumps(odd, ensure_ascii=False).encode() + b"\n\n\n"])
    (run,) = RunStore(tmp_path).runs()
    assert run.state is KeptState.FINISHED
    assert not matches(run, "speed>1")


def test_a_run_that_is_being_written_is_marked_however_long_it_pauses_until_its_writer_is_gone(tmp_path, keep):
    path = keep("x", log_lines()[:4])
    claim = FileClaim(path)
    assert claim.take()  # As a writer in any process does.
    os.utime(path, (0, 0))
    assert runs(tmp_path)["x"].state is KeptState.RUNNING
    claim.give_back()
    assert runs(tmp_path)["x"].state is KeptState.CUT_OFF
    claim.lock_path.touch()  # Left by a process that was killed.
    assert runs(tmp_path)["x"].state is KeptState.CUT_OFF
    assert runs(tmp_path, running_id="x")["x"].state is KeptState.RUNNING


def test_names_are_kept_beside_the_logs_and_logs_stay_as_they_are(tmp_path, keep):
    path = keep("x")
    before = path.read_bytes()
    RunStore(tmp_path).label(Label.NAME, "  my \n run ", "x")
    assert runs(tmp_path)["x"].title == "my run"
    assert path.read_bytes() == before
    (tmp_path / "names.json").write_text("{ torn")
    assert runs(tmp_path)["x"].title == "def f(x):"
    RunStore(tmp_path).label(Label.NAME, "again", "x")
    RunStore(tmp_path).label(Label.NAME, "", "x")
    assert runs(tmp_path)["x"].name == ""


def test_two_windows_that_name_runs_at_once_keep_each_other_s_names(tmp_path, keep):
    keep("a")
    keep("b")
    first, second = RunStore(tmp_path), RunStore(tmp_path)
    list(first.runs())
    list(second.runs())
    first.label(Label.NAME, "one", "a")
    second.label(Label.NAME, "two", "b")
    assert {run.id: run.name for run in first.runs()} == {"a": "one", "b": "two"}


def test_a_deleted_run_comes_back_as_it_was_with_its_name(tmp_path, keep):
    path = keep("x")
    before = path.read_bytes()
    store = RunStore(tmp_path)
    for label in Label:
        store.label(label, "mine", "x")
    assert store.delete(["x"]) == ["x"]
    assert list(store.runs()) == []
    assert RunStore(tmp_path).delete(["x", "never"]) == [], "what is gone already is no error"
    store.restore(["x"])
    assert path.read_bytes() == before
    found = runs(tmp_path)["x"]
    assert (found.name, found.note, found.tags) == ("mine",) * 3


def test_a_run_that_is_gone_for_good_keeps_no_other_from_coming_back(tmp_path, keep):
    store = RunStore(tmp_path)
    for run_id in "abc":
        keep(run_id)
    store.delete("abc")
    (store._trash / "a.jsonl").unlink()
    with pytest.raises(RunLogError, match="run a was deleted permanently"):
        store.restore("abc")
    assert not store.is_in_trash("a")
    assert sorted(runs(tmp_path)) == ["b", "c"]


def test_runs_that_two_windows_delete_all_come_back_when_both_undo(tmp_path, keep):
    for run_id in "abc":
        keep(run_id)
    first, second = RunStore(tmp_path), RunStore(tmp_path)
    deleted = first.delete("ab"), second.delete("abc")
    second.restore(deleted[1])
    assert list(runs(tmp_path)) == ["c"]
    first.restore(deleted[0])
    assert sorted(runs(tmp_path)) == ["a", "b", "c"]


def test_the_trash_is_emptied_for_good_and_only_one_s_own(tmp_path, keep):
    keep("a")
    keep("b")
    mine, other = RunStore(tmp_path), RunStore(tmp_path)
    crashed = tmp_path / ".trash-4194305"
    crashed.mkdir()
    os.utime(crashed, (0, 0))
    mine.label(Label.NAME, "gone", "a")
    mine.label(Label.TAGS, "gone", "a")
    mine.delete(["a"])
    other.delete(["b"])
    mine.empty_trash()
    assert not crashed.exists()
    with pytest.raises(RunLogError, match="deleted permanently"):
        mine.restore(["a"])
    other.restore(["b"])
    assert list(runs(tmp_path)) == ["b"]
    assert "gone" not in (tmp_path / "names.json").read_text() + (tmp_path / "tags.json").read_text()


def test_a_run_whose_log_is_there_again_keeps_its_name_when_the_trash_is_emptied(tmp_path, keep):
    store = RunStore(tmp_path)
    for run_id in "abc":
        keep(run_id)
        store.label(Label.NAME, "mine", run_id)
    store.delete("abc")
    for run_id in "ab":
        keep(run_id)
    store.restore("b")
    store.empty_trash()
    keep("c")
    assert {run.id: run.name for run in store.runs()} == {"a": "mine", "b": "mine", "c": ""}


def test_a_folder_that_can_only_be_read_still_lists_its_runs_and_says_why_nothing_changes(tmp_path, keep, monkeypatch):
    keep("x")
    refuse = failing(PermissionError(13, "Permission denied"))
    monkeypatch.setattr("core.runlog.store.FileLock", refuse)
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    for change in (lambda: RunStore(tmp_path).label(Label.NAME, "n", "x"), lambda: RunStore(tmp_path).delete(["x"])):
        with pytest.raises(RunLogError, match="not allowed"):
            change()
    assert list(runs(tmp_path)) == ["x"]


QUERIES = {
    **{"": "abc", "FIB": "a", "favourite": "b", "tiny-draft": "ab", "f(x)=y": "b", "nowhere": ""},
    **{"K=4": "a", "k=auto": "c", "K=four": "", "temperature=0": "b", "T>0.5 target=tiny": "ac"},
    **{"method=lookup": "c", "max-ngram=5": "c", "state=finished seed=3": "b"},
    **{"speedup>100": "", "acceptance>1%": "abc", "kernel": "c", "tag=GPU": "bc", "tags=laptop gpu": "c"},
    **{"busy": "c", "step by step": "c", "int8=true": "c", "speedup>1.4×": "c", "speedup>1.6x": ""},
}


def test_runs_are_found_by_words_and_settings(tmp_path, keep):
    keep("a", log_lines(prompt="def fib(n):"))
    keep("b", log_lines(prompt="f(x)=y", num_draft_tokens=14, sampling=SamplingParams(0.0), seed=3))
    head, *rest, last = log_lines(method="prompt-lookup", draft=None)
    record = json.loads(head)
    record["config"] |= {"num_draft_tokens": "auto", "method_options": {"max_ngram": 5, "int8": True}}
    summary = json.loads(last) | {"measured_speedup": 1.5, "was_busy": True, "was_stepped": True}
    keep("c", [to_line(record), *rest, to_line(summary)])
    store = RunStore(tmp_path)
    store.label(Label.NAME, "my favourite", "b")
    store.label(Label.TAGS, "gpu", "b")
    store.label(Label.TAGS, " gpu,, my  laptop ,gpu", "c")
    store.label(Label.NOTE, "before the kernel\nchanged", "c")
    kept = sorted(RunStore(tmp_path).runs(), key=lambda run: run.id)
    assert (kept[2].tags, kept[2].note) == ("gpu, my laptop", "before the kernel changed")
    assert {query: "".join(run.id for run in kept if matches(run, query)) for query in QUERIES} == QUERIES
