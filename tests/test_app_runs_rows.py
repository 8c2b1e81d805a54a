"""The rows of kept runs: put together when they are looked at, and the rest ahead of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.tools.runs import run_list
from app.tools.runs.run_list import RunColumn
from app.tools.runs.table import RunsTableModel
from core.runlog.store import RunStore
from tests.fakes_runs import keep_run, until

NUM_RUNS = 6


@pytest.fixture
def runs(tmp_path):
    for index in range(NUM_RUNS):
        keep_run(tmp_path, index, num_draft_tokens=1 + (5 * index) % NUM_RUNS)
    return tuple(RunStore(tmp_path).runs())


@pytest.fixture
def made(monkeypatch):
    """The ids of the runs whose rows were put together, in order."""
    found = []
    monkeypatch.setattr(run_list, "tooltip", lambda run: found.append(run.id) or "more")
    return found


@pytest.fixture
def model(qtbot):
    parent = QWidget()
    qtbot.addWidget(parent)
    yield RunsTableModel(parent)  # noqa: PT022 - the parent must live as long


def test_only_what_is_looked_at_is_made_at_once_and_the_rest_later(model, runs, made, qtbot):
    model.show_runs(runs)
    assert model.rowCount() == NUM_RUNS
    assert made == []
    assert model.data(model.index(3, RunColumn.NAME), Qt.ItemDataRole.ToolTipRole) == "more"
    assert made == [runs[3].id]
    until(qtbot, lambda: not model._ahead.is_going)
    assert sorted(made) == sorted(run.id for run in runs)


def test_a_run_that_has_changed_is_made_anew_and_the_others_are_not(model, runs, made, qtbot):
    model.show_runs(runs)
    until(qtbot, lambda: not model._ahead.is_going)
    made.clear()
    renamed = replace(runs[2], name="another name")
    model.show_runs((*runs[:2], renamed, *runs[3:]))
    until(qtbot, lambda: not model._ahead.is_going)
    assert made == [renamed.id]
    assert model.data(model.index(2, RunColumn.NAME)) == "another name"


def test_a_list_that_is_sorted_before_all_rows_are_made_is_in_order(model, runs):
    model.show_runs(runs)
    model.sort(RunColumn.K, Qt.SortOrder.AscendingOrder)
    shown = [model.data(model.index(row, RunColumn.K)) for row in range(NUM_RUNS)]
    assert shown == ["1", "2", "3", "4", "5", "6"]


def test_a_list_that_is_replaced_before_all_rows_are_made_shows_the_new_one(model, runs, made, qtbot):
    model.show_runs(runs)
    model.show_runs(runs[:2])
    until(qtbot, lambda: not model._ahead.is_going)
    assert sorted(made) == sorted(run.id for run in runs[:2])
    assert [model.data(model.index(row, RunColumn.NAME)) for row in range(2)] == [run.title for run in runs[:2]]


def test_a_run_that_comes_back_is_not_made_again(model, runs, made, qtbot):
    model.show_runs(runs)
    until(qtbot, lambda: not model._ahead.is_going)
    made.clear()
    model.show_runs(runs[2:])
    model.show_runs(runs)
    until(qtbot, lambda: not model._ahead.is_going)
    assert made == []
    assert model.runs() == list(runs)
