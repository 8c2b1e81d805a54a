"""Larger and smaller text, everywhere at once, back again without a trace, and nothing clipped."""

from __future__ import annotations

from itertools import product

import pytest
from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QCheckBox,
    QComboBox,
    QLabel,
    QMenu,
    QPlainTextEdit,
    QStyle,
    QStyleOptionComboBox,
    QToolButton,
    QWidget,
)

from app.controller import RunState
from app.jobs import Jobs
from app.run.speed.speed import speed_report
from app.run.text.tokens import Place
from app.setup.model_library import ModelLibrary
from app.setup.prompt import LIVE_HINT, PromptEditor
from app.setup.settings_panel import SettingsPanel
from app.theme import DARK, LIGHT, SCALES, ThemeMode, apply_style, mono_font, next_scale, scaled, text_scale, ui_font
from app.widgets.fields import LONGEST_LINE, EnumCombo
from core.analysis.advice import Advice
from tests.fakes_app import drag_columns, run_of
from tests.test_core_diagnosis import drawn


@pytest.fixture(autouse=True)
def default_size(qapp):
    """The size is the application's, which outlives a test."""
    apply_style(LIGHT, 1.0)
    yield
    apply_style(LIGHT, 1.0)


TEXT = (QAbstractButton, QAbstractItemView, QComboBox, QLabel, QPlainTextEdit)


def fonts(window):
    """Of all that shows text; a widget takes its style sheet's font when it is first polished."""
    found = {}
    for widget in window.findChildren(QWidget):
        widget.ensurePolished()
        if isinstance(widget, TEXT) and not widget.objectName().startswith("qt_"):
            found[id(widget)] = widget.font().pixelSize()
    return found


def press(window, action, times=1):
    for _ in range(times):
        getattr(window.menus, action).trigger()


def test_larger_text_reaches_fonts_and_style_sheet_and_is_remembered(make_window):
    window = make_window()
    before = window.transcript.view.font().pixelSize(), window.prompt.edit.font().pixelSize()
    press(window, "larger", 2)
    assert text_scale() == 1.25
    assert (window.transcript.view.font().pixelSize(), window.prompt.edit.font().pixelSize()) == tuple(
        scaled(pixels) for pixels in before
    )
    assert "font-size: 15px" in QApplication.instance().styleSheet()
    assert ui_font(12).pixelSize() == mono_font(12).pixelSize() == 15
    window.close()
    window.deleteLater()
    apply_style(LIGHT, 1.0)
    again = make_window()
    assert text_scale() == 1.25
    assert again.transcript.view.font().pixelSize() == round(14 * 1.25)


def test_there_and_back_leaves_every_font_as_it_was_and_every_window_has_the_latest_size(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.models.trigger()
    qtbot.waitUntil(lambda: window.models.window is not None and window.models.window.isVisible())
    before, sheet = fonts(window), QApplication.instance().styleSheet()
    for actions in (("larger", "default_size"), ("smaller", "larger")):
        for action in actions:
            press(window, action)
        assert before.items() <= fonts(window).items()
        assert QApplication.instance().styleSheet() == sheet
        assert window.status.count.sizeHint().width() == window.status.count.minimumWidth(), "no room is left over"
    press(window, "larger")
    window.menus.production.trigger()
    page = window.exports.page
    press(window, "larger")
    press(window, "default_size")
    apply_style(DARK, 1.0)
    apply_style(LIGHT, 1.0)
    assert {text.font().pixelSize() for text in page.findChildren(QPlainTextEdit)} == {13}, "a theme keeps the size"
    press(window, "larger", 2)
    assert {text.font().pixelSize() for text in page.findChildren(QPlainTextEdit)} == {mono_font().pixelSize()}
    table = window.models.window.table
    assert table.font().pixelSize() == window.status.font().pixelSize() == scaled(13)


def test_at_every_size_the_columns_fit_into_the_least_window_and_the_ends_say_so(make_window, qtbot):
    window = make_window(is_shown=True)
    window.side.setCurrentWidget(window.speed)
    window.speed._show(speed_report(run_of(drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0))))
    window.speed.fold.set_open(True)
    box = window.findChild(QCheckBox)
    press(window, "smaller", 2)
    for scale in SCALES:
        assert text_scale() == scale
        assert box.style().pixelMetric(QStyle.PixelMetric.PM_IndicatorWidth, None, box) == scaled(16) + 2
        assert window.menus.smaller.isEnabled() is (scale != SCALES[0])
        assert window.menus.larger.isEnabled() is (scale != SCALES[-1])
        assert window.menus.default_size.isEnabled() is (scale != 1.0)
        for size in (window.minimumSize(), QSize(1024, 700), QSize(1280, 800)):
            window.resize(size)
            assert (window.width(), window.height()) == (size.width(), size.height()), "it fits a small screen"
            window.columns.show_settings()
            columns = (window.controls, window.text_splitter, window.side)
            assert all(column.width() >= column.minimumWidth() for column in columns)
            # No column has a horizontal scroll bar: what is wider than they are is lost.
            assert window.controls.widget().minimumSizeHint().width() <= window.controls.viewport().width()
            window.side.setCurrentWidget(window.speed)
            assert window.speed.area.widget().minimumSizeHint().width() <= window.speed.area.viewport().width()
        press(window, "larger")
    window.resize(1280, 800)
    press(window, "default_size")
    drag_columns(window, [300, 520, 412])
    sizes = window.main_splitter.sizes()
    press(window, "larger")
    assert window.controls.width() > 300, "the settings grow with their text"
    press(window, "smaller")
    assert window.main_splitter.sizes() == sizes
    tools = [*window.transcript.findChildren(QToolButton), *window.prompt.findChildren(QToolButton)]

    def cut():
        return [tool for tool in tools if tool.isVisible() and tool.width() < tool.minimumSizeHint().width()]

    qtbot.waitUntil(lambda: not cut())
    assert (next_scale(1.04, 1), next_scale(0.1, -1)) == (1.1, SCALES[0])


