"""Taking a run away: whole, or not at all, or not wanted."""

from __future__ import annotations

import csv
import os

import pytest

from core.trace import read_run_log


@pytest.fixture
def finished(window, run_to_end):
    run_to_end(window)
    return window


def test_there_is_nothing_to_export_before_a_run(window, dialogs):
    assert not window.menus.export.isEnabled()
    window.exports.export()
    assert dialogs.asked == []


def test_export_writes_the_run_as_json_lines(finished, dialogs, tmp_path):
    dialogs.export_path = tmp_path / "out.jsonl"
    finished.menus.export.trigger()
    log = read_run_log(dialogs.export_path)
    assert log.problems == []
    assert len(log.steps) == finished.run_view.metrics.totals.steps
    assert log.summary["finish_reason"] == "length"
    assert dialogs.asked == [f"{log.run['id']}.jsonl"]
    assert str(dialogs.export_path) in finished.status.stage.text()


def test_export_writes_the_steps_as_a_table(finished, dialogs, tmp_path):
    dialogs.export_path = tmp_path / "out.CSV"
    finished.menus.export.trigger()
    with dialogs.export_path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == finished.run_view.metrics.totals.steps
    assert rows[0]["num_draft_tokens"] == "4"


def test_a_dismissed_dialog_writes_nothing(finished, dialogs, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    finished.menus.export.trigger()
    assert sorted(tmp_path.rglob("*")) == before
    assert finished.banner.sentence() == ""


@pytest.mark.parametrize("name", ["missing/out.jsonl", "", "file/out.csv"])
def test_a_path_that_can_not_be_written_is_explained_and_the_run_is_kept(finished, dialogs, tmp_path, name):
    (tmp_path / "file").write_text("")
    dialogs.export_path = tmp_path / name if name else tmp_path
    finished.menus.export.trigger()
    assert finished.banner.sentence().endswith(".")
    assert len(finished.banner.sentence()) > 20
    dialogs.export_path = tmp_path / "good.jsonl"
    finished.menus.export.trigger()
    assert dialogs.export_path.exists()


def test_a_failed_export_leaves_the_file_before_it_untouched(finished, dialogs, tmp_path, monkeypatch):
    target = tmp_path / "out.jsonl"
    target.write_text("precious")
    dialogs.export_path = target

    def no_space(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    finished.menus.export.trigger()
    assert "space" in finished.banner.sentence()
    assert target.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".outrider")] == []


def test_a_failed_run_can_be_exported_too(window, session, dialogs, run_to_end, tmp_path):
    session.fail_after = (2, "It broke.")
    run_to_end(window)
    dialogs.export_path = tmp_path / "failed.jsonl"
    window.menus.export.trigger()
    assert read_run_log(dialogs.export_path).summary["error"] == "It broke."
