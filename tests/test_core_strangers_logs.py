"""Logs and sweeps of strangers: each is read within bounds, or refused in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import random
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from core.errors import OutriderError, RunLogError
from core.experiments.sweep_file import read_sweep
from core.experiments.sweep_results import SweepResults
from core.export import files
from core.files import LONGEST_LINE
from core.runlog.log import RunLogWriter, to_line
from core.runlog.reading import read_run_log
from core.runlog.replay import _counts, events, request_to_show
from core.runlog.store import RunStore, read_head
from core.types import StepsCounted, StepSource
from tests.fakes import is_sentence, refusal
from tests.fakes_app import make_step
from tests.fakes_cli import step
from tests.fakes_log import write
from tests.fakes_runs import keep_run
from tests.fakes_sweep import keep_sweep

ODD = (
    None,
    True,
    -1,
    10**400,
    1e999,
    "",
    "x",
    "\ud800",
    "<img src='/dev/zero'>",
    [],
    ["x"],
    [[]],
    {},
    {"x": {}},
    [None],
)


def mutant(record, chance: random.Random):
    """The record with one value, at any depth, replaced or removed."""
    record = json.loads(json.dumps(record))
    place, key = record, chance.choice(list(record))
    while isinstance(place[key], dict | list) and place[key] and chance.random() < 0.7:
        place = place[key]
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
    if chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(ODD)
    return record


def mutants(log: bytes, path):
    """Write 300 mutants of a log into a file, one after the other; the number of each."""
    chance, records = random.Random(28), list(map(json.loads, log.splitlines()))
    for number in range(300):
        changed = list(records)
        at = chance.randrange(len(records))
        changed[at] = mutant(records[at], chance)
        path.write_bytes(b"".join(map(to_line, changed)))
        yield number


def test_300_mutated_logs_are_read_replayed_and_exported_or_refused(tmp_path):
    run_id = keep_run(tmp_path, baseline=True, max_new_tokens=8)
    path, sentences = tmp_path / "mutant.jsonl", []
    for number in mutants((tmp_path / f"{run_id}.jsonl").read_bytes(), path):
        try:
            log = read_run_log(path)
            request_to_show(log)
            list(events(log))
            for export in (files.export_csv, files.export_jsonl, files.export_html)[: 3 if number % 10 == 0 else 2]:
                export(tmp_path / "out", log)
        except OutriderError as error:
            sentences.append(str(error))
        assert read_head(path).title
    assert all(map(is_sentence, sentences))


def test_300_mutated_sweeps_are_read_and_exported_or_refused(tmp_path):
    path, sentences = tmp_path / "mutant.jsonl", []
    for number in mutants(keep_sweep(tmp_path / "sweep.jsonl").read_bytes(), path):
        try:
            log = read_sweep(path)
            SweepResults(log.plan, log.measurements).all()
            exports = files.export_sweep_csv, files.export_sweep_jsonl, files.export_sweep_html
            for export in exports[: 3 if number % 10 == 0 else 2]:
                export(tmp_path / "out", log)
        except OutriderError as error:
            sentences.append(str(error))
    assert all(map(is_sentence, sentences))


DAMAGED = {
    "a moment before all others": (1, ("started_at",), "0001-01-01T00:00:00"),
    "options that are a text": (0, ("config", "drafters", 0, "method_options"), "x"),
    "a suite that is a list": (0, ("config", "prompts", 0, "suite"), ["x"]),
}


@pytest.mark.parametrize(("line", "place", "value"), DAMAGED.values(), ids=DAMAGED)
def test_a_sweep_with_one_bad_value_is_shown_without_it_or_refused(tmp_path, line, place, value):
    records = list(map(json.loads, keep_sweep(tmp_path / "sweep.jsonl").read_bytes().splitlines()))
    inner = records[line]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "bad.jsonl").write_bytes(b"".join(map(to_line, records)))
    with contextlib.suppress(RunLogError):
        log = read_sweep(tmp_path / "bad.jsonl")
        SweepResults(log.plan, log.measurements).all()
        files.export_sweep_html(tmp_path / "out", log)


def test_a_step_before_the_first_has_no_counts():
    assert [step.index for step in StepsCounted(()).applied([replace(step("a"), index=-1)])] == [-1]


@pytest.mark.parametrize(
    ("counts", "source", "drafted"),
    [(None, StepSource.CHUNKS, 0), (None, StepSource.SERVER, 4), ([[9999, 0]], StepSource.CHUNKS, 4)],
    ids=["a guess that the sums contradict", "a report", "counts that can't be"],
)
def test_only_a_guess_gives_way_where_the_server_reports_no_counts_of_a_step(counts, source, drafted):
    guessed = replace(make_step(0, 0, num_accepted=0), source=source)
    (shown,) = StepsCounted((_counts(counts),)).applied([guessed])
    assert (shown.num_draft_tokens, shown.source) == (drafted, source)


def spoil(path, kind):
    """Make a log that is too large, endless, or no file; False where the system has no such thing."""
    head = path.read_bytes().split(b"\n")[0] + b"\n"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "a long link":
        path.symlink_to("x" * 300)
    elif kind == "newlines":
        path.write_bytes(head + b"\n" * 20_000_000)
    elif kind == "a long line":
        with path.open("wb") as file:
            file.write(head)
            file.truncate(2 * LONGEST_LINE)
    elif kind == "damaged lines":
        path.write_bytes(head + b"x\n" * 1_000_000)
    elif kind == "nothing but steps":
        path.write_bytes(head + b'{"type":"step"}\n' * 1_000_000)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such pipes, devices or links")
@pytest.mark.parametrize(
    "kind",
    ["pipe", "device", "loop", "a long link", "newlines", "a long line", "damaged lines", "nothing but steps"],
)
def test_a_log_that_is_no_log_is_refused_and_hides_no_other(tmp_path, kind):
    good, bad = keep_run(tmp_path), keep_run(tmp_path, 1)
    spoil(tmp_path / f"{bad}.jsonl", kind)
    refusal(RunLogError, read_run_log, tmp_path / f"{bad}.jsonl")
    assert good in {run.id for run in RunStore(tmp_path).runs()}


@pytest.mark.parametrize(("keep", "read"), [(write, read_run_log), (keep_sweep, read_sweep)])
def test_a_log_whose_values_memory_does_not_hold_is_refused(tmp_path, monkeypatch, keep, read):
    path = keep(tmp_path / "a.jsonl")
    with path.open("ab") as file:
        file.write((b'{"type": "later", "values": [' + b"[]," * 100_000 + b"[]]}\n") * 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=450_000_000))
    read(path)  # It is small.
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000_000))
    refusal(RunLogError, read, path, match="too little memory is free")


@pytest.mark.parametrize("open_log", [RunLogWriter, read_run_log, read_sweep])
def test_a_name_that_no_log_can_have_is_a_sentence(open_log):
    refusal(RunLogError, open_log, "a\0b.jsonl")


@pytest.mark.parametrize("kind", [["x"], {}, 1, None])
def test_a_type_that_is_no_text_costs_only_its_line(tmp_path, kind):
    path = write(tmp_path / "a.jsonl")
    first, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, json.dumps({"type": kind}).encode(), *rest]))
    log = read_run_log(path)
    assert len(log.problems) == 1
    assert log.summary is not None


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_no_text_of_a_log_is_a_formula_in_a_spreadsheet(tmp_path, text):
    path = write(tmp_path / "a.jsonl")
    log = read_run_log(path)
    log.steps[0]["emitted_text"] = text
    log.steps[0]["draft_ms"] = -1.0
    files.export_csv(tmp_path / "a.csv", log)
    row = (tmp_path / "a.csv").read_text("utf-8").split("\n")[1]
    assert f"'{text}" in row
    assert ",-1.0," in row