def test_a_narrow_window_has_its_settings_as_a_page_and_a_wide_one_gets_its_columns_back(make_window, qtbot):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    drag_columns(window, [310, 500, 422])
    sizes = window.main_splitter.sizes()
    field = window.controls.fields["seed"]
    window.activateWindow()
    field.setFocus()
    qtbot.waitUntil(field.hasFocus)
    window.resize(800, 700)
    assert [window.side.tabText(index) for index in range(window.side.count())] == [
        "Settings", "Run", "Inspector", "Speed"]  # fmt: skip
    assert field.isVisible(), "the page with the focus is in front"
    assert field.hasFocus()
    window.menus.apart.trigger()
    assert window.focusWidget() is field, "also where the pages are taken out"
    window.menus.apart.trigger()
    assert window.focusWidget() is field
    window.menus.pages[0].trigger()
    assert window.side.currentWidget() is window.measurements
    window.speed.applied.emit(Advice("", settings={"draft": None}))
    qtbot.waitUntil(window.controls.draft.combo.view().isVisible)
    window.controls.draft.combo.hidePopup()
    window.resize(1280, 800)
    assert window.side.count() == 3
    assert window.controls.isVisible()
    assert window.main_splitter.sizes() == sizes
    drag_columns(window, [272, 538, 422])
    width = window.controls.width()
    press(window, "larger", times=3)
    window.transcript.view.setFocus()
    window.side.setCurrentWidget(window.inspector)
    window.resize(1024, 700)
    assert (window.columns.is_narrow, window.side.title()) == (True, "Inspector")
    widths = [window.side.tabBar().tabRect(index).width() for index in range(4)]
    window.menus.pages[0].trigger()
    window.side.setCurrentWidget(window.inspector)
    again = [window.side.tabBar().tabRect(index).width() for index in range(4)]
    assert widths == again, "the title in front is not cut"
    press(window, "default_size")
    window.resize(1280, 800)
    assert window.controls.width() == pytest.approx(width, abs=16), "what larger text took is given back"


def test_with_large_text_a_folded_prompt_has_no_heading_above_it_and_one_line_in_a_low_window(make_window):
    window = make_window(is_shown=True)
    prompt = window.prompt
    for times, is_headed in ((0, True), (2, False), (1, False)):
        press(window, "larger", times)
        prompt.set_folded(is_folded=True)
        for size, num_lines in (((1280, 800), 2), ((1024, 700), 2 if is_headed else 1), ((1280, 800), 2)):
            window.resize(*size)
            assert prompt.presets_button.isVisible() is is_headed
            note = prompt.note
            assert prompt.unfold_button.isVisible() is not is_headed
            if not is_headed:
                assert prompt.unfold_button.text() == "▸ Prompt"
                assert note.minimumHeight() < 3 * note.fontMetrics().lineSpacing(), "its hint takes two lines at most"
            assert int(prompt._pages.maximumHeight() / prompt.edit.cursorRect().height()) == num_lines
        prompt.unfold_button.click() if prompt.unfold_button.isVisible() else prompt.set_folded(is_folded=False)
        assert prompt.presets_button.isVisible()
        assert not prompt.unfold_button.isVisible()


