"""Deleting models: after a yes, and never what ships with Outrider, is being used or is on its way."""

from __future__ import annotations

import threading

import pytest

from app.tools.models.downloads import DownloadState
from app.tools.models.table import Column
from tests.fakes_app import TARGET, fake_services
from tests.fakes_models_window import LARGE, SMALL, column, open_models, small_hub, until, wait_for_state


@pytest.fixture
def hub():
    return small_hub()


@pytest.fixture
def make(make_window, session, tmp_path, hub, qtbot):
    def build(**changes):
        vars(hub).update(changes)
        return open_models(make_window(fake_services(session, tmp_path, hub)), hub, qtbot)

    return build


def test_a_model_is_deleted_after_a_yes(make, hub, dialogs, qtbot):
    dialogs.says_yes = True
    window, panel = make()
    panel.table.select(LARGE.ref)
    panel.details.delete.click()
    until(qtbot, lambda: "large" not in column(panel, Column.NAME))
    assert hub.removed == [LARGE.ref]
    assert dialogs.asked[-1].frees_bytes == LARGE.size_bytes
    assert LARGE.ref not in window.models._library.refs


def test_a_model_is_kept_after_a_no(make, hub, dialogs, qtbot):
    _, panel = make()
    panel.table.select(LARGE.ref)
    panel.details.delete.click()
    until(qtbot, lambda: len(dialogs.asked) == 1)
    assert hub.removed == []
    assert "large" in column(panel, Column.NAME)


def test_what_ships_with_outrider_can_not_be_deleted(make):
    _, panel = make()
    panel.table.select(TARGET.ref)
    assert not panel.details.delete.isEnabled()
    assert "Hub cache" in panel.details.delete.toolTip()


def test_a_deletion_that_fails_is_told(make, dialogs, qtbot):
    def fail(_ref):
        raise PermissionError("in use")

    dialogs.says_yes = True
    _, panel = make(remove=fail)
    panel.table.select(LARGE.ref)
    panel.details.delete.click()
    until(qtbot, lambda: "could not be deleted" in panel.banner.sentence())


def test_models_of_a_run_that_goes_are_not_deleted(make, hub, session, dialogs, qtbot):
    dialogs.says_yes = True
    session.gate = threading.Semaphore(1)
    window, panel = make()
    panel.table.select(SMALL.ref)
    panel.details.use_draft.click()
    window.prompt.run_button.click()
    until(qtbot, lambda: window.run_view.metrics.totals.steps == 1)
    panel.details.delete.click()
    assert "run" in panel.banner.sentence()
    assert hub.removed == []


def test_a_model_on_its_way_is_not_deleted(make, hub, dialogs, qtbot):
    dialogs.says_yes = True
    hub.gate = threading.Semaphore(1)
    window, panel = make()
    window.models.downloads.get(LARGE.ref, restart=True)
    wait_for_state(qtbot, window, LARGE.ref, DownloadState.RUNNING)
    panel.table.select(LARGE.ref)
    panel.details.delete.click()
    assert "downloaded" in panel.banner.sentence()
    assert hub.removed == []
