"""A new look is put on in several turns of the event loop, and none of them can be seen."""

from __future__ import annotations

import itertools
import time

import pytest
from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QMessageBox, QWidget

from app.look import parts_of, windows_of
from app.theme import DARK, LIGHT, ThemeMode, style_sheet
from app.tools.models.downloads import SuggestionsPage
from app.turns import Turns, freeze, thaw
from tests.fakes_runs import until
from tests.text_scale import set_text_scale


@pytest.fixture(autouse=True)
def default_size(qtbot):
    """The size is the application's, which outlives a test."""
    yield
    set_text_scale(QWidget(), 1.0)


class Witness(QObject):
    """Notes the style sheets of all parts of a window whenever something of it is painted."""

    def __init__(self, window, also=()):
        super().__init__(window)
        self.window, self.also = window, tuple(also)
        self.seen = []
        for widget in (window, *window.findChildren(QWidget), *also):
            widget.installEventFilter(self)

    def eventFilter(self, watched, event):  # noqa: N802 - Qt's own
        if event.type() == QEvent.Type.Paint and watched.window() is self.window:
            self.seen.append(sheets(self.window))
        return False


def sheets(window):
    return {part.styleSheet() for part in parts_of(window)}


def choose(window, mode):
    window.menus.theme_actions[mode].trigger()


def settle(window, qtbot):
    until(qtbot, lambda: window.look.is_settled)


@pytest.fixture
def shown(make_window, qtbot):
    """A light window that has been painted."""
    window = make_window(is_shown=True)
    choose(window, ThemeMode.LIGHT)
    settle(window, qtbot)
    return window


def test_a_window_is_never_painted_half_in_one_look_and_half_in_another(shown, qtbot):
    witness = Witness(shown)
    for change in (shown.menus.theme_actions[ThemeMode.DARK], shown.menus.larger, shown.menus.default_size):
        change.trigger()
        assert not shown.look.is_settled, "all of it in one turn"
        witness.seen.clear()
        # Whatever asks to be painted in between waits.
        shown.status.update()
        settle(shown, qtbot)
        until(qtbot, lambda: bool(witness.seen))
        assert all(len(seen) == 1 for seen in witness.seen)
        assert witness.seen[-1] == sheets(shown)
    assert sheets(shown) == {style_sheet(DARK)}


def test_a_dialog_is_never_painted_half_in_one_look_and_half_in_another(shown, qtbot):
    shown.menus.help.trigger()
    page = shown.help.page
    until(qtbot, page.isVisible)
    seen = []

    class PageWitness(QObject):
        def eventFilter(self, watched, event):  # noqa: N802 - Qt's own
            if event.type() == QEvent.Type.Paint:
                seen.append((sheets(page) == {style_sheet(DARK)}, page.palette().window().color().name()))
            return False

    witness = PageWitness(page)
    for widget in (page, *page.findChildren(QWidget)):
        widget.installEventFilter(witness)
    choose(shown, ThemeMode.DARK)
    page.update()
    settle(shown, qtbot)
    until(qtbot, lambda: bool(seen))
    assert set(seen) == {(True, DARK.window)}


def test_the_last_of_several_themes_wins(shown, qtbot):
    witness = Witness(shown)
    changed = []
    shown.look.changed.connect(changed.append)
    choose(shown, ThemeMode.DARK)
    # Some turns of the first, but not all.
    until(qtbot, lambda: len(sheets(shown)) == 2)
    choose(shown, ThemeMode.LIGHT)
    settle(shown, qtbot)
    assert sheets(shown) == {style_sheet(LIGHT)}
    assert changed == [LIGHT]
    assert shown.transcript.view._theme == LIGHT
    assert QApplication.palette().window().color().name() == LIGHT.window
    assert all(len(seen) == 1 for seen in witness.seen)
    assert all(widget.updatesEnabled() for widget in windows_of(shown))


