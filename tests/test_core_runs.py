"""Kept runs: listed by their first and last lines, named, deleted and brought back, and found by words."""

import json
import os
from dataclasses import replace

import pytest

from core.controls import RunControls
from core.errors import RunLogError
from core.runlog.log import to_line, to_record
from core.runlog.store import KeptState, RunStore, matches
from core.settings import RunRequest, SamplingParams
from tests.fakes_app import FakeSession


def log_lines(**changes):
    """The lines of a scripted run."""
    settings = {"target": "tiny-target", "draft": "tiny-draft", "prompt": "def f(x):", "max_new_tokens": 24, **changes}
    request = RunRequest(**settings)
    events = FakeSession().run(request, RunControls.from_request(request))
    return [to_line(record) for event in events if (record := to_record(event)) is not None]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def keep(folder):
    """Puts a log into the folder; by default a whole one."""

    def put(run_id, lines=None):
        path = folder / f"{run_id}.jsonl"
        path.write_bytes(b"".join(log_lines() if lines is None else lines))
        return path

    return put


def runs(folder, **changes):
    return {run.id: run for run in RunStore(folder).runs(**changes)}


def test_runs_are_listed_newest_first_with_their_settings_and_results(folder, keep):
    keep("20260101-1")
    keep("20260102-1", log_lines(num_draft_tokens=7, sampling=SamplingParams(0.5)))
    newest, oldest = RunStore(folder).runs()
    assert (newest.id, oldest.id) == ("20260102-1", "20260101-1")
    assert (newest.config["num_draft_tokens"], newest.config["temperature"]) == (7, 0.5)
    assert newest.state is KeptState.FINISHED
    assert newest.summary["tokens_per_second"] > 0
    assert newest.num_steps == len(RunStore(folder).load(newest.id).steps) > 0
    assert newest.num_bytes == newest.path.stat().st_size


def test_a_list_holds_neither_texts_nor_the_ids_of_the_prompt(folder, keep):
    keep("long", log_lines(prompt="x" * 100_000))
    (run,) = RunStore(folder).runs()
    assert len(json.dumps([run.config, run.summary])) < 8_000


def test_an_empty_folder_and_a_missing_one_hold_no_runs(folder):
    assert list(RunStore(folder).runs()) == []
    assert list(RunStore(folder / "nowhere").runs()) == []


def test_a_folder_that_is_a_file_is_explained(folder):
    (folder / "file").write_text("")
    with pytest.raises(RunLogError, match="can't be read"):
        list(RunStore(folder / "file").runs())


@pytest.mark.parametrize("keeps", [1, 2, 5, 9], ids=lambda keeps: f"{keeps} lines")
def test_a_run_without_a_summary_was_cut_off_and_opens_as_far_as_it_came(folder, keep, keeps):
    keep("x", log_lines()[:keeps])
    (run,) = RunStore(folder).runs()
    assert (run.state, run.num_steps) == (KeptState.CUT_OFF, keeps - 1)
    assert len(RunStore(folder).load("x").steps) == keeps - 1


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_costs_only_itself(folder, keep, cut):
    lines = log_lines()
    keep("x", [*lines[:5], lines[5][:cut]])
    (run,) = RunStore(folder).runs()
    assert (run.state, run.num_steps) == (KeptState.CUT_OFF, 4)


def test_a_summary_longer_than_the_piece_that_is_read_first_is_found(folder, keep):
    *lines, last = log_lines()
    summary = {**json.loads(last), "text": "é" * 300_000}
    keep("x", [*lines, to_line(summary), b"\n\n"])
    (run,) = RunStore(folder).runs()
    assert run.state is KeptState.FINISHED


@pytest.mark.parametrize(
    ("reason", "state"), [("cancelled", KeptState.STOPPED), ("error", KeptState.FAILED), ("eos", KeptState.FINISHED)]
)
def test_a_run_that_was_stopped_or_failed_says_so(folder, keep, reason, state):
    *lines, last = log_lines()
    keep("x", [*lines, to_line({**json.loads(last), "finish_reason": reason})])
    assert runs(folder)["x"].state is state


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\0\xff\xfe garbage", "not a run log"),
        (b'{"schema": "outrider.run/9", "type": "run", "config": {}}\n', "newer Outrider"),
        (b'{"schema": "outrider.run/1", "type": "run"}\n', "damaged"),
    ],
)
def test_what_can_not_be_read_is_listed_as_damaged_with_a_sentence(folder, keep, content, words):
    keep("good")
    (folder / "bad.jsonl").write_bytes(content)
    found = runs(folder)
    assert found["good"].state is KeptState.FINISHED
    assert found["bad"].state is KeptState.DAMAGED
    assert words in found["bad"].problem


@pytest.mark.parametrize("value", [float("nan"), None, "fast", [1]])
def test_figures_that_are_no_numbers_do_not_keep_a_run_from_the_list(folder, keep, value):
    *lines, last = log_lines()
    odd = {**json.loads(last), "tokens_per_second": value, "num_steps": value}
    keep("x", [*lines, json.dumps(odd).encode() + b"\n"])
    (run,) = RunStore(folder).runs()
    assert run.state is KeptState.FINISHED
    assert not matches(run, "speed>1")


def test_the_run_that_is_written_just_now_is_marked(folder, keep):
    keep("x", log_lines()[:4])
    assert runs(folder, running_id="x")["x"].state is KeptState.RUNNING


