"""What makes room for large text in a small window: fewer words, another row, no half of a word."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QScrollArea, QToolButton, QVBoxLayout, QWidget

from app.controller import RunState
from app.run.inspection import Chip, Fate
from app.run.inspector import BlockRow
from app.run.playback import PlaybackBar
from app.run.tiles import Tile
from app.setup.prompt import PromptEditor
from app.theme import LIGHT, apply_style


@pytest.fixture(autouse=True)
def default_size(qapp):
    """The size is the application's, which outlives a test."""
    yield
    apply_style(LIGHT, 1.0)


def test_a_tiles_note_has_a_short_form_for_a_narrow_tile(qtbot):
    tile = Tile("Measured speedup", "speedupValue", "how")
    qtbot.addWidget(tile)
    tile.show_value("1.52×", "baseline 180.4 tokens/s", "baseline 180.4/s")
    tile.show()
    metrics = tile.note.fontMetrics()
    tile.note.resize(metrics.horizontalAdvance("baseline 180.4/s") + 4, 20)
    assert tile.note.shown_text() == "baseline 180.4/s"
    tile.note.resize(metrics.horizontalAdvance("baseline 180.4 tokens/s") + 4, 20)
    assert tile.note.shown_text() == tile.note.text() == "baseline 180.4 tokens/s"


def test_the_slider_goes_below_where_it_would_be_no_use_beside_the_buttons(qtbot):
    bar = PlaybackBar()
    qtbot.addWidget(bar)
    bar.show_steps(43, can_scrub=True)
    bar.resize(900, bar.sizeHint().height())
    bar.show()
    assert bar.slider.y() < bar.pause_button.geometry().bottom()
    apply_style(LIGHT, 1.5)
    bar.resize(240, 100)
    qtbot.waitUntil(lambda: bar.slider.y() > bar.pause_button.geometry().bottom())
    assert bar.pace.width() >= bar.pace.sizeHint().width()
    assert bar.slider.width() > 100
    apply_style(LIGHT, 1.0)
    bar.resize(900, 100)
    qtbot.waitUntil(lambda: bar.slider.y() < bar.pause_button.geometry().bottom())
    assert bar.slider.x() > bar.pace.x()


def test_at_the_largest_text_in_a_small_window_no_button_is_cut(make_window, qtbot):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    window._scale_text(1.5)
    panel, button = window.transcript, window.transcript.ghosts_button
    tools = [*panel.findChildren(QToolButton), *window.prompt.findChildren(QToolButton)]

    def cut():
        return [tool for tool in tools if tool.isVisible() and tool.width() < tool.minimumSizeHint().width()]

    qtbot.waitUntil(lambda: not cut())
    window._scale_text(1.0)
    qtbot.waitUntil(lambda: button.y() < panel.view.y() and button.x() > panel.width() // 2)


def test_an_upright_title_is_left_out_where_it_would_be_cut(make_window, qtbot):
    window = make_window(is_shown=True)
    plot = window.measurements.acceptance
    label = plot.getPlotItem().getAxis("left").label
    plot.setFixedHeight(300)
    qtbot.waitUntil(lambda: label.opacity() == 1.0)
    plot.setFixedHeight(90)
    qtbot.waitUntil(lambda: label.opacity() == 0.0)


def test_an_empty_plots_sentence_is_wrapped_where_it_would_be_cut(make_window, qtbot):
    window = make_window(is_shown=True)
    plot = window.measurements.latency
    hint = plot._hint
    whole = hint.textItem.boundingRect().height()
    plot.setFixedWidth(240)

    def is_inside():
        shown, box = hint.mapRectToParent(hint.boundingRect()), plot.getViewBox().boundingRect()
        return shown.width() <= box.width() + 1 and hint.textItem.boundingRect().height() > whole

    qtbot.waitUntil(is_inside)


def test_the_text_beside_run_is_never_cut(qtbot):
    prompt = PromptEditor([])
    qtbot.addWidget(prompt)
    note = prompt.note
    prompt.resize(900, 300)
    prompt.show()
    prompt.show_state(RunState.RUNNING, None)
    assert note.text() == "K and temperature can be changed while it runs."
    prompt.resize(prompt.minimumSizeHint().width(), 300)
    qtbot.waitUntil(lambda: note.text() == "K and temperature are live.")
    # A problem has no short form: the note takes the height that it needs.
    prompt.show_state(RunState.IDLE, "The prompt is empty. Write a few words for the model to continue.")
    qtbot.waitUntil(lambda: note.height() >= note.heightForWidth(note.width()) > 60)
    prompt.resize(900, 300)
    qtbot.waitUntil(lambda: note.minimumHeight() < 60)


def test_chips_that_wrap_get_the_height_of_their_lines(qtbot):
    parent, row = QWidget(), BlockRow()
    qtbot.addWidget(parent)
    layout = QVBoxLayout(parent)
    layout.addWidget(row)
    layout.addStretch(1)
    row.show_chips([Chip(slot, f"token{slot}", Fate.ACCEPTED, is_current=slot == 0) for slot in range(6)])
    parent.resize(900, 400)
    parent.show()
    one_line = row.height()
    parent.resize(220, 400)
    qtbot.waitUntil(lambda: row.height() == row.heightForWidth(row.width()) > one_line)
    assert row.boxes()[5].bottom() <= row.height()


def test_the_settings_fit_a_window_of_the_usual_size(make_window, qtbot):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    scroll = window.findChild(QScrollArea, "sidebarScroll")
    qtbot.waitUntil(lambda: window.height() == 800 and scroll.verticalScrollBar().maximum() == 0)
