"""The models window: what is here is listed, described, filtered and sorted, and chosen for the main window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QLineEdit

from app.tools.models.downloads import DownloadState
from app.tools.models.get import OFFLINE
from app.tools.models.table import SORT_ROLE, Column
from core.errors import OutriderError
from core.models.catalogue import ModelOrigin
from tests.fakes_app import DRAFT, TARGET, fake_services
from tests.fakes_models import hub_entry, make_details
from tests.fakes_models_window import LARGE, SMALL, column, open_models, settle, small_hub, until, wait_for_state


@pytest.fixture
def hub():
    return small_hub()


@pytest.fixture
def make(make_window, session, tmp_path, hub, qtbot):
    def build(**changes):
        vars(hub).update(changes)
        return open_models(make_window(fake_services(session, tmp_path, hub)), hub, qtbot)

    return build


def test_every_model_is_listed_with_what_it_is(make):
    _, panel = make()
    assert column(panel, Column.NAME) == [TARGET.title, DRAFT.title, "small-instruct", "large"]
    row = [panel.table.model().index(2, item).data() for item in Column]
    assert row == ["small-instruct", "135 M", "bfloat16", "2,048", "49,152", "269 MB", "Yesterday"]


def test_base_and_instruct_models_are_told_apart(make):
    _, panel = make()
    panel.table.select(SMALL.ref)
    assert panel.details.badge.text() == "Instruct"
    panel.table.select(LARGE.ref)
    assert panel.details.badge.text() == "Base"


def test_a_damaged_model_stays_in_the_list_with_its_sentence(make, hub):
    hub.details[LARGE.ref] = "The file model.safetensors is cut off."
    _, panel = make()
    panel.table.select(LARGE.ref)
    assert panel.details.problem.text() == "The file model.safetensors is cut off."
    assert panel.details.badge.text() == "Damaged"


def test_a_damaged_model_of_the_hub_is_got_again_and_then_whole(make, hub, qtbot):
    hub.details[LARGE.ref] = "The file model.safetensors is cut off."
    window, panel = make()
    panel.table.select(SMALL.ref)
    assert not panel.details.again.isVisibleTo(panel)
    panel.table.select(LARGE.ref)
    assert panel.details.again.isVisibleTo(panel)
    hub.repairs[LARGE.ref] = make_details("large")
    panel.details.again.click()
    wait_for_state(qtbot, window, LARGE.ref, DownloadState.DONE)
    assert hub.calls == [(LARGE.ref, True)]
    until(qtbot, lambda: panel.details.badge.text() == "Base")
    assert not panel.details.again.isVisibleTo(panel)


def test_a_damaged_folder_of_the_users_own_is_not_got_again(make, hub):
    folder = replace(LARGE, ref="owner/folder", origin=ModelOrigin.FOLDER)
    hub.entries.append(folder)
    hub.details[folder.ref] = "The file model.safetensors is cut off."
    _, panel = make()
    panel.table.select(folder.ref)
    assert panel.details.problem.text()
    assert not panel.details.again.isVisibleTo(panel)


def test_offline_a_damaged_model_is_not_got_again(make, hub):
    hub.is_offline = True
    hub.details[LARGE.ref] = "The file model.safetensors is cut off."
    _, panel = make()
    panel.table.select(LARGE.ref)
    assert not panel.details.again.isEnabled()
    assert panel.details.again.toolTip() == OFFLINE


def test_words_filter_the_list_and_none_is_said(make):
    _, panel = make()
    panel.filter.setText("instr")
    assert column(panel, Column.NAME) == ["small-instruct"]
    assert panel.details.ref == SMALL.ref
    panel.filter.setText("nothing like it")
    assert "No model" in panel.empty.text()
    assert panel._list.currentWidget() is panel.empty
    assert not panel.details.drafts.isVisibleTo(panel)
    assert not panel.details.copy.isVisibleTo(panel)
    panel.filter.clear()
    assert panel.table.count() == 4


def test_the_cross_of_the_filter_stands_in_its_middle(make, qtbot):
    _, panel = make()
    panel.filter.setText("x")
    cross = panel.filter.findChild(QAbstractButton)
    until(qtbot, cross.isVisible)
    assert abs(cross.geometry().center().y() - panel.filter.rect().center().y()) <= 1
    assert cross.height() <= panel.filter.height()


def test_figures_are_sorted_as_figures(make):
    _, panel = make()
    panel.table.sortByColumn(Column.SIZE, Qt.SortOrder.DescendingOrder)
    sizes = [panel.table.model().index(row, Column.SIZE).data(SORT_ROLE) for row in range(4)]
    assert sizes == sorted(sizes, reverse=True)
    assert column(panel, Column.NAME)[0] == "large"


def test_the_selection_outlives_a_scan(make, qtbot):
    window, panel = make()
    panel.table.select(LARGE.ref)
    window.models.scan()
    settle(qtbot, window)
    assert panel.details.ref == LARGE.ref


def test_details_name_path_and_drafts_that_suit(make, qtbot):
    _, panel = make()
    panel.table.select(LARGE.ref)
    until(qtbot, lambda: "small-instruct" in panel.details.drafts.text())
    assert TARGET.title in panel.details.drafts.text()
    assert panel.details.path.text() == str(LARGE.path)
    panel.details.copy.click()
    assert QGuiApplication.clipboard().text() == str(LARGE.path)


def test_the_foot_says_how_much_there_is_and_how_much_room(make):
    _, panel = make()
    assert panel.foot.text().startswith("4 models, 3.7 GB · 41.2 GB free · downloads go to ")


def test_a_scan_that_fails_is_told_in_the_models_window(make_window, session, tmp_path, hub, qtbot):
    def fail():
        raise OutriderError("The cache can't be read.")

    hub.find_models = fail
    window = make_window(fake_services(session, tmp_path, hub))
    window.models.open()
    until(qtbot, lambda: window.models.window.banner.sentence() == "The cache can't be read.")


def test_use_as_target_and_as_draft_choose_in_the_main_window(make, qtbot):
    window, panel = make()
    panel.table.select(LARGE.ref)
    panel.details.use_target.click()
    panel.table.select(SMALL.ref)
    panel.details.use_draft.click()
    assert (window.controls.target.ref, window.controls.draft.ref) == (LARGE.ref, SMALL.ref)
    assert window.controls.request("x").draft == SMALL.ref


def test_a_drafter_that_was_made_for_a_target_comes_with_it_and_is_no_target(make, hub):
    hub.entries.append(hub_entry("owner/drafter", 30_000_000, serves=LARGE.ref, origin=ModelOrigin.KEPT))
    window, panel = make()
    panel.table.select(LARGE.ref)
    panel.details.use_target.click()
    assert window.controls.draft.ref == "owner/drafter"
    assert panel.details.drafts.text().splitlines()[0] in {"drafter", "Checking…"}
    panel.table.select("owner/drafter")
    assert panel.details.badge.text() == "Drafter"
    assert not panel.details.use_target.isEnabled()
    assert LARGE.ref in panel.details.use_target.toolTip()


def test_a_draft_that_fits_is_chosen_where_the_old_one_does_not(make_window, session, tmp_path, hub, qtbot):
    def problem(draft, target):
        return "No." if draft in {DRAFT.ref, TARGET.ref} and target == LARGE.ref else None

    hub.pair_problem = problem
    window = make_window(fake_services(session, tmp_path, hub))
    window.models.scan()
    until(qtbot, lambda: LARGE.ref in window.models._library.refs)
    combo = window.controls.target.combo
    combo.setCurrentIndex(combo.findText("large"))
    combo.activated.emit(combo.currentIndex())
    until(qtbot, lambda: window.controls.draft.ref == SMALL.ref)
    assert window.controls.models.problem() is None


def test_both_dropdowns_end_in_a_way_to_get_more(window):
    for picker in (window.controls.target, window.controls.draft):
        combo, before = picker.combo, picker.ref
        last = combo.count() - 1
        assert combo.itemText(last) == "Get more models…"
        combo.setCurrentIndex(last)
        combo.activated.emit(last)
        assert window.models.window.tabs.currentIndex() == 1
        assert window.models.window.isVisible()
        assert picker.ref == before
        window.models.window.close()


def test_a_run_goes_on_beneath_the_models_window(make, run_to_end, session):
    window, panel = make()
    assert not panel.isModal()
    run_to_end(window)
    assert len(session.requests) == 1


def test_everything_can_be_reached_and_is_named(make):
    _, panel = make()
    assert panel.get_page.rows
    for kind in (QAbstractButton, QLineEdit, QAbstractItemView):
        for widget in panel.findChildren(kind):
            if widget.objectName().startswith("qt_") or isinstance(widget.parent(), QLineEdit):
                continue
            if type(widget).__name__ in {"QHeaderView", "QTableCornerButton", "QAbstractButton"}:
                continue
            assert widget.objectName(), widget
            assert widget.accessibleName() or getattr(widget, "text", str)(), widget.objectName()
            assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus or widget.objectName() == "dismissButton", widget


def test_the_cache_folder_is_shown_from_home_on(make):
    _, panel = make()
    assert panel.foot.text().endswith(f"downloads go to {Path('~') / '.cache' / 'models'}")
