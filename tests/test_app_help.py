"""The Help window, the picture of one real step, About, the first hint, and one list of all keys."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QTextTable
from PySide6.QtWidgets import QLabel

from app.dialogs import AboutDialog, versions
from app.menus import PANEL_KEYS, key_groups, menu_actions
from app.settings import SettingsStore
from app.theme import DARK, LIGHT, ThemeMode
from app.tools.help import PAPERS, FormulaPage, HelpPage, _document
from app.tools.step_picture import MOST_SLOTS, Verdict, example, picture_of
from core.types import TokenKind
from tests.fakes_app import fake_services, make_step


def shown_texts(widget):
    return [label.text() for label in widget.findChildren(QLabel) if not label.isHidden()]


# --- Keys ---


def test_every_action_is_in_a_menu_and_every_shortcut_leads_to_one_thing(window):
    listed = {action for _, actions in menu_actions(window.menuBar()) for action in actions}
    own = {action for action in window.findChildren(QAction) if action.objectName().endswith("Action")}
    assert own - listed == set()
    keys = Counter(keys.toString() for action in listed for keys in action.shortcuts())
    assert [key for key, count in keys.items() if count > 1] == []


@pytest.mark.parametrize(
    ("action", "key"),
    [
        ("runAction", "Ctrl+Return"),
        ("stopAction", "Esc"),
        ("exportAction", "Ctrl+S"),
        ("exportAction", "Ctrl+E"),
        ("openFolderAction", "Ctrl+Shift+O"),
        ("helpAction", "F1"),
        ("keysAction", "Ctrl+/"),
        ("largerTextAction", "Ctrl++"),
        ("smallerTextAction", "Ctrl+-"),
        ("defaultTextAction", "Ctrl+0"),
        ("quitAction", "Ctrl+Q"),
    ],
)
def test_the_keys_are_those_that_are_expected(window, action, key):
    assert key in [keys.toString() for keys in window.findChild(QAction, action).shortcuts()]


def test_the_list_of_keys_is_what_the_menus_offer_and_nothing_is_left_out(window):
    window.menus.keys.trigger()
    texts = shown_texts(window.help.page.tabs.widget(2))
    for title, actions in menu_actions(window.menuBar()):
        assert title in texts
        for action in actions:
            assert action.text().replace("&", "") in texts, action.text()
            for keys in action.shortcuts():
                assert any(keys.toString() in text for text in texts), keys.toString()
    assert all(row.title in texts for row in PANEL_KEYS)


def test_an_action_that_comes_later_is_listed_when_the_list_is_opened_again(window, qtbot):
    window.menus.keys.trigger()
    action = QAction("Pause", window)
    action.setShortcut("Space")
    window.menuBar().actions()[1].menu().addAction(action)
    window.menus.keys.trigger()
    qtbot.waitUntil(lambda: "Pause" in shown_texts(window.help.page.tabs.widget(2)))
    assert any(row.keys == ("Space",) for _, rows in key_groups(window.menuBar()) for row in rows)


# --- The picture ---


def test_the_recorded_step_obeys_the_method_that_it_explains():
    picture = example()
    for slot in picture.slots:
        assert slot.acceptance == pytest.approx(min(1.0, slot.target_prob / slot.draft_prob), rel=0.02)
        if slot.verdict is not Verdict.UNTESTED:
            assert (slot.uniform < slot.acceptance) is (slot.verdict is Verdict.KEPT)
    assert {slot.verdict for slot in picture.slots} == set(Verdict)
    assert picture.next_kind is TokenKind.CORRECTION


def test_the_picture_is_of_the_latest_step_that_shows_all():
    steps = [
        make_step(0, 9, num_accepted=2),
        make_step(1, 12, num_accepted=1),
        make_step(2, 14, num_accepted=4),
        make_step(3, 19, num_draft_tokens=0, num_accepted=0),
    ]
    picture = picture_of(steps)
    assert picture.caption == "Step 1 of this run"
    assert [slot.verdict for slot in picture.slots] == [Verdict.KEPT, Verdict.REJECTED, *[Verdict.UNTESTED] * 2]
    assert "Step 2" in picture_of(steps[2:]).caption
    assert picture_of(steps[3:]) == example()
    assert picture_of([]) == example()


def test_a_whole_block_ends_with_a_bonus_and_a_long_one_says_what_is_not_shown():
    picture = picture_of([make_step(0, 9, num_draft_tokens=8, num_accepted=8)])
    assert len(picture.slots) == MOST_SLOTS
    assert picture.num_hidden == 8 - MOST_SLOTS
    assert picture.next_kind is TokenKind.BONUS
    assert "bonus" in picture.words


def test_a_step_whose_figures_are_missing_or_that_drew_no_u_does_no_harm():
    whole = make_step(0, 9, num_accepted=2)
    nan = replace(whole, draft_probs=(float("nan"),) * 4)
    assert picture_of([nan]) == example()
    assert all(slot.uniform is None for slot in picture_of([replace(whole, uniforms=())]).slots)


# --- The window ---


def test_help_shows_a_step_of_the_run_and_the_recorded_one_before_it(window, run_to_end, qtbot):
    window.menus.help.trigger()
    page = window.help.page
    assert page.isVisible()
    assert not page.isModal()
    assert page.picture.picture == example()
    run_to_end(window)
    window.menus.help.trigger()
    assert page.picture.picture.caption.endswith("of this run")
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    assert not page.isVisible()


def test_help_is_drawn_in_the_theme_also_when_that_changes(window, qtbot):
    window.menus.help.trigger()
    page = window.help.page
    for mode, theme in ((ThemeMode.DARK, DARK), (ThemeMode.LIGHT, LIGHT)):
        window.menus.theme_actions[mode].trigger()
        assert theme.correction in page.colours.text()
        assert theme.accent in page.papers.text()
        assert not page.grab().isNull()


def test_help_has_the_papers_and_fits_a_small_screen(qtbot, window):
    window.menus.help.trigger()
    page = window.help.page
    assert all(number in page.papers.text() for _, number in PAPERS)
    page.resize(560, 480)
    area = page.tabs.widget(0)
    assert area.widget().minimumSizeHint().width() <= area.viewport().width()


def test_help_can_be_made_without_a_run_or_a_window(qtbot, window):
    page = HelpPage(window.menuBar())
    qtbot.addWidget(page)
    page.open_method([])
    assert "kept" in page.picture.accessibleDescription()


def test_help_on_screen_is_made_in_turns_and_is_whole_when_it_is_seen(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.help.trigger()
    page = window.help.page
    assert not page.isVisible()
    qtbot.waitUntil(lambda: page.isVisible() and page.updatesEnabled(), timeout=30_000)
    assert {label.text() for label in (page.colours, page.papers)} <= set(shown_texts(page.tabs.widget(0)))
    assert page.picture.picture == example()


def test_the_last_page_that_was_asked_for_is_the_one_that_opens(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.help.trigger()
    window.menus.keys.trigger()
    page = window.help.page
    qtbot.waitUntil(page.isVisible, timeout=30_000)
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Keyboard shortcuts"
    page.tabs.setCurrentIndex(0)
    qtbot.waitUntil(lambda: page.papers.text() in shown_texts(page.tabs.widget(0)), timeout=30_000)


def test_the_keys_are_listed_also_for_who_comes_by_the_tab(window, qtbot):
    window.menus.help.trigger()
    window.help.page.tabs.setCurrentIndex(2)
    qtbot.waitUntil(lambda: "Run" in shown_texts(window.help.page.tabs.widget(2)))


def test_a_window_that_closes_while_help_is_made_opens_none(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.help.trigger()
    window.close()
    qtbot.waitUntil(lambda: window.threads.is_closed, timeout=30_000)
    assert not window.help._turns.is_going
    assert not window.help.page.isVisible()


# --- About ---


def test_about_names_all_versions_and_copies_them(qtbot, window):
    dialog = AboutDialog(window, "Some GPU · float16")
    qtbot.addWidget(dialog)
    dialog.copy_button.click()
    copied = QGuiApplication.clipboard().text()
    for word in ("Outrider", "Python", "PySide6", "torch", "transformers", "pyqtgraph", "Some GPU"):
        assert word in copied
    assert copied == dialog.text


def test_about_knows_torchs_version_without_importing_it():
    loaded = "torch" in sys.modules
    assert any(title == "torch" for title, _ in versions())
    assert ("torch" in sys.modules) is loaded


def test_about_says_what_the_last_run_was_on(window, dialogs, run_to_end):
    window.menus.about.trigger()
    assert dialogs.device == ""
    run_to_end(window)
    window.menus.about.trigger()
    assert "float32" in dialogs.device


# --- The first hint ---


def test_the_hint_comes_on_the_first_start_and_never_after_it_was_dismissed(make_window, session, tmp_path):
    window = make_window()
    assert not window.help.hint.isHidden()
    window.help.hint.close_button.click()
    assert window.help.hint.isHidden()
    window.close()
    assert SettingsStore(tmp_path / "settings.json").load().hint_seen
    assert make_window(fake_services(session, tmp_path)).help.hint.isHidden()


def test_the_hint_goes_with_the_first_run(make_window, session, tmp_path, run_to_end):
    window = make_window()
    run_to_end(window)
    assert window.help.hint.isHidden()
    window.close()
    assert make_window(fake_services(session, tmp_path)).help.hint.isHidden()


def test_the_hint_stays_for_who_only_looked(make_window, session, tmp_path):
    make_window().close()
    again = make_window(fake_services(session, tmp_path))
    assert not again.help.hint.isHidden()
    again.help.hint.help_button.click()
    assert again.help.page.isVisible()


def test_a_theme_that_changes_while_the_formulas_are_drawn_is_the_one_they_are_drawn_in(qtbot, monkeypatch):
    made = []

    def noted(markdown, theme):
        made.append(theme)
        return _document(markdown, theme)

    monkeypatch.setattr("app.tools.help._document", noted)
    page = FormulaPage()
    qtbot.addWidget(page)
    page.show()
    pieces = page._turns._pieces
    while not made:
        next(pieces)
    page.set_theme(DARK)
    qtbot.waitUntil(lambda: not page._turns.is_going)
    tables = [frame for frame in page.document().rootFrame().childFrames() if isinstance(frame, QTextTable)]
    assert {table.format().borderBrush().color().name() for table in tables} == {DARK.border.lower()}
    assert len(made) > len(set(made)) > 1
    assert page.toPlainText().count("Every figure and its formula") == 1
