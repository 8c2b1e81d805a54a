"""Exports of a run: whole, or not at all."""

from __future__ import annotations

import csv
import os
import threading
from datetime import datetime

import pytest

from app.dialogs import EXPORT_FILTERS, with_suffix
from core.export.files import readable_name
from core.runlog.reading import read_run_log
from tests.fakes_app import files_beside_settings


@pytest.fixture
def export(qtbot):
    """Exports the current run and waits for the end; the sentence about it."""

    def run(window) -> str:
        window.banner.dismiss()
        window.menus.export.trigger()
        qtbot.waitUntil(lambda: window.jobs.is_idle, timeout=10_000)
        return window.banner.sentence() or window.status.stage.text()

    return run


def test_there_is_nothing_to_export_before_a_run_and_a_dismissed_dialog_writes_nothing(
    window, dialogs, run_to_end, tmp_path
):
    assert not window.menus.export.isEnabled()
    window.exports.export()
    assert dialogs.asked == []
    run_to_end(window)
    before = files_beside_settings(tmp_path)
    window.menus.export.trigger()
    assert files_beside_settings(tmp_path) == before
    assert window.banner.sentence() == ""


def test_a_report_is_offered_first_under_a_name_that_every_file_system_takes():
    assert next(iter(EXPORT_FILTERS.values())) == "html"
    noon = datetime(2026, 11, 24, 12).astimezone()
    config = {"target": "HuggingFaceTB/SmolLM2-135M", "num_draft_tokens": 2, "temperature": 0.7}
    assert readable_name(config, noon) == "outrider SmolLM2-135M K=2 T=0.7 2026-11-24.html"
    config = {"target": "C:\\models\\mine", "num_draft_tokens": "auto", "temperature": 0.0, "verification": "typical"}
    assert readable_name(config, noon) == "outrider mine K=auto T=0 lossy 2026-11-24.html"
    assert readable_name({"target": 3}, None) == "outrider.html"
    assert readable_name({}, None, 'a/b: "c"?\n<' + "x" * 300) == f"outrider a b c {'x' * 49}.html"


def test_export_writes_the_run_as_json_lines_its_steps_as_a_table_or_a_report(finished, export, dialogs, tmp_path):
    dialogs.export_path = tmp_path / "out.jsonl"
    export(finished)
    log = read_run_log(dialogs.export_path)
    assert log.problems == []
    assert len(log.steps) == finished.run_view.counts.sums.num_steps
    assert log.summary["finish_reason"] == "length"
    assert dialogs.asked == [readable_name(log.run["config"], datetime.fromisoformat(log.run["started_at"]))]
    assert str(dialogs.export_path) in finished.status.stage.text()
    dialogs.export_path = tmp_path / "out.CSV"
    export(finished)
    with dialogs.export_path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(log.steps)
    assert rows[0]["num_draft_tokens"] == str(log.steps[0]["num_draft_tokens"])
    dialogs.export_path = tmp_path / "report.HTML"
    export(finished)
    source = dialogs.export_path.read_text("utf-8")
    assert source.startswith("<!doctype html>")
    assert finished.run_view.started.run_id in source


def test_a_window_that_is_closed_meanwhile_waits_for_the_file(finished, dialogs, qtbot, tmp_path, monkeypatch):
    dialogs.export_path = tmp_path / "out.jsonl"
    writing, release, replace = threading.Event(), threading.Event(), os.replace

    def replace_slowly(source, target):
        if target != tmp_path / "out.jsonl":
            return replace(source, target)
        writing.set()
        release.wait(10)
        return replace(source, target)

    # What is asked for first keeps the thread busy, so that the export has not begun when the window closes.
    monkeypatch.setattr(os, "replace", replace_slowly)
    finished.menus.export.trigger()
    qtbot.waitUntil(writing.is_set)
    second = dialogs.export_path = tmp_path / "second.csv"
    finished.menus.export.trigger()
    finished.close()
    assert not finished.jobs.is_idle
    release.set()
    qtbot.waitUntil(lambda: finished.jobs.is_idle, timeout=10_000)
    assert read_run_log(tmp_path / "out.jsonl").problems == []
    with second.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == finished.run_view.counts.sums.num_steps


def test_a_path_that_can_not_be_written_is_explained_until_the_next_export(finished, export, dialogs, tmp_path, qtbot):
    (tmp_path / "file").write_text("")
    for name in ("missing/out.jsonl", "", "file/out.csv"):
        dialogs.export_path = tmp_path / name if name else tmp_path
        export(finished)
        assert finished.banner.sentence().endswith(".")
        assert len(finished.banner.sentence()) > 20
    dialogs.export_path = tmp_path / "good.jsonl"
    finished.menus.export.trigger()
    qtbot.waitUntil(dialogs.export_path.exists)
    assert finished.banner.sentence() == "", "it was written in the end"


def test_a_failed_run_can_be_exported_too(window, export, session, dialogs, run_to_end, tmp_path):
    session.fail_after = (2, "It broke.")
    run_to_end(window)
    dialogs.export_path = tmp_path / "failed.jsonl"
    export(window)
    assert read_run_log(dialogs.export_path).summary["error"] == "It broke."


def test_a_kept_log_is_not_written_over(window, session, export, dialogs, run_to_end, tmp_path):
    run_to_end(window)
    (kept,) = (tmp_path / "runs").glob("*.jsonl")
    before = kept.read_bytes()
    kept = kept.rename(kept.with_stem(window.run_view.started.run_id))
    dialogs.export_path = kept
    assert export(window) == "The run is already kept in this file; choose another place."
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("typed", "written"), [("T=0.7 fast", "T=0.7 fast.html"), ("a.csv", "a.csv"), ("SmolLM2-1.7B", "SmolLM2-1.7B.html")]
)
def test_a_name_with_a_dot_gets_the_chosen_formats_suffix(tmp_path, typed, written):
    assert with_suffix(None, tmp_path / typed, "html", EXPORT_FILTERS.values()) == tmp_path / written


def test_no_break_spaces_stay_in_the_prompt(window):
    window.prompt.set_text("a\u00a0b\nc")
    assert window.prompt.text() == "a\u00a0b\nc"
