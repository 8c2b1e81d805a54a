"""The models window: what is here is listed, described, filtered, sorted, chosen for the main window, and deleted."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.controller import RunState
from app.setup.model_library import ModelLibrary
from app.setup.model_picker import BROWSE_TITLE, ModelRole
from app.theme import LIGHT
from app.tools.models.downloads import DownloadState
from app.tools.models.suggestions import OFFLINE
from app.tools.models.window import model_row
from app.widgets.title_delegate import SUBTITLE_ROLE
from core.errors import OutriderError
from core.models.catalogue import ModelOrigin, embedded_models
from tests.fakes_app import assert_no_markup, texts
from tests.fakes_models import (
    DRAFT,
    LARGE,
    SMALL,
    TARGET,
    hub_entry,
    make_details,
    names,
    open_models,
    small_hub,
    until,
    wait_for_state,
)

DAMAGED = "The file model.safetensors is cut off."


@pytest.fixture
def hub(engine_imported, monkeypatch):
    return small_hub().install(monkeypatch)


@pytest.fixture
def make(make_window, hub, qtbot):
    return lambda: open_models(make_window(), hub, qtbot)


# --- What is here -----------------------------------------------------------------------------------------------


def test_every_model_is_listed_with_what_it_is(make):
    _, panel = make()
    assert names(panel) == [TARGET.title, DRAFT.title, "small-instruct", "large"]
    assert texts(panel.table)[2] == ["small-instruct", "135 M", "bfloat16", "2,048", "49,152", "269 MB"]
    for ref, badge in ((SMALL.ref, "Instruct"), (LARGE.ref, "Base")):
        panel.table.select([ref])
        assert panel.details.badge.text() == badge
    assert panel.foot.text() == f"4 models, 3.7 GB · 41.2 GB free · downloads: {Path('~') / '.cache' / 'models'}"
    panel.table.select([TARGET.ref])
    assert not panel.details.delete.isEnabled(), "what ships with Outrider"
    assert "Hub cache" in panel.details.delete.toolTip()
    panel.table.sortByColumn(5, Qt.SortOrder.DescendingOrder)
    sizes = [entry.size_bytes for entry in panel.table.items()]
    assert sizes == sorted(sizes, reverse=True)
    assert names(panel)[0] == "large"


def test_nothing_of_a_model_is_shown_as_markup(make, hub):
    picture = "<img src='/dev/zero'><b>&amp;\u202egpj"
    strange = replace(hub_entry("owner/strange", 1), title=picture)
    hub.entries.append(strange)
    hub.details[strange.ref] = make_details(picture, architecture=picture, precision=picture)
    window, panel = make()
    panel.table.select([strange.ref])
    assert_no_markup(picture, panel, window)


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_damaged_model_of_the_hub_can_be_downloaded_again(make, hub, qtbot, is_offline):
    hub.is_offline = is_offline
    folder = replace(LARGE, ref="owner/folder", origin=ModelOrigin.FOLDER)
    hub.entries.append(folder)
    hub.details |= {LARGE.ref: DAMAGED, folder.ref: DAMAGED}
    window, panel = make()
    for ref in (SMALL.ref, folder.ref):  # One that is whole, and one of the user's own.
        panel.table.select([ref])
        assert not panel.details.again.isVisibleTo(panel)
    panel.table.select([LARGE.ref])
    assert (panel.details.problem.text(), panel.details.badge.text()) == (DAMAGED, "Damaged")
    assert panel.details.again.isVisibleTo(panel)
    assert panel.details.again.isEnabled() != is_offline
    if is_offline:
        assert OFFLINE in panel.details.again.toolTip()
        return
    hub.repairs[LARGE.ref] = make_details("large")
    panel.details.again.click()
    wait_for_state(qtbot, window, LARGE.ref, DownloadState.DONE)
    assert hub.calls == [(LARGE.ref, True)]
    until(qtbot, lambda: panel.details.badge.text() == "Base")
    assert not panel.details.again.isVisibleTo(panel)


def test_words_filter_the_list_and_a_search_without_matches_says_so(make):
    _, panel = make()
    panel.filter.setText("instr")
    assert names(panel) == ["small-instruct"]
    assert panel.details.ref == SMALL.ref
    panel.filter.setText("nothing like it")
    assert "No model" in panel.table.hint.text()
    assert not panel.details.drafts.isVisibleTo(panel)
    assert not panel.details.copy.isVisibleTo(panel)
    panel.filter.clear()
    assert panel.table.count() == 4


def test_details_name_path_and_drafts_outlive_a_scan_and_choose_in_the_main_window(make, hub, qtbot):
    window, panel = make()
    panel.table.select([LARGE.ref])
    until(qtbot, lambda: "small-instruct" in panel.details.drafts.text())
    assert TARGET.title in panel.details.drafts.text()
    assert panel.details.path.text() == str(LARGE.path)
    panel.details.copy.click()
    assert QGuiApplication.clipboard().text() == str(LARGE.path)
    hub.entries.append(hub_entry("owner/another", 1_000))
    window.models.scan()
    until(qtbot, lambda: panel.table.count() == 5)
    assert panel.details.ref == LARGE.ref
    panel.details.use_target.click()
    panel.table.select([SMALL.ref])
    panel.details.use_draft.click()
    assert (window.controls.target.ref, window.controls.draft.ref) == (LARGE.ref, SMALL.ref)
    assert panel.details.use_target.isEnabled()
    assert not panel.details.use_draft.isEnabled()
    assert window.controls.request("x").draft == SMALL.ref
    model = panel.table.model()
    said = [model.index(row, 0).data(SUBTITLE_ROLE) for row in range(model.rowCount())]
    roles = {panel.table.items()[row].ref: text for row, text in enumerate(said) if text.startswith("Current ")}
    assert {ref: text.split(" · ")[0] for ref, text in roles.items()} == {
        LARGE.ref: "Current target",
        SMALL.ref: "Current draft",
    }


def test_a_scan_that_fails_is_shown_in_the_models_window(make_window, hub, qtbot):
    hub.scan_error = OutriderError("The cache can't be read.")
    window = make_window()
    window.models.open()
    until(qtbot, lambda: window.models.window.banner.sentence() == "The cache can't be read.")


# --- Choosing ---------------------------------------------------------------------------------------------------


def test_a_drafter_made_for_a_target_is_chosen_with_it_and_cannot_be_a_target(make, hub):
    hub.entries.append(hub_entry("owner/drafter", 30_000_000, serves=LARGE.ref, origin=ModelOrigin.KEPT))
    window, panel = make()
    panel.table.select([LARGE.ref])
    panel.details.use_target.click()
    assert window.controls.draft.ref == "owner/drafter"
    assert panel.details.drafts.text().splitlines()[0] in {"drafter", "Checking…"}
    panel.table.select(["owner/drafter"])
    assert panel.details.badge.text() == "Drafter"
    assert not panel.details.use_target.isEnabled()
    assert LARGE.ref in panel.details.use_target.toolTip()
    library = window.models.library
    assert library.take_questions("owner/drafter") == library.refs, "no draft was compared with it"


def test_a_draft_that_fits_is_chosen_where_the_old_one_does_not(make_window, hub, qtbot):
    ours, theirs = (TARGET.ref, DRAFT.ref), (SMALL.ref, LARGE.ref)
    hub.problems = dict.fromkeys([*itertools.product(ours, theirs), *itertools.product(theirs, ours)], "No.")
    window = make_window()
    window.models.scan()
    until(qtbot, lambda: LARGE.ref in window.models.library.refs)
    combo = window.controls.target.combo
    combo.setCurrentIndex(combo.findText("large"))
    combo.activated.emit(combo.currentIndex())
    until(qtbot, lambda: window.controls.draft.ref == SMALL.ref)
    for target, draft in ((TARGET, DRAFT), (LARGE, SMALL)):  # Both pairs are known now.
        window.controls.models.choose(ModelRole.TARGET, target.ref)
        assert (window.controls.draft.ref, window.controls.models.problem()) == (draft.ref, None)
    hub.entries.remove(LARGE)
    window.models.scan()
    until(qtbot, lambda: (window.controls.target.ref, window.controls.draft.ref) == (TARGET.ref, DRAFT.ref))
    window.controls.models.choose(ModelRole.DRAFT, SMALL.ref)
    assert (window.controls.draft.ref, window.controls.models.problem()) == (SMALL.ref, "No."), "chosen by hand"


def test_both_dropdowns_end_in_a_way_to_get_more(window):
    for picker in (window.controls.target, window.controls.draft):
        combo, before = picker.combo, picker.ref
        last = combo.count() - 1
        assert combo.itemText(last) == BROWSE_TITLE
        combo.showPopup()
        combo.setCurrentIndex(last)
        combo.activated.emit(combo.currentIndex())  # As Qt does when an entry of the open list is chosen.
        combo.hidePopup()
        assert window.models.window.tabs.currentIndex() == 1
        assert window.models.window.isVisible()
        assert picker.ref == before
        window.models.window.close()


# --- Deleting ---------------------------------------------------------------------------------------------------


def test_a_model_is_deleted_only_after_a_yes_and_a_failure_is_reported(make, hub, session, dialogs, qtbot):
    """Just before, the engine drops it, since Windows deletes no file that is mapped."""
    window, panel = make()
    window.controller.warm_up()
    session.dropped = hub.removed

    def delete(key, says_yes=True, error=None):
        dialogs.says_yes, hub.removal_error = says_yes, error
        panel.table.select([LARGE.ref])
        qtbot.keyClick(panel.table, key)
        until(qtbot, lambda: window.jobs.is_idle and not window.controller.busy_sentence())
        assert dialogs.asked[-1].frees_bytes == LARGE.size_bytes

    delete(Qt.Key.Key_Delete, says_yes=False)
    assert hub.removed == []
    delete(Qt.Key.Key_Backspace, error=PermissionError("in use"))
    assert panel.banner.sentence() == f"The deletion of {LARGE.ref} failed: in use."
    assert LARGE.ref in window.models.library.refs
    assert hub.removed == [f"drop {LARGE.ref}"]
    delete(Qt.Key.Key_Backspace)
    assert hub.removed[1:] == [f"drop {LARGE.ref}", LARGE.ref]
    assert LARGE.ref not in window.models.library.refs


def test_until_a_model_is_deleted_nothing_starts_and_the_window_stays_and_no_engine_is_opened_for_it(
    make_window, hub, session, dialogs, qtbot, monkeypatch
):
    opened, deleting, release, remove = [], threading.Event(), threading.Event(), hub.remove

    def remove_slowly(ref):
        deleting.set()
        release.wait(10)
        return remove(ref)

    monkeypatch.setattr("core.models.remote.removal.remove", remove_slowly)
    dialogs.says_yes = True
    window, panel = open_models(make_window(lambda: opened.append(session) or session), hub, qtbot)
    panel.table.select([LARGE.ref])
    panel.details.delete.click()
    until(qtbot, deleting.is_set)
    window.prompt.run_button.click()
    assert window.controller.state is RunState.IDLE
    panel.details.delete.click()
    assert panel.banner.sentence() == (
        f"The deletion of {LARGE.ref} is in progress. Wait for it to end before you start, open or delete anything "
        "else."
    )
    window.close()
    assert not window.controller.is_closed
    release.set()
    until(qtbot, lambda: window.controller.is_closed and panel.banner.sentence() == "")
    assert hub.removed == [LARGE.ref]
    assert opened == []


@pytest.mark.parametrize("use", ["run", "download"])
def test_no_model_is_deleted_during_a_run_nor_one_that_is_being_downloaded(make, hub, session, dialogs, qtbot, use):
    dialogs.says_yes = True
    session.gate = hub.gate = threading.Semaphore(1)
    window, panel = make()
    panel.table.select([SMALL.ref])
    if use == "run":
        window.prompt.run_button.click()
        until(qtbot, lambda: bool(window.run_view.steps))
    else:
        window.models.downloads.get(SMALL.ref, restart=True)
        wait_for_state(qtbot, window, SMALL.ref, DownloadState.RUNNING)
    panel.details.delete.click()
    assert {"run": "The run is in progress", "download": "being downloaded"}[use] in panel.banner.sentence()
    assert hub.removed == []
    if use == "run":
        session.gate.release(1000)
        window.controller.stop()
        until(qtbot, lambda: not panel.banner.sentence())


def test_a_drafter_says_what_it_is_for():
    (entry,) = (entry for entry in embedded_models() if entry.serves)
    assert model_row(ModelLibrary([entry]), entry, "").subtitle == "For SmolLM2-135M-Instruct"


def test_a_narrow_window_hides_the_columns_that_matter_least_and_never_scrolls_sideways(
    make_window, qtbot, hub, apply_theme
):
    _, models = open_models(make_window(), hub, qtbot)
    table = models.table

    def shown():
        return [table.model().headerData(place, Qt.Orientation.Horizontal) for place in range(6)
                if not table.isColumnHidden(place)]  # fmt: skip

    models.resize(1280, 700)
    qtbot.waitUntil(lambda: len(shown()) == 6)
    models.resize(models.minimumWidth(), 700)
    qtbot.waitUntil(lambda: shown() == ["Model", "Parameters", "Stored as", "Size"])
    qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
    models.resize(1280, 700)
    qtbot.waitUntil(lambda: len(shown()) == 6)
    apply_theme(LIGHT, 1.5)
    models.resize(1024, 700)
    qtbot.waitUntil(lambda: shown() == ["Model", "Size"])
    qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
