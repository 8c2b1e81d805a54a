"""Everything can be reached, seen and named without a mouse."""

from __future__ import annotations

import itertools

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QButtonGroup,
    QComboBox,
    QHeaderView,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QTabBar,
    QTextEdit,
    QWidget,
)

from app.controller import RunState
from app.introduction.guide_bar import Part
from app.menus import menu_actions
from app.run.pacing import Pace
from app.theme import ThemeMode
from app.tools.about import AboutDialog
from app.widgets.compound_fields import TickList
from app.widgets.fields import boxed, column
from app.widgets.plot_card import PlotCard

INTERACTIVE = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit,
    QTabBar, QTextEdit,
)  # fmt: skip
NAMED = [
    "targetCombo", "draftCombo", "kSlider", "kSpin", "kPolicyCombo", "temperatureSlider", "temperatureSpin",
    "lengthSpin", "seedEdit", "newSeedButton", "baselineCheck", "advancedButton", "option_int8",
    "topKSpin", "topPSpin", "minPSpin", "verificationCombo", "chatCombo", "deviceCombo", "dtypeCombo", "systemEdit",
    "couplingCheck", "readingButton", "presetsButton", "promptEdit", "runButton", "transcript", "ghostsButton",
    "sideTabs", "acceptancePlot", "latencyPlot",
]  # fmt: skip
IN_ORDER = [
    "targetCombo", "draftCombo", "kSlider", "lengthSpin", "advancedButton", "option_int8", "topKSpin",
    "readingButton", "promptEdit", "runButton", "transcript", "sideTabs",
]  # fmt: skip


def fields(window):
    """What a person can do something with, parts of compound fields left out."""
    found = dict.fromkeys(widget for kind in INTERACTIVE for widget in window.findChildren(kind))
    parts = QScrollBar | QHeaderView
    return [widget for widget in found if not (widget.objectName().startswith("qt_") or isinstance(widget, parts))]


def controls(window):
    return [widget for widget in fields(window) if widget.isVisibleTo(window)]


def nameless(widgets):
    """Those that a screen reader has no words for."""
    unnamed = [widget for widget in widgets if not widget.accessibleName()]
    silent = [widget for widget in unnamed if not (isinstance(widget, QAbstractButton) and widget.text())]
    return [widget.objectName() or repr(widget) for widget in silent]


def walk(window, key=Qt.Key.Key_Tab):
    """The widgets that Tab leads to, in order, until it comes round."""
    seen = []
    while True:
        widget = QApplication.focusWidget()
        assert widget is not None
        if widget in seen or len(seen) > 200:
            return seen
        seen.append(widget)
        QTest.keyClick(widget, key)


@pytest.fixture
def shown(make_window, qtbot, run_to_end):
    window = make_window(is_shown=True)
    window.controls.advanced.set_open(True)
    run_to_end(window)
    begin_at_prompt(window, qtbot)
    return window


def begin_at_prompt(window, qtbot):
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    window.prompt.edit.setFocus()
    qtbot.waitUntil(window.prompt.edit.hasFocus)


def test_tab_reaches_every_control_of_every_page_forwards_and_back(shown, qtbot):
    shown.speed.fold.set_open(True)
    for page, key in itertools.product(range(3), (Qt.Key.Key_Tab, Qt.Key.Key_Backtab)):
        shown.side.setCurrentIndex(page)
        qtbot.waitUntil(lambda: shown.jobs.is_idle, timeout=30_000)
        begin_at_prompt(shown, qtbot)
        reached = walk(shown, key)
        # Of buttons that exclude each other, Tab leads to one, and the arrow keys to the others.
        for choice in shown.findChildren(QButtonGroup):
            if set(choice.buttons()) & set(reached):
                reached += choice.buttons()
        missed = [widget for widget in controls(shown) if widget.isEnabled() and widget not in reached]
        assert [widget.objectName() or repr(widget) for widget in missed] == [], page


