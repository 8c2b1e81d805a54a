"""Choosing models: what can't work says why, and what is opened is remembered."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt

from app.dialogs import OpenKind
from app.settings import SettingsStore, WindowSettings
from app.setup.model_picker import METHOD_ROLE, ModelRole
from app.widgets.title_delegate import SUBTITLE_ROLE
from core.errors import ModelUnreadableError
from core.settings import LengthPolicy
from tests.fakes_models import DRAFT, MISMATCH, STRANGER, TARGET, until


def texts(combo):
    return [combo.itemText(index) for index in range(combo.count())]


def open_stranger(window, qtbot, role):
    window.models.open_model(STRANGER.ref)
    until(qtbot, lambda: STRANGER.ref in window.models.library.refs)
    window.controls.models.choose(role, STRANGER.ref)
    until(qtbot, lambda: not window.models.library.unchecked_drafts(window.controls.target.ref))


def test_the_main_window_says_that_a_model_can_not_be_opened_until_one_can(window, qtbot):
    window.models.open_model("somewhere/gone")
    until(qtbot, lambda: "somewhere/gone" in window.banner.sentence())
    window.models.open_model(STRANGER.ref)
    until(qtbot, lambda: STRANGER.ref in window.models.library.refs)
    assert window.banner.sentence() == ""


def test_a_draft_that_does_not_fit_says_why_and_can_not_be_run(window, qtbot):
    open_stranger(window, qtbot, ModelRole.DRAFT)
    qtbot.waitUntil(lambda: window.prompt.note.text() == MISMATCH)
    assert window.controls.draft.combo.property("invalid")
    assert not window.prompt.run_button.isEnabled()
    window.menus.run.trigger()
    assert window.banner.sentence() == "", "shown once, beside Run"
    window.controls.draft.combo.setCurrentIndex(1)
    assert window.prompt.run_button.isEnabled(), "another choice"
    assert not window.controls.draft.combo.property("invalid")


def test_a_draft_that_does_not_fit_comes_last_disabled_with_the_reason(window, qtbot):
    open_stranger(window, qtbot, ModelRole.TARGET)
    model = window.controls.draft.combo.model()
    qtbot.waitUntil(lambda: model.item(1).data(SUBTITLE_ROLE) == MISMATCH)
    assert (model.item(0).text(), model.item(0).isEnabled()) == (STRANGER.title, True)
    tree = model.index(window.controls.draft.combo.findData("draft-tree", METHOD_ROLE), 0).row()
    for row in (1, 2, tree):
        assert not model.item(row).isEnabled()
        assert "not compatible" in model.item(row).text()
        assert model.item(row).data(SUBTITLE_ROLE) == MISMATCH
        assert MISMATCH in model.item(row).data(Qt.ItemDataRole.AccessibleTextRole)


def test_a_method_without_a_draft_runs_where_the_pair_would_not(window, qtbot, run_to_end, session):
    open_stranger(window, qtbot, ModelRole.TARGET)
    qtbot.waitUntil(lambda: not window.prompt.run_button.isEnabled())
    window.controls.method.combo.setCurrentIndex(1)
    assert not window.controls.draft.combo.property("invalid")
    run_to_end(window)
    assert (session.requests[0].target, session.requests[0].draft) == (STRANGER.ref, None)


def test_an_opened_model_is_selected_and_remembered(make_window, dialogs, qtbot):
    window = make_window()
    window.menus.models.trigger()
    dialogs.model_path = "/nowhere"
    window.models.ask_for_model(OpenKind.FOLDER)
    qtbot.waitUntil(lambda: "no model '/nowhere'" in window.models.window.banner.sentence())
    dialogs.asked.clear()
    dialogs.model_path = STRANGER.ref
    for action in window.models.window.open_button.menu().actions():
        action.trigger()
    assert dialogs.asked == list(OpenKind)
    qtbot.waitUntil(lambda: window.models.window.selected() == STRANGER.ref)
    assert window.models.window.banner.sentence() == ""
    again = make_window()
    qtbot.waitUntil(lambda: STRANGER.ref in again.models.library.refs)


def test_the_list_offers_methods_beside_models_and_both_dropdowns_agree(window):
    draft, method = window.controls.draft.combo, window.controls.method.combo
    assert (window.controls.target.ref, window.controls.draft.ref) == (TARGET.ref, DRAFT.ref), "the embedded pair"
    assert window.prompt.run_button.isEnabled()
    draft.setCurrentIndex(draft.findData("draft-tree", METHOD_ROLE))
    assert draft.currentText() == f"Draft tree · {DRAFT.title}"
    assert (method.currentData(), window.controls.draft_length()) == ("draft-tree", LengthPolicy.AUTO)
    assert window.controls.request("p").draft == DRAFT.ref
    draft.setCurrentIndex(draft.findData("prompt-lookup", METHOD_ROLE))
    assert (method.currentData(), window.controls.draft_length()) == ("prompt-lookup", 4)
    method.setCurrentIndex(method.findData("draft-model"))
    assert draft.currentText() == DRAFT.title
    method.setCurrentIndex(method.findData("medusa"))
    assert draft.currentText() == "Medusa heads"
    draft.setCurrentIndex(0)
    assert (method.currentData(), window.controls.draft.ref) == ("draft-model", TARGET.ref)


def test_a_drafter_that_borrows_its_targets_tables_is_no_target(make_window, hub):
    hub.embedded = (*hub.embedded, replace(DRAFT, ref="drafter", title="Drafter", serves="big"))
    window = make_window()
    assert "Drafter" not in texts(window.controls.target.combo)
    assert "Drafter" in texts(window.controls.draft.combo)[2]
    window.controls.apply(replace(window.controls.settings("p"), target="drafter"))
    window.controls.changed.emit()
    assert "only drafts" in window.prompt.note.text()


def test_a_path_that_holds_no_model_is_explained(window, dialogs, qtbot):
    dialogs.model_path = "/nowhere"
    window.models.ask_for_model(OpenKind.FOLDER)
    until(qtbot, lambda: "no model '/nowhere'" in window.banner.sentence())
    assert window.controls.target.ref == TARGET.ref


def test_a_remembered_model_that_no_longer_exists_does_no_harm(make_window, qtbot, tmp_path):
    SettingsStore(tmp_path / "settings.json").save(WindowSettings(opened_models=("/gone.gguf",)))
    window = make_window()
    until(qtbot, lambda: window.jobs.is_idle)
    assert window.banner.sentence() == ""


def test_without_any_model_the_window_says_what_to_do(make_window, hub):
    hub.embedded = ()
    window = make_window()
    assert "Add a model" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()


def test_a_check_that_fails_does_not_block_the_pair(make_window, hub, qtbot):
    hub.pair_error = ValueError("odd file")
    window = make_window()
    qtbot.waitUntil(lambda: not window.models.library.unchecked_drafts(TARGET.ref))
    assert window.controls.models.problem() is None
    assert window.prompt.run_button.isEnabled()


def test_a_check_that_can_not_read_a_model_passes_its_sentence_on(make_window, hub, qtbot):
    hub.pair_error = ModelUnreadableError("The tokenizer is damaged.")
    window = make_window()
    qtbot.waitUntil(lambda: window.prompt.note.text() == "The tokenizer is damaged.")
