"""Larger and smaller text, everywhere at once, and back again without a trace."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QComboBox,
    QLabel,
    QPlainTextEdit,
    QWidget,
)

from app.theme import LIGHT, SCALES, apply_style, mono_font, next_scale, scaled, text_scale, ui_font
from app.widgets.fields import SPIN_WIDTH


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


def test_larger_text_reaches_fonts_and_style_sheet(window):
    before = window.transcript.view.font().pixelSize(), window.prompt.edit.font().pixelSize()
    press(window, "larger", 3)
    assert text_scale() == 1.5
    assert (window.transcript.view.font().pixelSize(), window.prompt.edit.font().pixelSize()) == tuple(
        scaled(pixels) for pixels in before
    )
    assert "font-size: 18px" in QApplication.instance().styleSheet()
    assert ui_font(12).pixelSize() == mono_font(12).pixelSize() == 18


def test_frames_and_corners_stay_as_thin_as_they_are(window):
    press(window, "larger", 3)
    sheet = QApplication.instance().styleSheet()
    assert "border: 1px solid" in sheet
    assert "border-radius: 10px" in sheet
    assert "min-height: 4px; max-height: 4px" in sheet, "the progress bar holds no text"


@pytest.mark.parametrize("way", [("smaller", "larger"), ("larger", "smaller")])
def test_there_and_back_leaves_every_font_as_it_was(window, way):
    before, sheet = fonts(window), QApplication.instance().styleSheet()
    for action in way:
        press(window, action, 5)
    press(window, "default_size")
    assert fonts(window) == before
    assert QApplication.instance().styleSheet() == sheet


def test_every_window_has_the_size_that_was_chosen_last(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.models.trigger()
    qtbot.waitUntil(lambda: window.models.window is not None and window.models.window.isVisible())
    before = fonts(window)
    for actions in (("larger", "smaller"), ("larger", "larger", "default_size"), ("smaller", "larger")):
        for action in actions:
            press(window, action)
        now = fonts(window)
        assert before.items() <= now.items()
        before = now
    press(window, "larger")
    press(window, "larger")
    window.menus.production.trigger()
    page = window.exports.page
    press(window, "smaller")
    window.menus.production.trigger()
    press(window, "larger")
    assert {text.font().pixelSize() for text in page.findChildren(QPlainTextEdit)} == {mono_font().pixelSize()}
    table = window.models.window.table
    assert table.font().pixelSize() == window.status.font().pixelSize() == scaled(13)


def test_the_ends_of_the_range_say_so(window):
    press(window, "smaller", 9)
    assert text_scale() == SCALES[0]
    assert not window.menus.smaller.isEnabled()
    assert window.menus.larger.isEnabled()
    press(window, "larger", 9)
    assert text_scale() == SCALES[-1]
    assert not window.menus.larger.isEnabled()
    press(window, "default_size")
    assert text_scale() == 1.0
    assert not window.menus.default_size.isEnabled()


def test_a_size_from_elsewhere_steps_to_a_known_one():
    assert next_scale(1.04, 1) == 1.1
    assert next_scale(0.1, -1) == SCALES[0]


def test_the_size_is_remembered(make_window, session, tmp_path):

    window = make_window()
    press(window, "larger", 2)
    window.close()
    press(window, "default_size")
    again = make_window()
    assert text_scale() == 1.25
    assert again.transcript.view.font().pixelSize() == round(14 * 1.25)


@pytest.mark.parametrize("scale", SCALES)
def test_the_columns_fit_into_the_least_window(make_window, qtbot, scale):
    window = make_window(is_shown=True)
    window._scale_text(scale)
    window.resize(window.minimumSize())
    columns = (window.controls, window.text_splitter, window.side)
    assert all(column.width() >= column.minimumWidth() for column in columns)
    assert window.minimumWidth() <= 1280
    # The settings have no horizontal scroll bar: what is wider than they are is lost.
    assert window.controls.widget().minimumSizeHint().width() <= window.controls.viewport().width()


def test_held_lengths_go_with_the_text(window):
    spin = window.controls.draft_length.number.spin
    before = spin.width(), window.status.height()
    press(window, "larger", 3)
    assert spin.minimumWidth() == round(SPIN_WIDTH * 1.5)
    assert window.status.maximumHeight() > before[1]
    press(window, "default_size")
    assert spin.minimumWidth() == SPIN_WIDTH