def test_a_theme_and_a_size_at_once_both_come_about(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    shown.menus.larger.trigger()
    settle(shown, qtbot)
    assert sheets(shown) == {style_sheet(DARK)}
    assert "font-size: 14px" in shown.status.styleSheet()  # 13 px at 110 %.


def test_pages_that_were_hidden_are_in_the_theme_when_they_are_shown(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    settle(shown, qtbot)
    for index in range(shown.side.count()):
        shown.side.setCurrentIndex(index)
        page = shown.side.currentWidget()
        picture = page.grab().toImage()
        grounds = {picture.pixelColor(x, picture.height() - 2).name() for x in range(0, picture.width(), 7)}
        assert LIGHT.surface not in grounds
        assert LIGHT.window not in grounds


def test_a_dialog_that_was_closed_is_in_the_theme_when_it_is_opened_again(shown, qtbot):
    shown.menus.help.trigger()
    page = shown.help.page
    until(qtbot, page.isVisible)
    page.close()
    choose(shown, ThemeMode.DARK)
    with qtbot.waitSignal(shown.look.settled, timeout=30_000):
        pass
    shown.menus.help.trigger()
    until(qtbot, page.isVisible)
    assert sheets(page) == {style_sheet(DARK)}
    until(qtbot, page.updatesEnabled)


def test_a_dialog_that_is_opened_in_the_middle_of_a_change_is_in_the_new_theme(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    assert not shown.look.is_settled
    shown.menus.check.trigger()
    settle(shown, qtbot)
    assert shown.tools.checks.window.styleSheet() == style_sheet(DARK)
    assert shown.tools.checks.window.updatesEnabled()


def test_a_dialog_that_goes_in_the_middle_of_a_change_is_left_out(shown, qtbot):
    box = QMessageBox(shown)
    box.open()
    choose(shown, ThemeMode.DARK)
    box.deleteLater()
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    settle(shown, qtbot)
    assert sheets(shown) == {style_sheet(DARK)}


def test_a_dialog_of_qt_looks_as_the_window_does(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    box = QMessageBox(shown)
    box.open()
    settle(shown, qtbot)
    assert box.styleSheet() == style_sheet(DARK)
    choose(shown, ThemeMode.LIGHT)
    settle(shown, qtbot)
    assert box.styleSheet() == style_sheet(LIGHT)
    box.close()


@pytest.mark.parametrize("name", ["models", "sweep"])
def test_a_dialog_that_opens_out_of_a_dialog_looks_as_that_does(shown, qtbot, name):
    getattr(shown.menus, name).trigger()
    parent = (shown.models if name == "models" else shown.tools.sweeps).window
    until(qtbot, parent.isVisible)
    box = QMessageBox(parent)
    box.open()
    assert box.styleSheet() == style_sheet(LIGHT)
    choose(shown, ThemeMode.DARK)
    settle(shown, qtbot)
    assert box.styleSheet() == style_sheet(DARK)
    assert sheets(parent) == {style_sheet(DARK)}
    box.close()


def test_what_fails_while_it_takes_a_theme_leaves_no_window_frozen(shown, qtbot, monkeypatch):
    def fail(_theme):
        raise ValueError("no colour")

    monkeypatch.setattr(shown.measurements, "set_theme", fail)
    with qtbot.captureExceptions() as caught:
        choose(shown, ThemeMode.DARK)
        settle(shown, qtbot)
    assert [kind for kind, *_ in caught] == [ValueError]
    assert all(widget.updatesEnabled() for widget in windows_of(shown))


def test_a_window_can_close_in_the_middle_of_a_change(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    shown.close()
    until(qtbot, lambda: shown.threads.is_closed)
    settle(shown, qtbot)


def test_the_desktops_own_change_takes_the_same_way(shown, qtbot, monkeypatch):
    choose(shown, ThemeMode.SYSTEM)
    settle(shown, qtbot)
    witness = Witness(shown)
    monkeypatch.setattr("app.look.resolve_theme", lambda _mode: DARK)
    QGuiApplication.styleHints().colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert not shown.look.is_settled
    settle(shown, qtbot)
    assert sheets(shown) == {style_sheet(DARK)}
    assert all(len(seen) == 1 for seen in witness.seen)


def test_a_window_that_is_not_on_screen_changes_at_once(window):
    choose(window, ThemeMode.DARK)
    assert window.look.is_settled
    assert sheets(window) == {style_sheet(DARK)}


# --- Turns ---


def test_pieces_are_done_in_order_and_other_events_come_in_between(qtbot, monkeypatch):
    monkeypatch.setattr("app.turns.TURN_S", 1e-9)
    turns, other, done = Turns(QApplication.instance()), QTimer(), []
    other.timeout.connect(lambda: done.append("other"))
    other.start(0)

    def pieces():
        for index in range(5):
            done.append(index)
            yield

    turns.start(pieces())
    assert (done, turns.is_going) == ([], True)
    until(qtbot, lambda: not turns.is_going)
    assert [what for what in done if what != "other"] == [0, 1, 2, 3, 4]
    assert all(after == "other" for what, after in itertools.pairwise(done) if what != "other")


def test_no_two_pieces_go_by_before_a_timer_that_is_due(qtbot, monkeypatch):
    """The first two as little as the others: Qt calls a repeating timer of 0 ms twice in the turn that it starts in."""
    monkeypatch.setattr("app.turns.TURN_S", 1e-9)
    turns, beat, done = Turns(QApplication.instance()), QTimer(), []
    beat.setTimerType(Qt.TimerType.PreciseTimer)
    beat.timeout.connect(lambda: done.append("beat"))

    def pieces():
        for index in range(4):
            done.append(index)
            begun = time.perf_counter()
            while time.perf_counter() - begun < 0.003:  # The beat is due by then.
                pass
            yield

    beat.start(1)
    until(qtbot, lambda: "beat" in done)
    for _ in range(3):
        QTimer.singleShot(5, lambda: turns.start(pieces()))
        until(qtbot, lambda: turns.is_going)
        until(qtbot, lambda: not turns.is_going)
    assert all("beat" in pair for pair in itertools.pairwise(done)), done


def test_what_is_left_can_be_done_at_once_or_given_up(qtbot):
    turns, done = Turns(QApplication.instance()), []

    def pieces(name):
        try:
            yield
            done.append(name)
        finally:
            done.append(f"end of {name}")

    turns.start(pieces("a"))
    turns.finish()
    assert (done, turns.is_going) == (["a", "end of a"], False)
    turns.start(pieces("b"))
    turns.start(pieces("c"))
    turns.finish()
    assert done == ["a", "end of a", "c", "end of c"]


def test_what_is_to_be_painted_has_a_turn_to_itself(qtbot):
    turns, done = Turns(QApplication.instance()), []

    def pieces():
        done.append("shown")
        yield from turns.rest()
        done.append("next")

    turns.start(pieces())
    QTimer.singleShot(0, lambda: QTimer.singleShot(0, lambda: done.append("painted")))
    until(qtbot, lambda: not turns.is_going)
    assert done == ["shown", "painted", "next"]
    turns.start(pieces())
    turns.finish()
    assert done[3:] == ["shown", "next"]


def test_what_two_have_frozen_is_painted_when_both_have_thawed_it(qtbot):
    widget = QWidget()
    qtbot.addWidget(widget)
    freeze([widget], "a")
    freeze([widget], "b")
    thaw([widget], "a")
    thaw([widget], "a")
    assert not widget.updatesEnabled()
    thaw([widget], "b")
    assert widget.updatesEnabled()


def test_a_long_catalogue_takes_a_look_card_by_card(shown, qtbot):
    choose(shown, ThemeMode.DARK)
    settle(shown, qtbot)
    shown.menus.get_models.trigger()
    page = shown.findChild(SuggestionsPage)
    until(qtbot, lambda: page.is_built and not page._building.is_going)
    cards = page._cards
    assert len(cards) > 3
    assert {card.styleSheet() for card in cards} == {style_sheet(DARK)}, "built when the look was there"
    assert page.styleSheet() == ""
    choose(shown, ThemeMode.LIGHT)
    until(qtbot, lambda: len({card.styleSheet() for card in cards}) == 2)
    settle(shown, qtbot)
    assert {card.styleSheet() for card in cards} == {style_sheet(LIGHT)}
    assert page.get.styleSheet() == style_sheet(LIGHT)


def test_the_settings_take_a_look_form_by_form(shown, qtbot):
    controls = shown.controls
    forms = [controls.models, controls.method, controls.draft_length, controls.sampling, controls.run]
    for mode, theme in ((ThemeMode.DARK, DARK), (ThemeMode.LIGHT, LIGHT)):
        choose(shown, mode)
        settle(shown, qtbot)
        assert {form.styleSheet() for form in forms} == {style_sheet(theme)}
        assert controls.styleSheet() == ""


def test_a_models_window_that_is_asked_for_twice_at_once_is_dressed(shown, qtbot):
    shown.menus.models.trigger()
    shown.menus.get_models.trigger()
    window = shown.models.window
    until(qtbot, window.isVisible)
    assert {part.styleSheet() for part in parts_of(window)} >= {style_sheet(LIGHT)}
    assert window.tabs.styleSheet() == style_sheet(LIGHT)


def test_the_sweep_window_is_dressed_in_turns_and_shown_behind_them_however_often_it_is_asked_for(shown, qtbot):
    shown.menus.sweep.trigger()
    window = shown.tools.sweeps.window
    assert not window.isVisible()
    until(qtbot, window.isVisible)
    assert window.form.window() is window
    assert window.styleSheet() != style_sheet(LIGHT), "no sheet reaches all of it in one call"
    parts = parts_of(window)
    assert len(parts) > 8
    assert {part.styleSheet() for part in parts} == {style_sheet(LIGHT)}
    window.close()
    shown.menus.sweep.trigger()
    assert window.isVisible(), "what is dressed is shown at once"
