"""Choosing models: what can't work says why, and what is opened is remembered."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt

from app.dialogs import OPEN_TITLES, OpenKind
from app.settings import SettingsStore, WindowSettings
from app.setup.models_form import ModelRole
from app.widgets.title_delegate import SUBTITLE_ROLE
from core.errors import ModelUnreadableError
from tests.fakes_models import DRAFT, MISMATCH, STRANGER, TARGET, until


def texts(combo):
    return [combo.itemText(index) for index in range(combo.count())]


def open_stranger(window, qtbot, role):
    window.models.open_model(STRANGER.ref, role)
    until(qtbot, lambda: STRANGER.ref in window.models.library.refs)
    until(qtbot, lambda: not window.models.library.unchecked_drafts(window.controls.target.ref))


def test_the_embedded_pair_is_chosen_at_first(window):
    assert (window.controls.target.ref, window.controls.draft.ref) == (TARGET.ref, DRAFT.ref)
    assert window.prompt.run_button.isEnabled()


def test_a_draft_that_does_not_fit_says_why_and_can_not_be_run(window, qtbot):
    open_stranger(window, qtbot, ModelRole.DRAFT)
    qtbot.waitUntil(lambda: window.controls.draft.problem_label.text() == MISMATCH)
    assert window.prompt.note.text() == MISMATCH
    assert not window.prompt.run_button.isEnabled()
    window.menus.run.trigger()
    assert window.banner.sentence() == MISMATCH


def test_a_draft_that_does_not_fit_comes_last_disabled_with_the_reason(window, qtbot):
    open_stranger(window, qtbot, ModelRole.TARGET)
    model = window.controls.draft.combo.model()
    qtbot.waitUntil(lambda: model.item(1).toolTip() == MISMATCH)
    assert (model.item(0).text(), model.item(0).isEnabled()) == (STRANGER.title, True)
    for row in (1, 2):
        assert not model.item(row).isEnabled()
        assert "doesn't fit" in model.item(row).text()
        assert model.item(row).data(SUBTITLE_ROLE) == MISMATCH
        assert MISMATCH in model.item(row).data(Qt.ItemDataRole.AccessibleTextRole)


def test_a_method_without_a_draft_runs_where_the_pair_would_not(window, qtbot, run_to_end, session):
    open_stranger(window, qtbot, ModelRole.TARGET)
    qtbot.waitUntil(lambda: not window.prompt.run_button.isEnabled())
    window.controls.method.combo.setCurrentIndex(1)
    assert window.controls.draft.problem_label.text() == ""
    run_to_end(window)
    assert (session.requests[0].target, session.requests[0].draft) == (STRANGER.ref, None)


def test_another_choice_takes_the_problem_away(window, qtbot):
    open_stranger(window, qtbot, ModelRole.DRAFT)
    qtbot.waitUntil(lambda: not window.prompt.run_button.isEnabled())
    combo = window.controls.draft.combo
    combo.setCurrentIndex(1)
    combo.activated.emit(1)
    assert window.prompt.run_button.isEnabled()
    assert window.controls.draft.problem_label.text() == ""


@pytest.mark.parametrize("kind", OpenKind)
def test_open_in_the_list_asks_for_a_path_and_keeps_the_choice(window, dialogs, kind):
    combo = window.controls.target.combo
    index = texts(combo).index(OPEN_TITLES[kind])
    combo.setCurrentIndex(index)
    combo.activated.emit(index)
    assert dialogs.asked == [kind]
    assert combo.currentText() == TARGET.title
    assert window.controls.target.ref == TARGET.ref


def test_an_opened_model_is_chosen_and_remembered(make_window, dialogs, qtbot):
    window = make_window()
    dialogs.model_path = STRANGER.ref
    window.menus.open_actions[OpenKind.GGUF].trigger()
    qtbot.waitUntil(lambda: window.controls.target.ref == STRANGER.ref)
    again = make_window()
    qtbot.waitUntil(lambda: again.controls.target.ref == STRANGER.ref)
    assert STRANGER.title in texts(again.controls.draft.combo)


def test_a_path_that_holds_no_model_is_explained(window, dialogs, qtbot):
    dialogs.model_path = "/nowhere"
    window.menus.open_actions[OpenKind.FOLDER].trigger()
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
    assert "Open a model" in window.prompt.note.text()
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
