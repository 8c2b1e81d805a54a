"""The Help window, the picture of one real step, the formulas, About, the first hint, and one list of all keys."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from dataclasses import replace

import pytest
from PySide6.QtCore import QRegularExpression, Qt
from PySide6.QtGui import QAction, QGuiApplication, QShortcut, QTextDocument, QTextTable

from app.menus import PANEL_KEYS, menu_actions
from app.run.pacing import Pace
from app.run.speed.speed import speed_report, study_of
from app.run.text.token_colors import token_formats
from app.run.text.tokens import Fate
from app.theme import DARK, LIGHT
from app.tools import about
from app.tools.about import AboutDialog, version_sentence
from app.tools.help import FORMULAS_FILE, MEANINGS, PAPERS, HelpWindow, page_text
from app.tools.step_picture import MAX_SLOTS, example, picture_of
from core.analysis.calibration import Predictor
from core.errors import OutriderError
from core.runlog.log import BASELINE_FIELDS, STEP_FIELDS, SUMMARY_FIELDS
from core.types import BlockTest, PrefillDone, TokenKind
from tests.children import run_code
from tests.fakes_app import FakeSession, make_step, run_of
from tests.test_core_diagnosis import drawn

# --- Keys ---


def test_every_action_is_in_a_menu_and_every_shortcut_leads_to_one_thing(window):
    listed = {action for _, actions in menu_actions(window.menuBar()) for action in actions}
    own = {action for action in window.findChildren(QAction) if action.objectName().endswith("Action")}
    assert own - listed == set()
    keys = Counter(keys.toString() for action in listed for keys in action.shortcuts())
    assert [key for key, count in keys.items() if count > 1] == []
    expected = {
        "run": "Ctrl+Return", "stop": "Esc", "models": "Ctrl+M", "help": "F1", "keys": "Ctrl+/",
        "largerText": "Ctrl++", "smallerText": "Ctrl+-", "defaultText": "Ctrl+0", "quit": "Ctrl+Q", "export": "Ctrl+S",
    }  # fmt: skip
    for name, key in expected.items():
        assert key in [keys.toString() for keys in window.findChild(QAction, f"{name}Action").shortcuts()]


def test_ctrl_enter_of_both_keyboards_starts_a_run_and_a_sweep_and_has_one_name(window):
    window.menus.sweep.trigger()
    own = {item.key().toString() for item in window.sweep.findChildren(QShortcut)}
    assert {"Ctrl+Enter", "Ctrl+Return"} <= own
    assert {"Ctrl+Enter", "Ctrl+Return"} == {keys.toString() for keys in window.menus.run.shortcuts()}
    assert window.menus.run.shortcut().toString() == "Ctrl+Enter", "the name in the menu and in the palette"
    assert "(Ctrl+Enter)" in window.prompt.run_button.toolTip()
    assert "(Ctrl+Enter)" in window.sweep.form.start_button.toolTip()


ON_A_MAC = """
import os, sys
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QLabel, QWidget

written = QKeySequence.toString
QKeySequence.toString = lambda keys, form: written(keys).replace("Ctrl+", "\u2318")
system, sys.platform = sys.platform, "darwin"
import app.menus
sys.platform = system
from app.main_window import MainWindow
from tests.fakes_app import FakeSession

application = QApplication([])
window = MainWindow(open_session=FakeSession)
for open_window in (window.runs.open, window.models.open, window.menus.sweep.trigger, window.menus.keys.trigger):
    open_window()
