"""Kept runs whose logs lack something: what is shown of them is right, and what can't be known isn't offered."""

from __future__ import annotations

import json
import math

import pytest

from app.run.race.race import race_of
from app.run.run_view import RunView
from app.run.speed.speed import NO_UNIT, speed_report
from app.run.text.branches import branch, can_branch
from app.run.text.tokens import KINDS, Place, block
from core.export.files import export_html
from core.runlog.reading import read_run_log
from core.runlog.replay import events, request_to_show
from tests.fakes_runs import keep_run


def edit(path, change):
    """Have a function change the log's records, one by one."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def leave_out(path, index):
    """Have the log lack a step."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    steps = [line for line in lines if json.loads(line).get("type") == "step"]
    path.write_text("".join(line for line in lines if line != steps[index]), "utf-8")


def view_of(path) -> RunView:
    """The log as the window holds it when it has been opened."""
    log, run = read_run_log(path), RunView()
    run.begin(request_to_show(log))
    for event in events(log):
        run.apply(event)
    return run


@pytest.fixture
def path(tmp_path):
    run_id = keep_run(tmp_path, max_new_tokens=120, baseline=True)
    return tmp_path / f"{run_id}.jsonl"


@pytest.fixture
def gapped(path):
    leave_out(path, 2)
    return path


def test_a_token_after_a_missing_step_leads_to_its_own_step_and_nothing_is_branched_off_after_it(gapped):
    run = view_of(gapped)
    assert [step.index for step in run.steps[:4]] == [0, 1, 3, 4]
    for number, step in enumerate(run.steps):
        for span in block(step, number):
            ids = run.steps[span.place.step].emitted if span.fate in KINDS else step.drafted
            assert ids[span.place.slot] == span.token_id
    assert branch(run, Place(1, 0)).continuation == run.steps[0].emitted
    assert [can_branch(run, Place(index, 0)) for index in (1, 2, 5)] == [True, False, False]
    leave_out(gapped, 0)
    assert not can_branch(view_of(gapped), Place(0, 0))


def test_scrubbing_a_run_with_a_missing_step_selects_the_last_one_shown(window, gapped):
    log = read_run_log(gapped)
    window.live.show_kept(request_to_show(log), tuple(events(log)), "damaged")
    while window.live._kept is not None:
        window.live._on_text_due()
    window.transcript.playback.slider.setValue(4)
    assert window.selection.place == Place(3, 0)
    assert window.transcript.view.selected_span().token_id == window.run_view.steps[3].emitted[0]


def test_nothing_is_branched_off_a_run_whose_settings_are_not_known(path):
    edit(path, lambda record: record.get("config", {}).pop("seed", None))
    assert not can_branch(view_of(path), Place(1, 0))


def test_a_step_without_its_figures_leaves_those_of_the_others(path):
    def forget(record):
        if record.get("type") == "step" and record["index"] == 3:
            record["acceptance_probs"] = record["expected_acceptance"] = None

    edit(path, forget)
    assert math.isfinite(view_of(path).predicted_acceptance)


def test_a_kept_run_is_diagnosed_by_its_baseline_or_else_by_the_forward_timed_before(path):
    def forget(record):
        if record.get("type") == "baseline_step":
            del record["verify_ms"]
        elif record.get("type") == "summary":
            record["target_step_ms"] = 4.0

    run = view_of(path)
    report = speed_report(run)
    assert report.headline != NO_UNIT
    assert report.figures[2].value != "–"
    assert f"{run.baseline_steps[0].verify_ms:.2f} ms" in report.figures[1].how
    edit(path, forget)
    assert "4.00 ms" in speed_report(view_of(path)).figures[1].how


@pytest.mark.parametrize("name", ["prompt_token_ids", "continuation_token_ids", "method_options", "coupling"])
@pytest.mark.parametrize("value", [1.5, True, "x", [None], None])
def test_settings_of_another_kind_keep_no_page_from_being_shown(path, name, value):
    edit(path, lambda record: record.get("config", {}).update({name: value}))
    run = view_of(path)
    assert speed_report(run).advice
    assert race_of(run).duration_ms > 0
    assert isinstance(can_branch(run, Place(1, 0)), bool)


@pytest.mark.parametrize("names", [("draft_ms", "verify_ms"), ("draft_ms", "verify_ms", "sample_ms", "total_ms")])
@pytest.mark.parametrize("value", [0.0, None])
def test_a_run_without_its_steps_times_is_shown_and_reported_without_a_prediction(path, tmp_path, names, value):
    def forget(record):
        if record.get("type") == "step":
            record |= dict.fromkeys(names, value)

    edit(path, forget)
    run = view_of(path)
    assert run.counts.sums.forecast(1.0) == (0.0, None)
    assert speed_report(run).headline
    assert race_of(run) is not None
    export_html(tmp_path / "run.html", read_run_log(path))
    assert (tmp_path / "run.html").stat().st_size