def test_the_controls_beside_run_are_never_cut_off(qtbot):
    prompt = PromptEditor(SettingsPanel(ModelLibrary(), Jobs()), Jobs())
    qtbot.addWidget(prompt)
    note = prompt.note
    prompt.resize(900, 300)
    prompt.show()
    prompt.show_state(RunState.RUNNING, None)
    assert note.text() == LIVE_HINT
    prompt.resize(prompt.minimumSizeHint().width(), 300)
    qtbot.waitUntil(lambda: note.text() == "Esc stops.")
    # A problem has no short form: the note takes the height that it needs.
    prompt.show_state(RunState.IDLE, "The prompt is empty. Write a few words for the model to continue.")
    qtbot.waitUntil(lambda: note.height() >= note.heightForWidth(note.width()) > 60)
    prompt.resize(900, 300)
    qtbot.waitUntil(lambda: note.minimumHeight() < 60)


def test_the_hints_of_a_run_leave_the_text_below_a_folded_prompt_where_it_is(make_window):
    window = make_window(is_shown=True)
    window.appearance.set(ThemeMode.DARK, 1.5)
    window.columns.fit()
    window.resize(1024, 700)
    prompt, heights = window.prompt, set()
    prompt.set_folded(is_folded=True)
    for state, is_baseline in ((RunState.IDLE, False), *product((RunState.RUNNING, RunState.PAUSED), (False, True))):
        prompt.show_state(state, None, is_baseline=is_baseline)
        heights.add(prompt.note.minimumHeight())
    assert len(heights) == 1


def test_below_long_messages_in_a_low_window_the_rows_under_the_text_keep_their_height(make_window, qtbot):
    window = make_window(is_shown=True)
    window.appearance.set(ThemeMode.DARK, 1.5)
    window.columns.fit()
    window.resize(1024, 700)
    window.transcript.show_whose("This is the previous run.")
    window.banner.show_sentence("\n".join(["As high as a problem and a verdict together"] * 7))
    bar = window.playback
    qtbot.waitUntil(lambda: window.banner.height() > 180)
    qtbot.waitUntil(lambda: bar.height() >= bar.minimumSizeHint().height())


def test_a_callout_in_large_text_stays_beside_the_card_that_it_points_into(make_window):
    window = make_window(is_shown=True)
    window.appearance.set(ThemeMode.DARK, 1.5)
    window.columns.fit()
    window.resize(1024, 700)
    callout, card = window.introduction.callout, window.transcript
    callout.show_text(
        "2 of 3", "Being checked", "It takes little longer than writing one token. " * 3, Place(-1, -1), is_last=False
    )
    left = card.mapTo(window, QPoint()).x()
    assert left < callout.x() < callout.geometry().right() < left + card.width()


@pytest.mark.parametrize("size", [QSize(1024, 700), QSize(1280, 800)])
def test_the_text_of_every_fixed_choice_is_whole(make_window, qtbot, size):
    window = make_window(is_shown=True)
    window.resize(size)
    controls, choices = window.controls, window.findChildren(EnumCombo)
    controls.advanced.set_open(True)

    def cut():
        for combo in filter(QWidget.isVisible, choices):
            option = QStyleOptionComboBox()
            combo.initStyleOption(option)
            part = QStyle.SubControl.SC_ComboBoxEditField
            room = combo.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, combo).width()
            texts = map(combo.itemText, range(combo.count()))
            yield from (text for text in texts if combo.fontMetrics().horizontalAdvance(text) > room)

    for times in (0, 2, 1):
        press(window, "larger", times)
        window.columns.show_settings()
        for method in ("draft-tree", "medusa", "draft-model"):
            controls.method.choose(method)
            assert controls.fields["verification"].isVisible()
            qtbot.waitUntil(lambda: not [*cut()])


def test_no_tooltip_is_a_line_across_the_screen(window):
    for action in (window.menus.runs, window.menus.check, window.menus.sweep, window.menus.models):
        action.trigger()
    # pyqtgraph's own menus are never shown.
    widgets = [widget for widget in window.findChildren(QWidget) if not isinstance(widget.window(), QMenu)]
    tips = {widget.toolTip() for widget in widgets}
    for combo in window.findChildren(QComboBox):
        tips |= {combo.itemData(index, Qt.ItemDataRole.ToolTipRole) or "" for index in range(combo.count())}
    assert [tip for tip in tips if max(map(len, tip.split("\n"))) > LONGEST_LINE and not tip.startswith("<")] == []