widgets = QApplication.allWidgets()
texts = [widget.toolTip() for widget in widgets] + [widget.text() for widget in widgets if isinstance(widget, QLabel)]
texts.append(window.help.page.keys.toPlainText())
print(ascii([text for text in texts if "Ctrl" in text or "Open a menu" in text]))
print(sum("\u2318" in text for text in texts), flush=True)
os._exit(0)
"""


def test_on_a_mac_texts_name_keys_as_its_menus_do(tmp_path):
    done = run_code(ON_A_MAC, HOME=tmp_path, XDG_DATA_HOME=tmp_path, XDG_CONFIG_HOME=tmp_path, XDG_CACHE_HOME=tmp_path)
    assert done.returncode == 0, done.stderr
    wrong, count = done.stdout.splitlines()[-2:]
    assert wrong == "[]"
    assert int(count) >= 9


def test_in_another_theme_no_page_keeps_a_scroll_bar_that_it_does_not_need(window, apply_theme, qtbot):
    window.menus.formulas.trigger()
    page = window.help.page
    page.resize(1024, 700)
    for theme in (DARK, LIGHT, DARK):
        apply_theme(theme)
        qtbot.waitUntil(lambda: page.formulas.verticalScrollBar().maximum() > 0)
        assert page.formulas.horizontalScrollBar().maximum() == 0


def test_the_list_of_keys_is_what_the_menus_offer_now_and_nothing_is_left_out(window):
    window.menus.keys.trigger()
    action = QAction("Something new", window)
    action.setShortcut("Ctrl+Alt+N")
    window.menuBar().actions()[1].menu().addAction(action)
    window.menus.keys.trigger()
    text = window.help.page.keys.toPlainText()
    assert "Something new" in text
    for title, actions in menu_actions(window.menuBar()):
        assert title in text
        for action in actions:
            assert action.text().replace("&", "") in text
            assert all(keys.toString() in text for keys in action.shortcuts())
    assert all(title in text for title, _ in PANEL_KEYS)
    assert "F10" not in text, "Qt opens no menu with it"


def test_the_palette_finds_actions_pages_and_presets_and_does_what_is_chosen(window, qtbot):
    palette = window.commands

    def titles():
        model = palette.list.model()
        return [model.index(row, 0).data() for row in range(model.rowCount())]

    window.menus.commands.trigger()
    everything = titles()
    assert any(title.startswith("View: Inspector") for title in everything)
    assert not any("Export run" in title for title in everything), "there is no run to export"
    assert not any("Commands" in title for title in everything), "it is open"
    qtbot.keyClicks(palette.search, "ru fil")
    assert titles() == [title for title in everything if title.startswith("File: Runs")]
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert not palette.isVisible()
    assert window.runs.window.isVisible()
    window.menus.commands.trigger()
    qtbot.keyClicks(palette.search, "preset:")
    before = window.prompt.text()
    qtbot.keyClick(palette.search, Qt.Key.Key_Down)
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert window.prompt.text() != before
    window.menus.commands.trigger()
    qtbot.keyClicks(palette.search, "8 tokens")
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert window.playback.pace.member() is Pace.SLOWED
    window.menus.commands.trigger()
    qtbot.keyClicks(palette.search, "no such thing")
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert palette.isVisible()


# --- The picture ---


def test_the_recorded_step_obeys_the_method_that_it_explains():
    picture = example()
    for slot in picture.slots:
        assert slot.acceptance == pytest.approx(min(1.0, slot.target_prob / slot.draft_prob), rel=0.02)
        if slot.fate is not Fate.UNTESTED:
            assert (slot.uniform < slot.acceptance) is (slot.fate is Fate.ACCEPTED)
    assert {slot.fate for slot in picture.slots} == {Fate.ACCEPTED, Fate.REJECTED, Fate.UNTESTED}
    assert picture.next_kind is TokenKind.CORRECTION


def test_the_picture_is_of_the_latest_step_that_shows_all():
    steps = [
        make_step(0, 9, num_accepted=2),
        make_step(1, 12, num_accepted=1),
        make_step(2, 14, num_accepted=4),
        make_step(3, 19, num_draft_tokens=0, num_accepted=0),
    ]
    picture = picture_of(steps)
    assert picture.caption == "Step 2 of this run"
    assert [slot.fate for slot in picture.slots] == [Fate.ACCEPTED, Fate.REJECTED, *[Fate.UNTESTED] * 2]
    assert "Step 3" in picture_of(steps[2:]).caption
    assert picture_of(steps[3:]) == picture_of([]) == example()
    whole = steps[0]
    assert picture_of([replace(whole, draft_probs=(float("nan"),) * 4)]) == example()
    low = (*whole.draft_probs[:-1], 1e-3), (*whole.target_probs[:-1], 1e-3)
    assert picture_of([replace(whole, draft_probs=low[0], target_probs=low[1])]) == example(), "no bar to be seen"
    # Help explains chains that are tested token by token.
    assert picture_of([replace(whole, parents=(-1, 0, 0, 1), accepted_path=(0,))]) == example()
    assert picture_of([replace(whole, block=(BlockTest(1.0, 0.0),) * 5)]) == example()
    assert all(slot.uniform is None for slot in picture_of([replace(whole, uniforms=())]).slots)
    picture = picture_of([make_step(0, 9, num_draft_tokens=8, num_accepted=8)])
    assert (len(picture.slots), len(picture.step.drafted)) == (MAX_SLOTS, 8)
    assert picture.next_kind is TokenKind.BONUS


# --- The window ---


def test_help_shows_a_step_of_the_run_and_the_recorded_one_before_it(window, run_to_end, qtbot):
    window.menus.help.trigger()
    page = window.help.page
    assert page.isVisible()
    assert not page.isModal()
    assert "$" not in page.method.toPlainText(), "a placeholder"
    assert page.picture == example()
    run_to_end(window)
    window.menus.help.trigger()
    assert page.picture.caption in page.method.toPlainText()
    assert page.picture.caption.endswith("of this run")
    assert "accepted" in page.method.accessibleDescription()
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    assert not page.isVisible()


def test_help_draws_the_names_of_tokens_as_the_text_does(window, apply_theme):
    for theme in (DARK, LIGHT):
        apply_theme(theme)
        window.menus.help.trigger()
        document = window.help.page.method.document()
        for fate in MEANINGS:
            chosen, shown = token_formats()[fate], document.find(QRegularExpression(f"^{fate}$")).charFormat()
            assert shown.foreground() == chosen.foreground()
            for look in ("underlineStyle", "fontStrikeOut", "fontItalic"):
                assert getattr(shown, look)() == getattr(chosen, look)()


def test_help_has_every_paper_and_fits_a_small_screen(window, qtbot, apply_theme):
    page = HelpWindow(window.menuBar())
    qtbot.addWidget(page)
    apply_theme(DARK)
    page.open_page(page.method, [])
    assert DARK.accent in page.method.toHtml()
    apply_theme(LIGHT)
    assert LIGHT.accent in page.method.toHtml()
    for width, tab in itertools.product((560, 760), page.pages):
        page.resize(width, 480)
        page.tabs.setCurrentWidget(tab)
        qtbot.waitUntil(lambda tab=tab: tab.horizontalScrollBar().maximum() == 0)
        assert tab.toPlainText()
    assert all(number in page.method.toHtml() for _, number in PAPERS)


# --- Formulas ---

TEXT = page_text(FORMULAS_FILE)
NO_FIGURES = {"index", "position", "temperature", "drafted", "emitted", "emitted_kinds", "emitted_text",
              "finish_reason", "text"}  # fmt: skip
"""Fields of the log that are settings, positions and texts."""


def test_every_figure_of_the_log_of_the_page_theory_and_every_predictor_has_a_formula():
    names = {*STEP_FIELDS, *SUMMARY_FIELDS, *BASELINE_FIELDS} - NO_FIGURES
    assert [name for name in names if f"`{name}`" not in TEXT] == []
    run = run_of(drawn(0.8, 4, count=40))
    for row in speed_report(run, study_of(run)()).figures:
        assert re.split(r"[ ,(]", row.title)[0].lower() in TEXT.lower(), row.title
    assert all(predictor.value.replace("||", r"\|\|") in TEXT for predictor in Predictor)


def test_the_page_of_formulas_has_every_block_of_the_text_in_tables_of_the_theme(window, apply_theme):
    window.menus.formulas.trigger()
    page = window.help.page
    assert page.tabs.currentWidget() is page.formulas
    whole = QTextDocument()
    whole.setMarkdown(TEXT)

    def blocks(document):
        found = (document.findBlockByNumber(index) for index in range(document.blockCount()))
        return [(block.blockFormat().headingLevel(), block.text()) for block in found]

    assert blocks(page.formulas.document()) == blocks(whole)
    for theme in (DARK, LIGHT):
        apply_theme(theme)
        frames = page.formulas.document().rootFrame().childFrames()
        tables = [frame for frame in frames if isinstance(frame, QTextTable)]
        assert {table.format().borderBrush().color().name() for table in tables} == {theme.border}


# --- About ---


def test_about_names_all_versions_copies_them_and_says_what_the_last_run_was_on(qtbot, window, dialogs, run_to_end):
    loaded = "torch" in sys.modules
    dialog = AboutDialog(window, "Some GPU · float16", window.jobs)
    assert ("torch" in sys.modules) is loaded
    qtbot.addWidget(dialog)
    dialog.copy_button.click()
    copied = QGuiApplication.clipboard().text()
    for word in ("Outrider", "Python", "PySide6", "torch", "transformers", "pyqtgraph", "Some GPU"):
        assert word in copied
    licences = {name: licence for name, _, licence in about.versions()}
    assert licences["numpy"].startswith("BSD")
    assert [name for name, licence in licences.items() if not licence] == ["System", "Runs on"]
    assert len(licences) > len(about.PACKAGES) + 3, "the embedded models have one, too"
    window.menus.about.trigger()
    assert dialogs.device == ""
    run_to_end(window)
    window.menus.about.trigger()
    assert "float32" in dialogs.device


def test_about_does_not_take_the_machine_of_a_recorded_or_kept_run_for_this_one(window, qtbot, dialogs, run_to_end):
    def show_kept():
        request = window.controls.request("x")
        elsewhere = replace(FakeSession()._head(request), environment={"device_name": "Someone's GPU"})
        with qtbot.waitSignal(window.live.run_shown):
            window.live.show_kept(request, [elsewhere, PrefillDone(9, 1.0, 1.0)], "old")
        window.menus.about.trigger()

    show_kept()
    assert "Someone's GPU" in window.status.place.text()
    assert dialogs.device == ""
    run_to_end(window)
    show_kept()
    assert dialogs.device == "CPU · float32"


def test_a_newer_version_is_looked_for_only_on_request_and_any_failure_is_one_sentence(qtbot, window, monkeypatch):
    asked = []

    def refuse(url, timeout):
        asked.append(url)
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    dialog = AboutDialog(window, "", window.jobs)
    qtbot.addWidget(dialog)
    assert asked == []
    dialog.check_button.click()
    qtbot.waitUntil(lambda: dialog.answer.text() == about.UNREACHABLE)
    assert asked == [about.INDEX]
    monkeypatch.setattr("core.models.remote.hub.is_offline", lambda: True)
    dialog.check_button.click()
    qtbot.waitUntil(lambda: "Offline mode" in dialog.answer.text())
    assert asked == [about.INDEX]
    own = {"summary": "… speculative decoding …"}
    assert "available" in version_sentence({**own, "version": "99.0"})
    assert "latest" in version_sentence({**own, "version": "0.9.12"})
    for other in (None, {}, {**own, "version": 3}, {"summary": "a horse", "version": "99.0"}):
        with pytest.raises(OutriderError, match="no release"):
            version_sentence(other)