def test_a_run_that_another_window_writes_is_marked_until_that_window_is_gone(folder, keep):
    head, *steps = log_lines()[:4]
    record = json.loads(head)

    def state_of(process):
        record["environment"]["process"] = process
        keep("x", [to_line(record), *steps])
        return runs(folder)["x"].state

    # The process that runs the tests' process is not this one, and lives.
    assert state_of(os.getppid()) is KeptState.RUNNING
    assert state_of(2**22 + 1) is KeptState.CUT_OFF
    assert state_of(os.getpid()) is KeptState.CUT_OFF
    assert state_of("nonsense") is KeptState.CUT_OFF


def test_names_are_kept_beside_the_logs_and_logs_stay_as_they_are(folder, keep):
    path = keep("x")
    before = path.read_bytes()
    RunStore(folder).rename("x", "  my \n run ")
    assert runs(folder)["x"].title == "my run"
    assert path.read_bytes() == before
    (folder / "names.json").write_text("{ torn")
    assert runs(folder)["x"].title == "def f(x):"
    RunStore(folder).rename("x", "again")
    RunStore(folder).rename("x", "")
    assert runs(folder)["x"].name == ""


def test_two_windows_that_name_runs_at_once_keep_each_other_s_names(folder, keep):
    keep("a")
    keep("b")
    first, second = RunStore(folder), RunStore(folder)
    list(first.runs())
    list(second.runs())
    first.rename("a", "one")
    second.rename("b", "two")
    assert {run.id: run.name for run in first.runs()} == {"a": "one", "b": "two"}


def test_a_deleted_run_comes_back_as_it_was_with_its_name(folder, keep):
    path = keep("x")
    before = path.read_bytes()
    store = RunStore(folder)
    store.rename("x", "mine")
    assert store.delete(["x"]) == ["x"]
    assert list(store.runs()) == []
    store.restore(["x"])
    assert path.read_bytes() == before
    assert runs(folder)["x"].name == "mine"


def test_the_trash_is_emptied_permanently_and_only_one_s_own(folder, keep):
    keep("a")
    keep("b")
    mine, other = RunStore(folder), RunStore(folder)
    other._trash = folder / f".trash-{os.getppid()}"
    crashed = folder / ".trash-4194305"
    crashed.mkdir()
    mine.rename("a", "gone")
    mine.delete(["a"])
    other.delete(["b"])
    mine.empty_trash()
    assert not crashed.exists()
    with pytest.raises(RunLogError, match="deleted permanently"):
        mine.restore(["a"])
    other.restore(["b"])
    assert list(runs(folder)) == ["b"]
    assert "gone" not in (folder / "names.json").read_text()


def test_deleting_what_another_window_deleted_is_no_error(folder, keep):
    keep("a")
    store = RunStore(folder)
    store.delete(["a"])
    assert RunStore(folder).delete(["a", "never"]) == ["a", "never"]


def test_a_folder_that_can_only_be_read_still_lists_its_runs_and_says_why_nothing_changes(folder, keep, monkeypatch):
    keep("x")

    def refuse(*_args, **_settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("core.runlog.store.FileLock", refuse)
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    for change in (lambda: RunStore(folder).rename("x", "n"), lambda: RunStore(folder).delete(["x"])):
        with pytest.raises(RunLogError, match="not allowed"):
            change()
    assert list(runs(folder)) == ["x"]


def test_a_log_that_has_grown_is_read_again_and_one_that_has_not_is_not(folder, keep, monkeypatch):
    lines = log_lines()
    keep("x", lines[:4])
    keep("y")
    store = RunStore(folder)
    list(store.runs())
    keep("x", lines)
    reads = []
    import core.runlog.store

    original = core.runlog.store.read_head
    monkeypatch.setattr(core.runlog.store, "read_head", lambda path: reads.append(path.name) or original(path))
    assert {run.id: run.state for run in store.runs()} == dict.fromkeys(("x", "y"), KeptState.FINISHED)
    assert reads == ["x.jsonl"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "abc"),
        ("FIB", "a"),
        ("favourite", "b"),
        ("tiny-draft", "ab"),
        ("K=4", "a"),
        ("k=auto", "c"),
        ("temperature=0", "b"),
        ("T>0.5 target=tiny", "ac"),
        ("method=lookup", "c"),
        ("max-ngram=5", "c"),
        ("speedup>100", ""),
        ("acceptance>1%", "abc"),
        ("state=finished seed=3", "b"),
        ("f(x)=y", "b"),
        ("K=four", ""),
        ("nowhere", ""),
    ],
)
def test_runs_are_found_by_words_and_settings(folder, keep, query, found):
    keep("a", log_lines(prompt="def fib(n):"))
    keep("b", log_lines(prompt="f(x)=y", num_draft_tokens=14, sampling=SamplingParams(0.0), seed=3))
    head, *rest = log_lines(method="prompt-lookup", draft=None)
    record = json.loads(head)
    record["config"] |= {"num_draft_tokens": "auto", "method_options": {"max_ngram": 5}}
    keep("c", [to_line(record), *rest])
    RunStore(folder).rename("b", "my favourite")
    assert "".join(sorted(run.id for run in RunStore(folder).runs() if matches(run, query))) == found


def test_a_damaged_run_is_found_by_its_state(folder):
    (folder / "bad.jsonl").write_bytes(b"?")
    (run,) = RunStore(folder).runs()
    assert matches(run, "damaged")
    assert not matches(run, "K=4")
    assert not matches(replace(run, name="x"), "y")