def test_pages_and_help_open_by_key_and_help_closes(shown, qtbot):
    for number, page in enumerate((shown.measurements, shown.inspector, shown.speed), 1):
        shown.side.setCurrentIndex(number % 3)
        QTest.keyClick(shown, Qt.Key(Qt.Key.Key_0 + number), Qt.KeyboardModifier.ControlModifier)
        assert shown.side.currentWidget() is page
    QTest.keyClick(shown.prompt.edit, Qt.Key.Key_F1)
    page = shown.help.page
    qtbot.waitUntil(page.isActiveWindow)
    QTest.keyClick(page, Qt.Key.Key_Escape)
    assert not page.isVisible()
    shown.activateWindow()
    qtbot.waitUntil(shown.isActiveWindow)
    QTest.keyClick(shown.prompt.edit, Qt.Key.Key_Slash, Qt.KeyboardModifier.ControlModifier)
    assert page.isVisible()
    assert page.tabs.currentIndex() == 2


def test_tab_goes_from_the_settings_to_the_prompt_and_on_to_the_figures(shown, qtbot):
    shown.side.setCurrentIndex(0)
    names = [widget.objectName() for widget in walk(shown)]
    assert [name for name in NAMED if name not in names] == []
    start = names.index("targetCombo")
    names = names[start:] + names[:start]
    places = [names.index(name) for name in IN_ORDER]
    assert places == sorted(places)
    # The options of another method come after the list.
    shown.controls.method.combo.setCurrentIndex(1)
    qtbot.waitUntil(shown.controls.method.options["prompt-lookup"].isVisible)
    begin_at_prompt(shown, qtbot)
    names = [widget.objectName() for widget in walk(shown)]
    start = names.index("draftCombo")
    assert names[start + 1 : start + 3] == ["option_max_ngram", "option_min_ngram"]


def test_where_the_focus_is_can_be_seen(shown):
    shown.menus.show_ghosts.setChecked(False)
    unseen = []
    for mode in (ThemeMode.LIGHT, ThemeMode.DARK):
        shown.menus.theme_actions[mode].trigger()
        for widget in walk(shown):
            elsewhere = shown.prompt.run_button if widget is not shown.prompt.run_button else shown.prompt.edit
            widget.setFocus(Qt.FocusReason.TabFocusReason)
            focused = picture(shown, widget)
            elsewhere.setFocus()
            if focused == picture(shown, widget):
                unseen.append((mode, widget.objectName() or repr(widget)))
    assert unseen == []


def picture(window, widget):
    if window.controls.isAncestorOf(widget):  # As Tab does.
        window.controls.ensureWidgetVisible(widget)
    # A plot's frame is around its card.
    widget = next((card for card in window.findChildren(PlotCard) if card.isAncestorOf(widget)), widget)
    corner = widget.mapTo(window, QPoint(0, 0))
    return window.grab(QRect(corner, widget.size())).toImage()


def test_every_control_has_a_name(shown, qtbot):
    shown.models.open()
    shown.menus.help.trigger()
    about = AboutDialog(shown, "", shown.jobs)
    qtbot.addWidget(about)
    for top in (shown, shown.models.window, shown.help.page, about):
        assert nameless(controls(top)) == [], top.objectName()
    for index in range(shown.side.count()):
        shown.side.setCurrentIndex(index)
        assert nameless(controls(shown.side.currentWidget())) == []


# --- Shortcuts ---


def test_every_shortcut_of_the_menus_is_heard_wherever_the_focus_is(shown, qtbot):
    actions = [action for _, actions in menu_actions(shown.menuBar()) for action in actions]
    heard = []
    # Space is a button's and a field's first; a test of its own tells where it pauses a run.
    actions = [action for action in actions if action.shortcuts() and action is not shown.menus.pause]
    for action in actions:
        action.triggered.disconnect()
        action.triggered.connect(lambda _checked, heard_one=action: heard.append(heard_one.objectName()))
        action.setEnabled(True)
    missed = []
    for place in ("promptEdit", "transcript", "seedEdit", "targetCombo"):
        widget = shown.findChild(QWidget, place)
        widget.setFocus()
        qtbot.waitUntil(widget.hasFocus)
        for action in actions:
            for keys in action.shortcuts():
                heard.clear()
                pressed = keys[0]
                QTest.keyClick(widget, pressed.key(), pressed.keyboardModifiers())
                if heard != [action.objectName()]:
                    missed.append((place, keys.toString(), action.objectName(), list(heard)))
    assert missed == []
    assert len(actions) > 15


