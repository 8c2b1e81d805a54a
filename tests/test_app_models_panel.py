"""The models window: what is here is listed and described, what is got can be stopped, what is deleted is asked for."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QLineEdit

from app.model_store import DownloadState
from app.view_models.model_text import age_text, bytes_of_text, bytes_text, count_text, duration_text
from app.widgets.models_panel import download_line
from app.widgets.models_suggestion_row import OFFLINE
from app.widgets.models_table import SORT_ROLE, Column
from core.errors import OutriderError
from core.models.catalogue import EMBEDDED_TITLES, ModelOrigin
from core.models.suggestions import SUGGESTIONS
from tests.fakes_app import DRAFT, TARGET, fake_services
from tests.fakes_models import FakeHub, hub_entry, make_details

SMALL = hub_entry("owner/small-instruct", 269_000_000, days=1)
LARGE = hub_entry("other/large", 3_400_000_000, days=40)
NEW = SUGGESTIONS[1].ref


def until(qtbot, holds):
    """Wait longer than anything here takes, even on a machine that does much else."""
    qtbot.waitUntil(holds, timeout=30_000)


@pytest.fixture
def hub():
    return FakeHub(
        entries=[SMALL, LARGE],
        details={SMALL.ref: make_details("small-instruct", is_instruct=True, context_length=2048)},
    )


@pytest.fixture
def make(make_window, session, tmp_path, hub, qtbot):
    """A window whose models window is open, with all details read."""

    def build(**changes):
        window = make_window(replace(fake_services(session, tmp_path, hub), **changes))
        window.models.open()
        panel = window.models.window
        until(qtbot, lambda: panel.table.count() == 2 + len(hub.entries))
        until(qtbot, lambda: not window.models._library.undescribed())
        return window, panel

    return build


def column(panel, column):
    model = panel.table.model()
    return [model.index(row, column).data() for row in range(model.rowCount())]


def download_of(window, ref):
    return next((download for download in window.models.store.downloads if download.ref == ref), None)


def wait_for_state(qtbot, window, ref, state):
    until(qtbot, lambda: getattr(download_of(window, ref), "state", None) is state)


# --- What is here ---


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
    with qtbot.waitSignal(window.checker.scanned):
        window.models.scan()
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

    window = make_window(replace(fake_services(session, tmp_path, hub), find_models=fail))
    window.models.open()
    until(qtbot, lambda: window.models.window.banner.sentence() == "The cache can't be read.")


# --- Use ---


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

    window = make_window(replace(fake_services(session, tmp_path, hub), pair_problem=problem))
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


# --- Get ---


def test_a_typed_id_is_downloaded_with_progress_and_listed(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    window, panel = make()
    panel.tabs.setCurrentIndex(1)
    qtbot.keyClicks(panel.suggestions.edit, " someone/something ")
    qtbot.keyClick(panel.suggestions.edit, Qt.Key.Key_Return)
    hub.gate.release(3)
    row = panel.shelf.row("someone/something")
    until(qtbot, lambda: row.note.text() == "300 MB of 1.0 GB · 18.2 MB/s · 38 s left")
    assert row.bar.value() == 300
    assert row.percent.text() == "30%"
    assert window.status.download.text() == "Getting something 30%"
    hub.gate.release(100)
    wait_for_state(qtbot, window, "someone/something", DownloadState.DONE)
    until(qtbot, lambda: "something" in column(panel, Column.NAME))
    assert window.status.download.text() == ""
    assert hub.calls == [("someone/something", False)]


def test_a_suggestion_shows_its_size_and_where_it_stands(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    window, panel = make()
    row = next(row for row in panel.suggestions.rows if row.suggestion.ref == NEW)
    assert bytes_text(row.suggestion.download_bytes) in row.button.accessibleName()
    row.button.click()
    until(qtbot, lambda: row.word.text() == "Getting…")
    hub.gate.release(100)
    until(qtbot, lambda: row.word.text() == "Here")
    assert NEW in window.models._library.refs


def test_cancel_keeps_what_came_and_resume_goes_on_from_there(make, hub, qtbot):
    hub.gate = threading.Semaphore(4)
    window, panel = make()
    panel.get_requested.emit(NEW, False)
    row = panel.shelf.row(NEW)
    until(qtbot, lambda: row.percent.text() == "40%")
    row.cancel.click()
    wait_for_state(qtbot, window, NEW, DownloadState.STOPPED)
    assert row.note.text() == "Stopped. 400 MB of 1.0 GB are kept."
    assert not row.cancel.isVisibleTo(panel)
    hub.gate.release(100)
    row.resume.click()
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)
    assert hub.calls == [(NEW, False), (NEW, False)]
    row.dismiss.click()
    assert panel.shelf.row(NEW) is None
    assert not panel.shelf.isVisibleTo(panel)


def test_start_over_begins_anew(make, hub, qtbot):
    hub.gate = threading.Semaphore(4)
    window, panel = make()
    panel.get_requested.emit(NEW, False)
    row = panel.shelf.row(NEW)
    until(qtbot, lambda: row.percent.text() == "40%")
    row.cancel.click()
    wait_for_state(qtbot, window, NEW, DownloadState.STOPPED)
    row.restart.click()
    wait_for_state(qtbot, window, NEW, DownloadState.RUNNING)
    hub.gate.release(1)
    until(qtbot, lambda: row.percent.text() == "10%")
    assert hub.calls[-1] == (NEW, True)


def test_a_failure_is_a_sentence_in_the_row_and_can_be_resumed(make, hub, qtbot):
    hub.fail_after = (5, "The connection broke. Resume when the network is back.")
    window, panel = make()
    panel.get_requested.emit(NEW, False)
    wait_for_state(qtbot, window, NEW, DownloadState.FAILED)
    row = panel.shelf.row(NEW)
    assert row.note.text() == "The connection broke. Resume when the network is back."
    assert row.resume.isVisibleTo(panel)
    assert next(item for item in panel.suggestions.rows if item.suggestion.ref == NEW).button.text() == "Resume"
    hub.fail_after = None
    row.resume.click()
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)


@pytest.mark.parametrize(
    ("error", "cause"),
    [(ValueError("odd"), "ValueError: odd"), (RuntimeError(), "RuntimeError"), (PermissionError(13, "no"), "no")],
)
def test_an_odd_failure_is_a_sentence_too(make, qtbot, error, cause):
    def fail(_ref, **_):
        raise error

    window, panel = make(download=fail)
    panel.get_requested.emit(NEW, False)
    wait_for_state(qtbot, window, NEW, DownloadState.FAILED)
    assert panel.shelf.row(NEW).note.text() == f"The download failed: {cause}."


def test_downloads_come_one_after_the_other_and_a_waiting_one_can_be_cancelled(make, hub, qtbot):
    hub.gate = threading.Semaphore(1)
    window, panel = make()
    for ref in ("a/first", "b/second", "c/third"):
        panel.get_requested.emit(ref, False)
    until(qtbot, lambda: window.status.download.text() == "Getting first 10%, 2 more")
    panel.shelf.row("b/second").cancel.click()
    assert download_of(window, "b/second").state is DownloadState.STOPPED
    hub.gate.release(100)
    wait_for_state(qtbot, window, "c/third", DownloadState.DONE)
    assert hub.calls == [("a/first", False), ("c/third", False)]
    assert download_of(window, "b/second").state is DownloadState.STOPPED


def test_a_pair_is_got_with_one_button_where_none_of_its_drafts_is_here(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    target = next(item for item in SUGGESTIONS if len(item.drafts) == 2)
    window, panel = make()
    panel.tabs.setCurrentIndex(1)
    rows = {row.suggestion.ref: row for row in panel.suggestions.rows}
    until(qtbot, lambda: rows[target.ref].pair.isVisibleTo(panel))
    rows[target.ref].pair.click()
    assert [download.ref for download in window.models.store.downloads] == [target.drafts[0], target.ref]
    assert not rows[target.ref].pair.isVisibleTo(panel)


def test_a_draft_that_ships_with_outrider_is_never_downloaded(make, qtbot):
    target = next(item for item in SUGGESTIONS if EMBEDDED_TITLES.keys() & set(item.drafts))
    _, panel = make()
    panel.tabs.setCurrentIndex(1)
    row = next(row for row in panel.suggestions.rows if row.suggestion is target)
    until(qtbot, lambda: row.button.isVisibleTo(panel))
    assert not row.pair.isVisibleTo(panel)


def test_a_target_whose_draft_is_here_comes_alone(make, hub, qtbot):
    target = next(item for item in SUGGESTIONS if len(item.drafts) == 2)
    hub.entries.append(hub_entry(target.drafts[1], 500_000_000))
    _, panel = make()
    panel.tabs.setCurrentIndex(1)
    row = next(row for row in panel.suggestions.rows if row.suggestion is target)
    until(qtbot, lambda: row.button.isVisibleTo(panel))
    assert not row.pair.isVisibleTo(panel)


def test_getting_a_model_twice_is_getting_it_once(make, hub, qtbot):
    hub.gate = threading.Semaphore(1)
    window, panel = make()
    for _ in range(3):
        panel.get_requested.emit(NEW, False)
    hub.gate.release(100)
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)
    assert hub.calls == [(NEW, False)]


def test_a_download_goes_on_while_its_window_is_closed_and_the_strip_leads_back(make, hub, qtbot):
    hub.gate = threading.Semaphore(2)
    window, panel = make()
    panel.get_requested.emit(NEW, False)
    panel.close()
    until(qtbot, lambda: "20%" in window.status.download.text())
    window.status.download.click()
    assert panel.isVisible()
    panel.close()
    hub.fail_after = (0, "")
    hub.gate.release(100)
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)


def test_a_failure_while_its_window_is_closed_is_told_in_the_main_window(make, hub, qtbot):
    hub.fail_after = (1, "There is no space left.")
    window, panel = make()
    panel.close()
    panel.get_requested.emit(NEW, False)
    until(qtbot, lambda: window.banner.sentence() == "There is no space left.")


def test_what_comes_and_goes_moves_nothing_above_it(make, hub, qtbot):
    hub.gate = threading.Semaphore(3)
    window, panel = make()
    window.show()
    panel.tabs.setCurrentIndex(1)
    places = [
        (widget, widget.mapTo(widget.window(), widget.rect().topLeft())) for widget in (panel.pages, window.prompt)
    ]
    sizes = window.prompt.size()
    panel.get_requested.emit(NEW, False)
    until(qtbot, lambda: "30%" in window.status.download.text())
    until(qtbot, lambda: panel.shelf.height() > 0)
    assert [(widget, widget.mapTo(widget.window(), widget.rect().topLeft())) for widget, _ in places] == places
    assert window.prompt.size() == sizes


def test_offline_nothing_can_be_got_and_the_reason_is_said(make, hub):
    hub.is_offline = True
    _, panel = make()
    panel.tabs.setCurrentIndex(1)
    assert panel.suggestions.note.text() == OFFLINE
    panel.suggestions.edit.setText("someone/something")
    assert not panel.suggestions.get.isEnabled()
    assert all(not row.button.isEnabled() and row.button.toolTip() == OFFLINE for row in panel.suggestions.rows)
    panel.suggestions.edit.returnPressed.emit()
    assert hub.calls == []


def test_a_gated_model_says_so(make):
    _, panel = make()
    gated = next(row for row in panel.suggestions.rows if row.suggestion.is_gated)
    assert "Gated" in {label.text() for label in gated.findChildren(type(gated.word))}


# --- Delete ---


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
    window, panel = make()
    panel.table.select(LARGE.ref)
    with qtbot.waitSignal(window.checker.removal_planned):
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
    panel.get_requested.emit(LARGE.ref, True)
    wait_for_state(qtbot, window, LARGE.ref, DownloadState.RUNNING)
    panel.table.select(LARGE.ref)
    panel.details.delete.click()
    assert "downloaded" in panel.banner.sentence()
    assert hub.removed == []


# --- Coming and going ---


def test_closing_in_the_middle_of_a_download_stops_it_and_leaves_no_thread(make, hub, qtbot):
    hub.gate = threading.Semaphore(2)
    window, panel = make()
    panel.get_requested.emit(NEW, False)
    panel.get_requested.emit("a/later", False)
    until(qtbot, lambda: "20%" in window.status.download.text())
    window.close()
    until(qtbot, lambda: window.threads.is_closed)
    assert not panel.isVisible()
    assert hub.kept[NEW] == 2
    assert hub.calls == [(NEW, False)]


def test_a_run_goes_on_beneath_the_models_window(make, run_to_end, session):
    window, panel = make()
    assert not panel.isModal()
    run_to_end(window)
    assert len(session.requests) == 1


def test_everything_can_be_reached_and_is_named(make):
    _, panel = make()
    assert panel.suggestions.rows
    for kind in (QAbstractButton, QLineEdit, QAbstractItemView):
        for widget in panel.findChildren(kind):
            if widget.objectName().startswith("qt_") or isinstance(widget.parent(), QLineEdit):
                continue
            if type(widget).__name__ in {"QHeaderView", "QTableCornerButton", "QAbstractButton"}:
                continue
            assert widget.objectName(), widget
            assert widget.accessibleName() or getattr(widget, "text", str)(), widget.objectName()
            assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus or widget.objectName() == "dismissButton", widget


# --- Words ---


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (269_060_552, "269 MB"), (3_422_777_952, "3.4 GB"), (999_960_000, "1.0 GB")],
)
def test_sizes(count, text):
    assert bytes_text(count) == text


def test_parts_of_a_size_say_a_common_unit_once():
    assert bytes_of_text(312_000_000, 724_000_000) == "312 of 724 MB"
    assert bytes_of_text(312_000_000, 7_240_000_000) == "312 MB of 7.2 GB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (42.4, "42 s"),
        (59.7, "1 min"),
        (83, "1 min 25 s"),
        (600, "10 min"),
        (3599, "1 h 0 min"),
        (7265, "2 h 1 min"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_counts_and_ages():
    assert [count_text(n) for n in (16_500_000, 134_515_008, 1_711_376_384, 999_900_000)] == [
        "16.5 M",
        "135 M",
        "1.71 B",
        "1 B",
    ]
    day = 86_400
    assert [age_text(day * (100 - ago), day * 100) for ago in (0, 1, 59, 90)] == [
        "Today",
        "Yesterday",
        "59 days ago",
        "3 months ago",
    ]


def test_nothing_is_said_of_downloads_that_are_over():
    assert download_line(()) == ""


def test_the_cache_folder_is_shown_from_home_on():
    from app.widgets.models_panel import _short

    assert _short(Path.home() / "x") == str(Path("~/x"))
