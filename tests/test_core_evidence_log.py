"""Evidence in a run's log: written short, read back the same, and left out where it is damaged."""

import json

import pytest

from core.decode import speculative
from core.evidence import evidence_from_record, packed, packed_from_record
from core.runlog.log import STEP_FIELDS, RunLogWriter, read_run_log, to_line, to_record
from core.runlog.replay import step_from_record
from core.runlog.store import read_head
from core.types import Inspected, Step
from tests.fakes import play
from tests.fakes_log import STARTED
from tests.test_core_evidence import a_run, pair

NUMBERS = ("target_tail", "target_entropy", "draft_tail", "draft_entropy", "residual_mass", "residual_tail")


def lines(steps):
    return [json.loads(to_line(to_record(step))) for step in steps]


def test_a_saved_run_shows_the_same_evidence():
    steps = a_run(inspect=True).steps
    for step, record in zip(steps, lines(steps), strict=True):
        assert list(record)[1 : 1 + len(STEP_FIELDS)] == list(STEP_FIELDS)
        assert record["next_uniform"] == step.next_uniform
        again = step_from_record(record).evidence
        assert len(again) == len(step.evidence)
        for place, read in zip(step.evidence, again, strict=True):
            assert list(read.ids) == list(place.ids)
            assert read.texts == place.texts
            for name in ("target_probs", "draft_probs", "residual_probs"):
                kept, found = getattr(place, name), getattr(read, name)
                assert (kept is None) == (found is None)
                assert kept is None or list(found) == pytest.approx(list(kept), rel=1e-5)
            for name in NUMBERS:
                kept, found = getattr(place, name), getattr(read, name)
                assert kept is found is None or found == pytest.approx(kept, rel=1e-5)


def test_a_run_that_was_not_inspected_logs_no_evidence():
    for record in lines(a_run(inspect=False).steps):
        assert "evidence" not in record
        assert evidence_from_record(record) == ()


def with_first(**values):
    """Put another value first into these lists of a place."""
    return lambda place: [{**place, **{name: [value, *place[name][1:]] for name, value in values.items()}}]


def changed(**values):
    return lambda place: [{**place, **values}]


DAMAGE = {
    "no list": lambda place: 3,
    "a place that is none": lambda place: [None],
    "a text for an id": with_first(ids="x"),
    "a broken number": with_first(ids=0.5),
    "an id beyond every vocabulary": with_first(ids=2**40),
    "a negative id": with_first(ids=-1),
    "a missing probability": lambda place: [{**place, "target_probs": place["target_probs"][1:]}],
    "a probability above 1": with_first(draft_probs=7.0),
    "null for a number": changed(target_entropy=None),
    "true for a number": changed(target_tail=True),
    "a text that is none": with_first(texts=5),
    "no texts": lambda place: [{key: value for key, value in place.items() if key != "texts"}],
    "far too many tokens": changed(ids=[1] * 999, texts=["a"] * 999, target_probs=[0.0] * 999, draft_probs=None),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_evidence_is_left_out(what):
    (record, *_) = lines(a_run(inspect=True, count=3).steps)
    good = record["evidence"][0]
    assert evidence_from_record({"evidence": [good]})
    assert evidence_from_record({"evidence": DAMAGE[what](good)}) == ()


# --- In a file, where it follows its step -----------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def write_run(path, *, drop=lambda event: False):
    """Log an inspected run as it comes, without its summary; its steps with their evidence."""
    target, draft = pair()
    events = list(speculative(target, draft, [0, 1], max_new_tokens=30, inspect=True, seed=5))
    with RunLogWriter(path) as log:
        log.write(STARTED)
        for event in events:
            if isinstance(event, Step | Inspected) and not drop(event):
                log.write(event)
    return play(events).steps


def test_evidence_that_came_behind_its_steps_is_read_back_with_them(path):
    steps = write_run(path)
    assert read_run_log(path).steps == lines(steps)
    packed = [step_from_record(record) for record in read_run_log(path, keep=packed_from_record).steps]
    assert packed == [step_from_record(record) for record in read_run_log(path).steps]
    with path.open("ab") as file:
        file.truncate(path.stat().st_size - 9)
    assert read_head(path).num_steps == len(steps)


def test_steps_that_are_missing_do_not_move_the_evidence_of_others(path):
    steps = write_run(path, drop=lambda event: isinstance(event, Step) and event.index == 2)
    log = read_run_log(path)
    assert log.steps == lines([step for step in steps if step.index != 2])
    assert sum("evidence of an unknown step" in problem for problem in log.problems) == 1


def test_evidence_that_was_lost_or_damaged_leaves_its_step_whole(path):
    steps = write_run(path, drop=lambda event: isinstance(event, Inspected) and event.index > 3)
    written = path.read_bytes().split(b"\n")
    at = next(number for number, line in enumerate(written) if b'"evidence"' in line)
    written[at] = to_line({**json.loads(written[at]), "evidence": [None]}).rstrip()
    path.write_bytes(b"\n".join(written))
    log = read_run_log(path, keep=packed_from_record)
    found = [bool(step_from_record(record).evidence) for record in log.steps]
    assert found == [0 < index < 4 for index in range(len(steps))]
    assert log.problems == ["The log has no summary: the run was cut off, or is still running."]


def test_packed_evidence_is_the_same_to_the_last_bit():
    for step in a_run(inspect=True, count=3).steps:
        places, kept = step.evidence, packed(step.evidence)
        assert kept == places
        assert packed(kept) is kept
        assert (list(kept), len(kept), kept[-1], kept[:2]) == (list(places), len(places), places[-1], places[:2])
        assert to_record(Inspected(step.index, kept)) == to_record(Inspected(step.index, places))
    assert packed(()) == ()