def test_every_tool_window_has_a_name_for_what_takes_keys(window):
    menus = window.menus
    for action in (menus.models, menus.runs, menus.check, menus.sweep, menus.help, menus.production):
        action.trigger()
    panels = (window.models.window, window.runs.window, window.check, window.sweep)
    assert window.models.window.suggestions.rows
    for panel in (*panels, window.help.page, window.exports.page):
        own = [widget for widget in fields(panel) if widget.window() is panel]
        reached = [widget for widget in own if widget.focusPolicy() != Qt.FocusPolicy.NoFocus]
        assert nameless(reached) == [], panel.objectName()


# --- What is typed, and where the focus goes ---


def test_a_number_is_taken_when_it_is_typed_and_not_digit_by_digit(shown, qtbot):
    field, sent = shown.controls.fields["temperature"], []
    field.value_changed.connect(sent.append)
    for start, typed in ((0.7, "0.85"), (0.7, "1.25"), (0.0, "0.15")):
        field.set_value(start)
        sent.clear()
        field.spin.setFocus()
        field.spin.selectAll()
        for digit in typed:
            QTest.keyClicks(field.spin, digit)
            shown.controls.settings("a")  # As something saves or compares the settings at any time.
            QTest.keyClick(field.spin, Qt.Key.Key_Control)
        assert field.spin.text() == typed
        assert sent == [], "0 on the way to .85 would change the run"
        QTest.keyClick(field.spin, Qt.Key.Key_Tab)
        assert (sent, field.slider.value()) == ([float(typed)], round(100 * float(typed)))
    field.spin.setFocus()
    field.spin.selectAll()
    QTest.keyClicks(field.spin, "0.5")
    QTest.keyClick(field.spin, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert shown.controls.request("a").sampling.temperature == 0.5, "a shortcut acts on what was typed"


def test_the_text_gets_the_focus_of_a_button_that_a_run_disables_or_hides(shown, qtbot, run_to_end):
    def press(button):
        button.setFocus()
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)

    press(shown.prompt.run_button)
    assert shown.transcript.view.hasFocus()
    qtbot.waitUntil(lambda: shown.prompt.stop_button.isEnabled())
    with qtbot.waitSignal(shown.live.run_shown):  # Its end hides what stands above the text.
        press(shown.prompt.stop_button)
    assert shown.controller.state is RunState.IDLE
    assert shown.transcript.view.hasFocus()
    again = shown.conclusion.findChild(QAbstractButton)
    for widget in (shown.conclusion, again):
        widget.show()
    again.setFocus()
    run_to_end(shown)
    assert shown.transcript.view.hasFocus()
    shown.playback.set_pace(Pace.SLOWED)
    bar = shown.introduction.bar
    for button in (shown.playback.full_button, bar.leave_button, bar.go_button):
        shown.introduction._show_part(Part.LIVE)
        press(button)
        assert shown.transcript.view.hasFocus()
    with qtbot.waitSignal(shown.live.run_shown):
        shown.menus.stop.trigger()


def test_tab_reaches_ticks_that_came_later_where_they_stand(qtbot):
    panel, first, ticks, last = QWidget(), QLineEdit(), TickList("ticks", "Drafts"), QLineEdit()
    qtbot.addWidget(panel)
    boxed(column(first, ticks, last), panel)
    for names in ("ab", "cde"):
        ticks.show_items({name: (name, "") for name in names})
        order = [first]
        while order[-1] is not last:
            order.append(order[-1].nextInFocusChain())
        reached = [widget for widget in order if widget.focusPolicy() is not Qt.FocusPolicy.NoFocus]
        assert [widget for widget in reached if widget in ticks.boxes.values()] == [*ticks.boxes.values()]
